"""Loss and score are checked before round 1: one number per example, in both engines and at Flower's sites."""

import dataclasses
import functools
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import evenfed
from evenfed import losses, scores

CPU = {"device": "cpu", "rounds": 1, "lr": 0.1}
ENGINES = pytest.mark.parametrize("engine", ["parallel", "reference"])


def clients(targets, count=3, examples=6, inputs=4):
    """Clients whose targets are `targets(inputs)`, with test data of the same kind."""
    torch.manual_seed(0)
    made = []
    for _ in range(count):
        x = torch.randn(examples, inputs)
        test = torch.randn(examples, inputs)
        made.append(evenfed.Client((x, targets(x)), (test, targets(test))))
    return made


def positive(x):
    return (x[:, 0] > 0).long()


def positive_float(x):
    return (x[:, 0] > 0).float()


def total(x):
    return x.sum(1)


def column(x):
    return x.sum(1, keepdim=True)


def third(x):
    return (x[:, 0] > 0).long() * 2


def logit():
    torch.manual_seed(1)
    return nn.Linear(4, 1)


class Sequences(nn.Module):
    """Scores of 5 classes at each of 4 positions, classes last, as language models give them."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 5)

    def forward(self, x):
        return self.last(x[..., None])


class Squeezed(nn.Module):
    """`squeeze()` drops the axis of a batch of one example, too."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(x).squeeze()


def squared(out, y):
    return (out - y) ** 2


def squared_mean_of_rows(out, y):
    return ((out - y) ** 2).mean(1)


def own_row(out, y):
    return (out.flatten() - y) ** 2


def hits(out, y):
    return (out > 0) == y


def hit_rate(out, y):
    return (out.argmax(1) == y).float().mean()


def one_hot(x):
    return F.one_hot(positive(x), 3)


def swapped(y, out):
    return F.cross_entropy(out, y, reduction="none")


def nan_loss(out, y):
    return own_row(out, y) * torch.nan


