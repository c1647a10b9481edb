"""Entries against FedAvg: paired differences, the noise floor, and one sentence per entry."""

from collections.abc import Mapping, Sequence

from ..comparison.analysis import configuration
from ..comparison.analysis.entry_figures import LASTING
from ..comparison.analysis.findings import BASELINE, Entry, Findings
from ..comparison.analysis.intervals import Difference
from ..comparison.analysis.noise_floor import Chance
from ..comparison.analysis.statistics import Differences
from ..core.decimals import rounded
from .notes import EQUAL_DIFFERENCES, EQUAL_SEEDS, LASTING_NOTE, ONE_SEED, definitions
from .table import Cell, Column, Line, Table
from .tables import compared_by, judged_by, metric_columns, name_of, title, when

_HEADS = {
    "same-average": "FedAvg with the same average",
    "same-rate": "FedAvg with the same learning rate",
    "undamped": "the same entry without smoothing",
    "unaveraged": "the same entry without averaging",
}
_ON_THESE = {"better": "better on these federations", "worse": "worse on these federations"}
_VERBS = {
    "better": "lifted",
    "worse": "lowered",
    "no difference shown": "not shown to change",
    "not judged": "not judged",
}
_VERBS_DOWN = {**_VERBS, "better": "lowered", "worse": "raised"}  # of a metric of which less is better
_VERBS_OF_STD = {**_VERBS, "better": "narrowed", "worse": "widened"}


def against_tables(differences: Differences, names: Sequence[str] = ()) -> list[Table]:
    """Every table of entries against others that has something to compare.

    With several federations the mean difference comes first, then each federation's under its name.
    """
    tables = [paired(differences, names)]
    if differences.findings.origin is None:  # else no configuration is known
        for kind in _HEADS:
            table = against_rivals(kind, differences, names)
            tables.append(table)
    return [table for table in tables if table is not None]


def paired(differences: Differences, names: Sequence[str] = ()) -> Table | None:
    """Each entry against FedAvg; "better" only if the interval excludes zero."""
    findings = differences.findings
    baseline, *others = findings.everyone
    rivals = {entry.label: baseline.label for entry in others}
    head = f"Paired difference from {findings.baseline_name}"
    return _against(differences, names, rivals, "paired", head)


def against_rivals(kind: str, differences: Differences, names: Sequence[str] = ()) -> Table | None:
    """Entries against one that differs in a single respect, which `kind` names.

    `same-average`: FedAvg that deploys the same average; tells re-weighting from averaging. `same-rate`: FedAvg with
    the entry's learning rate, if it is not FedAvg's; tells re-weighting from the rate. `undamped`: the same entry
    without smoothed losses. `unaveraged`: the same without an average.
    """
    rivals = _rivals(kind, differences.findings)
    head = f"Paired difference from {_HEADS[kind]}"
    return _against(differences, names, rivals, kind, head)


def _rivals(kind: str, findings: Findings) -> Mapping[str, str]:
    """Labels of entries, with the label of what each is compared with."""
    if kind == "undamped":
        return configuration.undamped(findings.configs)
    if kind == "unaveraged":
        return configuration.unaveraged(findings.configs)
    usual_rate = _rate(findings.baseline)
    fedavg_with = _fedavg_by_deployment(findings)
    rivals = {}
    for entry in findings.entries:
        rate = _rate(entry)
        if kind == "same-average":
            is_compared = entry.average is not None
            rate = usual_rate
        else:
            is_compared = rate != usual_rate
        rival = fedavg_with.get((rate, entry.average))
        if entry.method != BASELINE and is_compared and rival is not None:
            rivals[entry.label] = rival
    return rivals


def _fedavg_by_deployment(findings: Findings) -> dict[tuple[float, float | None], str]:
    labels: dict[tuple[float, float | None], str] = {}
    for entry in findings.entries:
        if entry.method == BASELINE:
            deployment = (_rate(entry), entry.average)
            labels.setdefault(deployment, entry.label)
    return labels


def _rate(entry: Entry) -> float:
    settings = entry.config["train"]
    return float(settings["lr"])


