"""The clients of a comparison: their names, sizes and labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...comparison.analysis.findings import Findings
from ...core.printable import printable
from .chart import Row

_MOST_LABELS = 3  # named of a client; the rest are "others"


@dataclass(frozen=True)
class ChartClients:
    """All clients, in order."""

    names: Sequence[str]  # no two alike
    train_sizes: Sequence[int]
    judged_sizes: Sequence[int]
    label_counts: NDArray[np.int64] | None  # [n, classes]
    has_sizes: bool = True  # an audit may not know them

    @classmethod
    def of(cls, findings: Findings) -> "ChartClients":
        header = findings.header
        return cls(
            names=unique(header.clients["names"]),
            train_sizes=header.train_sizes,
            judged_sizes=header.judged_sizes,
            label_counts=header.label_counts,
            has_sizes=findings.origin is None or findings.origin.has_sizes,
        )

    def __len__(self) -> int:
        return len(self.names)

    def about(self) -> Iterator[Row]:
        """What a tooltip says of each client."""
        for client, name in enumerate(self.names):
            yield {
                "client": name,
                "size": self.train_sizes[client],
                "judged": self.judged_sizes[client],
                "labels": self.mix(client),
            }

    def mix(self, client: int) -> str:
        """A client's most frequent labels."""
        if self.label_counts is None:
            return "not recorded"
        counts = self.label_counts[client]
        total = int(counts.sum())
        if total == 0:
            return "none"
        order = np.argsort(-counts, kind="stable")
        parts = []
        rest = 100
        for label in order[:_MOST_LABELS]:
            share = round(100 * int(counts[label]) / total)
            if share > 0:
                parts.append(f"{label}: {share} %")
                rest -= share
        if rest > 0:
            parts.append(f"others: {rest} %")
        return ", ".join(parts)


def unique(names: Sequence[str]) -> list[str]:
    """The names as tables have them, or numbers where two are alike."""
    shown = [printable(str(name)) for name in names]
    if len(set(shown)) == len(shown):
        return shown
    return list(map(str, range(len(shown))))
