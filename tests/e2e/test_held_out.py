"""Clients and examples that are held out of training: from TOML, in reports, and in a folder's identity."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import evenfed
from evenfed import InputError
from evenfed.comparison.experiment import Experiment
from evenfed.comparison.runner import complete, findings_of
from evenfed.data import DataSettings, federate
from evenfed.report.document import Report
from worked_example import federation, small_model

TABLES = {
    "seeds": 1,
    "noise_floor": False,
    "data": {"name": "digits", "clients": 8, "partition": "iid", "examples": 200, "unseen": 3},
    "model": {"name": "mlp", "hidden": []},
    "train": {"rounds": 2},
    "algorithms": {"fedavg": {}, "semi_vred": {}},
}


TOML = """
seeds = 1
noise_floor = false
data = { clients = 6, partition = "iid", examples = 100, unseen = 2 }
model = { name = "mlp", hidden = [] }
train = { rounds = 1 }
[algorithms.fedavg]
"""


def quietly(runs, records, engine):
    pass


def test_some_clients_never_train_whatever_the_partition() -> None:
    settings = DataSettings(clients=8, partition="iid", examples=200, unseen=3)
    held = federate(settings)
    everyone = federate(dataclasses.replace(settings, unseen=0))
    assert len(held.names) == 5 and len(held.unseen_names) == 3
    assert sorted([*held.names, *held.unseen_names]) == everyone.names
    for k, name in enumerate(held.unseen_names):
        _, targets = everyone.judged.of(everyone.names.index(name))
        assert held.unseen is not None
        assert torch.equal(held.unseen.of(k)[1], targets)
    assert f"3 of 8 clients never train and are judged apart: {', '.join(held.unseen_names)}" in held.notes
    assert federate(settings).unseen_names == held.unseen_names
    others = federate(dataclasses.replace(settings, seed=1)).unseen_names
    assert others != held.unseen_names  # drawn with the seed
    assert "unseen" not in dataclasses.replace(settings, unseen=0).describe()  # older folders have no such key


def test_too_many_are_refused() -> None:
    with pytest.raises(InputError, match=r"data.unseen=4: of 4 clients 4 have test examples, .* ask for at most 3"):
        federate(DataSettings(clients=4, partition="iid", unseen=4))
    with pytest.raises(InputError, match=r"data.unseen=-1"):
        DataSettings(unseen=-1)


def test_an_experiment_judges_them_apart_and_the_report_has_their_table(tmp_path: Path) -> None:
    experiment = Experiment.of(TABLES, "held")
    complete(experiment, tmp_path, quietly)
    findings = findings_of(experiment, tmp_path)
    history = findings.baseline.histories[0]
    assert history.unseen is not None
    record = history.records[-1]
    assert record.accuracy is not None and len(record.accuracy) == 5
    assert record.unseen is not None and len(record.unseen) == 3
    report = Report.of([tmp_path / "held"], beside_paper=False)
    (table,) = [table for table in report.tables if table.title.startswith("Clients never trained on")]
    assert [line.entry for line in table.lines] == ["fedavg", "semi_vred"]
    assert table.lines[0].cells[0].value == pytest.approx(100 * np.mean(record.unseen))
    assert table.title == "Clients never trained on (3), last round"
    with pytest.raises(InputError, match=r"data.unseen: 3 there, None here"):
        complete(experiment.changed(["data.unseen=0"]), tmp_path, quietly)
    on_flower = experiment.changed(["train.engine=flower"])
    with pytest.raises(InputError, match=r"data.unseen=3 needs the simulator; leave it out"):
        complete(dataclasses.replace(on_flower, name="flower"), tmp_path, quietly)


def test_the_command_line_shows_them_with_full(tmp_path: Path, evenfed) -> None:
    (tmp_path / "held.toml").write_text(TOML)
    done = evenfed("compare", "held.toml", "--full")
    assert done.returncode == 0, done.stderr
    assert "2 of 6 clients never train" in done.stderr
    assert "Clients never trained on (2), last round" in done.stdout


def test_other_held_out_data_are_another_run(tmp_path: Path) -> None:
    *seen, apart, other = federation()
    options = {"rounds": 2, "device": "cpu", "lr": 0.2, "batch_size": 4, "progress": False, "out": tmp_path / "runs"}
    model = small_model()
    first = evenfed.train(model, seen, unseen=[apart], test=apart.train, **options)
    again = evenfed.train(model, seen, unseen=[apart], test=apart.train, **options)
    assert again.unseen == first.unseen and again.test == first.test
    with pytest.raises(InputError, match=r"data.unseen: '\d+ examples, \w+' there, '\d+ examples"):
        evenfed.train(model, seen, unseen=[other], test=apart.train, **options)
    with pytest.raises(InputError, match=r"data.global_test: '\d+ examples, \w+' there, None here"):
        evenfed.train(model, seen, unseen=[apart], **options)


def test_a_global_test_set_has_its_table(tmp_path: Path) -> None:
    *seen, apart = federation()
    options = {"rounds": 2, "device": "cpu", "lr": 0.2, "batch_size": 4, "progress": False, "out": tmp_path / "runs"}
    found = evenfed.compare(small_model, seen, ["semi_vred"], seeds=1, test=apart.train, **options)
    report = Report.of([tmp_path / "runs"], beside_paper=False)
    (table,) = [table for table in report.tables if table.title.startswith("Global test set")]
    assert [column.title for column in table.columns] == ["accuracy", "loss"]
    measured = found["semi_vred"][0].test
    accuracy, loss = table.lines[1].cells
    assert (accuracy.value, loss.value) == pytest.approx((100 * measured["accuracy"], measured["loss"]))
    assert not any(table.title.startswith("Clients never") for table in report.tables)
