"""The notes under tables: what figures are, and what to keep in mind about them."""

from collections.abc import Sequence

from ..comparison.analysis.expected import MOST_UNEXPLAINED
from ..comparison.analysis.findings import Findings, seeds_named
from ..comparison.runs import FLOOR_LABEL, FLOOR_NAMES, PAIRED_FLOOR_LABEL
from ..core.words import counted

LASTING_NOTE = (
    "Lasting worst 10 %: average each client over the last rounds, then take the worst tenth. Higher than the "
    "worst 10 % when different clients are worst each round."
)
ONE_SEED = "One seed gives no interval, so no difference is judged."
EQUAL_SEEDS = (
    "All seeds gave the same runs, so they are one observation, without an interval: no difference is judged. Let each "
    "seed start from another model (give `compare` a function that makes it), or choose a smaller batch_size."
)
EQUAL_DIFFERENCES = (
    "A difference that is exactly the same in all observations is not judged: with few test examples this happens by "
    "chance. Add seeds or test examples."
)
MOVED_NOTE = (
    "Weight moved: percent of weight placed differently from FedAvg; near 0 an entry differs only in its learning rate "
    "or local loss."
)
OSCILLATION_NOTE = "Oscillation: lag-1 correlation of the clients' losses; below -0.85 the weights over-correct."

BEST_IN_BOLD = "; best in bold"
PERSONAL_NOTE = "each client keeps its own model; not ranked with single models."
_EXPECTED = "Expected: each client's class shares times the model's recalls, without the noise of its test set."


def definitions(*notes: str) -> tuple[str, ...]:
    """The notes of a table, without empty ones."""
    return tuple(filter(None, notes))


def accuracy_note(findings: Findings, marks_best: bool = True) -> str:
    """What the figures are."""
    spread = spread_of(findings)
    best = BEST_IN_BOLD if marks_best else ""
    note = f"{measured_in(findings)} over clients, {spread}{best}."
    if findings.metric.higher_is_better:
        return note
    return f"{note} Less is better: the worst clients have the highest {findings.metric.name}."


def in_percent(findings: Findings) -> str:
    """What follows the name of a metric that is shown in percent."""
    return " in %" if findings.metric.is_share else ""


def spread_of(findings: Findings) -> str:
    seeds = len(findings.seeds)
    if seeds > 1:
        return f"mean ± standard deviation over {seeds} seeds"
    return "one seed, so no spread"


def floor_notes(findings: Findings) -> Sequence[str]:
    """What the lines of the noise floor are."""
    sentences = []
    if findings.other_batches:
        name = FLOOR_NAMES[PAIRED_FLOOR_LABEL]
        sentence = f"{name}: FedAvg again from the same initial models, with batches in another order."
        if not findings.paired_floor:
            sentence += " They change nothing here and show nothing about chance: is every client one batch? "
            sentence += 'Then set noise_floor = "seeds".'
        sentences.append(sentence)
    if findings.floor:
        sentence = f"{FLOOR_NAMES[FLOOR_LABEL]}: FedAvg again with other seeds."
        if not findings.floor_of_seeds:
            sentence += " They change nothing here and show nothing about chance: nothing is drawn by seed."
        sentences.append(sentence)
    for entry in findings.controls:
        if entry is findings.floor or entry is findings.other_batches:
            continue
        usual = findings.baseline.precision
        precision = f"{entry.precision} instead of {usual}"
        sentence = f"{entry.label}: {entry.repeats} in {precision}"
        if len(entry.runs) < len(findings.seeds):
            sentence += f", {seeds_named(entry.runs)} only"
        sentences.append(f"{sentence}.")
    return sentences


def few_examples(judged_sizes: Sequence[int]) -> list[str]:
    """A warning about clients with so few examples that their accuracy says little."""
    few = 0
    judged = 0
    for size in judged_sizes:
        if size > 0:
            judged += 1
        if 0 < size < 10:
            few += 1
    if few == 0:
        return []
    verb = "is" if few == 1 else "are"
    clients = counted(judged, "client")
    return [f"{few} of {clients} {verb} judged on fewer than 10 examples: `worst` depends on those."]


def measured_on(findings: Findings) -> str:
    """What is measured: accuracy (or another metric) on test data, or on data set aside for choosing."""
    if findings.origin:
        return findings.metric.name.capitalize()
    data = "VALIDATION" if findings.judge == "validation" else "Test"
    return f"{data} {findings.metric.name}"


def measured_in(findings: Findings) -> str:
    """The same with its unit."""
    return f"{measured_on(findings)}{in_percent(findings)}"


def is_alone(findings: Findings) -> bool:
    """Whether there is one entry, compared with nothing."""
    return len(findings.everyone) == 1


def improved_notes(findings: Findings) -> Sequence[str]:
    """What the columns of clients that gain and lose are; nothing where an entry is alone."""
    if is_alone(findings):
        return ()
    worse, better = ("below", "above") if findings.metric.higher_is_better else ("above", "below")
    return (
        f"Improved: percent of the clients {worse} {findings.baseline_name}'s mean that gain.",
        f"Degraded: percent of the clients {better} it that lose.",
    )


def personal_note(findings: Findings) -> str:
    """Which entries train no single model."""
    labels = [entry.label for entry in findings.entries if entry.is_personal]
    if not labels:
        return ""
    return f"{', '.join(labels)}: {PERSONAL_NOTE}"


def short_fit_notes(findings: Findings) -> Sequence[str]:
    """What expected figures are, and which entries have none."""
    misfits = _misfits(findings)
    if not misfits:
        return [_EXPECTED]
    labels = ", ".join(misfits)
    return [_EXPECTED, f"Expected figures do not fit {labels}, so they are left out there."]


def fit_notes(findings: Findings) -> Sequence[str]:
    """The same, and how well they fit the others."""
    fits = [row.fit for row in findings.rows.values() if row.fit is not None]
    if not fits:
        return ()
    classes = []
    noise = []
    for fit in fits:
        if fit.is_good:
            classes.append(_percent(fit.classes))
            noise.append(_percent(fit.noise))
    sentences = [_EXPECTED]
    if noise and min(noise) >= 100:
        sentences.append("The noise of their small test sets alone explains all of the spread between clients.")
    elif classes:
        sentences.append(
            f"Class shares explain {_range(classes)} % of the spread between clients (weighted R2), noise "
            f"{_range(noise)} %."
        )
    return [*sentences, *_warning(findings)]


def _warning(findings: Findings) -> list[str]:
    misfits = _misfits(findings)
    if not misfits:
        return []
    return [
        f"WARNING: expected figures do not fit {', '.join(misfits)}: class shares and noise leave more than "
        f"{100 * MOST_UNEXPLAINED:.0f} % of the spread unexplained. They are not used there."
    ]


def _misfits(findings: Findings) -> list[str]:
    """The entries that expected figures do not fit."""
    labels = []
    for label, row in findings.rows.items():
        if row.fit is not None and not row.fit.is_good:
            labels.append(label)
    return labels


def _percent(share: float) -> int:
    """Of a whole: an estimate below nothing is nothing, one of more than everything is everything."""
    percent = round(100 * share)
    if percent < 0:
        return 0
    return min(100, percent)


def _range(percents: Sequence[int]) -> str:
    least = min(percents)
    most = max(percents)
    return str(least) if least == most else f"{least} to {most}"