def _against(
    differences: Differences,
    names: Sequence[str],
    rivals: Mapping[str, str],
    kind: str,
    head: str,
) -> Table | None:
    """Entries against their rivals, by label; the notes end with one sentence per entry."""
    findings = differences.findings
    late = differences.late
    lines = []
    sentences = []
    gaps_are_equal = False
    for label, rival in rivals.items():
        if not differences.comparable(label, rival):
            continue
        shown = label
        if rival != findings.baseline.label:
            shown = f"{label} minus {rival}"
        control = findings.named(label).is_control
        gaps = {}
        on_these = {}
        floors = {}
        for metric in compared_by(late):
            gap = differences.between(label, rival, metric)
            cells = _cells(differences, label, rival, metric)
            lines.append(Line(shown, cells, metric, control))
            gaps[metric] = gap
            gaps_are_equal = gaps_are_equal or gap.is_constant
            if differences.are_also_on_these:
                on_these[metric] = differences.on_these(label, rival, metric)
            floors[metric] = differences.chance(metric, gap.seeds)
        if not control and gaps["mean"].is_judged:
            digits = findings.metric.digits + 1
            sentences.append(answer(shown, gaps, floors, digits, on_these))
    if not lines:
        return None
    return Table(
        name=name_of(kind, late),
        title=f"{head}, {when(findings, late)}",
        columns=_columns(differences, names),
        lines=lines,
        notes=[*_notes(differences, gaps_are_equal), *sentences],
        digits=findings.metric.digits,
    )


def _columns(differences: Differences, names: Sequence[str]) -> list[Column]:
    """The difference with its interval, that on given federations and on each, how many gain, and what to conclude."""
    columns = [Column("difference", "difference [95 %]")]
    if differences.are_also_on_these:
        columns.append(Column("these", "on these [95 %]"))
    if differences.federations > 1:
        columns.append(Column("better_on", "better on"))
    columns += metric_columns(names)
    columns.append(Column("verdict", ""))
    return columns


def _cells(differences: Differences, label: str, rival: str, metric: str) -> list[Cell]:
    """What the columns hold, of one entry against its rival."""
    gap = differences.between(label, rival, metric)
    conclusion = gap.verdict
    cells = [Cell.of(gap)]
    if differences.are_also_on_these:
        on_these = differences.on_these(label, rival, metric)
        cells.append(Cell.of(on_these))
        if gap.direction == 0:
            conclusion = _ON_THESE.get(on_these.verdict, conclusion)
    if differences.federations > 1:
        on_each = differences.on_each(label, rival, metric)
        better = sum(difference.is_better for difference in on_each)
        cells.append(Cell(verdict=f"{better} of {len(on_each)}"))
        for difference in on_each:
            cells.append(Cell(difference.points, signed=True))
    cells.append(Cell(verdict=conclusion))
    return cells


def _notes(differences: Differences, gaps_are_equal: bool) -> Sequence[str]:
    """What the numbers of these tables are; `gaps_are_equal`: all observations of some difference are the same."""
    unjudged = ""  # why no line has an interval, where none has
    if not differences.are_over_federations and differences.fewest_seeds <= 1:
        unjudged = EQUAL_SEEDS if differences.has_equal_seeds else ONE_SEED
    return definitions(
        f"{_unit(differences)}, paired by seed.",
        _interval_note(differences),
        "Not corrected for the number of lines: of 20 lines without any effect, one is expected to show a difference.",
        LASTING_NOTE if differences.late else "",
        unjudged,
        EQUAL_DIFFERENCES if gaps_are_equal else "",
    )


def _interval_note(differences: Differences) -> str:
    if differences.are_over_federations:
        note = f"Student's 95 % interval over {differences.federations} federations: what to expect of another one."
        if differences.are_also_on_these:
            note += " On these: over seeds, the federations taken as given."
        return note
    premise = "the clients are taken as given"
    if differences.federations > 1:
        premise = "the federations are taken as given"
    return f"Student's 95 % interval over seeds; {premise}."


def _unit(differences: Differences) -> str:
    """What differences are measured in, at the start of a sentence."""
    metric = differences.findings.metric
    if metric.is_share:
        return f"Points of {metric.name}"
    better = "above" if metric.higher_is_better else "below"
    return f"Differences in {metric.name} ({better} zero is better)"


