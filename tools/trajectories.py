"""Trajectories of every algorithm on both CPU engines, to show that a refactoring changes no bit of them.

    python tools/trajectories.py record before.json     # before the change
    python tools/trajectories.py compare before.json    # after it, on the same machine

Of every round: fingerprints of losses, weights, accuracies and model, and the objective. `compare` exits with 1 and
names the first round of each trajectory that differs. Another machine rounds otherwise: record there anew.
"""

import argparse
import hashlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import evenfed

ENGINES = ("reference", "parallel")
MLP = (
    *("fedavg", "afl", "qffl", "term", "propfair", "delta_fl", "gifair", "ditto"),
    *("drfa", "fcfl", "climb", "fedmgda", "fedfv", "vred", "semi_vred"),
)
CONVOLUTION = ("fedavg", "propfair", "ditto", "drfa", "semi_vred")
OPTIONS = {"lr": 0.1, "batch_size": 8, "local_epochs": 2, "seed": 5, "participation": 6}
FIGURES = ("losses", "weights", "accuracy", "objective", "model")

Trajectory = list[list[Any]]  # FIGURES of every round; of a comparison with label and seed before them


def clients(kind: str) -> list[evenfed.Client]:
    """Eight clients of unequal sizes, whose labels depend on who they are."""
    draw = torch.Generator().manual_seed(7)
    federation = []
    for k in range(8):
        size = 12 + 5 * k
        if kind == "conv":
            inputs = torch.randn((size, 1, 8, 8), generator=draw)
            score = inputs.mean((1, 2, 3)) * 20
        else:
            inputs = torch.randn((size, 6), generator=draw) + 0.2 * k
            score = inputs.sum(1)
        targets = (score + k).round().long() % 4
        federation.append(evenfed.Client(train=(inputs, targets), test=(inputs[:5], targets[:5])))
    return federation


def model(kind: str) -> nn.Module:
    torch.manual_seed(3)
    if kind == "conv":
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4)
        )
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def fingerprint(values: np.ndarray | None) -> str | None:
    return None if values is None else hashlib.sha256(values.tobytes()).hexdigest()[:16]


def figures(progress: Any) -> list[Any]:
    record = progress.record
    return [
        fingerprint(record.losses),
        fingerprint(record.weights),
        fingerprint(record.accuracy),
        repr(record.objective),
        fingerprint(progress.server.theta.detach().cpu().numpy()),
    ]


def trained(kind: str, algorithm: str, **options: Any) -> Trajectory:
    rounds: Trajectory = []
    evenfed.train(
        model(kind),
        clients(kind),
        algorithm,
        rounds=10,
        callbacks=[lambda progress: rounds.append(figures(progress))],
        **options,
    )
    return rounds


def compared(engine: str) -> Trajectory:
    """Several runs trained together."""
    rounds: Trajectory = []

    def note(progress: Any) -> None:
        rounds.append([progress.label, progress.seed, *figures(progress)])

    evenfed.compare(
        lambda: model("mlp"),
        clients("mlp"),
        ["vred", "semi_vred[beta=1]", "afl", "ditto"],
        seeds=2,
        rounds=5,
        engine=engine,
        callbacks=[note],
    )
    return rounds


def every_trajectory() -> dict[str, Callable[[], Trajectory]]:
    """By name, each to be made when it is called."""
    made: dict[str, Callable[[], Trajectory]] = {}
    for engine in ENGINES:
        for kind, names in (("mlp", MLP), ("conv", CONVOLUTION)):
            for name in names:
                made[f"{engine}/{kind}/{name}"] = lambda e=engine, k=kind, n=name: trained(k, n, engine=e, **OPTIONS)
        smooth = {"engine": engine, "lr": 0.05, "batch_size": None}
        made[f"{engine}/smooth"] = lambda o=smooth: trained("mlp", "vred[beta=0.5,smooth=0.25]", **o)
        made[f"{engine}/compare"] = lambda e=engine: compared(e)
    return made


def difference(name: str, before: Trajectory, after: Trajectory) -> str | None:
    """Where a trajectory is first not what it was."""
    if len(before) != len(after):
        return f"{name}: {len(before)} rounds before, {len(after)} after"
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        run = new[: -len(FIGURES)]  # nothing, or label and seed
        if old[: -len(FIGURES)] != run:
            return f"{name}: {old[: -len(FIGURES)]} before, {run} after"
        changed = [figure for k, figure in enumerate(FIGURES, len(run)) if old[k] != new[k]]
        if changed:
            earlier = [line for line in after[:index] if line[: len(run)] == run]
            of_run = "".join(f", {part}" for part in run)
            return f"{name}{of_run}: round {len(earlier)} is the first that differs, in {', '.join(changed)}"
    return None


def compare(before: dict[str, Trajectory]) -> list[str]:
    """What differs from `before`, a line per trajectory."""
    recipes = every_trajectory()
    differences = []
    for name, trajectory in before.items():
        told = difference(name, trajectory, recipes[name]()) if name in recipes else f"{name}: unknown here"
        if told is not None:
            differences.append(told)
    return differences


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="record those with TEXT in their name alone")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if asked.command == "record":
        recorded = {name: make() for name, make in every_trajectory().items() if asked.only in name}
        asked.file.write_text(json.dumps(recorded, indent=0))
        print(len(recorded), "trajectories recorded")
        return 0
    before = json.loads(asked.file.read_text())
    differences = compare(before)
    print("\n".join(differences) or f"all {len(before)} trajectories are the same to the bit")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
