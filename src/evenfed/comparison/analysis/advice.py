"""What is said of an entry whose runs broke down or oscillate: once, not for every seed."""

from collections.abc import Sequence

from .history import History
from .identical_runs import are_equal


def advice_on(label: str, runs: Sequence[History]) -> str | None:
    """What to try, from the first run that broke down; if none did, from the first that oscillates."""
    for run in _broken(runs) or runs:
        sentence = run.advice(label)
        if sentence is not None:
            return sentence
    return None


def notes_on(label: str, runs: Sequence[History]) -> list[str]:
    """What a reader of an entry's figures should know: runs that broke down; FedAvg's, which are all the same."""
    notes = []
    if len(runs) > 1 and label == "fedavg" and are_equal(runs):
        notes.append("All seeds gave the same FedAvg run: they are one observation and show nothing about chance.")
    sentence = broken_runs(label, runs)
    if sentence is not None:
        notes.append(sentence)
    return notes


def broken_runs(label: str, runs: Sequence[History]) -> str | None:
    """How many runs broke down, and how the first of them did; None if none did."""
    broken = _broken(runs)
    if not broken:
        return None
    first = broken[0]
    return f"{label} broke down in {len(broken)} of {len(runs)} runs: {first.breakdown}."


def _broken(runs: Sequence[History]) -> list[History]:
    return [run for run in runs if run.breakdown is not None]