def short_unit(differences: Differences) -> str:
    return "Points" if differences.findings.metric.is_share else _unit(differences)


def controls(differences: Differences) -> Table:
    """The noise floor as differences: what other batches, other seeds or another precision alone do."""
    findings = differences.findings
    metrics = judged_by(differences.late)
    lines = []
    for entry in findings.controls:
        assert entry.repeats is not None
        cells = []
        for metric in metrics:
            gap = differences.on_these(entry.label, entry.repeats, metric)
            cells.append(Cell.of(gap))
        line = Line(
            entry=entry.label,
            cells=cells,
            part=f"minus {entry.repeats}",
            control=True,
        )
        lines.append(line)
    lines += _deviations(differences, metrics)
    note = (
        f"{short_unit(differences)}, with the 95 % interval over seeds. Two FedAvg figures: the standard deviation of "
        "their difference, with other batches from the same initial model, and with other seeds (pooled from all "
        "FedAvg runs)."
    )
    return Table(
        name=name_of("controls", differences.late),
        title=f"What chance alone does, {when(findings, differences.late)}",
        columns=metric_columns(metrics),
        lines=lines,
        notes=(note,),
        digits=findings.metric.digits,
    )


def _deviations(differences: Differences, metrics: Sequence[str]) -> list[Line]:
    """How far two FedAvg figures of one seed, and of as many as there are, lie apart by chance."""
    floor = differences.floor
    kinds = {"other seeds": floor.of_other_seeds}
    if floor.is_paired:
        kinds = {"other batches": floor.of_other_batches, **kinds}
    lines = []
    for name, chance in kinds.items():
        for seeds in sorted({1, len(differences.findings.seeds)}):
            part = f"{name}, 1 seed"
            if seeds > 1:
                part = f"{name}, {seeds} seeds"
            if differences.federations > 1:
                part += f" x {differences.federations} federations"
            cells = []
            for metric in metrics:
                deviation = chance(metric, seeds)
                cells.append(Cell() if deviation is None else Cell(deviation.deviation))
            lines.append(Line("two FedAvg figures", cells, part, control=True))
    return lines


def _chance_alone(gap: Difference, floor: Chance, digits: int) -> str:
    """What 95 % of FedAvg's own differences are below; a claimed effect that is smaller needs more seeds.

    Other seeds start from other models, which no paired difference contains: that bound is larger.
    """
    bound = rounded(floor.bound, digits)
    if not floor.is_paired:
        return f"other seeds alone, not paired, up to {bound}"
    words = f"other batches alone up to {bound}"
    if gap.direction and abs(gap.points) <= floor.bound:
        words += ", which is more: add seeds"
    return words


def answer(
    label: str,
    gaps: Mapping[str, Difference],
    floors: Mapping[str, Chance | None],
    digits: int = 2,
    on_these: Mapping[str, Difference] = {},
) -> str:
    """Whether the worst-served gain without lowering the mean, in a sentence.

    `on_these`: the differences with the federations taken as given, where `gaps` have intervals over federations.
    """
    clauses = []
    for metric in ("worst10", LASTING, "mean", "std"):
        if metric not in gaps:
            continue
        gap = gaps[metric]
        floor = floors[metric]
        amount = Cell.of(gap).text(digits)
        if floor:
            amount += f"; {_chance_alone(gap, floor, digits)}"
        copula = "is" if metric in ("mean", "std") else "are"
        verbs = _VERBS if gap.higher_is_better else _VERBS_DOWN
        if metric == "std":
            verbs = _VERBS_OF_STD
        predicate = f"{copula} {verbs[gap.verdict]} ({amount})"
        gap_on_these = on_these.get(metric)
        if gap.direction == 0 and gap_on_these is not None and gap_on_these.direction:
            predicate = (
                f"{copula} {verbs[gap_on_these.verdict]} on these federations, not shown to change on others ({amount})"
            )
        clauses.append(f"the {title(metric)} {predicate}")
    sentence = "; ".join(clauses)
    return f"{label}: {sentence}."
