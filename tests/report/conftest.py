"""A small real comparison and copies with changed numbers."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evenfed.cli import main
from reports import put_rounds


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """A comparison of 6 clients, made once through the command."""
    out = tmp_path_factory.mktemp("report")
    asked = "compare --algorithms fedavg,vred,semi_vred --rounds 4 --seeds 2 --format json"
    asked += " --set data.clients=6 --set noise_floor=seeds --set train.last_rounds=2"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["evenfed", *asked.split(), "--out", str(out)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    return out / "demo"


@pytest.fixture
def edited(small, tmp_path) -> Callable[[Callable[[str, int, dict, list], None]], Path]:
    """A copy of the small comparison, every run's header and rounds changed in place by a function."""

    def copy(change: Callable[[str, int, dict, list], None]) -> Path:
        folder = tmp_path / "copy"
        shutil.copytree(small, folder)
        for path in folder.glob("*/seed-*"):
            header = json.loads((path / "header.json").read_text())
            rounds = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
            change(path.parent.name, int(path.name.removeprefix("seed-")), header, rounds)
            put_rounds(path, rounds, header)
        return folder

    return copy


@pytest.fixture
def splits(edited, tmp_path):
    """Two federations: VRed 2 points ahead on one and 6 on the other, seeds 1 point apart."""

    def make(split: int, ahead: float, **other: object) -> Path:
        def change(label: str, seed: int, header: dict, rounds: list) -> None:
            header["config"]["data"]["seed"] = split
            header["config"]["model"].update(other)
            base = 0.4 + 0.05 * split + 0.01 * (seed % 2)
            if label == "vred":
                base += ahead + 1e-6 * (-1) ** seed
            for line in rounds:
                line["accuracy"] = (base + 0.02 * np.arange(6)).tolist()

        return edited(change).rename(tmp_path / f"split-{split}{''.join(other)}")

    return make
