"""The verdict in plain words: who serves the worst clients best, at what cost to whom, and how sure that is.

It says what the paired differences show and nothing more: a gain or a loss is one whose 95 % interval excludes zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...comparison.analysis.findings import BASELINE, Entry
from ...comparison.analysis.intervals import Difference
from ...core.words import counted
from ..tables import EQUAL_DIFFERENCES, EQUAL_SEEDS, figures_at
from .evidence import Basis
from .words import amount, change, is_nothing, level, listed, shown, signed

_MANY = 5  # alternatives from which one may look like a gain by luck
_LIKELY = "“Likely” is a 95 % interval: if all were repeated, 19 of 20 such ranges would hold the true difference."
_OTHER_CLIENTS = "Other clients may give another answer: to know takes three splits of the data or more."
_EXPECTED = (
    "Expected accuracies leave out the noise of small test sets, which hides the gain in the measured ones: see "
    "docs/metrics.md."
)
_UNPADDED = "Accuracies here leave out padding positions; the charts count them."


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
    judged = _judged(basis)
    harm = _harm(basis)
    is_alone = not basis.rivals and not basis.lost
    if is_alone or not harm:
        return judged
    *details, how_sure = judged.details
    about_harm = ("Who does harm", harm)
    return replace(judged, details=[*details, about_harm, how_sure])


def _judged(basis: Basis) -> Verdict:
    """What the differences show."""
    if not basis.rivals:
        return _all_lost(basis) if basis.lost else _alone(basis)
    winners = basis.winners
    if winners:
        return _gain(basis, winners)
    leader = max(basis.rivals, key=lambda entry: basis.merit(entry.label))
    if not basis.change(leader.label, "worst10").is_judged:
        return _unjudged(basis, leader)
    return _no_gain(basis, leader)


def _alone(basis: Basis) -> Verdict:
    label = basis.baseline
    metric = basis.metric
    worst10 = level(metric, basis.level(label, "worst10"))
    if basis.is_unpadded:
        worst10 += " (without padding)"
    mean = level(metric, basis.level(label, "mean"))
    sentence = f"{label}: the worst-served 10 % of clients reach {worst10}, the average client {mean}."
    compare = "Nothing was compared. `evenfed compare` puts several algorithms beside each other, on the same clients."
    return Verdict(
        sentence,
        details=[("How sure", compare)],
        names=[label],
    )


def _all_lost(basis: Basis) -> Verdict:
    """Every rival broke down."""
    labels = [entry.label for entry in basis.lost]
    return Verdict(
        f"{listed(labels)} broke down, so nothing can be compared with {basis.baseline_name}.",
        details=[
            ("How sure", "Try a smaller learning rate, or less fairness: the remarks say how training broke down.")
        ],
        names=labels,
    )


def _unjudged(basis: Basis, leader: Entry) -> Verdict:
    """One seed on fewer than three federations, seeds that all gave the same run, or the same difference."""
    label = leader.label
    baseline = basis.baseline_name
    others_are_judged = any(basis.change(entry.label, "worst10").is_judged for entry in basis.rivals)
    gain = basis.change(label, "worst10")
    best = f"Here no algorithm serves the worst 10 % better than {baseline}."
    if basis.gain(label) > 0:
        more = _more(basis, gain)
        best = f"Here {label} serves the worst 10 % best, {more} than {baseline}."
    reason = "With one seed,"
    cure = "Repeat it with three seeds or more: `--seeds 3`."
    if basis.differences.has_equal_seeds:
        reason = "All seeds gave the same runs, so"
        cure = EQUAL_SEEDS
    elif gain.is_constant:
        reason = "All observations are the same difference, so"
        cure = EQUAL_DIFFERENCES
    sentence = f"{reason} no difference can be told from chance. {best}"
    if others_are_judged:
        sentence = f"No algorithm is shown to serve the worst-served clients better than {baseline}. {best}"
        sentence += f" But {reason[0].lower()}{reason[1:]} this cannot be told from chance."
    return Verdict(
        sentence,
        details=[
            ("Who gains", _who_gains(basis, label)),
            ("Who pays", _who_pays(basis, label)),
            ("How sure", f"Not at all. {cure}"),
        ],
        names=[label],
    )


def _no_gain(basis: Basis, leader: Entry) -> Verdict:
    label = leader.label
    baseline = basis.baseline_name
    gain = basis.change(label, "worst10")
    is_ahead = basis.gain(label) > 0
    are_several = len(basis.rivals) + len(basis.lost) > 1
    who = "No algorithm is" if are_several else f"{label} is not"
    sentence = f"{who} shown to serve the worst-served clients better than {baseline}"
    if is_ahead:
        ahead = f"{label} comes closest" if are_several else "the difference"
        points = _points(basis, gain)
        sentence += f": {ahead} ({points} for the worst 10 %), which chance could do"
    details = [
        ("The closest", _who_gains(basis, label, is_named=is_ahead)),
        ("Its cost", _who_pays(basis, label)),
    ]
    details.append(("How sure", _sureness(basis, gain)))
    return Verdict(
        f"{sentence}.",
        details=details,
        names=[label],
        notes=_notes(basis),
    )


def _harm(basis: Basis) -> str:
    """Who serves the worst 10 % worse than the baseline does, where nothing is gained, and who broke down."""
    sentences = []
    harmful = [] if basis.winners else _harmful(basis)
    if harmful:
        names = listed(harmful)
        verb = "serves" if len(harmful) == 1 else "serve"
        sentences.append(f"{names} {verb} the worst 10 % worse than {basis.baseline_name}.")
    lost = [entry.label for entry in basis.lost]
    if lost:
        names = listed(lost)
        verb = "has" if len(lost) == 1 else "have"
        sentences.append(f"{names} broke down in training and {verb} no figures.")
    broken = [entry.label for entry in basis.broken]
    if broken:
        names = listed(broken)
        sentences.append(f"{names} broke down in some runs.")
    return " ".join(sentences)


def _harmful(basis: Basis) -> list[str]:
    """The entries shown to serve the worst 10 % worse than the baseline does."""
    labels = []
    for entry in basis.rivals:
        change_of_worst = basis.change(entry.label, "worst10")
        if change_of_worst.direction == -1:
            labels.append(entry.label)
    return labels


def _gain(basis: Basis, winners: Sequence[Entry]) -> Verdict:
    label = winners[0].label
    baseline = basis.baseline_name
    gain = basis.change(label, "worst10")
    reached = level(basis.metric, basis.level(label, "worst10"))
    if basis.is_expected:
        reached += " (expected)"
    if basis.is_unpadded:
        reached += " (without padding)"
    more = _more(basis, gain)
    cost = _cost(basis, label)
    rivals = _level_with(basis, winners)
    lead = f"better than {baseline}" if rivals else "best"
    sentence = (
        f"{label} serves the worst-served clients {lead}: "
        f"the worst 10 % reach {reached}, {more} than with {baseline}, {cost}."
    )
    fedavgs = []
    names = []
    for entry in rivals:
        names.append(entry.label)
        if entry.config.get("algorithm") == BASELINE:
            fedavgs.append(entry.label)
    if fedavgs:
        sentence += f" But it is not shown to be better than {listed(fedavgs)}."
    sureness = _sureness(basis, gain)
    if basis.is_beyond_chance(gain):
        sureness = f"More than chance would do. {sureness}"
    if names:
        sureness += f" {label} is not shown to be better than {listed(names)}."
    return Verdict(
        sentence,
        details=[
            ("Who gains", _who_gains(basis, label)),
            ("Who pays", _who_pays(basis, label)),
            ("How sure", sureness),
        ],
        names=[label, *fedavgs],
        notes=_notes(basis),
    )


def _level_with(basis: Basis, winners: Sequence[Entry]) -> list[Entry]:
    """The rivals that are not shown to serve the worst 10 % worse than the first winner does."""
    best = winners[0]
    rivals = []
    for entry in basis.rivals:
        if entry is best:
            continue
        if not basis.differences.comparable(best.label, entry.label):
            continue
        lead = basis.differences.between(best.label, entry.label, "worst10")
        if lead.direction != 1:
            rivals.append(entry)
    return rivals


def _cost(basis: Basis, label: str) -> str:
    """What it costs, as the end of a sentence."""
    metric = basis.metric
    mean = basis.change(label, "mean")
    best10 = basis.change(label, "best10")
    of_mean = amount(metric, mean.points)
    of_best10 = amount(metric, best10.points)
    payers = []
    if mean.direction == -1:
        payers.append(f"{of_mean} to the average client")
    if best10.direction == -1:
        payers.append(f"{of_best10} to the best-served 10 %")
    if payers:
        costs = " and ".join(payers)
        return f"at a cost of {costs}"
    if mean.direction == 1:
        return f"and the average client gains {of_mean}"
    return "at no cost to the others that could be shown"


def _who_gains(basis: Basis, label: str, is_named: bool = True) -> str:
    """What the worst-served get with this entry; `is_named`: the sentence above names it."""
    metric = basis.metric
    baseline = basis.baseline_name
    name = metric.name
    if basis.is_expected:
        name = f"expected {name}"
    if basis.is_unpadded:
        name = f"{name} without padding"
    baseline_level = shown(metric, basis.level(basis.baseline, "worst10"))
    entry_level = shown(metric, basis.level(label, "worst10"))
    by_how_much = change(metric, basis.change(label, "worst10"))
    is_long = "[" in label
    who = "it" if is_long and is_named else label
    levels = f"{name} {baseline_level} with {baseline}, {entry_level} with {who}"
    text = f"The worst 10 % of clients: {levels} ({by_how_much})."
    improved = _share(basis, label, "improved")
    if improved is not None:
        text += f" Of the clients that {baseline} serves below average, {improved:.0f} % do better."
    return text


def _who_pays(basis: Basis, label: str) -> str:
    """What the others get with this entry."""
    mean = _concluded(basis, basis.change(label, "mean"))
    best10 = _concluded(basis, basis.change(label, "best10"))
    text = f"The average client: {mean}. The best-served 10 %: {best10}."
    degraded = _share(basis, label, "degraded")
    if degraded is not None:
        baseline = basis.baseline_name
        text += f" Of the clients that {baseline} serves above average, {degraded:.0f} % do worse."
    return text


def _concluded(basis: Basis, difference: Difference) -> str:
    """A difference, and what it comes to."""
    text = change(basis.metric, difference)
    if not difference.is_judged or is_nothing(difference):
        return text
    if difference.direction == 1:
        return f"{text} (a gain)"
    if difference.direction == -1:
        return f"{text} (a loss)"
    return f"{text} (no change shown)"


def _share(basis: Basis, label: str, name: str) -> float | None:
    """Percent of the badly served clients that gain (`improved`), or of the well-served ones that lose."""
    shares = []
    for findings in basis.differences.comparisons:
        figures = figures_at(findings.rows[label], late=True)
        if name not in figures:
            return None
        mean_over_seeds, _ = figures[name]
        shares.append(mean_over_seeds)
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
    if basis.is_unpadded:
        notes.append(_UNPADDED)
    return notes


def _more(basis: Basis, gain: Difference) -> str:
    """By how much a figure is better."""
    size = amount(basis.metric, gain.points)
    word = "more" if basis.metric.higher_is_better else "less"
    return f"{size} {word}"


def _points(basis: Basis, gain: Difference) -> str:
    points = signed(basis.metric, gain.points)
    return f"{points} points" if basis.metric.is_share else points
