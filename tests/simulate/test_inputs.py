"""Models of several inputs: dicts and tuples of tensors, on every engine."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import evenfed
from evenfed.core.streams import Batching
from evenfed.local.training import LocalTraining
from evenfed.scores import top1
from evenfed.simulate.engines import memory
from evenfed.simulate.engines.reference import Reference
from evenfed.simulate.engines.slots import Slots
from evenfed.simulate.engines.stacked import Stacked
from evenfed.simulate.engines.visiting import Visiting
from evenfed.simulate.layers import compiling
from evenfed.simulate.problem import EvalRequest, Problem, Task

OPTIONS = {"rounds": 3, "lr": 0.3, "batch_size": 4, "local_epochs": 2}


class Answer:
    """What a model returns beside its logits."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Bag(nn.Module):
    """The mean of the embeddings of the tokens that the mask keeps."""

    def __init__(self, answer: str = "tensor") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(12, 5)
        self.head = nn.Linear(5, 3)
        self.answer = answer

    def forward(self, ids: Tensor, mask: Tensor) -> object:
        weights = mask[..., None].to(self.table.weight)
        mean = (self.table(ids) * weights).sum(-2) / weights.sum(-2).clamp(min=1)
        logits = self.head(mean)
        if self.answer == "object":
            return Answer(logits)
        if self.answer == "dict":
            return {"logits": logits, "mean": mean}
        return logits


class Packed(Bag):
    """The same model of one tensor: ids and mask side by side."""

    def forward(self, both: Tensor) -> object:
        ids, mask = both.chunk(2, -1)
        return super().forward(ids, mask)


