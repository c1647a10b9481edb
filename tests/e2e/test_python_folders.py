"""Runs on disk from Python: resumed, extended, refused and reported like the command line's."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
import evenfed as package
from command import SMALL
from evenfed.comparison.storage.lock import LOCK, locked
from evenfed.core.naming import name_of
from worked_example import federation, small_model

CPU = {"device": "cpu", "lr": 0.2, "batch_size": 4, "progress": False}
ENTRIES = ["ditto", "fedfv[tau=2]", "semi_vred[beta=1,smooth=0.25]"]


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def compared(out=None, rounds=6, **options):
    return evenfed.compare(small_model, federation(), ENTRIES, seeds=1, rounds=rounds, out=out, **CPU, **options)


def same(one: evenfed.Result, two: evenfed.Result) -> None:
    assert torch.equal(one.server.theta, two.server.theta)
    assert one.server.buffers.keys() == two.server.buffers.keys()
    for name, buffer in one.server.buffers.items():
        assert torch.equal(buffer, two.server.buffers[name])
    assert (one.personal is None) == (two.personal is None)
    if one.personal is not None:
        assert torch.equal(one.personal, two.personal)
    assert len(one.records) == len(two.records)
    for a, b in zip(one.records, two.records, strict=True):
        assert a.index == b.index and a.dropped == b.dropped
        np.testing.assert_array_equal(a.losses, b.losses)
        np.testing.assert_array_equal(a.weights, b.weights)
        np.testing.assert_array_equal(a.accuracy, b.accuracy)


def all_same(one: evenfed.Comparison, two: evenfed.Comparison) -> None:
    assert list(one.results) == list(two.results)
    for label, results in one.results.items():
        for a, b in zip(results, two.results[label], strict=True):
            same(a, b)
    for a, b in zip(one.floor, two.floor, strict=True):
        same(a, b)


@pytest.fixture(scope="module")
def undisturbed() -> evenfed.Comparison:
    return compared()


class FaultError(Exception):
    pass


def failing(progress):
    if progress.round == 4 and progress.label == "ditto":
        raise FaultError


def test_a_comparison_that_failed_resumes_to_the_bit(tmp_path, undisturbed, monkeypatch):
    monkeypatch.setenv("EVENFED_CHECKPOINT_SECONDS", "0")
    with pytest.raises(FaultError):
        compared(tmp_path / "x", callbacks=failing)
    assert not json.loads((tmp_path / "x" / "ditto" / "seed-0" / "header.json").read_text())["finished"]
    resumed = compared(tmp_path / "x")
    all_same(undisturbed, resumed)
    header = json.loads((tmp_path / "x" / "ditto" / "seed-0" / "header.json").read_text())
    assert header["resumed_at"] == [0, 4] and header["finished"]
    assert resumed.folder == tmp_path / "x"
    again = compared(tmp_path / "x")  # finished: nothing is trained
    all_same(undisturbed, again)


def test_more_rounds_go_on_from_the_last_and_fewer_are_refused(tmp_path, undisturbed):
    compared(tmp_path / "x", rounds=3)
    all_same(undisturbed, compared(tmp_path / "x", rounds=6))
    with pytest.raises(
        evenfed.InputError,
        match=r"has 6 rounds and is not cut to 5.*choose another folder \(--out; in Python",
    ):
        compared(tmp_path / "x", rounds=5)


def test_numpy_scalars_resume_the_run_of_the_same_numbers(tmp_path):
    plain = evenfed.train(small_model(), federation(), "vred[beta=0.5]", rounds=2, out=tmp_path, **CPU)
    ours = {**CPU, "lr": np.float64(0.2), "batch_size": np.int64(4), "seed": np.int64(0)}
    algorithm = evenfed.algorithms.VRed(beta=np.float32(0.5))
    longer = evenfed.train(small_model(), federation(), algorithm, rounds=np.int64(3), out=tmp_path, **ours)
    assert len(longer.records) == 3
    np.testing.assert_array_equal(longer.records[1].losses, plain.records[1].losses)
    (header,) = tmp_path.rglob("header.json")
    assert json.loads(header.read_text())["resumed_at"] == [0, 2]


def test_an_evaluation_made_only_because_the_round_was_the_last_is_not_kept_by_an_extended_run(tmp_path):
    options = {**CPU, "evaluate_every": 2, "batch_size": 7}
    evenfed.train(normalised(), federation(), rounds=3, out=tmp_path, **options)
    with pytest.warns(UserWarning, match="other initial parameters"):  # it was made without a seed
        longer = evenfed.train(normalised(), federation(), rounds=5, out=tmp_path, **options)
    assert [record.accuracy is None for record in longer.records] == [True, False, True, False, False]


def test_a_new_run_from_another_initial_model_is_not_put_beside_an_old_one(tmp_path):
    torch.manual_seed(0)
    evenfed.compare(nn.Linear(6, 3), federation(), ["fedavg"], seeds=1, rounds=1, out=tmp_path, **CPU)
    with pytest.raises(evenfed.InputError, match="manual_seed"):
        evenfed.compare(nn.Linear(6, 3), federation(), ["vred"], seeds=1, rounds=1, out=tmp_path, **CPU)


def other_data():
    clients = federation()
    inputs, targets = clients[0].train
    changed = evenfed.Client((inputs + 1e-3, targets), clients[0].test, clients[0].name)
    return [changed, *clients[1:]]


def half_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none") / 2


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"clients": other_data()}, r"data\.train"),
        ({"model": nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))}, r"model\.parameters"),
        ({"loss": half_loss}, r"model\.loss.*half_loss"),
        ({"lr": 0.1}, r"train\.lr"),
        ({"algorithm": "vred[beta=2]", "label": "vred"}, r"hyper_parameters\.beta"),
    ],
)
def test_another_run_in_the_folder_is_refused_with_what_differs(tmp_path, change, place):
    given = {"model": small_model(), "clients": federation(), "algorithm": "vred", "rounds": 1, "out": tmp_path, **CPU}
    evenfed.train(**given)
    label = change.pop("label", None)
    if label:
        (tmp_path / "vred").rename(tmp_path / "vred[beta=2]")
    with pytest.raises(evenfed.InputError, match=place):
        evenfed.train(**{**given, **change})


def test_a_folder_in_use_is_refused(tmp_path):
    with locked(tmp_path), pytest.raises(evenfed.InputError, match="another evenfed"):
        evenfed.train(small_model(), federation(), rounds=1, out=tmp_path, **CPU)


def test_what_fails_before_anything_is_written_leaves_no_folder(tmp_path):
    new = tmp_path / "runs" / "mine"
    with pytest.raises(evenfed.InputError), locked(new):
        raise evenfed.InputError("no data")
    assert list(tmp_path.iterdir()) == []
    new.mkdir(parents=True)
    with pytest.raises(evenfed.InputError), locked(new):
        raise evenfed.InputError("no data")
    assert new.is_dir()  # the user's own

    def write_and_fail(folder):
        (folder / "notes").touch()
        raise evenfed.InputError("no disk")

    with pytest.raises(evenfed.InputError), locked(new / "kept"):
        write_and_fail(new / "kept")
    assert (new / "kept" / "notes").exists() and (new / "kept" / LOCK).exists()


def test_a_lock_that_its_holder_removed_is_no_lock(tmp_path, monkeypatch):
    """Another process opened the file just before it was removed: who comes next could not see its lock."""
    opened = os.open

    def removed_by_its_holder(path, *rest):
        file = opened(path, *rest)
        monkeypatch.setattr(os, "open", opened)
        path.unlink()
        return file

    monkeypatch.setattr(os, "open", removed_by_its_holder)
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()
        with pytest.raises(evenfed.InputError, match="another evenfed"), locked(tmp_path):
            pass


def test_ctrl_c_keeps_the_rounds_and_says_how_to_go_on(tmp_path, undisturbed):
    def press(progress):
        if progress.round == 2 and progress.label == "fedavg":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"every finished round is kept in .*same call"):
        compared(tmp_path, callbacks=press)
    assert len((tmp_path / "ditto" / "seed-0" / "rounds.jsonl").read_text().splitlines()) == 2
    all_same(undisturbed, compared(tmp_path))


def test_a_run_that_a_callback_stopped_stays_stopped(tmp_path):
    def stop(progress):
        if progress.round == 2:
            progress.stop("enough")

    given = (small_model(), federation(), "fedavg")
    evenfed.train(*given, rounds=5, out=tmp_path, callbacks=stop, **CPU)
    again = evenfed.train(*given, rounds=5, out=tmp_path, **CPU)
    assert len(again.records) == 2 and again.stopped == "enough"
    longer = evenfed.train(*given, rounds=6, out=tmp_path, **CPU)
    assert longer.stopped == "enough"
    same(longer, evenfed.train(*given, rounds=6, callbacks=stop, **CPU))


class Halved:
    def __call__(self, outputs, targets):
        return half_loss(outputs, targets)


def test_a_loss_whose_values_cannot_be_seen_is_said(tmp_path):
    with pytest.warns(UserWarning, match=r"knows only its class.*Halved"):
        first = evenfed.train(small_model(), federation(), rounds=1, loss=Halved(), out=tmp_path, **CPU)
    with pytest.warns(UserWarning, match="knows only its class"):
        extended = evenfed.train(small_model(), federation(), rounds=2, loss=Halved(), out=tmp_path, **CPU)
    assert len(extended.records) == 2
    assert extended.records[0].seconds == first.records[0].seconds  # another object of the class goes on with the run


def as_an_older_version(folder: Path, loss: str) -> None:
    path = folder / "semi_vred" / "seed-0" / "header.json"
    header = json.loads(path.read_text())
    del header["config"]["model"]["kept_in_evaluation"]
    header["config"]["model"]["loss"] = loss
    path.write_text(json.dumps(header))


def test_a_loss_module_is_known_by_all_its_values(tmp_path):
    def trained(rounds, **options):
        loss = nn.CrossEntropyLoss(reduction="none", **options)
        return evenfed.train(small_model(), federation(), rounds=rounds, loss=loss, out=tmp_path, **CPU)

    weights = torch.tensor([1.0, 50.0, 1.0])
    trained(1, weight=weights)
    for other in ({}, {"weight": weights + 1}, {"weight": weights, "label_smoothing": 0.3}):
        with pytest.raises(evenfed.InputError, match=r"model\.loss: .*CrossEntropyLoss"):
            trained(2, **other)
    as_an_older_version(tmp_path, "torch.nn.modules.loss.CrossEntropyLoss: CrossEntropyLoss()")
    assert len(trained(2, weight=weights).records) == 2
    as_an_older_version(tmp_path, "torch.nn.modules.loss.MSELoss: MSELoss()")
    with pytest.raises(evenfed.InputError, match=r"model\.loss"):
        trained(3, weight=weights)


def weighted(weights):
    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, weights, reduction="none")

    return loss


def test_functions_that_hold_tensors_resume_the_folders_of_older_versions(tmp_path):
    weights = torch.tensor([1.0, 2.0, 3.0])
    partial = functools.partial(nn.functional.cross_entropy, weight=weights, reduction="none")
    for out, loss in (("partial", partial), ("closure", weighted(weights))):
        given = {"model": small_model(), "clients": federation(), "out": tmp_path / out, **CPU}
        evenfed.train(rounds=1, loss=loss, **given)
        name = re.sub(r"float32 \[3\] #\w{8}", "{}", name_of(loss))
        as_an_older_version(tmp_path / out, name.format(weights))
        assert len(evenfed.train(rounds=2, loss=loss, **given).records) == 2
        as_an_older_version(tmp_path / out, name.format(weights + 1))
        with pytest.raises(evenfed.InputError, match=r"model\.loss"):
            evenfed.train(rounds=3, loss=loss, **given)


def test_a_module_that_is_put_into_evaluation_mode_makes_another_run(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    evenfed.train(model, federation(), rounds=1, out=tmp_path, **CPU)
    model[1].eval()
    with pytest.raises(evenfed.InputError, match=r"model\.kept_in_evaluation: \[\] there, \['1'\] here"):
        evenfed.train(model, federation(), rounds=2, out=tmp_path, **CPU)
    as_an_older_version(tmp_path, "evenfed.losses.cross_entropy")
    assert len(evenfed.train(model.train(), federation(), rounds=2, out=tmp_path, **CPU).records) == 2


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.factor = 1.0
        self.first = None
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, outputs, targets):
        self.calls += 1
        self.seen += len(targets)
        if self.first is None:
            self.first = len(targets)
        return self.factor * nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_a_loss_module_that_counts_its_calls_resumes_and_its_options_still_count(tmp_path):
    given = {"model": small_model(), "clients": federation(), "engine": "reference", "out": tmp_path, **CPU}
    loss = Counting()
    for rounds, used in ((1, loss), (2, loss), (3, Counting())):
        assert len(evenfed.train(rounds=rounds, loss=used, **given).records) == rounds
    loss.factor = 2.0
    with pytest.raises(evenfed.InputError, match=r"model\.loss: .*factor=1.0.*factor=2.0"):
        evenfed.train(rounds=4, loss=loss, **given)


class WithFrozenBase(nn.Module):
    """Its base stays in evaluation mode; `always`: also after `train()`."""

    def __init__(self, *dropout, always=False):
        super().__init__()
        self.base = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *dropout).requires_grad_(False).eval()
        self.head = nn.Linear(8, 3)
        self.always = always

    def forward(self, inputs):
        return self.head(self.base(inputs))

    def train(self, mode=True):
        super().train(mode)
        if self.always:
            self.base.eval()
        return self


@pytest.mark.parametrize("model", [WithFrozenBase(), WithFrozenBase(nn.Dropout(0.5), always=True)])
def test_a_model_resumes_in_evaluation_mode_if_it_trains_alike(tmp_path, model):
    given = (model, federation(), "semi_vred")
    evenfed.train(*given, rounds=1, out=tmp_path, **CPU)
    model.eval()
    assert len(evenfed.train(*given, rounds=2, out=tmp_path, **CPU).records) == 2


def test_a_frozen_base_whose_dropout_would_train_in_a_model_in_evaluation_mode_makes_another_run(tmp_path):
    model = WithFrozenBase(nn.Dropout(0.5))
    given = (model, federation(), "semi_vred")
    evenfed.train(*given, rounds=1, out=tmp_path, **CPU)
    model.eval()
    with pytest.raises(evenfed.InputError, match=r"kept_in_evaluation: \['base.2'\] there, \[\] here"):
        evenfed.train(*given, rounds=2, out=tmp_path, **CPU)


def test_the_same_configuration_in_another_spelling_resumes(tmp_path):
    given = (small_model(), federation(), "semi_vred")
    auto = {**CPU, "device": "auto" if not torch.cuda.is_available() else "cpu"}
    momentum = {"name": "sgd", "momentum": 0.9}
    for out, (first, second) in {
        "name": ({"name": "sgd"}, "sgd"),
        "defaults": ("sgd", {"name": "sgd", "nesterov": False}),
        "options": (momentum, {"dampening": 0, **momentum}),
    }.items():
        evenfed.train(*given, rounds=1, optimizer=first, out=tmp_path / out, **auto)
        resumed = evenfed.train(
            *given, rounds=2, optimizer=second, lr_schedule={"name": "constant"}, out=tmp_path / out, **CPU
        )
        assert len(resumed.records) == 2
        with pytest.raises(evenfed.InputError, match=r"train\.optimizer"):
            evenfed.train(*given, rounds=2, optimizer={"name": "sgd", "momentum": 0.5}, out=tmp_path / out, **CPU)


def test_an_entry_is_not_trained_again_under_another_spelling(tmp_path):
    given = {"model": small_model(), "clients": federation(), "rounds": 1, "out": tmp_path, **CPU}
    evenfed.train(algorithm="semi_vred", **given)
    told = r"holds 'semi_vred\[beta=0.2\]' already, as 'semi_vred'"
    with pytest.raises(evenfed.InputError, match=told):
        evenfed.train(algorithm="semi_vred[beta=0.2]", **given)
    with pytest.raises(evenfed.InputError, match=told):
        evenfed.compare(algorithms=["semi_vred[beta=0.2]"], seeds=1, **given)
    evenfed.train(algorithm="semi_vred[beta=0.3]", **given)
    compared = evenfed.compare(algorithms={"mine": "semi_vred"}, seeds=1, **given)
    assert list(compared) == ["fedavg", "mine"]


def test_a_folder_is_named_by_a_path(tmp_path):
    result = evenfed.train(small_model(), federation(), rounds=1, **CPU)
    for call in (result.save, evenfed.load, lambda out: compared(out)):
        for path in (5, True, b"runs", ""):
            with pytest.raises(evenfed.InputError, match=r"the folder .*give .*'runs/mine'"):
                call(path)


def test_a_schedule_over_all_rounds_cannot_be_extended_and_one_of_fixed_length_can(tmp_path):
    given = (small_model(), federation(), "fedavg")
    evenfed.train(*given, rounds=2, lr_schedule="cosine", out=tmp_path / "a", **CPU)
    with pytest.raises(evenfed.InputError, match="2 rounds and cannot go on to 4: lr_schedule='cosine' depends"):
        evenfed.train(*given, rounds=4, lr_schedule="cosine", out=tmp_path / "a", **CPU)
    fixed = {"name": "cosine", "rounds": 8}
    evenfed.train(*given, rounds=2, lr_schedule=fixed, out=tmp_path / "b", **CPU)
    longer = evenfed.train(*given, rounds=4, lr_schedule=fixed, out=tmp_path / "b", **CPU)
    same(longer, evenfed.train(*given, rounds=4, lr_schedule=fixed, **CPU))


def with_frozen_base(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    return model


def test_other_frozen_parameters_are_refused_when_a_run_goes_on_and_when_it_is_loaded(tmp_path):
    given = {"clients": federation(), "algorithm": "fedavg", "out": tmp_path, **CPU}
    evenfed.train(with_frozen_base(0), rounds=1, **given)
    longer = evenfed.train(with_frozen_base(0), rounds=2, **given)
    with pytest.raises(evenfed.InputError, match="other frozen parameters"):
        evenfed.train(with_frozen_base(1), rounds=3, **given)
    loaded = evenfed.load(tmp_path, model=with_frozen_base(0))
    inputs = federation()[0].test[0]
    assert torch.equal(loaded.model(inputs), longer.model(inputs))
    with pytest.raises(evenfed.InputError, match="other frozen parameters"):
        evenfed.load(tmp_path, model=with_frozen_base(1))


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import test_python_folders as here

folder = Path(sys.argv[1])

def all_saved():
    runs = [header.parent for header in folder.rglob("header.json")]
    return all(any(run.glob("checkpoint-*.safetensors")) for run in runs)

def die(progress):
    if progress.round == 4 and progress.label == "fedavg":
        deadline = time.monotonic() + 60
        while not all_saved():  # checkpoints are written in the background, on a busy disk slower than rounds
            assert time.monotonic() < deadline, "no checkpoints"
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

here.compared(folder, callbacks=die)
"""


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_bit(tmp_path, undisturbed):
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    paths = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": paths, "EVENFED_CHECKPOINT_SECONDS": "0"}
    killed = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], env=env, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    all_same(undisturbed, compared(tmp_path))
    header = json.loads((tmp_path / "ditto" / "seed-0" / "header.json").read_text())
    assert 0 < header["resumed_at"][-1] < 4