class InPlace(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

    def forward(self, x):
        x += 1
        return super().forward(x)


class Tempered(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, outputs, targets):
        return losses.cross_entropy(outputs * self.temperature, targets)


BAD = {
    "broadcast loss": (logit, total, {"loss": squared}, r"loss gave \[8, 8\] for 8 examples.*\[8, 1\].*targets \[8\]"),
    "torch's broadcast loss": (logit, total, {"loss": nn.MSELoss(reduction="none")}, r"losses\.mse"),
    "a broadcast loss made flat": (logit, total, {"loss": squared_mean_of_rows}, "changes with the other examples"),
    "broadcast score": (logit, positive, {"loss": losses.binary, "score": hits}, r"score gave \[8, 8\] for 8 examples"),
    "mean loss": (logit, total, {"loss": nn.MSELoss()}, "one loss per example .*reduction='none'"),
    "mean of a function": (lambda: nn.Linear(4, 2), positive, {"loss": F.cross_entropy}, "one loss per example"),
    "scalar score": (lambda: nn.Linear(4, 2), positive, {"score": hit_rate}, "score gave one number for 8 examples"),
    "a score that is no tensor": (lambda: nn.Linear(4, 2), positive, {"score": lambda out, y: 0.5}, "gave a float"),
    "three outputs for a number": (lambda: nn.Linear(4, 3), column, {"loss": "mse"}, r"\[8, 3\] outputs for \[8, 1\]"),
    "classes beyond the model's": (lambda: nn.Linear(4, 2), third, {"loss": "cross_entropy"}, "targets go up to 2"),
    "a score that fails": (lambda: nn.Linear(4, 2), positive, {"score": lambda out, y: out[:, 7]}, "score fails on"),
    "no function": (lambda: nn.Linear(4, 2), positive, {"score": 3}, "score=3"),
    "unknown name": (logit, total, {"loss": "mze"}, "did you mean 'mse'"),
    "binary, float targets": (logit, positive_float, {"loss": nn.BCEWithLogitsLoss(reduction="none")}, "losses.binary"),
    "binary, int targets": (
        lambda: nn.Sequential(logit(), nn.Flatten(0)),
        positive,
        {"loss": nn.BCEWithLogitsLoss(reduction="none")},
        "give float targets",
    ),
    "one logit, int targets": (logit, positive, {}, "losses.binary"),
    "one number, int targets": (lambda: nn.Sequential(logit(), nn.Flatten(0)), positive, {}, "losses.binary"),
    "float targets": (lambda: nn.Linear(4, 2), total, {}, '"mse" for numbers'),
    "classes last": (Sequences, lambda x: (x > 0).long(), {}, r"movedim\(-1, 1\)"),
    "classes last, many": (Sequences, lambda x: 4 * (x > 0).long(), {}, r"\[8, 4, 5\].*movedim\(-1, 1\)"),
    "a batch of one loses its axis": (Squeezed, total, {"loss": squared}, r"squeeze\(-1\)"),
    "a column of classes": (lambda: nn.Linear(4, 3), lambda x: positive(x)[:, None], {}, r"give y\.squeeze\(1\)"),
    "one-hot whole numbers": (lambda: nn.Linear(4, 3), one_hot, {}, r"give the class numbers: y\.argmax\(1\)"),
    "one-hot for a named loss": (lambda: nn.Linear(4, 3), one_hot, {"loss": "cross_entropy"}, r"y\.argmax\(1\)"),
    "several labels": (lambda: nn.Linear(4, 3), lambda x: (x[:, :3] > -1).long(), {}, "3 labels.*give loss='binary'"),
    "AUROC of several labels": (
        lambda: nn.Linear(4, 3),
        lambda x: (x[:, :3] > 0).long(),
        {"loss": "binary", "score": "auroc"},
        r"score='auroc' takes one target per example, and targets are \[\d+, 3\]",
    ),
    "numbers from three outputs": (lambda: nn.Linear(4, 3), positive, {"loss": "mse"}, "for classes leave `loss` out"),
    "a binary loss of two outputs": (
        lambda: nn.Linear(4, 2),
        positive,
        {"loss": "binary"},
        "takes one logit per example",
    ),
    "swapped arguments": (lambda: nn.Linear(4, 3), positive, {"loss": swapped}, r"it takes \(targets, outputs\)"),
    "a class of torch": (
        lambda: nn.Linear(4, 2),
        positive,
        {"loss": nn.CrossEntropyLoss},
        "is a class; give an instance",
    ),
    "a mean of torch": (
        lambda: nn.Linear(4, 2),
        positive,
        {"loss": nn.CrossEntropyLoss()},
        "loss='cross_entropy' does",
    ),
    "a loss of NaN": (lambda: nn.Linear(4, 1), total, {"loss": nan_loss}, "loss is not finite for any of 8 training"),
    "an augmentation of another shape": (
        lambda: nn.Linear(4, 2),
        positive,
        {"augment": lambda batch, draw: batch[:, :2]},
        r"what augment makes, inputs \[2\] float32 of \[4\]",
    ),
    "an augmentation that drops examples of longer batches": (
        lambda: nn.Linear(4, 2),
        positive,
        {"augment": lambda batch, draw: batch[:3]},
        "augment made 3 examples of",
    ),
    "a loss with parameters to train": (
        lambda: nn.Linear(4, 2),
        positive,
        {"loss": Tempered()},
        r"parameters of its own \(temperature\).*put them into the model",
    ),
    "a model that writes to its inputs": (InPlace, positive, {}, "changes its inputs in place"),
    "no gradient": (lambda: nn.Linear(4, 2), positive, {"loss": scores.top1}, "no gradient"),
}


@ENGINES
@pytest.mark.parametrize("case", BAD)
def test_a_loss_or_score_that_cannot_be_right_is_refused_before_round_1(case, engine):
    model, targets, measures, message = BAD[case]
    with pytest.raises(evenfed.InputError, match=message):
        evenfed.train(model(), clients(targets), "fedavg", engine=engine, **measures, **CPU)


def test_a_broadcast_score_is_refused_where_the_federation_has_one_example_too():
    single = clients(positive, count=1, examples=1)
    with pytest.raises(evenfed.InputError, match=r"score gave \[2, 2\] for 2 examples"):
        evenfed.train(logit(), single, loss=losses.binary, score=hits, **CPU)


@ENGINES
def test_nothing_fails_at_the_end_that_could_fail_at_the_start(engine):
    """The score is tried on test data, even where it is asked for at the last round alone."""
    rounds = []
    given = clients(positive)
    for k, client in enumerate(given):
        x, y = client.test
        given[k] = evenfed.Client(client.train, (x, y[:, None].float()))
    options = {**CPU, "rounds": 30, "evaluate_every": 0, "callbacks": [rounds.append], "engine": engine}
    with pytest.raises(evenfed.InputError, match=r"loss fails .*test.*targets \[8, 1\]"):
        evenfed.train(nn.Linear(4, 2), given, loss=losses.cross_entropy, **options)

    def flat(out, y):
        return losses.cross_entropy(out, y.flatten().long())

    with pytest.raises(evenfed.InputError, match=r"score gave .*test.*targets \[8, 1\]"):
        evenfed.train(nn.Linear(4, 2), given, loss=flat, score=scores.top1, **options)
    assert rounds == []


@ENGINES
def test_whole_numbers_and_yes_or_no_are_scores(engine):
    """Also of code that looks into the values, which cannot be vectorised."""

    def hit(out, y):
        assert float(out.sum()) < 1e9
        return out.argmax(1) == y

    options = {**CPU, "engine": engine}
    five = clients(positive, count=5)  # enough to be stacked
    wanted = evenfed.train(nn.Linear(4, 2), five, seed=1, **options)
    for score in (hit, lambda out, y: (out.argmax(1) == y).long()):
        result = evenfed.train(wanted.model, five, score=score, **options)
        again = evenfed.train(wanted.model, five, **options)
        assert result.accuracy.tolist() == again.accuracy.tolist()


@ENGINES
def test_values_per_position_are_averaged_as_long_as_they_are_the_examples_own(engine):
    """[b, T] with T = b is no broadcast."""
    model = nn.Sequential(Sequences(), nn.Unflatten(2, (1, 5)), nn.Flatten(1, 2))

    def moved(out, y):
        return F.cross_entropy(out.movedim(-1, 1), y, reduction="none")

    result = evenfed.train(
        model, clients(lambda x: (x > 0).long(), examples=4), loss=moved, score=lambda o, y: o.argmax(2) == y,
        engine=engine, **CPU,
    )  # fmt: skip
    assert result.accuracy.shape == (3,)


@ENGINES
def test_binary_tasks_and_regression_work_with_what_is_shipped(engine):
    """One logit per example, whether [b] or [b, 1], whole or float targets: the same numbers."""
    options = {**CPU, "rounds": 6, "lr": 2.0, "engine": engine}
    some = functools.partial(clients, examples=30)
    reference = evenfed.train(logit(), some(positive), "fedavg", loss=losses.binary, **options)
    assert reference.fairness.mean > 0.8
    flat = nn.Sequential(logit(), nn.Flatten(0))
    torch_loss = nn.BCEWithLogitsLoss(reduction="none")
    for model, targets, loss in (
        (logit(), positive_float, "binary"),
        (flat, positive, losses.binary),
        (flat, positive_float, torch_loss),
        (flat, positive_float, functools.partial(F.binary_cross_entropy_with_logits, reduction="none")),
    ):
        result = evenfed.train(model, some(targets), "fedavg", loss=loss, **options)
        assert result.records[-1].losses == pytest.approx(reference.records[-1].losses, rel=1e-5)
        if loss in ("binary", losses.binary, torch_loss):
            assert result.accuracy.tolist() == reference.accuracy.tolist()
    for loss in ("mse", "mae"):
        result = evenfed.train(logit(), some(total), "fedavg", loss=loss, **{**options, "lr": 0.1})
        assert result.records[-1].losses.max() < 0.9 * result.records[0].losses.max()
    own = evenfed.train(logit(), some(total), "fedavg", loss=own_row, **{**options, "lr": 0.1})
    mse = evenfed.train(logit(), some(total), "fedavg", loss="mse", **{**options, "lr": 0.1})
    assert own.records[-1].losses == pytest.approx(mse.records[-1].losses)


WRONG_BINARY = {
    "1 and 2": (lambda x: positive(x) + 1, r"1, 2 \(int64\)"),
    "-1 and 1": (lambda x: 2 * positive(x) - 1, r"-1, 1 \(int64\)"),
    "0 and 5": (lambda x: 5 * positive(x), r"0, 5 \(int64\)"),
    "three classes": (lambda x: x[:, 0].argsort() % 3, r"0, 1, 2 \(int64\)"),
    "floats": (lambda x: positive_float(x) * 1.5, r"0, 1.5 \(float32\)"),
    "one of several labels": (lambda x: torch.stack([positive(x), 2 * positive(x)], 1), r"0, 1, 2 \(int64\)"),
}


@pytest.mark.parametrize("loss", ["binary", nn.BCEWithLogitsLoss(reduction="none")])
@pytest.mark.parametrize("case", WRONG_BINARY)
def test_a_binary_loss_takes_no_other_labels(case, loss):
    """Of the third client alone, in each of its parts; as a list, and in one table."""
    targets, told = WRONG_BINARY[case]
    model = nn.Linear(4, 2) if case == "one of several labels" else nn.Sequential(logit(), nn.Flatten(0))
    right = lambda x: torch.zeros_like(targets(x)).clamp(0, 1)  # noqa: E731
    for part in ("train", "test"):
        given = clients(right, examples=20)
        x, _ = getattr(given[2], part)
        given[2] = dataclasses.replace(given[2], name="west", **{part: (x, targets(x))})
        if loss != "binary":  # torch's takes floats alone
            given = [as_floats(client) for client in given]
        values = told if loss == "binary" else told.replace("int64", "float32")
        with pytest.raises(
            evenfed.InputError, match=f"client west, {part}: targets are {values}; a binary loss takes 0"
        ):
            evenfed.train(model, given, loss=loss, **CPU)


def as_floats(client):
    (x, y), (test, answers) = client.train, client.test
    return dataclasses.replace(client, train=(x, y.float()), test=(test, answers.float()))


def test_a_binary_loss_takes_no_other_labels_from_tables_or_held_out_data():
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    wrong = (x, positive(x) + 1)
    right = (x, positive(x))
    fine = evenfed.Clients(right, [10, 10], right, [10, 10])
    for table, where in (
        (evenfed.Clients((x, torch.cat([right[1][:12], torch.full((8,), 2)])), [10, 10]), "client 1, train"),
        (evenfed.Clients(right, [10, 10], wrong, [0, 20]), "client 1, test"),
    ):
        with pytest.raises(evenfed.InputError, match=f"{where}: targets are .*2 .int64.; a binary loss"):
            evenfed.train(logit(), table, loss="binary", **CPU)
    for held_out in ({"unseen": [evenfed.Client(wrong)]}, {"test": wrong}):
        (what,) = held_out
        with pytest.raises(evenfed.InputError, match=f"{what} examples of client 0: targets are 1, 2"):
            evenfed.train(logit(), fine, loss="binary", **held_out, **CPU)


def test_a_binary_loss_takes_no_other_labels_from_clients_that_are_read_later():
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    right = (x, positive(x))
    later = evenfed.Client(lambda: right, right, size=20)
    for wrong in (
        evenfed.Client(lambda: (x, positive(x) + 1), size=20),
        evenfed.Client((x, positive(x) + 1)),  # at hand
        evenfed.Client(right, (x, positive(x) + 1)),
    ):
        part = "train" if wrong.test is None else "test"
        with pytest.raises(evenfed.InputError, match=f"client 1, {part}: targets are 1, 2 .*a binary loss takes 0"):
            evenfed.train(logit(), [later, wrong], loss="binary", **CPU)
    result = evenfed.train(logit(), [later, later], loss="binary", **CPU)
    assert np.isfinite(result.test_losses).all()


def test_classes_of_clients_at_hand_are_checked_before_round_1_beside_those_read_later():
    rounds = []
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    later = evenfed.Client(lambda: (x, positive(x)), size=20)
    wrong = evenfed.Client((x, positive(x) + 1))
    with pytest.raises(evenfed.InputError, match="targets go from 1 to 2, but the model scores 2 classes"):
        evenfed.train(nn.Linear(4, 2), [later, later, wrong], callbacks=rounds.append, participation=1, **CPU)
    assert rounds == []


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        (logit, lambda x: x[:, 0].sigmoid()),
        (logit, lambda x: x[:, 0] > 0),
        (lambda: nn.Linear(4, 2), lambda x: (x[:, :2] > 0).long()),
        (lambda: nn.Linear(4, 2), lambda x: (x[:, :2] > 0).float()),
    ],
)
def test_soft_targets_yes_or_no_and_several_labels_are_taken_by_a_binary_loss(model, targets):
    result = evenfed.train(model(), clients(targets), loss="binary", **CPU)
    assert np.isfinite(result.test_losses).all()


