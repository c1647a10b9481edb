"""What a client keeps from round to round: its own model, its memory of losses, the state of its optimiser."""

import re
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from ..core.files import replacing
from ..core.server import OptimizerStates
from ..local.optimizer import Optimizer

Array = NDArray[np.generic]


class InContext:
    """In Flower's context, which lasts for one run."""

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    def names(self) -> list[str]:
        return list(self.state)

    def read(self, name: str) -> Array:
        record = self.state.array_records[name]
        return record["theta"].numpy()

    def write(self, name: str, values: Array) -> None:
        theta = torch.from_numpy(values)
        self.state[name] = ArrayRecord({"theta": theta})

    def remove(self, name: str) -> None:
        del self.state[name]


class InFolder:
    """As files, which outlive the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        files = self.folder.glob("*.npy")
        return [path.stem for path in files]

    def read(self, name: str) -> Array:
        values: Array = np.load(self._path(name))
        return values

    def write(self, name: str, values: Array) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._path(name)) as beside, beside.open("xb") as file:
            np.save(file, values)

    def remove(self, name: str) -> None:
        self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"


class ClientStore:
    """One kind of array, by the round that reads it. The last two are kept, since a round may be run again."""

    def __init__(
        self,
        store: InContext | InFolder,
        kind: str,
        run: str,
        position: int,
    ) -> None:
        readable = re.sub(r"[^A-Za-z0-9=.]+", "-", run)
        self.store = store
        self.prefix = f"{kind}.{readable}.client-{position}.round-"

    def at(self, index: int) -> Tensor | None:
        """The array before round `index`; None before the first training."""
        last = self._last_until(index)
        if last is None:
            return None
        values = self.store.read(self._name(last))
        return torch.from_numpy(values)

    def put(self, index: int, values: Tensor, since: int | None = None) -> None:
        """The array after round `index`, made from that of `since`; what no round can ask for again goes."""
        if since is None:
            since = index
        source = self._last_until(since)
        following = index + 1
        array = values.detach().cpu().numpy()
        self.store.write(self._name(following), array)
        for k in self._rounds():
            if k not in (source, following):
                self.store.remove(self._name(k))

    def _name(self, index: int) -> str:
        return f"{self.prefix}{index}"

    def _last_until(self, index: int) -> int | None:
        """The last round, up to `index`, before which an array was kept."""
        rounds = [k for k in self._rounds() if k <= index]
        return max(rounds, default=None)

    def _rounds(self) -> list[int]:
        rounds = []
        for name in self.store.names():
            if not name.startswith(self.prefix):
                continue
            number = name.removeprefix(self.prefix)
            if number.isdigit():
                rounds.append(int(number))
        return rounds


def moments_at(store: ClientStore, index: int, optimizer: Optimizer, theta: Tensor) -> OptimizerStates | None:
    """The state [1, ...] of a client's optimiser before round `index`; None if it is not kept."""
    if not optimizer.keep or optimizer.moments == 0:
        return None
    fresh = optimizer.fresh(theta[None])
    vector = store.at(index)
    if vector is None:
        return fresh
    values = vector[:-1].to(theta).view_as(fresh.values)
    return OptimizerStates(values, vector[-1:].to(fresh.taken))


def put_moments(store: ClientStore, index: int, moments: OptimizerStates) -> None:
    """The state after round `index`; one that is not finite is discarded."""
    steps = moments.taken.reshape(1).to(moments.values)
    vector = torch.cat([moments.values.flatten(), steps])
    if vector.isfinite().all():
        store.put(index, vector)