@pytest.mark.slow
def test_the_command_line_extends_a_finished_folder_and_python_reads_it(tmp_path, evenfed):
    call = ["compare", "--algorithms", "fedavg,ditto", "--seeds", 1, *SMALL, "--format", "json", "--out"]
    assert evenfed(*call, tmp_path / "a", "--rounds", 2).returncode == 0
    assert evenfed(*call, tmp_path / "a", "--set", "train.rounds=4").returncode == 0
    assert evenfed(*call, tmp_path / "b", "--rounds", 4).returncode == 0
    all_same(package.load(tmp_path / "a" / "demo"), package.load(tmp_path / "b" / "demo"))
    refused = evenfed(*call, tmp_path / "a", "--rounds", 3)
    assert refused.returncode == 2 and "has 4 rounds and is not cut to 3" in refused.stderr


def test_planted_links_are_not_written_through(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    run = tmp_path / "out" / "fedavg" / "seed-0"
    run.mkdir(parents=True)
    for name in ("header.json", "checkpoint-1.safetensors", "model.safetensors"):
        (run / f"{name}.new").symlink_to(precious)
    evenfed.train(small_model(), federation(), "fedavg", rounds=1, out=tmp_path / "out", **CPU)
    assert precious.read_text() == "mine" and not list(run.glob("*.new"))
    (tmp_path / "out" / ".lock").unlink()
    (tmp_path / "out" / ".lock").symlink_to(precious)
    with pytest.raises(evenfed.InputError, match="cannot be written to"):
        evenfed.train(small_model(), federation(), "fedavg", rounds=2, out=tmp_path / "out", **CPU)
    assert precious.read_text() == "mine"
