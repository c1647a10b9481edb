"""What a client keeps from round to round: its own model, its memory of losses."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor


class Store(Protocol):
    """Arrays by name."""

    def names(self) -> Iterable[str]: ...
    def read(self, name: str) -> NDArray[np.generic]: ...
    def write(self, name: str, values: NDArray[np.generic]) -> None: ...
    def remove(self, name: str) -> None: ...


class InContext:
    """In Flower's context, which lasts for one run."""

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    def names(self) -> list[str]:
        return list(self.state)

    def read(self, name: str) -> NDArray[np.generic]:
        return self.state.array_records[name]["theta"].numpy()

    def write(self, name: str, values: NDArray[np.generic]) -> None:
        self.state[name] = ArrayRecord({"theta": torch.from_numpy(values)})

    def remove(self, name: str) -> None:
        del self.state[name]


class InFolder:
    """As files, which outlive the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        return [path.stem for path in self.folder.glob("*.npy")]

    def read(self, name: str) -> NDArray[np.generic]:
        values: NDArray[np.generic] = np.load(self.folder / f"{name}.npy")
        return values

    def write(self, name: str, values: NDArray[np.generic]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / f"{name}.new.npy"
        np.save(unfinished, values)
        os.replace(unfinished, self.folder / f"{name}.npy")

    def remove(self, name: str) -> None:
        (self.folder / f"{name}.npy").unlink()


class Shelf:
    """One kind of array by the round it stands before. The last two are kept, since a round may be run again."""

    def __init__(self, store: Store, kind: str, run: str, position: int) -> None:
        readable = re.sub(r"[^A-Za-z0-9=.]+", "-", run)
        self.store = store
        self.prefix = f"{kind}.{readable}.client-{position}.round-"

    def at(self, index: int) -> Tensor | None:
        """The array as it stands before round `index`; None before the first training."""
        last = self._last_until(index)
        if last is None:
            return None
        values = self.store.read(self._name(last))
        return torch.from_numpy(values)

    def put(self, index: int, values: Tensor, since: int | None = None) -> None:
        """The array after round `index`, made from that of `since`; what no round can ask for again goes."""
        source = self._last_until(index if since is None else since)
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
            number = name.removeprefix(self.prefix)
            if name.startswith(self.prefix) and number.isdigit():
                rounds.append(int(number))
        return rounds
