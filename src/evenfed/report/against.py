"""Entries against FedAvg: paired differences, the noise floor beside them, and one sentence per entry."""

from collections.abc import Mapping, Sequence

from ..comparison.configuration import undamped as undamped_twins
from ..comparison.findings import BASELINE, Entry
from ..comparison.history import LASTING
from ..comparison.statistics import Chance, Difference, Differences
from .table import Cell, Column, Line, Table
from .tables import LASTING_NOTE, ONE_SEED, joined, judged_by, metric_columns, name_of, title, when

WITHIN_FLOOR = "within the noise floor"
_VERBS = {
    "better": "lifted",
    "worse": "lowered",
    WITHIN_FLOOR: "moved by less than the noise floor",
    "no difference shown": "not shown to change",
}
_VERBS_DOWN = {**_VERBS, "better": "lowered", "worse": "raised"}  # of a metric of which less is better
_VERBS_OF_STD = {**_VERBS, "better": "narrowed", "worse": "widened"}


def against_tables(differences: Differences, names: Sequence[str] = ()) -> list[Table]:
    """Every table of entries against others that has something to compare.

    With several federations the mean difference comes first, then each federation's under its name.
    """
    tables = []
    for make in (paired, same_rate, undamped):
        table = make(differences, names)
        if table is not None:
            tables.append(table)
    return tables


def paired(differences: Differences, names: Sequence[str] = ()) -> Table | None:
    """Each entry against FedAvg; "better" only if the interval excludes zero."""
    _, *others = differences.findings.everyone
    rivals = {entry.label: BASELINE for entry in others}
    head = "Paired difference from FedAvg"
    return _against(differences, names, rivals, "paired", head)


def same_rate(differences: Differences, names: Sequence[str] = ()) -> Table | None:
    """Entries against FedAvg with their learning rate, if it is not FedAvg's: tells re-weighting from the rate."""
    fedavg_with: dict[float, str] = {}
    for entry in differences.findings.entries:
        if entry.method == BASELINE:
            fedavg_with.setdefault(_rate(entry), entry.label)
    rivals = {}
    for entry in differences.findings.entries:
        rival = fedavg_with.get(_rate(entry), BASELINE)
        if entry.method != BASELINE and rival != BASELINE:
            rivals[entry.label] = rival
    head = "Paired difference from FedAvg with the same learning rate"
    return _against(differences, names, rivals, "same-rate", head)


def undamped(differences: Differences, names: Sequence[str] = ()) -> Table | None:
    """Entries with smoothed losses against the same without: tells the damping from the re-weighting."""
    rivals = undamped_twins(differences.findings.configs)
    head = "Paired difference from the same entry without smoothing"
    return _against(differences, names, rivals, "undamped", head)


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
    notes = [_note(differences, several=bool(names))]
    for label, rival in rivals.items():
        if not differences.comparable(label, rival):
            continue
        shown = label
        if rival != BASELINE:
            shown = f"{label} minus {rival}"
        control = findings.named(label).is_control
        gaps = {}
        floors = {}
        for metric in judged_by(late):
            gap = differences.between(label, rival, metric)
            floor = differences.chance(metric, gap.seeds)
            cells = [Cell.of(gap)]
            if names:
                for difference in differences.on_each(label, rival, metric):
                    cells.append(Cell(difference.points, signed=True))
            conclusion = verdict(gap, floor)
            cells.append(Cell(verdict=conclusion))
            lines.append(Line(shown, cells, metric, control))
            gaps[metric] = gap
            floors[metric] = floor
        if not control and gaps["mean"].seeds > 1:
            notes.append(answer(shown, gaps, floors, findings.metric.digits + 1))
    if not lines:
        return None
    difference_column = Column("difference", "difference [95 %]")
    verdict_column = Column("verdict", "")
    return Table(
        name=name_of(kind, late),
        title=f"{head}, {when(findings, late)}",
        columns=[difference_column, *metric_columns(names), verdict_column],
        lines=lines,
        notes=notes,
        digits=findings.metric.digits,
    )


