"""How many losses of honest clients the guard would have bounded, in the comparisons that are committed.

Nobody lied in them and no guard was on, so every loss that it would bound is a client held back wrongly.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evenfed.comparison.storage.folder import RunFolder
from evenfed.comparison.storage.pack import unpacked
from evenfed.comparison.storage.record_json import from_json
from evenfed.core.guard import Guard, ReportedNumbers

RESULTS = Path(__file__).parent.parent / "results"
COMPARISONS = ("cifar10", "cifar100", "shakespeare", "stackexchange")


def counts() -> dict[str, dict[str, int]]:
    """By comparison."""
    return {name: counted(RESULTS / name) for name in COMPARISONS}


def counted(folder: Path) -> dict[str, int]:
    totals = {"runs": 0, "losses": 0, "clipped": 0, "disbelieved": 0}
    with unpacked(folder) as place:
        for run in RunFolder.all_in(place):
            totals["runs"] += 1
            for losses, bounded, is_far in judged(run):
                totals["losses"] += len(losses)
                totals["clipped"] += int((bounded < losses).sum())
                totals["disbelieved"] += int(is_far.sum())
    return totals


def judged(run: RunFolder) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each round: the losses, as they would count, and which of them would not be believed."""
    guard = Guard()
    heard = None
    for index, line in enumerate(run.rounds_path.read_text().splitlines()):
        table = torch.from_numpy(from_json(json.loads(line)).losses)
        if heard is None:
            heard = ReportedNumbers.nothing(len(table))
        (ids,) = table.isfinite().nonzero(as_tuple=True)
        losses = table[ids]
        heard, bounded = guard.counted_losses(heard, ids, losses, index)
        usual = heard.usual_loss()
        assert usual is not None
        is_far = (bounded == usual[0]) & (losses > bounded)
        yield losses, bounded, is_far


def table(figures: dict[str, Any]) -> str:
    lines = ["| comparison | runs | losses | clipped | not believed |", "|---|---|---|---|---|"]
    for name, of in figures.items():
        lines.append(f"| {name} | {of['runs']} | {of['losses']:,} | {of['clipped']} | {of['disbelieved']} |")
    return "\n".join(lines)
