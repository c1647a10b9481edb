"""The tasks of FLUTE's README table at their sizes, on stand-in data of the same shapes: time per task.

python benchmarks/flute.py --device cuda            # whole tasks
python benchmarks/flute.py --rounds 10              # a first look on a CPU

FLUTE's and FedML's own times are those of FLUTE's README, on hardware it does not state: read them as orders of
magnitude. The real sets are behind downloads; sizes are drawn from a lognormal with the real totals.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import evenfed
from evenfed.comparison.storage.provenance import provenance
from evenfed.models import NextToken
from iid_cifar10.task import cnn

RESULT = Path(__file__).parent / "results" / "flute.json"
COHORT = 10


@dataclass(frozen=True)
class Task:
    """One row of the table."""

    name: str
    clients: int
    examples: int  # of all clients together
    batch: int
    lr: float
    rounds: int
    model: Callable[[], nn.Module]
    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]  # so many examples
    flute: str  # minutes and seconds in FLUTE's table
    fedml: str


def logistic() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def convolutional() -> nn.Module:
    return cnn(channels=1, side=28, classes=62)


def images(classes: int) -> Callable[[int, torch.Generator], tuple[Tensor, Tensor]]:
    """Noise around one pattern per class: enough for the loss to fall."""
    patterns = torch.randn(classes, 1, 28, 28, generator=torch.Generator().manual_seed(1))

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, classes, (count,), generator=generator)
        noise = torch.randn(count, 1, 28, 28, generator=generator)
        return patterns[labels] + noise, labels

    return draw


def text(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """80 characters and, at each, the next one: steps of 1 to 3 around an alphabet of 90."""
    steps = torch.randint(1, 4, (count, 81), generator=generator)
    characters = steps.cumsum(1) % 90
    return characters[:, :-1], characters[:, 1:]


TASKS = [
    Task("LR MNIST", 1000, 61_664, 10, 0.03, 100, logistic, images(10), "1:35", "3:09"),
    Task("CNN FEMNIST", 3400, 671_585, 20, 0.1, 1500, convolutional, images(62), "8:22", "5:49:52"),
    Task(
        "RNN Shakespeare",
        715,
        16_068,
        4,
        0.8,
        1200,
        lambda: NextToken(90, 8, 256, layers=2),
        text,
        "21:50",
        "6:46:21",
    ),
]


def run(task: Task, device: str, precision: str, rounds: int | None) -> dict[str, Any]:
    """Time the task, start-up and compilation included."""
    draw = np.random.default_rng(0)
    sizes = draw.lognormal(sigma=0.7, size=task.clients)
    sizes = np.maximum(1, sizes / sizes.sum() * task.examples).astype(int)
    generator = torch.Generator().manual_seed(0)
    clients = [evenfed.Client(task.draw(int(size), generator)) for size in sizes]
    ends: list[float] = []
    began = time.perf_counter()
    result = evenfed.train(
        task.model(),
        clients,
        "fedavg",
        rounds=rounds or task.rounds,
        lr=task.lr,
        batch_size=task.batch,
        participation=COHORT,
        device=device,
        precision=precision,
        callbacks=[lambda _: ends.append(time.perf_counter())],
    )
    losses = [float(np.nanmean(record.losses)) for record in result.records]
    return {
        "task": task.name,
        "clients": task.clients,
        "rounds": len(ends),
        "rounds_of_the_task": task.rounds,
        "seconds": round(ends[-1] - began, 2),
        "seconds_of_the_first_round": round(ends[0] - began, 2),
        "flute": task.flute,
        "fedml": task.fedml,
        "loss": [round(losses[0], 3), round(losses[-1], 3)],
        "engine": result.engine,
        "data": "stand-in of the same shape",
    }


def main() -> None:
    """Run, print, and keep the JSON of whole tasks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, help="fewer than the task's own; the file is then not written")
    parser.add_argument("--tasks", nargs="*", help="the first words of their names, e.g. LR CNN")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    rows = []
    for task in TASKS:
        if given.tasks and not task.name.startswith(tuple(given.tasks)):
            continue
        row = run(task, given.device, given.precision, given.rounds)
        print(json.dumps(row), flush=True)
        rows.append(row)
    if given.rounds is None:
        given.out.write_text(json.dumps({"provenance": provenance(), "tasks": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
