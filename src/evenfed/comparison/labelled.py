"""A mapping from the labels of a comparison's entries to what each has, one per seed."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ..core.errors import unknown

PerSeed = TypeVar("PerSeed")


class Labelled(Mapping[str, list[PerSeed]]):
    """A `Mapping` of results; the error about an unknown label names the nearest one."""

    results: dict[str, list[PerSeed]]

    def __getitem__(self, label: str) -> list[PerSeed]:
        if label not in self.results:
            raise unknown("entry", str(label), self.results)
        return self.results[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __contains__(self, label: object) -> bool:
        return label in self.results

    def get(self, label: str, default: Any = None) -> Any:
        """The entry's results, or else the default."""
        return self.results.get(label, default)
