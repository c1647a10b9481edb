"""Right answers by class over all clients' test examples, recorded with every evaluation."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
from evenfed.comparison.storage import record_json
from evenfed.comparison.storage.header import Header
from evenfed.comparison.storage.pack import pack, unpacked
from evenfed.simulate.engines.reference import Reference
from evenfed.simulate.engines.slots import Slots
from evenfed.simulate.engines.stacked import Stacked
from evenfed.simulate.engines.visiting import Visiting
from evenfed.simulate.evaluation import score
from evenfed.simulate.problem import EvalRequest, Problem
from worked_example import federation, small_model

OPTIONS = {"rounds": 2, "lr": 0.3, "batch_size": 4, "device": "cpu"}


def counted(result, clients, classes=3):
    """The same by hand, with the model that serves each client."""
    right = np.zeros(classes)
    total = np.zeros(classes)
    for k, client in enumerate(clients):
        model = result.client_model(k).eval()
        x, y = client.test
        with torch.no_grad():
            hit = model(x).argmax(1) == y
        right += np.bincount(y, hit, minlength=classes)
        total += np.bincount(y, minlength=classes)
    return right / total


@pytest.mark.parametrize(("algorithm", "average"), [("semi_vred", None), ("semi_vred", 0.5), ("ditto", None)])
@pytest.mark.parametrize("engine", ["reference", "parallel"])
def test_recalls_are_those_of_the_models_that_serve(algorithm, average, engine):
    clients = federation()
    options = {**OPTIONS, "lr": 0.02, "average": average}
    result = evenfed.train(small_model(), clients, algorithm=algorithm, engine=engine, **options)
    expected = counted(result, clients)
    assert len(set(expected)) > 1
    current = result.records[-1].current
    assert current is None or not np.array_equal(current, result.accuracy, equal_nan=True)
    assert np.array_equal(result.records[-1].recalls, expected)
    sizes = np.array([len(client.test[1]) for client in clients])
    counts = result.header.label_counts
    assert counts.sum(1).tolist() == sizes.tolist()
    right_of_clients = np.nansum(result.accuracy * sizes)
    right_by_class = counts.sum(0) @ result.records[-1].recalls
    assert right_by_class == pytest.approx(right_of_clients)


@pytest.mark.parametrize("own", [False, True], ids=["one model", "models of their own"])
def test_engines_agree_to_the_bit(own):
    problem = Problem.of(small_model(), federation(sizes=(9, 0, 70, 17, 6)), evenfed.Settings(**OPTIONS))
    draw = torch.Generator().manual_seed(1)
    models = problem.theta + 0.5 * torch.randn(5, len(problem.theta), generator=draw)
    questions = [EvalRequest(models if own else theta, torch.arange(5), {}) for theta in models[:2]]
    wanted = score(questions, problem, Reference(problem))
    assert not np.array_equal(wanted[0]["recalls"], wanted[1]["recalls"]) or own
    for engine in (Stacked(problem, 2, rows=40), Slots(problem, 2), Visiting(problem, 2), Visiting(problem, 1, True)):
        for ours, theirs in zip(score(questions, problem, engine), wanted, strict=True):
            assert np.array_equal(ours["recalls"], theirs["recalls"]), engine.how


def test_a_class_without_test_examples_has_no_recall(tmp_path):
    clients = [evenfed.Client((torch.eye(3), torch.arange(3)), (torch.eye(3)[:2], torch.arange(2)))]
    result = evenfed.train(nn.Linear(3, 3), clients, out=tmp_path / "run", evaluate_every=0, **OPTIONS)
    assert np.isnan(result.records[-1].recalls).tolist() == [False, False, True]
    lines = [json.loads(line) for line in next(tmp_path.rglob("rounds.jsonl")).read_text().splitlines()]
    assert "recalls" not in lines[0] and lines[-1]["recalls"][2] is None
    again = record_json.from_json(lines[-1])
    assert np.array_equal(again.recalls, result.records[-1].recalls, equal_nan=True)
    assert "recalls" not in record_json.unevaluated(lines[-1])


def some_right(outputs, targets):
    return (outputs.argmax(1) == targets).float() / 2


@pytest.mark.parametrize(
    ("targets", "options"),
    [
        (torch.rand(6), {"loss": "mse", "score": evenfed.Metric(lambda outputs, targets: outputs[:, 0] - targets)}),
        (torch.arange(6) % 3, {"score": some_right}),
        (torch.arange(6) % 3, {"score": evenfed.Metric(some_right, name="half")}),
        (torch.arange(6) * 300, {"loss": lambda outputs, targets: outputs.mean(1)}),
        (torch.arange(6) % 3, {"test": False}),
    ],
    ids=["numbers", "another score", "another metric", "many classes", "no test data"],
)
def test_where_recalls_do_not_apply_there_are_none(targets, options):
    examples = (torch.randn(6, 4), targets)
    has_test = options.pop("test", True)
    model = nn.Linear(4, 1 if options.get("loss") == "mse" else 3)
    result = evenfed.train(model, [evenfed.Client(examples, examples if has_test else None)], **OPTIONS, **options)
    assert result.records[-1].recalls is None
    assert result.header.judged_classes is None


def test_sequences_have_none():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 5)

        def forward(self, words):
            return self.table(words).transpose(1, 2)

    words = torch.randint(0, 5, (6, 4))
    result = evenfed.train(Words(), [evenfed.Client((words, words), (words, words))], **OPTIONS)
    assert result.accuracy is not None and result.records[-1].recalls is None


def test_folders_and_packed_files_keep_recalls_and_label_counts(tmp_path):
    result = evenfed.train(small_model(), federation(), out=tmp_path / "run", evaluate_every=1, **OPTIONS)
    packed, _ = pack(tmp_path / "run", tmp_path / "packed")
    with unpacked(packed.parent) as place:
        (header_path,) = place.rglob("header.json")
        header = Header.from_json(json.loads(header_path.read_text()))
        lines = header_path.with_name("rounds.jsonl").read_text().splitlines()
    assert np.array_equal(header.label_counts, result.header.label_counts)
    assert header.label_counts.shape == (5, 3)
    for line, record in zip(lines, result.records, strict=True):
        kept = record_json.from_json(json.loads(line)).recalls
        assert np.allclose(kept, record.recalls, rtol=0, atol=1e-6)
