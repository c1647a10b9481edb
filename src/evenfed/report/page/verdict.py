"""The verdict in plain words: which algorithm serves the worst clients best, who pays, and how certain that is.

It states what the paired differences show and nothing more. A gain or a loss needs a 95 % interval that excludes zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...comparison.analysis.findings import BASELINE, Entry
from ...comparison.analysis.intervals import Difference
from ...core.words import counted
from ..notes import EQUAL_DIFFERENCES, EQUAL_SEEDS
from .details import how_sure, who_gains, who_pays
from .evidence import Basis
from .words import amount, level, listed, marked, plain, signed, words_and_labels

_FEW_CLIENTS = 3  # a worst tenth of fewer is named with its size
_OWN_MODELS = "each client keeps its own model"
_LIKELY = "“Likely” is a 95 % interval: in 19 of 20 repetitions of everything, it would cover the true difference."
_THESE_CLIENTS = "This holds for these clients; others may differ."
_OTHER_CLIENTS = "This holds for these clients. Three or more splits of the data show whether it holds for others."
_EXPECTED = (
    "Expected accuracies leave out the noise of small test sets, which hides the gain in the measured ones: see "
    "docs/metrics.md."
)
_UNPADDED = "Accuracies here leave out padding positions; the charts count them."


@dataclass(frozen=True)
class Verdict:
    """The headline, and the evidence for each part of it."""

    marked_sentence: str  # the headline, its entries marked; it may be two or three sentences
    marked_details: Sequence[tuple[str, str]] = ()  # a heading and a few sentences, their entries marked
    notes: Sequence[str] = ()  # what the words mean

    @property
    def sentence(self) -> str:
        return plain(self.marked_sentence)

    @property
    def details(self) -> list[tuple[str, str]]:
        return [(heading, plain(text)) for heading, text in self.marked_details]

    def describe(self) -> dict[str, Any]:
        """As JSON; in a text, words and labels of entries take turns."""
        return {
            "sentence": words_and_labels(self.marked_sentence),
            "details": [(heading, words_and_labels(text)) for heading, text in self.marked_details],
            "notes": self.notes,
        }

    def about(self, name: str) -> "Verdict":
        """The same, of one set-up among several."""
        return replace(self, marked_sentence=f"{name}: {self.marked_sentence}")


def each(bases: Mapping[str, Basis]) -> list[Verdict]:
    """The verdict on every set-up, by its name; one without a name is alone."""
    verdicts = []
    for name, basis in bases.items():
        judged = of(basis)
        verdicts.append(judged.about(name) if name else judged)
    return verdicts


def of(basis: Basis) -> Verdict:
    """The verdict on a comparison."""
    judged = _judged(basis)
    harm = _harm(basis)
    is_alone = not basis.rivals and not basis.lost
    if is_alone or not harm:
        return judged
    *details, how_sure = judged.marked_details
    about_harm = ("Who does harm", harm)
    return replace(judged, marked_details=[*details, about_harm, how_sure])


def _judged(basis: Basis) -> Verdict:
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
    sentence = f"{_named(basis, label)}: {_worst_tenth(basis)} reach {worst10}, the average client {mean}."
    compare = "Nothing was compared. `evenfed compare` trains several algorithms on the same clients."
    return Verdict(
        sentence,
        marked_details=[("How sure", compare)],
    )


def _all_lost(basis: Basis) -> Verdict:
    labels = [marked(entry.label) for entry in basis.lost]
    return Verdict(
        f"{listed(labels)} broke down, so nothing can be compared with {basis.baseline_name}.",
        marked_details=[
            ("How sure", "Try a smaller learning rate, or less fairness: the remarks say how training broke down."),
        ],
    )


def _unjudged(basis: Basis, leader: Entry) -> Verdict:
    """One seed on fewer than three federations, seeds that all gave the same run, or the same difference."""
    label = leader.label
    baseline = basis.baseline_name
    others_are_judged = any(basis.change(entry.label, "worst10").is_judged for entry in basis.rivals)
    gain = basis.change(label, "worst10")
    tenth = _worst_tenth(basis)
    best = f"In these runs, no algorithm serves {tenth} better than {baseline}."
    if basis.gain(label) > 0:
        more = _more(basis, gain)
        best = f"In these runs, {_named(basis, label)} serves {tenth} best: {more} than {baseline}."
    reason = "One seed"
    cure = "Repeat it with three seeds or more: `--seeds 3`."
    if basis.differences.has_equal_seeds:
        reason = "All seeds gave the same runs, which"
        cure = EQUAL_SEEDS
    elif gain.is_constant:
        reason = "All observations are the same difference, which"
        cure = EQUAL_DIFFERENCES
    sentence = f"{reason} cannot separate an effect from chance. {best}"
    if others_are_judged:
        sentence = f"No algorithm is shown to serve the worst-served clients better than {baseline}. {best}"
        sentence += f" But {reason[0].lower()}{reason[1:]} cannot separate an effect from chance."
    sentence += _about_personal(basis)
    return Verdict(
        sentence,
        marked_details=[
            ("Who gains", who_gains(basis, label)),
            ("Who pays", who_pays(basis, label)),
            ("How sure", f"Not at all. {cure}"),
        ],
    )


def _no_gain(basis: Basis, leader: Entry) -> Verdict:
    label = leader.label
    baseline = basis.baseline_name
    gain = basis.change(label, "worst10")
    is_ahead = basis.gain(label) > 0
    are_several = len(basis.rivals) + len(basis.lost) > 1
    who = f"{_named(basis, label)} is not"
    if are_several:
        who = "No single-model algorithm is" if basis.personal else "No algorithm is"
    sentence = f"{who} shown to serve the worst-served clients better than {baseline}"
    if is_ahead:
        points = signed(basis.metric, gain.points)
        unit = " points" if basis.metric.is_share else ""
        more = f"{points}{unit} for {_worst_tenth(basis)}"
        closest = f"{marked(label)} comes closest with {more}, which"
        sentence += f": {closest} may be chance" if are_several else f": its {more} may be chance"
    sentence += f".{_about_personal(basis)}"
    details = [
        ("The closest", who_gains(basis, label, is_named=is_ahead)),
        ("Its cost", who_pays(basis, label)),
    ]
    details.append(("How sure", how_sure(basis, label, gain)))
    return Verdict(
        sentence,
        marked_details=details,
        notes=_notes(basis),
    )


def _harm(basis: Basis) -> str:
    """Who serves the worst 10 % worse than the baseline does, if nobody gains, and who broke down."""
    sentences = []
    harmful = []
    if not basis.winners:
        for entry in basis.compared:
            if basis.change(entry.label, "worst10").direction == -1:
                harmful.append(marked(entry.label))
    if harmful:
        names = listed(harmful)
        verb = "serves" if len(harmful) == 1 else "serve"
        sentences.append(f"{names} {verb} the worst 10 % worse than {basis.baseline_name}.")
    lost = [marked(entry.label) for entry in basis.lost]
    if lost:
        names = listed(lost)
        verb = "has" if len(lost) == 1 else "have"
        sentences.append(f"{names} broke down in training and {verb} no figures.")
    broken = [marked(entry.label) for entry in basis.broken]
    if broken:
        names = listed(broken)
        sentences.append(f"{names} broke down in some runs.")
    return " ".join(sentences)


def _gain(basis: Basis, winners: Sequence[Entry]) -> Verdict:
    label = winners[0].label
    baseline = basis.baseline_name
    gain = basis.change(label, "worst10")
    more = _more(basis, gain)
    cost = _cost(basis, label)
    rivals = _level_with(basis, winners)
    lead = f"better than {baseline}" if rivals else "best"
    if basis.personal and not rivals:
        lead = "best of all single models"
    sentence = (
        f"{_named(basis, label)} serves the worst-served clients {lead}: "
        f"{_worst_tenth(basis)} reach {_reached(basis, label)}, {more} than with {baseline}, {cost}."
    )
    fedavgs = []
    names = []
    for entry in rivals:
        names.append(marked(entry.label))
        if entry.config.get("algorithm") == BASELINE:
            fedavgs.append(marked(entry.label))
    if fedavgs:
        sentence += f" But it is not shown to be better than {listed(fedavgs)}."
    sentence += _about_personal(basis)
    sureness = how_sure(basis, label, gain)
    if names:
        sureness += f" It is not shown to be better than {listed(names)}."
    return Verdict(
        sentence,
        marked_details=[
            ("Who gains", who_gains(basis, label)),
            ("Who pays", who_pays(basis, label)),
            ("How sure", sureness),
        ],
        notes=_notes(basis),
    )


def _named(basis: Basis, label: str) -> str:
    """An entry's label, with what sets it apart if clients keep their own models."""
    entry = basis.findings.named(label)
    name = marked(label)
    return f"{name} ({_OWN_MODELS})" if entry.is_personal else name