def test_labels_of_any_whole_type_are_taken_by_a_binary_loss():
    inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.uint8, torch.uint16, torch.int32, torch.bool):
        labels = torch.tensor([0, 1, 0, 1, 1, 0]).to(dtype)[:, None]
        client = evenfed.Client((inputs, labels), (inputs, labels))
        result = evenfed.train(nn.Linear(3, 1), [client], loss="binary", rounds=1, lr=0.1, device="cpu", progress=False)
        assert np.isfinite(result.records[0].losses).all()
    wrong = torch.tensor([0, 1, 2, 1, 1, 0]).to(torch.uint16)[:, None]
    with pytest.raises(evenfed.InputError, match=r"targets are 0, 1, 2 \(int64\)"):
        evenfed.train(nn.Linear(3, 1), [evenfed.Client((inputs, wrong))], loss="binary", rounds=1, device="cpu")


def test_groups_of_unequal_lengths_are_told():
    test = (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(evenfed.InputError, match="groups of unequal lengths; give one label for each test example"):
        evenfed.Client(test, test, name="a", groups=[["x"], ["y", "z"]])


def test_one_logit_is_never_judged_as_if_it_were_classes():
    """The highest of one number is always the first: top-1 would count the zeros."""
    own = evenfed.train(logit(), clients(positive), loss=lambda out, y: (out[:, 0] - y) ** 2, **CPU)
    assert own.accuracy is None


def test_models_with_batch_norm_and_dropout_pass_the_checks():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    result = evenfed.train(model, clients(positive), batch_size=3, **CPU)
    assert result.accuracy is not None


@ENGINES
@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("token", [12, -1])
def test_an_example_that_the_model_fails_on_is_named_with_its_client(engine, part, token):
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    made = []
    for k in range(5):
        parts = {}
        for name in ("train", "test"):
            tokens = torch.randint(0, 10, (40, 3))
            if k == 3 and name == part:
                tokens[35, 1] = token
            parts[name] = (tokens, torch.randint(0, 2, (40,)))
        made.append(evenfed.Client(**parts, name=f"site{k}"))
    told = rf"client site3, {part}: the model fails on example 35 \(IndexError.* must lie in 0 .. 9"
    with pytest.raises(evenfed.InputError, match=told):
        evenfed.train(model, made, engine=engine, **CPU)


def test_an_error_that_no_example_causes_stays_what_it_is():
    calls = []

    def loss(out, y):
        calls.append(1)
        if len(calls) == trained_at:
            raise OverflowError("once")
        return F.cross_entropy(out, y, reduction="none")

    trained_at = -1
    evenfed.train(nn.Linear(4, 2), clients(positive), loss=loss, engine="reference", **CPU)
    trained_at = len(calls)  # the last call of the same run
    calls.clear()
    with pytest.raises(OverflowError, match="once"):
        evenfed.train(nn.Linear(4, 2), clients(positive), loss=loss, engine="reference", **CPU)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.uint16])
