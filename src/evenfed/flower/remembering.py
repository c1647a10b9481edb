"""What `Fair` keeps on disk beside its server, so that it goes on as if its process had not died."""

import dataclasses
import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..comparison.header import Table
from ..core.server import Record, Server
from ..simulate.state import State
from .strangers import Strangers

Losses = dict[int, float]  # of the current model, by position
Notes = Mapping[str, Tensor]

_SIZES = "fair.sizes"
_STEPS = "fair.local_steps"
_MEASURED = "fair.measured"
_RANDOM = "fair.random"


def clients_of(strangers: Strangers) -> dict[str, Any]:
    """The clients met so far, as a run's header keeps them."""
    positions = range(len(strangers.sizes))
    return {
        "names": [strangers.name(position) for position in positions],
        "train": [_whole(size) for size in strangers.sizes],
        "test": [_whole(strangers.judged_on.get(position, 0.0)) for position in positions],
        "classes": None,
        "split_seed": None,
        "notes": [],
        "nodes": [str(node) for node in strangers.positions],  # text: other readers of JSON round whole numbers
        "partitions": {str(position): partition for position, partition in strangers.partitions.items()},
    }


def recall(strangers: Strangers, clients: Table) -> None:
    """Know the clients of a run's header again, by their nodes."""
    for position, node in enumerate(clients["nodes"]):
        strangers.positions[int(node)] = position
    strangers.sizes = [float(size) for size in clients["train"]]
    strangers.judged_on = dict(enumerate(map(float, clients["test"])))
    strangers.partitions = {int(position): int(partition) for position, partition in clients["partitions"].items()}


def notes_of(server: Server, measured: Losses) -> dict[str, Tensor]:
    """What the next round depends on beside the server's own state."""
    return {
        _SIZES: server.sizes,
        _STEPS: server.local_steps,
        _MEASURED: torch.tensor([*measured.items()], dtype=torch.float64).reshape(-1, 2),
        _RANDOM: _random_state(),
    }


def restored(state: State) -> tuple[Server, Losses]:
    """The server of a resumed run and the losses it had measured; Flower then draws the clients it would have drawn."""
    notes = state.notes
    if _SIZES not in notes:  # its first round was not written
        return state.server, {}
    server = dataclasses.replace(state.server, sizes=notes[_SIZES], local_steps=notes[_STEPS])
    measured = {int(position): loss for position, loss in notes[_MEASURED].tolist()}
    _set_random_state(notes[_RANDOM])
    return server, measured


def skipped(index: int, clients: int, dropped: Losses | Mapping[int, str]) -> Record:
    """A round without a usable reply, before any client's size is known."""
    return Record(
        index=index,
        losses=np.full(clients, np.nan),
        weights=np.zeros(clients),
        objective=math.nan,
        negative_weights=0,
        dropped=tuple(sorted(dropped)),
        skipped=True,
        reason="no usable reply",
    )


def _whole(size: float) -> float:
    return int(size) if size == int(size) else size


def _random_state() -> Tensor:
    """Of Python's generator, with which Flower draws clients."""
    version, numbers, gauss = random.getstate()
    rest = math.nan if gauss is None else gauss
    return torch.tensor([version, rest, *numbers], dtype=torch.float64)  # 32-bit numbers: exact


def _set_random_state(state: Tensor) -> None:
    version, rest, *numbers = state.tolist()
    gauss = None if math.isnan(rest) else rest
    whole = tuple(int(number) for number in numbers)
    random.setstate((int(version), whole, gauss))
