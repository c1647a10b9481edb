"""Files of a run that are lost, cut or changed are noticed and named; the run goes on from its last good state."""

import ctypes
import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import evenfed
from command import rounds_of
from evenfed.core.errors import DamageWarning
from worked_example import federation, small_model

CPU = {"device": "cpu", "lr": 0.2, "batch_size": 4, "progress": False}
ROUNDS = 3


def trained(out: Path, rounds: int = ROUNDS) -> Path:
    evenfed.train(small_model(), federation(), "fedavg", rounds=rounds, out=out, **CPU)
    return out / "fedavg" / "seed-0"


@pytest.fixture
def run(tmp_path) -> Path:
    return trained(tmp_path / "out")


def removed(text: str) -> None:
    """The file itself."""


def cut(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:2])


def repeated(text: str) -> str:
    return text + text.splitlines(keepends=True)[-1]


def exchanged(text: str) -> str:
    first, second, *others = text.splitlines(keepends=True)
    return "".join([second, first, *others])


def changed(text: str) -> str:
    return text.replace('"losses": [1', '"losses": [2', 1)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (removed, "holds 0 of 3 rounds"),
        (lambda text: "", "holds 0 of 3 rounds"),
        (cut, "holds 2 of 3 rounds"),
        (repeated, "holds 4 rounds instead of 3"),
        (exchanged, "line 1 is of round 2"),
        (lambda text: text[:-9], "line 3 cannot be read"),
        (changed, "checksum"),
    ],
)
def test_rounds_that_are_not_those_written(run, damage, told, tmp_path, evenfed):
    wanted = rounds_of(run)
    file = run / "rounds.jsonl"
    text = file.read_text()
    damaged = damage(text)
    assert damaged != text
    file.unlink()
    if damaged is not None:
        file.write_text(damaged)
    refused = evenfed("report", tmp_path / "out")
    assert refused.returncode == 2 and told in refused.stderr and "rounds.jsonl is damaged" in refused.stderr
    with pytest.warns(DamageWarning) as warned:
        trained(tmp_path / "out")
    sentences = [str(each.message) for each in warned]
    assert told in sentences[0]
    assert ("starts again at round 1" in sentences[-1]) == (damage is not repeated)  # its checkpoint is still good
    assert rounds_of(run) == wanted


@pytest.mark.parametrize("name", ["checkpoint-3.safetensors", "model.safetensors"])
def test_a_flipped_bit_in_a_file_of_tensors(run, name):
    content = bytearray((run / name).read_bytes())
    content[-1] ^= 1
    (run / name).write_bytes(content)
    with pytest.raises(evenfed.InputError, match=rf"{name} is damaged: its checksum"):
        evenfed.load(run)


def test_a_run_goes_on_from_the_start_when_its_checkpoint_is_damaged(run, tmp_path):
    (run / "checkpoint-3.safetensors").write_bytes(b"not tensors")
    with pytest.warns(DamageWarning, match=r"cannot be read as a checkpoint|starts again at round 1"):
        trained(tmp_path / "out", rounds=4)
    assert rounds_of(run) == rounds_of(trained(tmp_path / "other", rounds=4))


def test_a_run_of_a_newer_version_is_refused_by_name(run, tmp_path):
    header = json.loads((run / "header.json").read_text())
    (run / "header.json").write_text(json.dumps({**header, "format": 3}))
    with pytest.raises(evenfed.InputError, match=r"header.json.*format 3, of a newer version.*upgrade"):
        trained(tmp_path / "out")


@contextmanager
def bound_by_permissions() -> Iterator[None]:
    """Root may write where others may not, as long as it has these two capabilities."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    if not hasattr(libc, "capset") or libc.capget(header, sets) != 0:
        pytest.skip("this system's root is bound by nothing")
    before = sets[0]
    sets[0] = before & ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = before
        assert libc.capset(header, sets) == 0


def allow(folder: Path, mode: int) -> None:
    for path in (folder, *folder.rglob("*/")):
        path.chmod(mode)


FAILURES = [("delete", "it is gone|No such file"), ("fill", "File too large"), ("forbid", "Permission denied")]


@pytest.mark.parametrize(("harm", "told"), FAILURES)
def test_a_disk_that_fails_midway_ends_the_training_with_a_sentence(tmp_path, monkeypatch, harm, told):
    monkeypatch.setenv("EVENFED_CHECKPOINT_SECONDS", "60")  # nothing is being written meanwhile
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def harmed(progress):
        if progress.round == 2 and harm == "delete":
            shutil.rmtree(tmp_path / "out")
        if progress.round == 2 and harm == "fill":
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as on a full disk, no file can grow
        if progress.round == 2 and harm == "forbid":
            allow(tmp_path / "out", 0o555)

    sentence = rf"can no longer be written .*({told}).*same call again"
    given = {"rounds": 9, "out": tmp_path / "out", **CPU}
    try:
        with bound_by_permissions(), pytest.raises(evenfed.InputError, match=sentence):
            evenfed.train(small_model(), federation(), "fedavg", callbacks=harmed, **given)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    allow(tmp_path, 0o755)
    again = evenfed.train(small_model(), federation(), "fedavg", **given)
    assert [record.index for record in again.records] == list(range(9))
