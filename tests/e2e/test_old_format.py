"""Run folders and packed results of version 0.1 stay good: resumed to the same end, reported, and damage is told.

tests/fixtures/format-0.1 was made by version 0.1: `half` by the command below, stopped after round 10, and `packed` by
`evenfed pack` of the same comparison at its end.
"""

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from command import rounds_of
from evenfed.comparison.storage.folder import RunFolder
from evenfed.core.errors import DamageWarning
from reports import FLOOR, figures_in

pytestmark = pytest.mark.slow
MADE_BY_0_1 = Path(__file__).parents[1] / "fixtures" / "format-0.1"
LABELS = ["fedavg", "semi_vred[beta=1,smooth=0.25]", "ditto"]
TYPED = ["compare", "--algorithms", ",".join(LABELS), "--rounds", 60, "--seeds", 1]
TYPED += ["--set", "data.clients=5", "--set", "data.concentration=1.0", "--set", "model.hidden=[4]"]
TYPED += ["--set", "noise_floor=seeds", "--out", "half"]
RUNS = [*(f"{label}/seed-0" for label in LABELS), f"{FLOOR}/seed-1000"]


@pytest.fixture
def half(tmp_path) -> Path:
    shutil.copytree(MADE_BY_0_1 / "half", tmp_path / "half")
    return tmp_path / "half" / "demo"


def test_a_run_of_0_1_is_resumed_to_the_end_it_had_then_and_both_are_reported(half, tmp_path, evenfed):
    done = evenfed(*TYPED)
    assert done.returncode == 0, done.stderr
    shutil.copytree(MADE_BY_0_1 / "packed", tmp_path / "packed")
    with tarfile.open(tmp_path / "packed" / "runs.tar.xz") as tar:
        for run in RUNS:
            wanted = [json.loads(line) for line in tar.extractfile(f"{run}/rounds.jsonl")]
            rounds = rounds_of(half / run)
            assert [line["index"] for line in rounds] == [line["index"] for line in wanted] == list(range(60))
            assert json.loads((half / run / "header.json").read_text())["resumed_at"] == [0, 10]
            for ours, theirs in zip(rounds, wanted, strict=True):  # to the bit here; another processor rounds otherwise
                assert ours["accuracy"] == pytest.approx(theirs["accuracy"], abs=0.02)
                assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-3)
    resumed = figures_in(evenfed("report", half, "--format", "csv").stdout)
    packed = figures_in(evenfed("report", tmp_path / "packed", "--no-figures", "--format", "csv").stdout)
    assert list(resumed) == list(packed)
    detailed = [key for key in packed if key[0].startswith("detailed")]
    assert {entry for _, entry, _, _ in detailed} == {*LABELS, FLOOR}
    for key in detailed:
        assert float(resumed[key]["value"]) == pytest.approx(float(packed[key]["value"]), abs=1), key


def test_a_damaged_checkpoint_is_told_and_the_others_are_good(half):
    assert set(RunFolder(half / "fedavg" / "seed-0").sound_checkpoints()) == {10}
    for file in (half / "ditto" / "seed-0").glob("checkpoint-*"):
        file.write_bytes(b"not tensors")
    with pytest.warns(DamageWarning, match=r"cannot be read as a checkpoint|starts again at round 1"):
        assert RunFolder(half / "ditto" / "seed-0").sound_checkpoints() == {}
