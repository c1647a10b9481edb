"""The tables of docs/guard.md, from the figures of liars.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Outcomes = Sequence[Sequence[Mapping[str, Any]]]  # of each split, of each of its seeds
Attacks = Mapping[str, Mapping[str, Outcomes]]  # attack -> entry -> outcomes

TOGETHER = 5  # algorithms side by side


def fill(page: Path, attacks: Attacks) -> None:
    """Put the tables into their places."""
    text = page.read_text()
    for name, table in (("price", price(attacks)), ("attacks", costs(attacks))):
        before, begins, rest = text.partition(f"<!-- {name} -->\n")
        _, ends, after = rest.partition(f"<!-- end of {name} -->")
        if not begins or not ends:
            raise SystemExit(f"{page} has no place for '{name}'")
        text = f"{before}{begins}{table}\n{ends}{after}"
    page.write_text(text)


def price(attacks: Attacks) -> str:
    """What the guard costs where nobody lies, beside what a seed alone does."""
    lines = [
        "| algorithm | without | with | change | between two seeds |",
        "|---|---|---|---|---|",
    ]
    for algorithm in _algorithms(attacks):
        off = attacks["none"][f"{algorithm} off"]
        on = attacks["none"][f"{algorithm} on"]
        change = _mean(on) - _mean(off)
        cells = [_figures(_mean(off)), _figures(_mean(on)), _signed(change), _figures(_between_seeds(off))]
        lines.append(f"| {algorithm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def costs(attacks: Attacks) -> str:
    """What each attack costs the honest clients, without the guard and with it."""
    algorithms = _algorithms(attacks)
    parts = []
    for first in range(0, len(algorithms), TOGETHER):
        some = algorithms[first : first + TOGETHER]
        lines = [f"| | {' | '.join(some)} |", "|---" * (len(some) + 1) + "|"]
        for attack in attacks:
            if attack == "none":
                continue
            cells = [_cost(attacks, attack, algorithm) for algorithm in some]
            lines.append(f"| {attack} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cost(attacks: Attacks, attack: str, algorithm: str) -> str:
    """Points of the mean and of the worst 10 %, without the guard, then with it."""
    texts = []
    for guard in ("off", "on"):
        change = cost(attacks, attack, algorithm, guard)
        texts.append("ended" if change is None else _points(change))
    without, guarded = texts
    return f"{without} → **{guarded}**"


def _points(change: np.ndarray[Any, Any]) -> str:
    mean, worst10 = (-change).round().astype(int)
    return f"{mean}/{worst10}"


def cost(attacks: Attacks, attack: str, algorithm: str, guard: str) -> np.ndarray[Any, Any] | None:
    """[mean, worst 10 %] what the attack changes, on the same splits and seeds; None if a run ended."""
    outcomes = attacks[attack][f"{algorithm} {guard}"]
    honest = attacks["none"][f"{algorithm} {guard}"]
    changes = []
    for attacked, unattacked in zip(outcomes, honest, strict=False):
        if "ended" in attacked[0]:
            return None
        changes.append(_pair(attacked[0]) - _pair(unattacked[0]))
    return np.mean(changes, axis=0)


def _algorithms(attacks: Attacks) -> list[str]:
    return [label.removesuffix(" on") for label in attacks["none"] if label.endswith(" on")]


def _pair(outcome: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    return np.array([outcome["mean"], outcome["worst10"]])


def _mean(outcomes: Outcomes) -> np.ndarray[Any, Any]:
    return np.mean([_pair(outcome) for seeds in outcomes for outcome in seeds], axis=0)


def _between_seeds(outcomes: Outcomes) -> np.ndarray[Any, Any]:
    """How far two seeds of one split are apart, on average."""
    gaps = [np.abs(_pair(first) - _pair(second)) for first, second in outcomes]
    return np.mean(gaps, axis=0)


def _figures(pair: np.ndarray[Any, Any]) -> str:
    return f"{pair[0]:.1f} / {pair[1]:.1f}"


def _signed(pair: np.ndarray[Any, Any]) -> str:
    return f"{pair[0]:+.1f} / {pair[1]:+.1f}"
