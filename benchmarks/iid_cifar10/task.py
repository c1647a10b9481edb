"""pfl's CIFAR-10 IID benchmark, the same for every system: sizes, data, model and the line it reports.

Users with 50 images each, a cohort of 50 per round, one local epoch of plain SGD in batches of 10, the mean of the
users' models, test accuracy every 10 rounds. It needs torch and numpy only, so that each peer's environment runs it.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

IMAGES_PER_USER = 50
TEST_IMAGES = 10_000


@dataclass(frozen=True)
class Task:
    """How much is run."""

    data: Path  # an .npz with images [N, 3, 32, 32] and labels [N]
    device: str
    rounds: int
    warmup: int  # rounds before the clock starts, among `rounds`
    cohort: int
    users: int  # at most as many as there are images for
    test_images: int
    batch: int = 10
    lr: float = 0.1
    test_every: int = 10
    precision: str = "fp32"  # of products, where a system lets one choose

    @classmethod
    def parse(cls, arguments: list[str] | None = None) -> "Task":
        parser = argparse.ArgumentParser()
        parser.add_argument("--data", type=Path, required=True)
        parser.add_argument("--device", default="cpu")
        parser.add_argument("--precision", default="fp32")
        for name, default in {"rounds": 1500, "warmup": 0, "cohort": 50, "users": 1000}.items():
            parser.add_argument(f"--{name}", type=int, default=default)
        parser.add_argument("--test-images", type=int, default=TEST_IMAGES)
        return cls(**vars(parser.parse_args(arguments)))


@dataclass(frozen=True)
class Data:
    """Each user's images and labels, and the test set, normalised per channel."""

    users: list[tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]


def load(task: Task) -> Data:
    """The last images are the test set; the others are dealt to users in a random order."""
    with np.load(task.data) as stored:
        images = torch.from_numpy(stored["images"]).float() / 255
        labels = torch.from_numpy(stored["labels"]).long()
    mean = images.mean((0, 2, 3), keepdim=True)
    spread = images.std((0, 2, 3), keepdim=True)
    images = (images - mean) / spread
    training = len(images) - task.test_images
    draw = torch.Generator().manual_seed(0)
    order = torch.randperm(training, generator=draw)
    count = min(task.users, training // IMAGES_PER_USER)
    users = []
    for user in range(count):
        rows = order[user * IMAGES_PER_USER : (user + 1) * IMAGES_PER_USER]
        users.append((images[rows], labels[rows]))
    return Data(users, (images[training:], labels[training:]))


def cnn(channels: int, side: int, classes: int) -> nn.Sequential:
    """FedML's CNN with dropout, of square images; pfl has it too."""
    pooled = (side - 4) // 2  # two convolutions of width 3 take 4 pixels away
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(pooled * pooled * 64, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )


def initial_model() -> nn.Module:
    """What every system starts from: 1,626,442 parameters, Glorot weights."""
    torch.manual_seed(0)
    model = cnn(channels=3, side=32, classes=10)
    for module in model:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return model


@torch.no_grad()
def accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    """The share of test images that the model gets right."""
    model.eval()
    right = 0
    for images, labels in zip(test[0].split(2000), test[1].split(2000), strict=True):
        predicted = model(images).argmax(1)
        right += int((predicted == labels).sum())
    return right / len(test[1])


class Clock:
    """When the process began and when each round ended."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.ends: list[float] = []

    def tick(self) -> None:
        self.ends.append(time.perf_counter())


def report(system: str, version: str, task: Task, users: int, clock: Clock, accuracies: dict[int, float]) -> None:
    """One line of JSON: seconds of the timed rounds, and of everything from the start of the process."""
    first = clock.ends[task.warmup - 1] if task.warmup else clock.began
    seconds = clock.ends[-1] - first
    rounds = task.rounds - task.warmup
    line = {
        "system": system,
        "version": version,
        "task": {**asdict(task), "data": task.data.name, "users": users},
        "seconds": round(seconds, 3),
        "seconds_with_start": round(clock.ends[-1] - clock.began, 3),
        "rounds_per_second": round(rounds / seconds, 3),
        "accuracy": accuracies,
    }
    print(json.dumps(line), flush=True)
