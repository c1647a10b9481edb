"""The details under a verdict: who gains, who pays, and how certain that is."""

from ...comparison.analysis.intervals import Difference
from ...core.words import counted
from .evidence import Basis
from .words import amount, change, is_nothing, marked, shown

_MANY = 5  # alternatives, of which the best may look better by chance


def who_gains(basis: Basis, label: str, is_named: bool = True) -> str:
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
    who = "it" if is_long and is_named else marked(label)
    levels = f"{name} {baseline_level} with {baseline}, {entry_level} with {who}"
    text = f"The worst 10 % of clients: {levels} ({by_how_much})."
    improved = basis.share(label, "improved")
    if improved is not None:
        chance = _if_repeated(basis, "improved")
        text += f" Of the clients that {baseline} serves below average, {improved:.0f} % do better{chance}."
    return text


def who_pays(basis: Basis, label: str) -> str:
    """What the others get with this entry."""
    mean = _concluded(basis, basis.change(label, "mean"))
    best10 = _concluded(basis, basis.change(label, "best10"))
    text = f"The average client: {mean}. The best-served 10 %: {best10}."
    degraded = basis.share(label, "degraded")
    if degraded is not None:
        baseline = basis.baseline_name
        chance = _if_repeated(basis, "degraded")
        text += f" Of the clients that {baseline} serves above average, {degraded:.0f} % do worse{chance}."
    return text


def _if_repeated(basis: Basis, name: str) -> str:
    """The same share where FedAvg alone is repeated: about half of the clients change either way by chance."""
    share = basis.repeated_share(name)
    if share is None:
        return ""
    return f" ({share:.0f} % when {basis.baseline_name} alone is repeated)"


def _concluded(basis: Basis, difference: Difference) -> str:
    text = change(basis.metric, difference)
    if not difference.is_judged or is_nothing(difference):
        return text
    if difference.direction == 1:
        return f"{text} (a gain)"
    if difference.direction == -1:
        return f"{text} (a loss)"
    return f"{text} (no change shown)"


def how_sure(basis: Basis, label: str, gain: Difference) -> str:
    """What the judgement of the best entry rests on, and what limits it."""
    differences = basis.differences
    seeds = counted(differences.fewest_seeds, "seed")
    rests_on = seeds
    if basis.findings.origin is None:
        splits = "one split of the data"
        if differences.federations > 1:
            splits = f"each of {differences.federations} splits of the data"
        rests_on = f"{seeds} on {splits}"
    is_gain = gain.direction == 1
    sentences = []
    if is_gain:
        sentences.append("The 95 % interval excludes zero.")
    sentences.append(f"It rests on {rests_on}.")
    bound = basis.chance(gain)
    if bound is not None:
        sentences.append(_about_chance(basis, gain, bound))
    rivals = len(basis.rivals)
    if is_gain and rivals >= _MANY:
        best = marked(label)
        sentences.append(f"But {best} was picked as the best of {rivals}: confirm it on new splits of the data.")
    return " ".join(sentences)


def _about_chance(basis: Basis, gain: Difference, bound: float) -> str:
    """How far repeating the baseline alone moves the worst 10 %."""
    most = amount(basis.metric, bound)
    baseline = basis.baseline_name
    if not basis.differences.floor.is_paired:  # other initial models, which no paired difference contains
        return f"{baseline} with other seeds (not paired) differs by less than {most} in 95 % of cases."
    if gain.direction == 1 and not basis.is_beyond_chance(gain):
        return f"But repeating {baseline} with other batches alone can change this figure by {most}: add seeds."
    return f"Repeating {baseline} with other batches changes this figure by less than {most} in 95 % of cases."
