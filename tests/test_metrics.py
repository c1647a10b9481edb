"""Clients judged by something other than accuracy: loss, or a metric of a whole client; and which end is better."""

import dataclasses
import json
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import evenfed
from evenfed.comparison.storage.reading import read
from evenfed.comparison.storage.record_json import from_json, to_json
from evenfed.fairness import Fairness, Suppression
from evenfed.report.document import Report
from evenfed.report.write import markdown
from worked_example import federation, small_model

CPU = {"device": "cpu", "rounds": 3, "lr": 0.05}
ENGINES = pytest.mark.parametrize("engine", ["parallel", "reference"])


def regression(count=5, examples=8):
    """Clients whose slope differs, with test data."""
    draw = torch.Generator().manual_seed(3)
    clients = []
    for k in range(count):
        x = torch.randn(2 * examples, 3, generator=draw)
        y = x[:, 0] + 0.3 * k
        clients.append(evenfed.Client((x[:examples], y[:examples]), (x[examples:], y[examples:])))
    return clients


def line():
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def auc(outputs, targets):
    return roc_auc_score(targets, outputs[:, 1] - outputs[:, 0])


def test_the_worst_clients_have_the_highest_losses():
    losses = np.array([0.1, 0.4, np.nan, 0.2, 0.9])
    fair = Fairness.of(losses, higher_is_better=False)
    mirrored = Fairness.of(-losses)
    assert (fair.worst, fair.worst10, fair.best10) == (0.9, 0.9, 0.1)
    assert (fair.worst20, fair.mean, fair.std) == (-mirrored.worst20, -mirrored.mean, mirrored.std)
    ours = np.array([0.2, 0.3, 0.5, 0.2, 0.8])
    down = Suppression.of(ours, losses, higher_is_better=False)
    up = Suppression.of(-ours, -losses)
    assert (down.suffering, down.improved, down.degraded) == (up.suffering, up.improved, up.degraded)
    assert down.mean_gain == pytest.approx(-up.mean_gain)


@ENGINES
def test_test_losses_are_recorded_and_are_those_of_the_model(engine):
    clients = regression()
    result = evenfed.train(line(), clients, "fedavg", loss="mse", engine=engine, **CPU)
    wanted = []
    for client in clients:
        x, y = client.test
        errors = result.model(x)[:, 0].detach() - y
        wanted.append(float((errors**2).mean()))
    assert result.test_losses == pytest.approx(wanted, rel=1e-5)
    assert result.accuracy is None
    assert result.fairness.worst == pytest.approx(max(wanted)) and result.fairness.best10 == pytest.approx(min(wanted))
    assert len(result.records) == 3 and all(record.test_losses is not None for record in result.records)


