"""Our figures beside the paper's: differences in spreads, and which of its orderings hold here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..comparison.findings import BASELINE, Entry, Findings
from ..comparison.history import METRICS
from ..comparison.statistics import LOWER_IS_BETTER, Differences
from . import paper
from .against import verdict
from .tables import (
    METRIC_COLUMNS,
    ONE_SEED,
    SUPPRESSION_COLUMNS,
    Cell,
    Column,
    Line,
    Table,
    figures_at,
    floor_note,
    joined,
    metric_cells,
    name_of,
    suppression_cells,
    title,
    when,
)

_NEAR = 2  # spreads
_IN_SPREADS = (
    "Ours: last round; late: average of the last rounds. In spreads: ours minus the paper's, both at the last round, "
    "over the root of the sum of both squared spreads over seeds (one seed has none)."
)
_VERDICTS = {"better": "holds", "worse": "fails", "not judged": "not judged"}  # of claims; else within the noise


def tables(findings: Findings, data_set: str, last: Differences, late: Differences) -> list[Table]:
    """Everything `--paper` adds."""
    in_paper = [entry for entry in findings.entries if entry.method in paper.NAMES]
    competing = [entry for entry in in_paper if not _is_fedavg_again(entry)]
    tables = [_side_by_side(findings, in_paper, data_set)]
    if data_set == "CIFAR-100":  # the only one in the paper's Table 2
        tables.append(_suppression(findings, competing))
    tables.append(_orderings(competing, data_set, late))
    tables.append(_orderings(competing, data_set, last))
    return [table for table in tables if table.lines]


def _is_fedavg_again(entry: Entry) -> bool:
    """FedAvg at another entry's learning rate: the paper's row of FedAvg counts once."""
    return entry.method == BASELINE and entry.label != BASELINE


def _side_by_side(findings: Findings, entries: Sequence[Entry], data_set: str) -> Table:
    papers = paper.numbers(data_set)
    lines: list[Line] = []
    distances = []
    competing = []
    for entry in entries:
        ours, late = _metric_lines(findings, entry)
        theirs = paper_line(entry.label, papers.get(entry.method))
        distance = _in_spreads(ours, theirs)
        lines += [ours, late, theirs, distance]
        if not _is_fedavg_again(entry):
            competing.append(entry)
            distances += [cell.value for cell in distance.cells if cell.value is not None]
    for entry in findings.controls:
        lines += _metric_lines(findings, entry)
    notes = [_IN_SPREADS]
    if distances:
        near = sum(abs(distance) <= _NEAR for distance in distances)
        notes.append(f"Of {len(distances)} figures {near} are within {_NEAR} spreads of the paper's.")
    if findings.controls:
        notes.append(floor_note(findings))
    notes += paper.set_up(findings, competing, data_set)
    notes += paper.footnotes(data_set)
    return Table(
        name="paper",
        title=f"Ours beside the paper's on {data_set}, last round as in the paper",
        columns=METRIC_COLUMNS,
        lines=lines,
        notes=notes,
        digits=2,
    )


def _metric_lines(findings: Findings, entry: Entry) -> list[Line]:
    """Ours at the last round, and averaged over the last rounds."""
    row = findings.rows[entry.label]
    last = metric_cells(row, late=False)
    late = metric_cells(row, late=True)
    return _our_lines(entry, last, late)


def _our_lines(entry: Entry, last: Sequence[Cell], late: Sequence[Cell]) -> list[Line]:
    ours = Line(entry.label, last, "ours", entry.is_control)
    return [ours, replace(ours, cells=late, part="ours, late")]


def _suppression(findings: Findings, entries: Sequence[Entry]) -> Table:
    papers = paper.suppression()
    lines: list[Line] = []
    for entry in entries:
        if entry.method in papers:
            ours, late = _suppression_lines(findings, entry)
            theirs = Line(entry.label, _papers_suppression(papers[entry.method]), "paper")
            lines += [ours, late, theirs, _in_spreads(ours, theirs)]
    for entry in findings.controls:
        lines += _suppression_lines(findings, entry)
    clients = "The paper had 22 suffering and 28 well-performing clients."
    return Table(
        name="paper-suppression",
        title="Ours beside the paper's Table 2, last round",
        columns=SUPPRESSION_COLUMNS,
        lines=lines,
        notes=(joined(_IN_SPREADS, clients, floor_note(findings)),),
        digits=2,
    )


def _suppression_lines(findings: Findings, entry: Entry) -> list[Line]:
    row = findings.rows[entry.label]
    last = suppression_cells(row, late=False)
    late = suppression_cells(row, late=True)
    return _our_lines(entry, last, late)


def _papers_suppression(figures: Mapping[str, float]) -> tuple[Cell, ...]:
    return (
        Cell(figures["improved_suffering_pct"], figures["improved_suffering_pct_std"], figures["suffering_gain"]),
        Cell(figures["degraded_well_pct"], figures["degraded_well_pct_std"], figures["well_gain"]),
        Cell(figures["mean_gain"], figures["mean_gain_std"], signed=True),
    )


def _in_spreads(ours: Line, theirs: Line) -> Line:
    """Ours minus the paper's, in units of both spreads."""
    distances = []
    for our, their in zip(ours.cells, theirs.cells, strict=True):
        distance = Cell()
        if our.value is not None and their.value is not None and our.spread is not None:
            spread = float(np.hypot(our.spread, their.spread or 0.0))
            if spread > 0:
                distance = Cell((our.value - their.value) / spread, signed=True)
        distances.append(distance)
    return Line(ours.entry, distances, "in spreads")