def test_class_numbers_of_any_whole_type_are_taken(kind):
    result = evenfed.train(nn.Linear(4, 2), clients(lambda x: positive(x).to(kind)), score="accuracy", **CPU)
    assert result.accuracy is not None


def test_targets_beyond_the_classes_name_their_client():
    made = clients(positive)
    x, y = made[2].train
    made[2] = evenfed.Client((x, y + 4), name="odd")
    with pytest.raises(evenfed.InputError, match="client odd, train: targets go up to 5 but the model scores 2"):
        evenfed.train(nn.Linear(4, 2), made, **CPU)
    made[2] = evenfed.Client((x, y - 3), name="odd")
    with pytest.raises(evenfed.InputError, match="client odd, train: targets go down to -"):
        evenfed.train(nn.Linear(4, 2), made, **CPU)


def ending(model, make):
    with torch.no_grad():
        make(model[-1])
    return model


PROBABILITIES = {
    "sigmoid": (lambda: nn.Sequential(logit(), nn.Sigmoid()), "binary", True),
    "softmax": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Softmax(1)), None, True),
    "one logit": (logit, "binary", False),
    "small outputs around a half": (
        lambda: ending(nn.Sequential(nn.Linear(4, 1)), lambda last: (last.weight.zero_(), last.bias.fill_(0.5))),
        "binary",
        False,
    ),
    "a last layer of zeros": (
        lambda: ending(nn.Sequential(nn.Linear(4, 2)), lambda last: (last.weight.zero_(), last.bias.zero_())),
        None,
        False,
    ),
    "a ReLU at the end": (lambda: nn.Sequential(nn.Linear(4, 2), nn.ReLU()), None, False),
    "log-probabilities": (lambda: nn.Sequential(nn.Linear(4, 2), nn.LogSoftmax(1)), None, False),
}


