"""Hugging Face's encoders with attention masks, whole and with adapters on a frozen base."""

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import evenfed
from evenfed.core.streams import Batching
from evenfed.local.training import LocalTraining
from evenfed.simulate.engines.reference import Reference
from evenfed.simulate.engines.slots import Slots
from evenfed.simulate.problem import Problem, Task

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "huggingface_adapters.py"
OPTIONS = {"rounds": 2, "lr": 0.05, "batch_size": 4}

pytestmark = pytest.mark.slow


def encoder(attention: str, dropout: float, layers: int = 2) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation=attention,
    )
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


def clients() -> list[evenfed.Client]:
    draw = torch.Generator().manual_seed(0)
    made = []
    for k in range(4):
        size = 6 + 3 * k
        ids = torch.randint(1, 50, (size, 10), generator=draw)
        lengths = torch.randint(2, 11, (size, 1), generator=draw)
        mask = (torch.arange(10) < lengths).long()
        inputs = {"input_ids": ids, "attention_mask": mask}
        made.append(evenfed.Client((inputs, ids[:, 0] % 3), (inputs, ids[:, 0] % 3)))
    return made


def assert_alike(a: nn.Module, b: nn.Module) -> None:
    for ours, theirs in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("attention", "dropout"), [("eager", 0.1), ("sdpa", 0.0), ("sdpa", 0.1)])
def test_an_encoder_is_stacked_and_trains_as_one_by_one(attention, dropout):
    model = encoder(attention, dropout)
    stacked = evenfed.train(model, clients(), "semi_vred", **OPTIONS)
    reference = evenfed.train(model, clients(), "semi_vred", engine="reference", **OPTIONS)
    assert "stacked" in stacked.engine
    assert_alike(stacked.model, reference.model)
    assert (stacked.accuracy == reference.accuracy).all()
    assert not stacked.model.bert.embeddings.word_embeddings.weight.equal(model.bert.embeddings.word_embeddings.weight)


def test_an_encoder_in_a_gpus_slots_trains_as_one_by_one():
    problem = Problem.of(encoder("sdpa", 0.1, layers=1), clients(), evenfed.Settings(lr=0.05, batch_size=4))
    task = Task(0, 0, problem.theta, torch.arange(4), LocalTraining(0.05, Batching(size=4)))
    found = torch.zeros(4, len(problem.theta))
    for _, update in Slots(problem, 2).train([task]):
        found[:, update.columns] = update.delta
    for position, (_, update) in enumerate(Reference(problem).train([task])):
        torch.testing.assert_close(found[position], update.delta[0], rtol=1e-4, atol=1e-6)


def test_the_example_with_adapters_runs(capsys):
    pytest.importorskip("transformers")
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "trained: 2146 of 21058 parameters" in printed and "stacked" in printed
    for line in printed.splitlines()[:2]:
        accuracy = int(line.split("all clinics ")[1].split(" %")[0])
        assert accuracy > 80


def test_the_five_lines_of_the_page_run():
    pytest.importorskip("transformers")
    page = (ROOT / "docs" / "inputs.md").read_text()
    _, _, after = page.partition("## A Hugging Face encoder in five lines")
    _, _, block = after.partition("```python\n")
    code, _, _ = block.partition("```")
    assert len([line for line in code.splitlines() if line]) == 5
    sites = [client.train for client in clients()]
    namespace = {"evenfed": evenfed, "sites": [(inputs, targets % 2) for inputs, targets in sites]}
    exec(code, namespace)
    assert "stacked" in namespace["result"].engine or "visited" in namespace["result"].engine
    assert len(namespace["result"].records) == 5
