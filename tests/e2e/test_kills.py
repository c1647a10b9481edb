"""Killed at any point of any save, a comparison ends as if nothing had been; all its runs go on together."""

import importlib
import json
from pathlib import Path

import pytest

import evenfed
from command import rounds_of
from evenfed.comparison.storage.folder import RunFolder
from worked_example import federation, small_model

TOOLS = Path(__file__).parents[2] / "tools"
ROUNDS = 3
CPU = {"device": "cpu", "lr": 0.2, "batch_size": 4, "progress": False}


class KilledError(BaseException):
    pass


def stop_vred(progress):
    if progress.label == "vred" and progress.round == 2:
        progress.stop("enough")


def compared(out: Path, callbacks=()) -> None:
    entries = ["vred", "ditto"]
    evenfed.compare(small_model, federation(), entries, seeds=1, rounds=ROUNDS, out=out, callbacks=callbacks, **CPU)


def header_of(run: Path) -> dict:
    return json.loads((run / "header.json").read_text())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    compared(out)
    return out


@pytest.fixture
def killed(monkeypatch):
    """The comparison, ended before a folder's method is called for the n-th time."""

    def compare(out: Path, method: str, call: int, callbacks=()) -> None:
        calls = []
        whole = getattr(RunFolder, method)

        def dying(self, *arguments, **options):
            calls.append(self)
            if len(calls) == call:
                raise KilledError
            return whole(self, *arguments, **options)

        monkeypatch.setattr(RunFolder, method, dying)
        with pytest.raises(KilledError):
            compared(out, callbacks)
        monkeypatch.setattr(RunFolder, method, whole)

    return compare


def same(wanted: Path, out: Path) -> None:
    runs = [path.parent.relative_to(wanted) for path in wanted.glob("*/seed-*/header.json")]
    assert len(runs) == 4
    for run in runs:
        assert rounds_of(wanted / run) == rounds_of(out / run), run
        assert (wanted / run / "model.safetensors").read_bytes() == (out / run / "model.safetensors").read_bytes(), run
        assert len(list((out / run).glob("checkpoint-*"))) == 1, run
    assert not list(out.rglob("*.new"))


@pytest.mark.parametrize(
    ("seconds", "method", "call", "starts"),
    [
        ("0", "save", 2, {(0, 0)}),  # in the first save
        ("9", "save", 3, {(0, 0)}),  # in a first save that is the final one
        (
            "9",
            "forget",
            4 + 2,
            {(0, ROUNDS)},
        ),  # in the final save, once all checkpoints are there; four are asked for when runs begin
        ("9", "finish", 2, {(0,), (0, ROUNDS)}),  # when some runs have ended and others not
    ],
)
def test_runs_go_on_together_to_the_bit(tmp_path, undisturbed, killed, monkeypatch, seconds, method, call, starts):
    monkeypatch.setenv("EVENFED_CHECKPOINT_SECONDS", seconds)
    killed(tmp_path, method, call)
    for leftover in ("header.json.new", "model.safetensors.new", f"checkpoint-{ROUNDS}.safetensors.new"):
        (tmp_path / "ditto" / "seed-0" / leftover).write_text("half")
    compared(tmp_path)
    same(undisturbed, tmp_path)
    assert {tuple(header_of(run.parent)["resumed_at"]) for run in tmp_path.rglob("header.json")} == starts


def test_nothing_is_called_damaged_that_was_only_killed(tmp_path, undisturbed, killed, monkeypatch):
    """First when some runs have no checkpoint yet; then when the others' have been cleared away to start together."""
    monkeypatch.setenv("EVENFED_CHECKPOINT_SECONDS", "0")
    killed(tmp_path, "save", 2)
    killed(tmp_path, "begin", 1)
    compared(tmp_path)  # a warning would be an error
    same(undisturbed, tmp_path)


@pytest.mark.parametrize(("method", "call"), [("finish", 1), ("save", 6)])
def test_a_run_that_a_callback_stopped_is_not_trained_on(tmp_path, killed, monkeypatch, method, call):
    wanted, out = tmp_path / "wanted", tmp_path / "out"
    compared(wanted, stop_vred)
    monkeypatch.setenv("EVENFED_CHECKPOINT_SECONDS", "0" if method == "save" else "9")
    killed(out, method, call, stop_vred)
    compared(out, stop_vred)
    same(wanted, out)
    assert header_of(out / "vred" / "seed-0")["stopped"] == "enough" and len(rounds_of(out / "vred" / "seed-0")) == 2


@pytest.mark.slow
def test_the_command_that_kills_at_every_point_and_at_random(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(TOOLS)
    monkeypatch.setenv("EVENFED_CHECKPOINT_SECONDS", "0")
    monkeypatch.setenv("EVENFED_COMMIT", "unknown")
    kills = importlib.import_module("kills")
    (tmp_path / "points").mkdir()
    point = "os.rename ditto/seed-0/checkpoint-1.safetensors.new"
    assert kills.try_points(tmp_path / "points", lambda name: name == point) == (1, [])
    (tmp_path / "random").mkdir()
    done, wrong = kills.try_moments(tmp_path / "random", kills=1, seed=0)
    assert done >= 1 and wrong == []