def _worst_tenth(basis: Basis) -> str:
    """The worst 10 %, with how many clients that is if they are few."""
    clients = basis.fewest_clients
    number = max(1.0, clients / 10)
    if number >= _FEW_CLIENTS:
        return "the worst 10 %"
    return f"the worst 10 % ({number:g} of {counted(clients, 'client')})"


def _reached(basis: Basis, label: str) -> str:
    reached = level(basis.metric, basis.level(label, "worst10"))
    if basis.is_expected:
        reached += " (expected)"
    if basis.is_unpadded:
        reached += " (without padding)"
    return reached


def _about_personal(basis: Basis) -> str:
    """The best of the entries that are not ranked, since each client keeps its own model."""
    if not basis.personal:
        return ""
    label = basis.personal[0].label
    gain = basis.change(label, "worst10")
    sentence = f" {_named(basis, label)} reaches {_reached(basis, label)}"
    if gain.direction == 1:
        sentence += f", {_more(basis, gain)} than {basis.baseline_name}"
    elif gain.is_judged:
        sentence += f", not shown to be more than {basis.baseline_name}"
    return f"{sentence}; it is not ranked against single models."


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


def _notes(basis: Basis) -> list[str]:
    """What the words of the verdict mean."""
    rounds = basis.findings.last_rounds
    notes = [_LIKELY]
    if rounds > 1:
        notes.append(f"Figures are averages over the last {rounds} rounds.")
    if basis.findings.origin is not None:
        notes.append(_THESE_CLIENTS)
    elif not basis.differences.are_over_federations:
        notes.append(_OTHER_CLIENTS)
    if basis.is_expected:
        notes.append(_EXPECTED)
    if basis.is_unpadded:
        notes.append(_UNPADDED)
    return notes


def _more(basis: Basis, gain: Difference) -> str:
    size = amount(basis.metric, gain.points)
    word = "more" if basis.metric.higher_is_better else "less"
    return f"{size} {word}"