def test_classifiers_have_both_and_the_setting_decides():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=draw)
    clients = [evenfed.Client((x, (x[:, 0] > 0).long()), (x, (x[:, 0] > 0).long())) for _ in range(3)]
    by_score = evenfed.train(nn.Linear(3, 2), clients, **CPU)
    by_loss = evenfed.train(by_score.model, clients, metric="loss", **CPU)
    assert by_score.fairness == Fairness.of(by_score.accuracy)
    assert by_loss.fairness == Fairness.of(by_loss.test_losses, higher_is_better=False)
    with pytest.raises(evenfed.InputError, match="metric='accuracy' needs a score"):
        evenfed.train(line(), regression(), loss="mse", metric="accuracy", **CPU)
    with pytest.raises(evenfed.InputError, match="unknown metric 'los'"):
        evenfed.train(line(), regression(), loss="mse", metric="los", **CPU)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison of a regression, with its folder."""
    folder = tmp_path_factory.mktemp("runs") / "regression"
    options = {"loss": "mse", "seeds": 2, "progress": False, **CPU}
    comparison = evenfed.compare(lambda: nn.Linear(3, 1), regression(), ["vred"], out=folder, **options)
    return comparison, folder


def test_rows_of_a_comparison_without_a_score_are_filled(compared):
    comparison, folder = compared
    for row in [*comparison.rows, comparison.noise_floor]:
        assert row.metric.name == "loss"
        for figures in (row.last, row.late):
            assert {"mean", "std", "worst", "worst10", "worst20", "best10"} <= figures.keys()
            assert figures["best10"][0] <= figures["mean"][0] <= figures["worst10"][0]
    fedavg = comparison.results["fedavg"][0]
    vred = comparison.results["vred"][0]
    wanted = Suppression.of(vred.test_losses, fedavg.test_losses, higher_is_better=False)
    assert comparison.suppression("vred")[0] == wanted
    rounds = (folder / "vred" / "seed-0" / "rounds.jsonl").read_text().splitlines()
    assert json.loads(rounds[-1])["test_losses"] == pytest.approx(vred.test_losses.tolist())


def test_a_report_says_what_was_measured_and_bolds_the_lowest(compared):
    comparison, folder = compared
    findings = read(folder)
    assert findings.metric.name == "loss" and not findings.metric.higher_is_better
    report = Report.of([folder], beside_paper=False)
    text = markdown(report)
    assert "Test loss over clients" in text and "accuracy" not in text.lower() and "Less is better" in text
    detailed = next(table for table in report.tables if table.name == "detailed-late")
    means = [line.cells[0] for line in detailed.lines if not line.control]
    best = min(means, key=lambda cell: cell.value)
    assert best.best and sum(cell.best for cell in means) == 1
    assert best.value == pytest.approx(min(row.late["mean"][0] for row in comparison.rows))
    with pytest.raises(evenfed.InputError, match="paper"):
        Report.of([folder], beside_paper=True)


@ENGINES
def test_a_metric_of_whole_clients_and_clients_without_a_value(engine):
    """A client with one class has no AUC: it does not count."""
    draw = torch.Generator().manual_seed(1)
    clients = []
    for k in range(4):
        x = torch.randn(10, 3, generator=draw)
        y = (x[:, 0] > 0).long() if k else torch.zeros(10).long()
        clients.append(evenfed.Client((x, y), (x, y)))
    metric = evenfed.Metric(auc, name="AUC", whole_client=True)
    result = evenfed.train(nn.Linear(3, 2), clients, score=metric, engine=engine, **CPU)
    assert np.isnan(result.accuracy).tolist() == [True, False, False, False]
    for client, value in zip(clients[1:], result.accuracy[1:], strict=True):
        x, y = client.test
        assert value == pytest.approx(auc(result.model(x).detach().numpy(), y.numpy()))
    assert result.fairness.worst == np.nanmin(result.accuracy)
    assert result.metric.name == "AUC" and result.test_losses.shape == (4,)


def test_a_metric_that_has_no_value_anywhere_is_refused_before_round_1():
    def broken(outputs, targets):
        return roc_auc_score(targets, outputs)

    metric = evenfed.Metric(broken, whole_client=True)
    with pytest.raises(evenfed.InputError, match=r"'broken' has no value for any client.*outputs \[8, 1\]"):
        evenfed.train(line(), regression(), loss="mse", score=metric, **CPU)
    with pytest.raises(evenfed.InputError, match="give another"):
        evenfed.Metric(broken, name="loss")
    endless = evenfed.Metric(lambda outputs, targets: np.inf, name="endless", whole_client=True)
    with pytest.raises(evenfed.InputError, match=r"'endless' has no value for any client.*no finite number"):
        evenfed.train(line(), regression(), loss="mse", score=endless, **CPU)


@ENGINES
@pytest.mark.parametrize("whole_client", [True, False])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_an_infinite_score_is_no_figure(engine, whole_client):
    clients = regression()
    highest = [float(client.test[1].max()) for client in clients]
    limit = sorted(highest)[-2]

    def score(outputs, targets):
        high = 1.0 * (targets > limit)
        return float(np.sum(high / (1 - high))) if whole_client else high / (1 - high)  # infinity where it is high

    metric = evenfed.Metric(score, name="own", whole_client=whole_client)
    result = evenfed.train(line(), clients, loss="mse", score=metric, engine=engine, **CPU)
    assert np.isnan(result.accuracy).tolist() == [value > limit for value in highest]
    assert result.fairness.worst == 0 and "own" in str(result)


def test_a_metric_that_compares_every_output_with_every_target_is_refused():
    """NumPy broadcasts outputs [n, 1] and targets [n] to [n, n] without a word."""

    def share(outputs, targets):
        return ((outputs > 0) == targets).mean()

    def flat_share(outputs, targets):
        return share(outputs[:, 0], targets)

    def run(function, **changes):
        metric = evenfed.Metric(function, name="share", whole_client=True)
        return evenfed.train(line(), FLOATS, loss="binary", **{**CPU, "score": metric, **changes})

    with pytest.raises(evenfed.InputError, match=r"'share' gives 0.625 for outputs \[\d+, 1\] and 1 .*\[\d+\], with"):
        run(share)
    accuracy = run(None, score=None).accuracy.tolist()
    assert run(flat_share).accuracy.tolist() == accuracy
    for reshaped in (lambda y: y[:, None], lambda y: np.expand_dims(y, 1)):  # right for the model's shape alone
        assert run(lambda outputs, targets, to=reshaped: share(outputs, to(targets))).accuracy.tolist() == accuracy


def test_a_bare_function_as_a_score_is_an_accuracy():
    def mae(outputs, targets):
        return (outputs.flatten() - targets).abs()

    def error_rate(outputs, targets):
        return mae(outputs, targets) > 1

    for score, message in (
        (mae, "'mae' gives some examples less than 0 or more than 1.*Metric.function, higher_is_better=False"),
        (lambda *pair: -mae(*pair), "'<lambda>' gives some examples less than 0"),
        (error_rate, "'error_rate' is an error by its name"),
        (evenfed.losses.mse, "'mse' gives some"),
    ):
        with pytest.raises(evenfed.InputError, match=message):
            evenfed.train(line(), NUMBERS, loss="mse", score=score, **CPU)
    kept = evenfed.train(line(), NUMBERS, loss="mse", score=evenfed.Metric(error_rate, higher_is_better=False), **CPU)
    near = evenfed.train(kept.model, NUMBERS, loss="mse", score=lambda *pair: mae(*pair) < 1, **CPU)
    assert kept.fairness.worst == kept.accuracy.max() and near.fairness.worst == near.accuracy.min()


NUMBERS = regression()
FLOATS = [evenfed.Client((x, (y > 0).float()), (x, (y > 0).float())) for x, y in (c.train for c in NUMBERS)]
WHOLE = [evenfed.Client((x, (10 * y).long()), (x, (10 * y).long())) for x, y in (c.train for c in NUMBERS)]


def squares(outputs, targets):
    return (outputs.flatten(1)[:, 0] - targets) ** 2


@pytest.mark.parametrize(
    ("score", "clients", "loss", "outputs"),
    [
        ("top1", NUMBERS, "mse", 1),
        ("binary", NUMBERS, "mse", 1),
        ("auroc", NUMBERS, "mse", 1),
        (evenfed.scores.top1, NUMBERS, squares, 3),
        (evenfed.scores.binary, NUMBERS, "mae", 1),
        (evenfed.Metric(evenfed.scores.auroc, whole_client=True), NUMBERS, nn.HuberLoss(reduction="none"), 1),
        ("auroc", NUMBERS, squares, 2),
        ("binary", FLOATS, "mse", 1),  # whose model predicts 0.5 at the border, not 0
        ("binary", WHOLE, "mse", 1),
        ("auroc", WHOLE, "mse", 1),
    ],
)
def test_scores_for_classes_are_refused_for_numbers(score, clients, loss, outputs):
    if isinstance(loss, nn.Module) or loss in ("mse", "mae"):
        model = nn.Sequential(nn.Linear(3, outputs), nn.Flatten(0))
    else:
        model = nn.Linear(3, outputs)
    with pytest.raises(
        evenfed.InputError, match=r"is for classes, and the targets are .*(float32|int64).*leave `score`"
    ):
        evenfed.train(model, clients, loss=loss, score=score, **CPU)


def test_numbers_that_are_held_out_are_refused_for_a_score_of_classes():
    numbers = NUMBERS[0].train
    options = {"loss": squares, "score": "auroc", **CPU}
    evenfed.train(line(), FLOATS, **options)
    for held_out in ({"unseen": NUMBERS[:1]}, {"test": numbers}):
        with pytest.raises(evenfed.InputError, match="score='auroc' is for classes"):
            evenfed.train(line(), FLOATS, **options, **held_out)


def test_top1_of_one_number_is_refused_and_what_fits_is_not():
    with pytest.raises(evenfed.InputError, match=r"score='top1' takes one output per class.*score='binary'"):
        evenfed.train(line(), FLOATS, loss="binary", score="top1", **CPU)
    for score in ("binary", "auroc"):
        evenfed.train(line(), FLOATS, loss="binary", score=score, **CPU)
    evenfed.train(line(), FLOATS, loss="mse", score="auroc", **CPU)  # ranks need no border


def test_classes_called_minus_one_and_one_are_classes():
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 4, generator=draw)
    signs = inputs[:, 0].sign()
    clients = [evenfed.Client((inputs, signs), (inputs, signs)) for _ in range(2)]

    def logistic(outputs, targets):
        return nn.functional.softplus(-targets * outputs.flatten())

    result = evenfed.train(nn.Linear(4, 1), clients, loss=logistic, score="auroc", **{**CPU, "lr": 0.5, "rounds": 20})
    assert result.accuracy.mean() > 0.9


def test_a_score_of_which_less_is_better():
    metric = evenfed.Metric(evenfed.losses.mae, higher_is_better=False, name="absolute error")
    result = evenfed.train(line(), regression(), loss="mse", score=metric, **CPU)
    assert result.fairness.worst == result.accuracy.max()


@pytest.mark.filterwarnings("ignore:fedavg broke down")
def test_early_stopping_follows_the_loss_downwards():
    stopping = evenfed.callbacks.EarlyStopping("mean", patience=2)
    options = {**CPU, "rounds": 12, "lr": 3.0}  # diverges
    result = evenfed.train(line(), regression(), "fedavg", loss="mse", callbacks=stopping, **options)
    assert "did not fall below" in result.stopped and len(result.records) < 12


def test_the_regression_example_prints_losses(capsys):
    path = Path(__file__).parents[1] / "examples" / "regression.py"
    example = runpy.run_path(str(path))
    comparison = example["main"](rounds=3)
    assert "test loss" in capsys.readouterr().out
    assert [row.metric.name for row in comparison.rows] == ["loss", "loss"]


def classes(count=5):
    draw = torch.Generator().manual_seed(5)
    clients = []
    for _ in range(count):
        x = torch.randn(10, 3, generator=draw)
        y = (x[:, 0] > 0).long()
        clients.append(evenfed.Client((x, y), (x, y)))
    return clients


@ENGINES
def test_unseen_clients_and_a_global_test_set_are_judged_apart(engine):
    *seen, last, one_more = classes(7)
    options = {**CPU, "engine": engine}
    plain = evenfed.train(nn.Linear(3, 2), seen, seed=1, **options)
    start = plain.model
    plain = evenfed.train(start, seen, **options)
    result = evenfed.train(start, seen, unseen=[last, one_more], test=last.test, **options)
    assert torch.equal(result.server.theta, plain.server.theta)  # never trained on
    assert result.fairness == plain.fairness and plain.unseen is None and plain.test == {}
    x, y = last.test
    outputs = result.model(x).detach()
    right = float((outputs.argmax(1) == y).double().mean())
    assert result.records[-1].unseen[0] == pytest.approx(right)
    loss = float(nn.functional.cross_entropy(outputs, y))
    assert result.test == {"accuracy": pytest.approx(right), "loss": pytest.approx(loss, rel=1e-5)}
    assert result.unseen == Fairness.of(result.records[-1].unseen)
    again = from_json(json.loads(json.dumps(to_json(result.records[-1]))))
    assert again.unseen.tolist() == result.records[-1].unseen.tolist()
    assert again.global_loss == result.records[-1].global_loss
    wrong = (last.test[0], torch.full((10,), 5))
    with pytest.raises(evenfed.InputError, match="targets go up to 5"):
        evenfed.train(start, seen, test=wrong, **options)
    with pytest.raises(evenfed.InputError, match=r"unseen is a single evenfed.Client; give a list: unseen=\[client\]"):
        evenfed.train(start, seen, unseen=last, **options)


def test_groups_inside_clients_are_fairlearns():
    """Hand-made: a model that answers with its input, so that every rate can be counted."""
    fairlearn = pytest.importorskip("fairlearn.metrics")
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        model.bias.zero_()
    answers = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, -1.0, -1.0, -1.0])[:, None]
    truths = torch.tensor([1, 0, 1, 0, 1, 1, 0, 0])
    labels = ["a", "a", "a", "a", "b", "b", "b", "b"]
    client = evenfed.Client((answers, truths), (answers, truths), name="ward", groups=labels)
    other = evenfed.Client((answers, truths), (answers, truths), name="lab")
    result = evenfed.train(model, [client, other], rounds=1, lr=1e-12, device="cpu")
    found = result.groups([client, other]).set_index(["client", "group"])
    assert found.loc["ward", "a"][["examples", "accuracy", "selection_rate", "tpr", "fpr"]].tolist() == [
        *(4, 0.5, 0.5, 0.5, 0.5)
    ]
    assert found.loc["ward", "b"][["accuracy", "selection_rate", "tpr", "fpr"]].tolist() == [0.75, 0.25, 0.5, 0.0]
    predicted = (answers[:, 0] > 0).long()
    between = found.loc["all", "difference"]
    arguments = (truths.numpy(), predicted.numpy())
    parity = fairlearn.demographic_parity_difference(*arguments, sensitive_features=labels)
    odds = fairlearn.equalized_odds_difference(*arguments, sensitive_features=labels)
    assert (between["selection_rate"], between["equalised_odds"]) == (pytest.approx(parity), pytest.approx(odds))
    with pytest.raises(evenfed.InputError, match="no client has groups"):
        result.groups([other])
    short = evenfed.Client((answers, truths), lambda: (answers, truths), "ward", groups=labels[:3])  # of unknown length
    with pytest.raises(evenfed.InputError, match=r"groups \[3\] for 8 test examples"):
        result.groups([short, other])


def test_groups_are_judged_by_the_metric_of_the_run(tmp_path):
    """Regression, AUC and soft targets: no group is scored by classes that there are none of."""
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    labels = ["a", "b"] * 20
    options = {"rounds": 2, "lr": 0.1, "device": "cpu"}

    def groups_of(targets, **more):
        clients = [evenfed.Client((x, targets), (x, targets), groups=labels)]
        result = evenfed.train(nn.Linear(4, 1), clients, "fedavg", **options, **more)
        return result, result.groups(clients).set_index(["client", "group"])

    result, table = groups_of(x[:, 0], loss="mse")
    with torch.no_grad():
        errors = (result.model(x).flatten() - x[:, 0]).square()
    assert table.loc[("0", "a"), "loss"] == pytest.approx(float(errors[::2].mean()))
    assert "accuracy" not in table and "tpr" not in table
    again = evenfed.load(result.save(tmp_path / "r"), model=nn.Linear(4, 1))
    client = evenfed.Client((x, x[:, 0]), (x, x[:, 0]), groups=labels)
    assert again.groups([client])["loss"].tolist() == table["loss"].tolist()
    soft = torch.sigmoid(x[:, 0])
    result, table = groups_of(soft, loss="binary")
    assert (result.accuracy[0], table["tpr"].notna().all()) == (pytest.approx(table["accuracy"][:2].mean()), True)
    result, table = groups_of((x[:, 0] > 0).long(), loss="binary", score="auroc")
    assert 0.5 < table.loc[("all", "b"), "AUROC"] <= 1
    distance = evenfed.Metric(lambda outputs, targets: (outputs.flatten() - targets).abs(), False, name="distance")
    result, table = groups_of(x[:, 0], loss="mse", score=distance)
    off = (result.model(x).detach().flatten() - x[:, 0]).abs()[::2].mean()
    assert table.loc[("all", "a"), "distance"] == pytest.approx(off.item())
    own = evenfed.load(result.save(tmp_path / "own"), model=nn.Linear(4, 1))
    with pytest.raises(evenfed.InputError, match="holds no code"):
        own.groups([client])


def test_groups_find_clients_by_name_and_refuse_other_lists():
    x = torch.randn(12, 3)
    named = [evenfed.Client((x, x.argmax(1)), (x, x.argmax(1)), name, groups=["a", "b"] * 6) for name in ("c0", "c1")]
    result = evenfed.train(nn.Linear(3, 3), named, "ditto", rounds=2, lr=0.1, device="cpu")
    whole = result.groups(named).set_index(["client", "group"])
    one = result.groups(named[1:]).set_index(["client", "group"])
    assert one.loc["c1"].equals(whole.loc["c1"]) and set(one.index.levels[0]) == {"all", "c1"}
    assert result.groups(named[::-1]).set_index(["client", "group"]).loc["c0"].equals(whole.loc["c0"])
    stranger = dataclasses.replace(named[0], name="c7")
    with pytest.raises(evenfed.InputError, match="c7"):
        result.groups([stranger])
    smaller = evenfed.Client((x, x.argmax(1)), (x[:6], x[:6].argmax(1)), "c1", groups=["a", "b"] * 3)
    with pytest.raises(evenfed.InputError, match="has 6 test examples and had 12"):
        result.groups([smaller])
    nameless = [dataclasses.replace(client, name=None) for client in named]
    with pytest.raises(evenfed.InputError, match="some without a name"):
        result.groups(nameless[1:])


def test_groups_take_the_columns_of_the_run(tmp_path):
    """A model takes columns by position, so that a table in another order would be misread."""
    frame = pd.DataFrame(torch.randn(12, 2, generator=torch.manual_seed(0)).numpy(), columns=["a", "b"])
    frame["y"] = (frame["a"] > 0).astype(int)
    swapped = frame[["b", "a", "y"]]

    def client(train, test):
        return evenfed.Client(train, test, "ward", groups=["f", "m"] * 6)

    result = evenfed.train(nn.Linear(2, 2), [client(frame, frame)], rounds=1, device="cpu")
    read_back = evenfed.load(result.save(tmp_path / "run"), model=nn.Linear(2, 2))
    table = result.groups([client(frame, frame)])
    assert table.equals(read_back.groups([client(frame, frame)]))
    message = "client ward, test: the table's columns are 'b', 'a'"
    for given in (client(frame, swapped), client(swapped, swapped)):
        with pytest.raises(evenfed.InputError, match=message):
            result.groups([given])
    with pytest.raises(evenfed.InputError, match=message):
        read_back.groups([client(frame, swapped)])


def test_three_classes_have_no_rates_and_one_group_no_difference():
    x = torch.randn(12, 4)
    two = (x[:, 0] > 0).long()  # a client that happens to have two of the three classes
    clients = [evenfed.Client((x, two), (x, two), "a", groups=["g"] * 12)]
    clients += [evenfed.Client((x, x[:, :3].argmax(1)), (x, x[:, :3].argmax(1)), "b", groups=["g", "h"] * 6)]
    table = evenfed.train(nn.Linear(4, 3), clients, rounds=1, device="cpu").groups(clients)
    assert "tpr" not in table
    assert np.isnan(table.set_index(["client", "group"]).loc[("a", "difference"), "accuracy"])


@pytest.mark.parametrize(
    ("test", "options"),
    [
        ((torch.zeros(4, 2), torch.zeros(4)), {}),
        ([[[0.0], [0.0], [0.0], [0.0]], [0, 1, 0, 1]], {}),
        (TensorDataset(torch.zeros(4, 2), torch.zeros(4)), {}),
        (DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4)), batch_size=2), {}),
        ({"a": torch.zeros(4), "b": torch.zeros(4), "y": torch.zeros(4)}, {}),
        (lambda: None, {"test_size": 4}),
    ],
)
def test_groups_of_another_length_are_refused_at_once(test, options):
    train = (torch.zeros(3, 2), torch.zeros(3))
    assert evenfed.Client(train, test, groups=["a", "b", "a", "b"], **options).groups
    for wrong in (["a", "b", "a"], ["a"] * 5, "abcd", [["a"]] * 4):
        with pytest.raises(evenfed.InputError, match=r"client ward: groups \[.*\] for 4 test examples; give one label"):
            evenfed.Client(train, test, name="ward", groups=wrong, **options)


def test_auroc_is_scikit_learns_of_two_classes_and_of_several():
    draw = np.random.default_rng(0)
    targets = draw.integers(0, 2, 40)
    logits = draw.integers(0, 5, (40, 2)).astype(np.float64)  # with ties
    wanted = roc_auc_score(targets, logits[:, 1] - logits[:, 0])
    assert evenfed.scores.auroc(logits, targets) == pytest.approx(wanted)
    assert evenfed.scores.auroc(logits[:, 1] - logits[:, 0], targets) == pytest.approx(wanted)
    assert evenfed.scores.auroc(logits[:, 1:] - logits[:, :1], targets[:, None]) == pytest.approx(wanted)
    several = draw.integers(0, 3, 40)
    likelihoods = draw.dirichlet(np.ones(3), 40)
    found = evenfed.scores.auroc(np.log(likelihoods), several)
    assert found == pytest.approx(roc_auc_score(several, likelihoods, multi_class="ovr"))
    assert np.isnan(evenfed.scores.auroc(logits, np.ones(40, dtype=int)))


def test_auroc_is_chosen_by_name():
    result = evenfed.train(small_model(), federation(), score="auroc", **CPU)
    assert result.metric.name == "AUROC" and 0 <= result.fairness.worst <= result.fairness.mean <= 1
    with pytest.raises(evenfed.InputError, match="did you mean 'auroc'"):
        evenfed.train(small_model(), federation(), score="aurok", **CPU)
