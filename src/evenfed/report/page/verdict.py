"""The verdict in plain words: who serves the worst clients best, at what cost to whom, and how sure that is.

It says what the paired differences show and nothing more: a gain or a loss is one whose 95 % interval excludes zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...comparison.findings import BASELINE, Entry
from ...comparison.history import Row
from ...comparison.intervals import Difference
from ..tables import figures_at
from .basis import Basis
from .words import amount, change, counted, is_nothing, level, listed, signed

_MANY = 5  # alternatives from which one may look like a gain by luck
_LIKELY = "“Likely” is a 95 % interval: if all were repeated, 19 of 20 such ranges would hold the true difference."
_OTHER_CLIENTS = "Other clients may give another answer: to know takes three splits of the data or more."
_EXPECTED = (
    "Expected accuracies leave out the noise of small test sets, which hides the gain in the measured ones: see "
    "docs/metrics.md."
)


@dataclass(frozen=True)
class Verdict:
    """One sentence, and what stands behind each part of it."""

    sentence: str
    details: Sequence[tuple[str, str]] = ()  # a heading and a few sentences
    names: Sequence[str] = ()  # entries that the sentence names
    notes: Sequence[str] = ()  # what the words mean

    def about(self, name: str) -> "Verdict":
        """The same, said of one set-up."""
        return replace(self, sentence=f"{name}: {self.sentence}")


def of(basis: Basis) -> Verdict:
    """The verdict on a comparison."""
    if not basis.rivals:
        return _alone(basis)
    winners = basis.winners
    if winners:
        return _gain(basis, winners)
    leader = max(basis.rivals, key=lambda entry: _or_worst(basis.gain(entry.label)))
    if not basis.change(leader.label, "worst10").is_judged:
        return _unjudged(basis, leader)
    return _no_gain(basis, leader)


def _alone(basis: Basis) -> Verdict:
    label = basis.baseline
    worst10 = level(basis.metric, basis.level(label, "worst10"))
    mean = level(basis.metric, basis.level(label, "mean"))
    sentence = f"{label}: the worst-served 10 % of clients reach {worst10}, the average client {mean}."
    compare = "Nothing was compared. `evenfed compare` puts several algorithms beside each other, on the same clients."
    if basis.findings.origin:
        compare = "Nothing was compared. Results of several algorithms on the same clients, in one table, would be."
    return Verdict(sentence, [("How sure", compare)], [label])


def _unjudged(basis: Basis, leader: Entry) -> Verdict:
    """One seed on fewer than three federations."""
    label = leader.label
    sentence = "With one seed, no difference can be told from chance."
    if basis.gain(label) > 0:
        points = amount(basis.metric, basis.change(label, "worst10").points)
        sentence += f" Here {label} serves the worst 10 % best, {points} {_more(basis)} than {basis.baseline_name}."
    else:
        sentence += f" Here no algorithm serves the worst 10 % better than {basis.baseline_name}."
    repeat = "Repeat it with three seeds or more: `--seeds 3`."
    if basis.findings.origin:
        repeat = "Train again with three seeds or more, and put them into a column `seed`."
    unsure = ("How sure", f"Not at all. {repeat}")
    return Verdict(sentence, [*_gain_and_cost(basis, label), unsure], [label])


def _no_gain(basis: Basis, leader: Entry) -> Verdict:
    label = leader.label
    gain = basis.change(label, "worst10")
    who = "No algorithm is" if len(basis.rivals) > 1 else f"{label} is not"
    sentence = f"{who} shown to serve the worst-served clients better than {basis.baseline_name}"
    if basis.gain(label) > 0:
        points = signed(basis.metric, gain.points)
        unit = " points" if basis.metric.is_share else ""
        who = f"{label} comes closest" if len(basis.rivals) > 1 else "the difference"
        sentence += f": {who} ({points}{unit} for the worst 10 %), which chance could do"
    (_, gains), (_, pays) = _gain_and_cost(basis, label, is_named=basis.gain(label) > 0)
    details = [("The closest", gains), ("Its cost", pays)]
    worse = []
    for entry in basis.rivals:
        if basis.change(entry.label, "worst10").direction == -1:
            worse.append(entry.label)
    if worse:
        verb = "serves" if len(worse) == 1 else "serve"
        harm = f"{listed(worse)} {verb} the worst 10 % worse than {basis.baseline_name}."
        details.append(("Who does harm", harm))
    details.append(("How sure", _sureness(basis, gain)))
    return Verdict(f"{sentence}.", details, [label], _notes(basis))


def _gain(basis: Basis, winners: Sequence[Entry]) -> Verdict:
    label = winners[0].label
    gain = basis.change(label, "worst10")
    reached = level(basis.metric, basis.level(label, "worst10"))
    more = amount(basis.metric, gain.points)
    rivals = _level_with(basis, winners)
    lead = f"better than {basis.baseline_name}" if rivals else "best"
    expectation = " (expected)" if basis.is_expected else ""
    sentence = (
        f"{label} serves the worst-served clients {lead}: the worst 10 % reach {reached}{expectation}, "
        f"{more} {_more(basis)} than with {basis.baseline_name}, {_cost(basis, label)}."
    )
    fedavgs = [entry.label for entry in rivals if entry.config.get("algorithm") == BASELINE]
    if fedavgs:
        sentence += f" But {listed(fedavgs)} {_does(fedavgs)} about as well."
    sureness = _sureness(basis, gain)
    if basis.is_beyond_chance(gain):
        sureness = f"More than chance would do. {sureness}"
    if rivals:
        names = [entry.label for entry in rivals]
        sureness += f" {listed(names)} {_does(names)} about as well: no difference is shown."
    details = [*_gain_and_cost(basis, label), ("How sure", sureness)]
    return Verdict(sentence, details, [label, *fedavgs], _notes(basis))


def _level_with(basis: Basis, winners: Sequence[Entry]) -> list[Entry]:
    """The rivals that are not shown to serve the worst 10 % worse than the first winner does."""
    best = winners[0]
    rivals = []
    for entry in basis.rivals:
        if entry is best or not basis.differences.comparable(best.label, entry.label):
            continue
        lead = basis.differences.between(best.label, entry.label, "worst10")
        if lead.direction != 1:
            rivals.append(entry)
    return rivals


def _cost(basis: Basis, label: str) -> str:
    """What it costs, as the end of a sentence."""
    mean = basis.change(label, "mean")
    best10 = basis.change(label, "best10")
    payers = []
    if mean.direction == -1:
        payers.append(f"{amount(basis.metric, mean.points)} to the average client")
    if best10.direction == -1:
        payers.append(f"{amount(basis.metric, best10.points)} to the best-served 10 %")
    if payers:
        return f"at a cost of {' and '.join(payers)}"
    if mean.direction == 1:
        return f"and the average client gains {amount(basis.metric, mean.points)}"
    return "at no cost to the others that could be shown"


def _gain_and_cost(basis: Basis, label: str, is_named: bool = True) -> list[tuple[str, str]]:
    """Who gains and who pays with this entry; `is_named`: the sentence above names it."""
    metric = basis.metric
    name = f"expected {metric.name}" if basis.is_expected else metric.name
    unit = " %" if metric.is_share else ""
    before = f"{basis.level(basis.baseline, 'worst10'):.{metric.digits}f}{unit}"
    after = f"{basis.level(label, 'worst10'):.{metric.digits}f}{unit}"
    is_long = "[" in label
    who = "it" if is_long and is_named else label
    gains = (
        f"The worst 10 % of clients: {name} {before} with {basis.baseline_name}, {after} with {who} "
        f"({change(metric, basis.change(label, 'worst10'))})."
    )
    mean = basis.change(label, "mean")
    best10 = basis.change(label, "best10")
    pays = (
        f"The average client: {change(metric, mean)}{_conclusion(mean)}. "
        f"The best-served 10 %: {change(metric, best10)}{_conclusion(best10)}."
    )
    improved, degraded = _shares(basis, label)
    if improved is not None:
        gains += f" Of the clients that {basis.baseline_name} serves below average, {improved:.0f} % do better."
    if degraded is not None:
        pays += f" Of those it serves above average, {degraded:.0f} % do worse."
    return [("Who gains", gains), ("Who pays", pays)]


def _conclusion(difference: Difference) -> str:
    if not difference.is_judged or is_nothing(difference):
        return ""
    return {1: " (a gain)", -1: " (a loss)"}.get(difference.direction or 0, " (no change shown)")


def _shares(basis: Basis, label: str) -> tuple[float | None, float | None]:
    """Percent of the badly served clients that gain, and of the well-served ones that lose."""
    rows = [findings.rows[label] for findings in basis.differences.comparisons]
    return _share(rows, "improved"), _share(rows, "degraded")


def _share(rows: Sequence[Row], name: str) -> float | None:
    shares = []
    for row in rows:
        figures = figures_at(row, late=True)
        if name not in figures:
            return None
        shares.append(figures[name][0])
    mean = float(np.mean(shares))
    return None if np.isnan(mean) else 100 * mean


def _sureness(basis: Basis, gain: Difference) -> str:
    """What the judgement rests on."""
    differences = basis.differences
    seeds = counted(differences.fewest_seeds, "seed")
    splits = "one split of the data"
    if differences.federations > 1:
        splits = f"each of {differences.federations} splits of the data"
    sentences = [f"It rests on {seeds}, on {splits}."]
    bound = basis.chance(gain)
    if bound is not None:
        chance = amount(basis.metric, bound)
        sentences.append(f"{basis.baseline_name} trained again differs from itself by up to {chance}.")
    rivals = len(basis.rivals)
    if rivals >= _MANY:
        sentences.append(f"{rivals} alternatives were tried: with so many, one may look better by luck.")
    return " ".join(sentences)


def _notes(basis: Basis) -> list[str]:
    """What the words of the verdict mean."""
    rounds = basis.findings.last_rounds
    notes = [_LIKELY]
    if rounds > 1:
        notes.append(f"Figures are averages over the last {rounds} rounds.")
    if not basis.differences.are_over_federations:
        notes.append(_OTHER_CLIENTS)
    if basis.is_expected:
        notes.append(_EXPECTED)
    return notes


def _more(basis: Basis) -> str:
    return "more" if basis.metric.higher_is_better else "less"


def _does(names: Sequence[str]) -> str:
    return "does" if len(names) == 1 else "do"


def _or_worst(value: float) -> float:
    """NaN counts as the worst."""
    return -np.inf if np.isnan(value) else value