def examples(size: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.randint(1, 12, (size, 6), generator=draw)
    lengths = torch.randint(1, 7, (size, 1), generator=draw)
    mask = (torch.arange(6) < lengths).long()
    targets = (ids * mask).sum(1) % 3
    return ids, mask, targets


def federation(form: str) -> list[evenfed.Client]:
    """Six unequal clients; `form` of their inputs: dict, tuple, or packed into one tensor."""
    draw = torch.Generator().manual_seed(3)
    clients = []
    for k in range(6):
        pairs = []
        for size in (5 + 3 * k, 4):
            ids, mask, targets = examples(size, draw)
            inputs = {"dict": {"mask": mask, "ids": ids}, "tuple": (ids, mask), "packed": torch.cat([ids, mask], 1)}
            pairs.append((inputs[form], targets))
        clients.append(evenfed.Client(*pairs))
    return clients


def problem(form: str, model: nn.Module | None = None) -> Problem:
    settings = evenfed.Settings(lr=0.3, batch_size=4, local_epochs=2)
    return Problem.of(model or Bag(), federation(form), settings)


ENGINES = {
    "reference": Reference,
    "stacked": partial(Stacked, slots=4),
    "slots": partial(Slots, slots=4),
    "visiting": partial(Visiting, workers=2),
}


def work(engine: object, of: Problem) -> tuple[Tensor, ...]:
    """Losses, scores and updates of one round, for one model and for one of each client."""
    ids = torch.arange(6)
    own = of.theta.repeat(6, 1) + torch.arange(6)[:, None] / 100
    questions = [EvalRequest(of.theta, ids[:4], {}), EvalRequest(own, ids, {})]
    losses = engine.losses(questions)
    scores = []
    for answer in engine.scores(questions, of.judged, (top1,), classes=3):
        scores += [answer.means, answer.by_class]
    local = LocalTraining(0.3, Batching(size=4, epochs=2), prox=0.1)
    task = Task(index=1, seed=0, theta=of.theta, ids=ids, local=local)
    deltas = torch.zeros(6, len(of.theta))
    for _, update in engine.train([task]):
        columns = slice(None) if update.columns is None else update.columns
        rows = deltas[update.ids]
        rows[:, columns] = update.delta
        deltas[update.ids] = rows
    return *losses, *scores, deltas


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_every_engine_computes_what_it_does_of_one_packed_tensor(form, engine):
    several = problem(form)
    packed = problem("packed", Packed())
    found = work(ENGINES[engine](several), several)
    expected = work(ENGINES[engine](packed), packed)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("answer", ["object", "dict"])
def test_logits_of_what_a_model_returns_are_its_outputs(answer):
    plain = evenfed.train(Bag(), federation("dict"), "semi_vred", **OPTIONS)
    found = evenfed.train(Bag(answer), federation("dict"), "semi_vred", **OPTIONS)
    assert "stacked" in found.engine
    for a, b in zip(plain.model.parameters(), found.model.parameters(), strict=True):
        assert a.equal(b)
    assert (found.accuracy == plain.accuracy).all()


def client(inputs: object, count: int = 4, test: object = None) -> evenfed.Client:
    targets = torch.zeros(count).long()
    return evenfed.Client((inputs, targets), None if test is None else (test, targets))


IDS = torch.ones(4, 6).long()
WRONG = [
    ([client({"ids": IDS, "mask": IDS[:3]})], r"client 0, train: 3 inputs\['mask'\] but 4 targets"),
    ([client((IDS, IDS[:3]))], r"client 0, train: 3 inputs\[1\] but 4 targets"),
    ([client([IDS, IDS])], "2 inputs but 4 targets.*several inputs of one model as a tuple or a dict"),
    ([client({"ids": IDS, "mask": IDS / 0})], r"client 0, train inputs\['mask'\]: NaN or infinity in example 0"),
    ([client({"ids": IDS, "mask": "no"})], r"client 0, train inputs\['mask'\]: (cannot become|a single)"),
    ([client({"ids": IDS, 3: IDS})], "the key 3; name each input"),
    ([client({})], "an empty dict"),
    (
        [client({"ids": IDS, "mask": IDS}), client({"ids": IDS, "mask": IDS[:, :3]})],
        r"client 1.*mask.*\[3\] int64",
    ),
    ([client({"ids": IDS, "mask": IDS}), client((IDS, IDS))], r"client 1, train: examples are \[0\] \[6\] int64"),
    ([client({"ids": IDS, "mask": IDS}, test=IDS)], "test examples have inputs.*training examples inputs"),
    (
        [client({"ids": IDS, "masks": IDS})],
        r"fails on a batch of 4 training inputs.*masks.*\[6\] int64.*keyword",
    ),
]


@pytest.mark.parametrize(("clients", "message"), WRONG)
def test_mistakes_are_named_by_input(clients, message):
    with pytest.raises(evenfed.InputError, match=message):
        evenfed.train(Bag(), clients, "fedavg", rounds=1, lr=0.1)


class Asking(Bag):
    """As Hugging Face's models: looks whether the mask hides anything, unless it is compiled."""

    def forward(self, ids: Tensor, mask: Tensor) -> object:
        if not torch.compiler.is_compiling() and bool(mask.all()):
            mask = torch.ones_like(mask)
        return super().forward(ids, mask)


def test_a_model_that_asks_for_its_mask_is_visited_and_stacked_where_it_is_known_not_to_ask_when_compiled(monkeypatch):
    visited = evenfed.train(Asking(), federation("dict"), "semi_vred", **OPTIONS)
    assert "visited" in visited.engine and "control flow" in visited.engine
    monkeypatch.setattr(compiling, "ASKING", (Asking.__module__,))
    stacked = evenfed.train(Asking(), federation("dict"), "semi_vred", **OPTIONS)
    assert "stacked" in stacked.engine and not torch.compiler.is_compiling()
    for a, b in zip(visited.model.parameters(), stacked.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_frozen_parameters_are_stored_once():
    model = Bag()
    model.table.weight.requires_grad_(False)
    frozen = problem("dict", model)
    assert frozen.layout.names == ("head.weight", "head.bias")
    for make in ENGINES.values():
        engine = make(frozen)
        workers = getattr(engine, "workers", [getattr(engine, "worker", engine)])
        copies = [worker.model for worker in workers]
        for copied in copies:
            assert copied.table.weight is frozen.model.table.weight
            assert copied.head.weight.data_ptr() != frozen.model.head.weight.data_ptr()
    assert frozen.model.table.weight.data_ptr() != model.table.weight.data_ptr()
    result = evenfed.train(model, federation("dict"), "fedavg", **OPTIONS)
    assert result.model.table.weight.equal(model.table.weight)
    assert result.model.table.weight.data_ptr() != model.table.weight.data_ptr()
    assert not result.model.head.weight.equal(model.head.weight)


def test_a_large_base_is_stacked_as_far_as_its_activations_fit(monkeypatch):
    model = Bag()
    model.table.weight.requires_grad_(False)
    at_once = evenfed.train(model, federation("dict"), "fedavg", **OPTIONS)
    needed = memory.activations(problem("dict", model))
    monkeypatch.setattr(memory, "CPU_ACTIVATIONS", needed * 4 * 5)  # five clients' batches of four
    in_parts = evenfed.train(model, federation("dict"), "fedavg", **OPTIONS)
    assert "up to 5 at once" in in_parts.engine and "up to 5 at once" not in at_once.engine
    torch.testing.assert_close(in_parts.model.head.weight, at_once.model.head.weight)
    monkeypatch.setattr(memory, "CPU_ACTIVATIONS", needed * 4 * 3)
    visited = evenfed.train(model, federation("dict"), "fedavg", **OPTIONS)
    assert "visited" in visited.engine and "activations of 3 clients at once" in visited.engine


class Pair(Bag):
    """Class scores and a number of words, for a loss that takes both."""

    def forward(self, ids: Tensor, mask: Tensor) -> object:
        logits = super().forward(ids, mask)
        return logits, logits.sum(-1, keepdim=True)


def both(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    logits, number = outputs
    return nn.functional.cross_entropy(logits, targets, reduction="none") + 0.01 * number[:, 0].square()


def test_other_outputs_go_to_a_loss_of_ones_own():
    reference = evenfed.train(Pair(), federation("dict"), "semi_vred", loss=both, engine="reference", **OPTIONS)
    stacked = evenfed.train(Pair(), federation("dict"), "semi_vred", loss=both, **OPTIONS)
    assert "stacked" in stacked.engine
    torch.testing.assert_close(stacked.model.head.weight, reference.model.head.weight, rtol=1e-5, atol=1e-6)
    of = Problem.of(Pair(), federation("dict"), evenfed.Settings(lr=0.3, batch_size=4), loss=both)
    question = EvalRequest(of.theta, torch.arange(6), {})
    torch.testing.assert_close(
        *(engine(of, *slots).losses([question])[0] for engine, *slots in ((Slots, 2), (Reference,)))
    )


class Odd(Bag):
    def forward(self, ids: Tensor, mask: Tensor) -> object:
        super().forward(ids, mask)
        return object()


@pytest.mark.parametrize(
    ("model", "message"), [(Pair(), "gave a tuple without logits"), (Odd(), "gave a object for a")]
)
def test_outputs_that_no_loss_can_take_are_refused(model, message):
    with pytest.raises(evenfed.InputError, match=message):
        evenfed.train(model, federation("dict"), "fedavg", rounds=1, lr=0.1)