def _note(differences: Differences, several: bool) -> str:
    """What the numbers of these tables are."""
    return joined(
        f"{_unit(differences)}, paired by seed; Student's 95 % interval over clients and seeds.",
        "The federations are taken as fixed." if several else "",
        "Not corrected for the number of lines: of 20 lines without any effect, one is expected to show a difference.",
        "Noise floor: 95 % of the differences between FedAvg and FedAvg with other seeds are smaller.",
        LASTING_NOTE if differences.late else "",
        ONE_SEED if len(differences.findings.seeds) == 1 else "",
    )


def _unit(differences: Differences) -> str:
    """What differences are measured in, at the start of a sentence."""
    metric = differences.findings.metric
    if metric.is_share:
        return f"Points of {metric.name}"
    better = "above" if metric.higher_is_better else "below"
    return f"Differences in {metric.name} ({better} zero is better)"


def controls(differences: Differences) -> Table:
    """The noise floor as differences: what other seeds or another precision alone do."""
    findings = differences.findings
    metrics = judged_by(differences.late)
    lines = []
    for entry in findings.controls:
        assert entry.repeats is not None
        cells = []
        for metric in metrics:
            gap = differences.between(entry.label, entry.repeats, metric)
            cells.append(Cell.of(gap))
        line = Line(
            entry=entry.label,
            cells=cells,
            part=f"minus {entry.repeats}",
            control=True,
        )
        lines.append(line)
    for seeds in sorted({1, len(findings.seeds)}):
        part = "of 1 seed"
        if seeds > 1:
            part = f"of {seeds} seeds"
        if differences.federations > 1:
            part += f" x {differences.federations} federations"
        cells = [_deviation(differences, metric, seeds) for metric in metrics]
        line = Line("two FedAvg figures", cells, part, control=True)
        lines.append(line)
    unit = "Points" if findings.metric.is_share else _unit(differences)
    note = (
        f"{unit}, with the 95 % interval over clients and seeds. Two FedAvg figures: the standard deviation of their "
        "difference, pooled from all FedAvg runs."
    )
    return Table(
        name=name_of("controls", differences.late),
        title=f"What chance alone does, {when(findings, differences.late)}",
        columns=metric_columns(metrics),
        lines=lines,
        notes=(note,),
        digits=findings.metric.digits,
    )


def _deviation(differences: Differences, metric: str, seeds: int) -> Cell:
    chance = differences.chance(metric, seeds)
    return Cell() if chance is None else Cell(chance.deviation)


def verdict(gap: Difference, floor: Chance | None) -> str:
    """Better or worse only if the interval excludes zero and the gap is larger than the noise floor."""
    if gap.direction and floor and abs(gap.points) <= floor.bound:
        return WITHIN_FLOOR
    return gap.verdict


def answer(
    label: str,
    gaps: Mapping[str, Difference],
    floors: Mapping[str, Chance | None],
    digits: int = 2,
) -> str:
    """Whether the worst-served gain more than the noise floor without lowering the mean, in a sentence."""
    clauses = []
    for metric in ("worst10", LASTING, "mean", "std"):
        if metric not in gaps:
            continue
        gap = gaps[metric]
        floor = floors[metric]
        interval = f"[{gap.low:+.{digits}f}, {gap.high:+.{digits}f}]"
        amount = f"{gap.points:+.{digits}f} {interval}"
        if floor:
            amount += f"; noise floor {floor.bound:.{digits}f}"
        copula = "is" if metric in ("mean", "std") else "are"
        verbs = _VERBS if gap.higher_is_better else _VERBS_DOWN
        if metric == "std":
            verbs = _VERBS_OF_STD
        conclusion = verdict(gap, floor)
        predicate = f"{copula} {verbs[conclusion]} ({amount})"
        clauses.append(f"the {title(metric)} {predicate}")
    sentence = "; ".join(clauses)
    return f"{label}: {sentence}."