def _orderings(entries: Sequence[Entry], data_set: str, differences: Differences) -> Table:
    """Each ordering of the paper that can be checked here."""
    by_method: dict[str, Entry] = {}
    for entry in entries:  # of several entries of one method: the one labelled with its name, else the first
        if entry.method not in by_method or entry.label == entry.method:
            by_method[entry.method] = entry
    lines = []
    for claim in paper.claims(paper.numbers(data_set)):
        compared = {claim.winner, claim.loser or BASELINE}
        if compared <= set(by_method) and len(by_method) > 1:
            lines += _judged(claim, by_method, differences)
    tally = _tally(lines)
    if len(differences.findings.seeds) == 1:
        tally = ONE_SEED
    if lines:
        for control in differences.findings.controls:
            lines.append(_repeated(control, "mean", differences))
            lines.append(_repeated(control, "worst10", differences))
    note = (
        "Gaps towards better, in points; the paper's ± the spread of both its figures over seeds. `best`: against the "
        "runner-up there, and against the best other entry here. A claim holds or fails if the 95 % interval over "
        "clients and seeds excludes zero and the gap is larger than the noise floor."
    )
    columns = (
        Column("paper", "paper"),
        Column("here", "here [95 %]"),
        Column("floor", "noise floor"),
        Column("verdict", ""),
    )
    return Table(
        name=name_of("claims", differences.late),
        title=f"Orderings of the paper, {when(differences.findings, differences.late)}",
        columns=columns,
        lines=lines,
        notes=(note, tally),
        head="claim",
    )


def _tally(lines: Sequence[Line]) -> str:
    verdicts = [line.cells[-1].verdict for line in lines]
    holds = verdicts.count("holds")
    fails = verdicts.count("fails")
    unclear = verdicts.count("within the noise")
    return f"Of {len(verdicts)} claims {holds} hold, {fails} fail, {unclear} are within the noise."


def _judged(claim: paper.Claim, by_method: Mapping[str, Entry], differences: Differences) -> list[Line]:
    """A claim and the same gap here, towards better; no line if the two share no seed."""
    winner = by_method[claim.winner].label
    rival = _rival(claim, by_method, differences).label
    if not differences.comparable(winner, rival):
        return []
    gap = differences.between(winner, rival, claim.metric)
    floor = differences.chance(claim.metric, gap.seeds)
    here = Cell.of(gap)
    if claim.metric in LOWER_IS_BETTER:
        here = Cell(-gap.points, low=-gap.high, high=-gap.low, signed=True)
    cells = (
        Cell(claim.gap, claim.spread, signed=True),
        here,
        Cell(floor.bound) if floor else Cell(),
        Cell(verdict=_VERDICTS.get(verdict(gap, floor), "within the noise")),
    )
    return [Line(str(claim), cells)]


def _repeated(control: Entry, metric: str, differences: Differences) -> Line:
    """The noise floor under the claims: the gap of an entry to its own repetition."""
    assert control.repeats is not None
    gap = differences.between(control.label, control.repeats, metric)
    name = f"{title(control.label)} - {control.repeats}, {title(metric)}"
    cells = [Cell(), Cell.of(gap), Cell(), Cell(verdict="chance")]
    return Line(name, cells, control=True)


def _rival(claim: paper.Claim, by_method: Mapping[str, Entry], differences: Differences) -> Entry:
    """The entry the winner is compared with here: the loser, or the best of the others."""
    if claim.loser:
        return by_method[claim.loser]

    def figure(entry: Entry) -> float:
        row = differences.findings.rows[entry.label]
        mean, _ = figures_at(row, differences.late)[claim.metric]
        return -mean if claim.metric in LOWER_IS_BETTER else mean

    others = [entry for method, entry in by_method.items() if method != claim.winner]
    return max(others, key=figure)


def paper_line(label: str, figures: Mapping[str, tuple[float, float]] | None) -> Line:
    """The paper's line in a table of all metrics; no figures: the algorithm diverged there."""
    cells = [Cell(verdict="diverged")] * len(METRICS)
    if figures is not None:
        cells = [Cell(*figures[metric]) for metric in METRICS]
    return Line(label, cells, "paper")