@pytest.mark.parametrize("case", PROBABILITIES)
def test_a_softmax_or_sigmoid_at_the_end_of_the_model_is_noticed(case):
    make, loss, is_told = PROBABILITIES[case]
    for seed in range(5):
        torch.manual_seed(seed)
        model = make()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            evenfed.train(model, clients(positive), loss=loss, **CPU)
        assert any("softmax or a sigmoid" in str(warning.message) for warning in caught) == is_told


def test_options_without_effect_and_steps_that_grow_are_warned_of():
    for options, told in (
        ({"drop_last": True}, "drop_last has no effect without batch_size"),
        ({"optimizer": {"name": "sgd", "momentum": 1.5}}, "momentum=1.5 makes every step longer"),
    ):
        with pytest.warns(UserWarning, match=told):
            evenfed.train(nn.Linear(4, 2), clients(positive), **options, **CPU)


def test_a_model_that_counts_its_calls_is_said_to():
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * (1 + self.calls % 7)

    made = clients(positive, count=6)
    assert "other outputs at every call" in evenfed.train(Counting(4, 2), made, **CPU).engine


@pytest.mark.parametrize("options", [{}, {"score": "top1"}])
def test_targets_that_the_loss_leaves_out_are_not_counted_as_wrong(options):
    loss = nn.CrossEntropyLoss(ignore_index=-100, reduction="none")
    padded = clients(lambda x: torch.where(x[:, 1] > 0, -100, positive(x)))
    with pytest.raises(evenfed.InputError, match="client 0, test: targets go down to -100, and top-1 counts"):
        evenfed.train(nn.Linear(4, 2), padded, loss=loss, **options, **CPU)
    x, y = padded[0].train
    shown = clients(positive)
    trained = [evenfed.Client((x, y), client.test) for client in shown]
    evenfed.train(nn.Linear(4, 2), trained, loss=loss, **options, **CPU)  # what is trained on is not scored
    with pytest.raises(evenfed.InputError, match="unseen examples of client 0: targets go down to -100"):
        evenfed.train(nn.Linear(4, 2), trained, loss=loss, unseen=[padded[1]], **options, **CPU)


@pytest.mark.parametrize("positions", [(), (4,)])
def test_cross_entropy_is_torchs_to_the_bit(positions):
    torch.manual_seed(0)
    targets = torch.randint(0, 5, (3, 6, *positions))
    targets[0, 0] = -100  # torch leaves it out
    by_torch = functools.partial(F.cross_entropy, reduction="none")
    results = []
    for loss in (by_torch, losses.cross_entropy):
        outputs = torch.randn(3, 6, 5, *positions, generator=torch.Generator().manual_seed(1)).requires_grad_()
        stacked = torch.func.vmap(loss)(outputs, targets)
        results.append((stacked, *torch.autograd.grad(stacked.square().sum(), outputs)))
        assert torch.equal(stacked[1], loss(outputs[1], targets[1]))
    assert all(torch.equal(wanted, ours) for wanted, ours in zip(*results, strict=True))
    likelihoods = torch.full((6, 5), 0.2)
    outputs_of = torch.randn(6, 5)
    assert torch.equal(by_torch(outputs_of, likelihoods), losses.cross_entropy(outputs_of, likelihoods))
