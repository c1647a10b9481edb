"""Buffers that come back with updates, such as BatchNorm's statistics: averaged by share as they arrive."""

from collections.abc import Mapping

import torch
from torch import Tensor


class BufferSums:
    """Their sums, weighted by the clients' sizes: fairness weights may be negative and are no average."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, buffers: Mapping[str, Tensor], sizes: Tensor, finite: Tensor) -> None:
        """The buffers [c, ...] of clients of these sizes [c]; those that are not `finite` [c] count as zero."""
        sizes = sizes.double()
        for name, rows in buffers.items():
            if not rows.is_floating_point():
                self.sums[name] = rows[0]  # counters are copied, never averaged
                continue
            axes = rows.ndim - 1
            trailing = [1] * axes
            usable = finite.to(rows.device)
            usable = usable.view(-1, *trailing)
            clean = torch.where(usable, rows, 0)
            weights = sizes.to(rows)
            total = torch.tensordot(weights, clean, dims=1)
            if name in self.sums:
                total = total + self.sums[name]
            self.sums[name] = total

    def averaged(self, sizes: Tensor) -> dict[str, Tensor]:
        """Over clients of these sizes."""
        size = float(sizes.sum())
        averaged = dict(self.sums)
        for name, total in averaged.items():
            if total.is_floating_point():
                averaged[name] = total / size
        return averaged
