"""The tables of docs/guard.md, from the figures of liars.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import liars_honest

Outcomes = Sequence[Sequence[Mapping[str, Any]]]  # of each split, of each of its seeds
Attacks = Mapping[str, Mapping[str, Outcomes]]  # attack -> entry -> outcomes

TOGETHER = 5  # algorithms side by side
MUCH = 10  # points: an attack that costs so much without the guard ...
LITTLE = 1  # ... should cost at most so much with it
FIVE = "10 %: "  # how attacks by five begin
NONE = "none"
LEFT_OUT = "left out"


def fill(page: Path, results: Mapping[str, Any]) -> None:
    """Put the tables into their places."""
    attacks: Attacks = results["attacks"]
    tables = {
        "verdict": verdict(attacks),
        "honest": liars_honest.table(results["honest"]),
        "price": price(attacks),
        "attacks": costs(attacks),
    }
    text = page.read_text()
    for name, table in tables.items():
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


def verdict(attacks: Attacks) -> str:
    """Of the attacks that cost much without the guard: which still cost more than a little with it."""
    costly = 0
    lines = []
    for attack in attacks:
        if attack.endswith((NONE, LEFT_OUT)):
            continue
        remaining = []
        for algorithm in _algorithms(attacks):
            without = cost(attacks, attack, algorithm, "off")
            if without is not None and without[0] < MUCH:
                continue
            costly += 1
            still = _remaining(attacks, attack, algorithm)
            if still:
                remaining.append(still)
        if remaining:
            lines.append(f"| {attack} | {', '.join(remaining)} |")
    count = sum(line.count("(") for line in lines)
    found = f"Without the guard, {costly} cells of the table below cost {MUCH} points of the mean or more. With it, "
    found += f"{costly - count} of these\ncost at most {LITTLE} point. The others, with their standard error over "
    found += "the four runs, and in brackets what leaving the\nliars out costs:"
    return "\n".join([found, "", "| attack | points of the mean |", "|---|---|", *lines])


def _remaining(attacks: Attacks, attack: str, algorithm: str) -> str | None:
    """What a guarded run still loses by it; None if that is little."""
    losses = _losses(attacks, attack, algorithm, "on")
    if losses is None:
        return f"{algorithm} ended ()"
    means = losses[:, 0]
    if means.mean() <= LITTLE:
        return None
    error = means.std(ddof=1) / len(means) ** 0.5
    absence = cost(attacks, _baseline(attack, LEFT_OUT), algorithm, "on")
    assert absence is not None
    return f"{algorithm} {means.mean():.1f} ± {error:.1f} ({absence[0]:.1f})"


def costs(attacks: Attacks) -> str:
    """What each attack costs the honest clients, without the guard and with it."""
    algorithms = _algorithms(attacks)
    parts = []
    for first in range(0, len(algorithms), TOGETHER):
        some = algorithms[first : first + TOGETHER]
        lines = [f"| | {' | '.join(some)} |", "|---" * (len(some) + 1) + "|"]
        for attack in attacks:
            if attack.endswith(NONE):
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


def _points(loss: np.ndarray[Any, Any]) -> str:
    mean, worst10 = loss.round().astype(int)
    return f"{mean}/{worst10}"


def cost(attacks: Attacks, attack: str, algorithm: str, guard: str) -> np.ndarray[Any, Any] | None:
    """[mean, worst 10 %] what the attack costs; None if a run ended."""
    losses = _losses(attacks, attack, algorithm, guard)
    return None if losses is None else losses.mean(axis=0)


def _losses(attacks: Attacks, attack: str, algorithm: str, guard: str) -> np.ndarray[Any, Any] | None:
    """[runs, 2] what the same clients have in the same run without the attack, less what they have with it."""
    label = f"{algorithm} {guard}"
    losses = []
    for attacked, unattacked in zip(attacks[attack][label], attacks[_baseline(attack, NONE)][label], strict=True):
        for under_attack, honest in zip(attacked, unattacked, strict=False):  # one or two seeds
            if "ended" in under_attack:
                return None
            losses.append(_pair(honest) - _pair(under_attack))
    return np.array(losses)


def _baseline(attack: str, name: str) -> str:
    """The row with as many liars."""
    return FIVE + name if attack.startswith(FIVE) else name


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
