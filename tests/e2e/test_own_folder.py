"""A folder of one's own on the command line: who the clients are, where paths start, whose model it is."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from evenfed import InputError
from evenfed.comparison.experiment import Experiment
from evenfed.comparison.tuning.tune import tables
from evenfed.data import federate
from evenfed.report.tuning import save_toml, toml_text

MODEL = """
import torch

class {name}(torch.nn.Sequential):
    def __init__(self, width=3):
        super().__init__(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))
"""
TOML = """
seeds = 1
noise_floor = false
[data]
name = "folder"
path = "hospitals"
[model]
name = "{module}.Net"
width = 5
[train]
rounds = 1
[algorithms.fedavg]
"""
BY_OPTIONS = ["--rounds", 1, "--seeds", 1, "--data", "folder", "--set", "data.path=project/hospitals"]
SITES = ("north", "south", "east", "west", "city", "coast")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with an experiment and six hospitals, beside the working folder."""
    project = tmp_path / "project"
    hospitals = project / "hospitals"
    hospitals.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for site in SITES:
        np.savez(hospitals / f"{site}.npz", x=draw.normal(size=(20, 4)), y=draw.integers(0, 2, size=20))
    (tmp_path / "own.toml").write_text("noise_floor = false\n[data]\nclients = 4\n[algorithms.fedavg]")
    return project


def header(folder: Path) -> dict:
    return json.loads((folder / "fedavg" / "seed-0" / "header.json").read_text())


def test_six_hospitals_are_six_clients_with_a_model_beside_the_file(tmp_path, project, evenfed):
    (project / "beside_toml.py").write_text(MODEL.format(name="Net"))
    (project / "mine.toml").write_text(TOML.format(module="beside_toml"))
    done = evenfed("compare", project / "mine.toml")
    assert done.returncode == 0, done.stderr
    clients = header(tmp_path / "runs" / "mine")["clients"]
    assert clients["names"] == sorted(SITES)
    assert sum(clients["train"]) + sum(clients["test"]) == 120
    train, test = sum(clients["train"]), sum(clients["test"])
    line = f"6 clients: city, coast, east, north, south, west; {train} training examples, {test} test"
    assert line in done.stderr.splitlines()
    shutil.move(project, tmp_path / "elsewhere")  # a moved folder is the same one, and nothing is left to do
    assert evenfed("compare", tmp_path / "elsewhere" / "mine.toml").returncode == 0
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "third")
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "project")
    refused = evenfed("compare", tmp_path / "third" / "mine.toml")
    assert refused.returncode == 2 and "data.path" in refused.stderr


def test_by_options_a_path_starts_at_the_working_folder_and_files_stay_clients(tmp_path, project, evenfed):
    (tmp_path / "in_working_folder.py").write_text(MODEL.format(name="Net"))
    own_model = ["--set", "model.name=in_working_folder.Net"]
    done = evenfed("compare", "own.toml", *BY_OPTIONS, *own_model)
    assert done.returncode == 0, done.stderr
    assert "6 clients: city, coast" in done.stderr
    pooled = ["--set", "data.partition=dirichlet", "--set", "data.clients=4", "--out", "pooled"]
    done = evenfed("compare", "own.toml", *BY_OPTIONS, *pooled)
    assert done.returncode == 0, done.stderr
    assert "4 clients: hospitals-0, hospitals-1" in done.stderr


def test_a_folder_split_anew_asks_for_the_number_of_clients(project):
    (project / "mine.toml").write_text(TOML.format(module="not_imported"))
    experiment = Experiment.read(project / "mine.toml")
    assert experiment.data.clients == 0  # all files
    told = r"data.clients=0 with partition='dirichlet': 0 stands for all owners, .* e.g. data.clients=30"
    with pytest.raises(InputError, match=told):
        experiment.changed(["data.partition=dirichlet"])
    split = experiment.changed(["data.partition=dirichlet", "data.clients=4"]).data
    assert (split.partition, split.clients) == ("dirichlet", 4)
    with pytest.raises(InputError, match=r"data.clients=-1: give a whole number, at least 1"):
        experiment.changed(["data.partition=dirichlet", "data.clients=-1"])


def test_own_test_data_are_what_a_client_is_tested_on(tmp_path, project, evenfed):
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(27, 4)), draw.integers(0, 2, size=27)
    np.savez(project / "hospitals" / "city.npz", x=x[:20], y=y[:20], x_test=x[20:], y_test=y[20:])
    done = evenfed("compare", "own.toml", *BY_OPTIONS)
    assert done.returncode == 0, done.stderr
    clients = header(tmp_path / "runs" / "own")["clients"]
    assert (clients["train"][0], clients["test"][0]) == (20, 7)
    assert clients["train"][1] < 20
    told = "! 1 of 6 clients are tested on their own test data; of the other 5, 50% of the examples are set aside"
    assert told in done.stderr


def test_an_experiment_written_elsewhere_still_finds_data_and_model(tmp_path, project):
    (project / "beside_first_toml.py").write_text(MODEL.format(name="Net"))
    (project / "mine.toml").write_text(TOML.format(module="beside_first_toml"))
    experiment = Experiment.read(project / "mine.toml")
    (tmp_path / "tuned").mkdir()
    file = tmp_path / "tuned" / "tuned.toml"
    save_toml(file, toml_text(file, "chosen", tables(experiment, "validation")))
    again = Experiment.read(tmp_path / "tuned" / "tuned.toml")
    assert again.data == experiment.data
    model = again.new_model(federate(again.data))
    assert type(model).__name__ == "Net"
    with pytest.raises(InputError, match="modules = 'here': give a list of folders"):
        Experiment.of({"modules": "here", "algorithms": {"fedavg": {}}}, "x")


@pytest.mark.parametrize(
    ("module", "content", "message"),
    [
        ("not_there_at_all", None, "ModuleNotFoundError"),
        ("is_spoilt", "x = undefined", "NameError: name 'undefined' is not defined"),
        ("has_no_net", "x = 1", "AttributeError"),
    ],
)
def test_a_model_that_cannot_be_imported_is_told(tmp_path, project, evenfed, module, content, message):
    if content:
        (project / f"{module}.py").write_text(content)
    (project / "mine.toml").write_text(TOML.format(module=module))
    refused = evenfed("compare", project / "mine.toml")
    assert refused.returncode == 2
    assert f"model '{module}.Net' cannot be imported ({message}" in refused.stderr
    assert "next to the experiment's file" in refused.stderr
