"""The tables of docs/guard.md, from the figures of liars.py."""

from collections.abc import Iterator, Mapping, Sequence
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


def filled(page: str, results: Mapping[str, Any]) -> str:
    """The page with its tables in their places."""
    attacks: Attacks = results["attacks"]
    tables = {
        "verdict": verdict(attacks),
        "honest": liars_honest.table(results["honest"]),
        "price": price(attacks),
        "attacks": costs(attacks),
    }
    for name, table in tables.items():
        before, begins, rest = page.partition(f"<!-- {name} -->\n")
        _, ends, after = rest.partition(f"<!-- end of {name} -->")
        if not begins or not ends:
            raise SystemExit(f"the page has no place for '{name}'")
        page = f"{before}{begins}{table}\n{ends}{after}"
    return page


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
    as_absent = 0
    lines = []
    for attack, algorithm in _costly(attacks):
        costly += 1
        points = _losses(attacks, attack, algorithm, "on")
        seeds = len(attacks[attack][f"{algorithm} on"][0])
        absent = _losses(attacks, _baseline(attack, LEFT_OUT), algorithm, "on", seeds)
        assert points is not None  # no guarded run has ended
        assert absent is not None
        means = points[:, 0]
        mean = means.mean()
        if mean <= LITTLE:
            continue
        absence = absent[:, 0].mean()
        as_absent += bool(mean <= absence + LITTLE)
        error = means.std(ddof=1) / len(means) ** 0.5
        lines.append(f"| {attack} | {algorithm} | {mean:.1f} ± {error:.1f} | {absence:.1f} |")
    left = len(lines)
    stopped = costly - left
    heading = [
        f"Of {costly} cells below that cost {MUCH} points of the mean or more without the guard, {stopped}",
        f"cost at most {LITTLE} point with it. Of the other {left}, {as_absent} cost no more than leaving",
        "the liars out, within a point:",
        "",
        "| attack | algorithm | points of the mean ± standard error | if the liars are left out |",
        "|---|---|---|---|",
    ]
    return "\n".join([*heading, *lines])


def _costly(attacks: Attacks) -> Iterator[tuple[str, str]]:
    """Attacks and algorithms where much is lost without the guard."""
    for attack in attacks:
        if attack.endswith((NONE, LEFT_OUT)):
            continue
        for algorithm in _algorithms(attacks):
            without = cost(attacks, attack, algorithm, "off")
            if without is None or without[0] >= MUCH:
                yield attack, algorithm


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


def _losses(
    attacks: Attacks,
    attack: str,
    algorithm: str,
    guard: str,
    seeds: int | None = None,
) -> np.ndarray[Any, Any] | None:
    """[runs, 2] what the same clients have in the same run without the attack, less what they have with it."""
    label = f"{algorithm} {guard}"
    losses = []
    for attacked, unattacked in zip(attacks[attack][label], attacks[_baseline(attack, NONE)][label], strict=True):
        for under_attack, honest in zip(attacked[:seeds], unattacked, strict=False):  # one or two seeds
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
