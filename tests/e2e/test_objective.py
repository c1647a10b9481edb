"""Regression and binary tasks by TOML: `loss` and `score` of [train]."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from evenfed import InputError
from evenfed.comparison.experiment import Experiment
from evenfed.comparison.runner import complete, findings_of
from evenfed.comparison.tuning.tune import tables
from evenfed.core.server import Record
from evenfed.data import federate
from evenfed.report.tuning import save_toml, toml_text

TOML = """
seeds = 1
noise_floor = false
[data]
name = "folder"
path = "clients"
[model]
name = "mlp"
hidden = [4]
[train]
rounds = 2
lr = 0.05
{objective}
[algorithms.fedavg]
[algorithms.semi_vred]
"""
OWN = """
def pinball(outputs, targets):
    errors = targets - outputs.squeeze(1)
    return (0.9 * errors).maximum(-0.1 * errors)
"""


def experiment(folder: Path, objective: str, whole: bool = False) -> Experiment:
    """Three clients with a number to predict, or with yes and no as 0 and 1."""
    clients = folder / "clients"
    clients.mkdir(exist_ok=True)
    draw = np.random.default_rng(0)
    for site in ("east", "north", "west"):
        x = draw.normal(size=(20, 3))
        y = x.sum(1)
        if whole:
            y = (y > 0).astype(int)
        np.savez(clients / f"{site}.npz", x=x, y=y)
    (folder / "mine.toml").write_text(TOML.format(objective=objective))
    return Experiment.read(folder / "mine.toml")


def carried_out(experiment: Experiment, out: Path) -> list[Record]:
    complete(experiment, out, lambda runs, records, engine: None)
    findings = findings_of(experiment, out)
    (folder,) = (out / experiment.name / "semi_vred").iterdir()
    assert json.loads((folder / "header.json").read_text())["finished"]
    return list(findings.entries[1].histories[0].records)


def test_regression_is_trained_on_squared_errors_and_judged_by_them(tmp_path: Path) -> None:
    records = carried_out(experiment(tmp_path, 'loss = "mse"'), tmp_path)
    assert records[-1].accuracy is None
    assert records[-1].test_losses is not None and np.isfinite(records[-1].test_losses).all()


def test_a_binary_task_has_one_logit_and_an_accuracy(tmp_path: Path) -> None:
    binary = experiment(tmp_path, 'loss = "binary"', whole=True)
    model = binary.new_model(federate(binary.data))
    assert model[-1].out_features == 1
    records = carried_out(binary, tmp_path)
    accuracy = records[-1].accuracy
    assert accuracy is not None
    assert accuracy.max() <= 1


def test_a_loss_of_ones_own_lies_beside_the_file_and_a_tuned_file_finds_it(tmp_path: Path) -> None:
    (tmp_path / "own_loss.py").write_text(OWN)
    own = experiment(tmp_path, 'loss = "own_loss.pinball"')
    assert carried_out(own, tmp_path)[-1].test_losses is not None
    (tmp_path / "tuned").mkdir()
    file = tmp_path / "tuned" / "tuned.toml"
    save_toml(file, toml_text(file, "chosen", tables(own, "validation")))
    again = Experiment.read(tmp_path / "tuned" / "tuned.toml")
    assert again.objective == own.objective
    assert again.functions()["loss"].__name__ == "pinball"


def test_another_loss_is_another_run(tmp_path: Path) -> None:
    squared = experiment(tmp_path, 'loss = "mse"')
    carried_out(squared, tmp_path)
    with pytest.raises(InputError, match="loss: 'mse' there, 'mae' here"):
        carried_out(squared.changed(["train.loss=mae"]), tmp_path)
    plain = dataclasses.replace(squared, objective=type(squared.objective)())
    assert not {"loss", "score"} & plain.config(plain.runs()[0][0]).keys()  # older folders have no such keys


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ('loss = "msee"', "unknown train.loss 'msee'; did you mean 'mse'"),
        ('score = "top2"', "unknown train.score 'top2'; did you mean 'top1'"),
        ("loss = 2", "train.loss=2: give a name"),
    ],
)
def test_an_unknown_name_is_refused(tmp_path: Path, objective: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        experiment(tmp_path, objective)


def test_what_cannot_be_trained_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'targets are float32; .* give `loss` .*"mse" for numbers'):
        carried_out(experiment(tmp_path, ""), tmp_path)
    with pytest.raises(InputError, match=r"loss 'nowhere.pinball' cannot be imported .* give module.function"):
        carried_out(experiment(tmp_path, 'loss = "nowhere.pinball"'), tmp_path)
