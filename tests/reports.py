"""Reading a report's figures back, and accuracies to put into runs."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evenfed.comparison.storage.rounds_file import chained
from evenfed.comparison.tuning.search import Candidate

FLOOR = "fedavg-other-seeds"
PAIRED_FLOOR = "fedavg-other-batches"


def figures_in(text: str) -> dict[tuple[str, str, str, str], dict[str, str]]:
    """Every figure of `--format csv` by table, entry, part and name."""
    return {(c["table"], c["entry"], c["part"], c["figure"]): c for c in csv.DictReader(io.StringIO(text))}


def numbers(cell: dict[str, str]) -> list[float]:
    return [float(cell[k]) for k in ("value", "spread", "points", "low", "high") if cell[k]]


def steady(level):
    """Every client of a run at the same accuracy in all rounds: `level(label, seed)`, apart by client."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        for line in rounds:
            line["accuracy"] = (level(label, seed) + 0.01 * np.arange(6)).tolist()

    return change


def apart(label: str, seed: int) -> float:
    """FedAvg's two seeds and the two other ones at 0.40, 0.44, 0.42 and 0.46."""
    return 0.40 + 0.04 * (seed % 2) + 0.02 * (label == FLOOR)


def put_rounds(run: Path, rounds: list[dict], header: dict | None = None) -> None:
    """Other rounds, and another header, in a run's folder, with the digest of these rounds."""
    lines = [json.dumps(line) + "\n" for line in rounds]
    if header is None:
        header = json.loads((run / "header.json").read_text())
    header = {**header, "lines_digest": chained("", lines)}
    (run / "header.json").write_text(json.dumps(header))
    (run / "rounds.jsonl").write_text("".join(lines))


def front(candidates: Sequence[Candidate], sign: int = 1) -> list[Candidate]:
    """Those that no other candidate beats in both mean and worst10; `sign` is -1 if less is better."""

    def figures(candidate: Candidate) -> np.ndarray:
        return sign * np.array([candidate.figures["mean"], candidate.figures["worst10"]])

    def beats(one: Candidate, other: Candidate) -> bool:
        gaps = figures(one) - figures(other)
        return bool((gaps >= 0).all() and (gaps > 0).any())

    return [each for each in candidates if not any(beats(other, each) for other in candidates)]
