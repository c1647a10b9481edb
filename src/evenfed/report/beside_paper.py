"""Our figures next to the paper's: differences in spreads, and which of its orderings hold here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..comparison.analysis.entry_figures import EntryFigures
from ..comparison.analysis.findings import BASELINE, Entry, Findings
from ..comparison.analysis.statistics import Differences
from ..fairness import FIGURES, LOWER_IS_BETTER
from . import paper
from .notes import EQUAL_SEEDS, ONE_SEED, definitions, floor_notes
from .table import Cell, Column, Line, MeansAndSpreads, Table
from .tables import (
    METRIC_COLUMNS,
    SUPPRESSION_COLUMNS,
    figures_at,
    metric_cells,
    name_of,
    suppression_cells,
    title,
    when,
)

_NEAR = 2  # spreads
_BRIEF = ("mean", "worst10", "std")
_IN_SPREADS = (
    "Ours: last round; late: average of the last rounds. In spreads: ours minus the paper's, both at the last round, "
    "over the root of the sum of both squared spreads over seeds (one seed has none)."
)
_VERDICTS = {"better": "holds", "worse": "fails", "not judged": "not judged"}  # of claims; else within the noise


def tables(
    findings: Findings,
    data_set: str,
    last: Differences,
    late: Differences,
) -> list[Table]:
    """Everything `--paper` adds."""
    in_paper = []
    competing = []
    for entry in findings.entries:
        if entry.method in paper.NAMES:
            in_paper.append(entry)
            if not _is_fedavg_again(entry):
                competing.append(entry)
    side_by_side = _side_by_side(findings, in_paper, data_set)
    tables = [_in_brief(side_by_side), side_by_side]
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
    figures = 0
    near = 0
    competing = []
    for entry in entries:
        ours, late = _our_lines(findings, entry, metric_cells)
        theirs = paper_line(entry.label, papers.get(entry.method))
        distance = _in_spreads(ours, theirs)
        lines += [ours, late, theirs, distance]
        if not _is_fedavg_again(entry):
            competing.append(entry)
            for cell in distance.cells:
                if cell.value is None:
                    continue
                figures += 1
                if abs(cell.value) <= _NEAR:
                    near += 1
    for entry in findings.controls:
        lines += _our_lines(findings, entry, metric_cells)
    notes = [_IN_SPREADS]
    if figures:
        notes.append(f"Of {figures} figures {near} are within {_NEAR} spreads of the paper's.")
    if findings.controls:
        notes += floor_notes(findings)
    notes += paper.set_up(findings, competing, data_set)
    notes += paper.footnotes(data_set)
    return Table(
        name="paper",
        title=f"Ours next to the paper's on {data_set}, last round as in the paper",
        columns=METRIC_COLUMNS,
        lines=lines,
        notes=notes,
        digits=2,
    )


def _in_brief(side_by_side: Table) -> Table:
    keys = [column.key for column in side_by_side.columns]
    columns = []
    positions = []
    for key in _BRIEF:
        columns += [Column(key, title(key)), Column(f"paper-{key}", "paper's")]
        positions.append(keys.index(key))
    lines = []
    ours = None
    for line in side_by_side.lines:
        if line.part == "ours":
            ours = line
        elif line.part == "paper" and ours is not None:
            cells = []
            for k in positions:
                cells += [ours.cells[k], line.cells[k]]
            lines.append(Line(line.entry, cells))
    return Table(
        name="paper-brief",
        title=f"{side_by_side.title}, in brief",
        columns=columns,
        lines=lines,
        digits=2,
    )


def _our_lines(
    findings: Findings,
    entry: Entry,
    cells_of: Callable[[EntryFigures, bool], list[Cell]],
) -> list[Line]:
    """Ours at the last round, and averaged over the last rounds."""
    row = findings.rows[entry.label]
    last = cells_of(row, False)
    late = cells_of(row, True)
    at_last = Line.of(entry, last, "ours")
    averaged = replace(at_last, cells=late, part="ours, late")
    return [at_last, averaged]


def _suppression(findings: Findings, entries: Sequence[Entry]) -> Table:
    papers = paper.suppression()
    lines: list[Line] = []
    for entry in entries:
        if entry.method in papers:
            ours, late = _our_lines(findings, entry, suppression_cells)
            papers_cells = _papers_suppression(papers[entry.method])
            theirs = Line(entry.label, papers_cells, "paper")
            distance = _in_spreads(ours, theirs)
            lines += [ours, late, theirs, distance]
    for entry in findings.controls:
        lines += _our_lines(findings, entry, suppression_cells)
    clients = "The paper had 22 suffering and 28 well-performing clients."
    notes = definitions(_IN_SPREADS, clients, *floor_notes(findings))
    return Table(
        name="paper-suppression",
        title="Ours next to the paper's Table 2, last round",
        columns=SUPPRESSION_COLUMNS,
        lines=lines,
        notes=notes,
        digits=2,
    )


def _papers_suppression(figures: Mapping[str, float]) -> list[Cell]:
    improved = Cell(
        figures["improved_suffering_pct"],
        spread=figures["improved_suffering_pct_std"],
        points=figures["suffering_gain"],
    )
    degraded = Cell(
        figures["degraded_well_pct"],
        spread=figures["degraded_well_pct_std"],
        points=figures["well_gain"],
    )
    mean_gain = Cell(
        figures["mean_gain"],
        spread=figures["mean_gain_std"],
        signed=True,
    )
    return [improved, degraded, mean_gain]


def _in_spreads(ours: Line, theirs: Line) -> Line:
    distances = []
    for our, their in zip(ours.cells, theirs.cells, strict=True):
        distance = Cell()  # if a figure is missing or the spread is unknown or zero
        if our.value is not None and their.value is not None and our.spread is not None:
            spread = float(np.hypot(our.spread, their.spread or 0.0))
            if spread > 0:
                difference = our.value - their.value
                distance = Cell(difference / spread, signed=True)
        distances.append(distance)
    return Line(ours.entry, distances, "in spreads")


def _orderings(entries: Sequence[Entry], data_set: str, differences: Differences) -> Table:
    by_method: dict[str, Entry] = {}
    for entry in entries:  # of several entries of one method: the one labelled with its name, else the first
        is_first = entry.method not in by_method
        if is_first or entry.label == entry.method:
            by_method[entry.method] = entry
    findings = differences.findings
    numbers = paper.numbers(data_set)
    lines = []
    for claim in paper.claims(numbers):
        compared = {claim.winner, claim.loser or BASELINE}
        has_both = compared <= set(by_method)
        if has_both and len(by_method) > 1:
            lines += _judged(claim, by_method, differences)
    tally = _tally(lines)
    if findings.observations == 1:
        tally = EQUAL_SEEDS if len(findings.seeds) > 1 else ONE_SEED
    if lines:
        for control in findings.controls:
            lines.append(_repeated(control, "mean", differences))
            lines.append(_repeated(control, "worst10", differences))
    note = (
        "Gaps towards better, in points; the paper's ± the spread of both its figures over seeds. `best`: against the "
        "runner-up there, and against the best other entry here. A claim holds or fails if the 95 % interval over "
        "seeds excludes zero. Noise floor: 95 % of the differences of two FedAvg figures are smaller."
    )
    columns = (
        Column("paper", "paper"),
        Column("here", "here [95 %]"),
        Column("floor", "noise floor"),
        Column("verdict", ""),
    )
    return Table(
        name=name_of("claims", differences.late),
        title=f"Orderings of the paper, {when(findings, differences.late)}",
        columns=columns,
        lines=lines,
        notes=(note, tally),
        head="claim",
    )


def _tally(lines: Sequence[Line]) -> str:
    verdicts = []
    for line in lines:
        last_cell = line.cells[-1]
        verdicts.append(last_cell.verdict)
    claims = len(verdicts)
    holds = verdicts.count("holds")
    fails = verdicts.count("fails")
    unclear = verdicts.count("within the noise")
    return f"Of {claims} claims {holds} hold, {fails} fail, {unclear} are within the noise."


def _judged(
    claim: paper.Claim,
    by_method: Mapping[str, Entry],
    differences: Differences,
) -> list[Line]:
    """A claim and the same gap here, towards better; no line if the two share no seed."""
    winner = by_method[claim.winner].label
    rival_entry = _rival(claim, by_method, differences)
    rival = rival_entry.label
    if not differences.comparable(winner, rival):
        return []
    gap = differences.between(winner, rival, claim.metric)
    floor = differences.chance(claim.metric, gap.seeds)
    towards_better = gap
    if claim.metric in LOWER_IS_BETTER:
        towards_better = replace(gap, points=-gap.points, low=-gap.high, high=-gap.low)
    measured = Cell.of(towards_better)
    bound = Cell()
    if floor:
        bound = Cell(floor.bound)
    published = Cell(claim.gap, claim.spread, signed=True)
    conclusion = _VERDICTS.get(gap.verdict, "within the noise")
    cells = [published, measured, bound, Cell(verdict=conclusion)]
    return [Line(str(claim), cells)]


def _repeated(control: Entry, metric: str, differences: Differences) -> Line:
    """The noise floor under the claims: the gap of an entry to its own repetition."""
    assert control.repeats is not None
    gap = differences.between(control.label, control.repeats, metric)
    repetition = f"{title(control.label)} - {control.repeats}"
    name = f"{repetition}, {title(metric)}"
    measured = Cell.of(gap)
    conclusion = Cell(verdict="chance")
    cells = [Cell(), measured, Cell(), conclusion]
    return Line(name, cells, control=True)


def _rival(
    claim: paper.Claim,
    by_method: Mapping[str, Entry],
    differences: Differences,
) -> Entry:
    """The entry the winner is compared with here: the loser, or the best of the others."""
    if claim.loser:
        return by_method[claim.loser]

    def figure(entry: Entry) -> float:
        row = differences.findings.rows[entry.label]
        figures = figures_at(row, differences.late)
        mean, _ = figures[claim.metric]
        return -mean if claim.metric in LOWER_IS_BETTER else mean

    others = dict(by_method)
    del others[claim.winner]
    return max(others.values(), key=figure)


def paper_line(label: str, figures: MeansAndSpreads | None) -> Line:
    """The paper's line in a table of all metrics; no figures: the algorithm diverged there."""
    cells = []
    for metric in FIGURES:
        cell = Cell(verdict="diverged")
        if figures is not None:
            value, spread = figures[metric]
            cell = Cell(value, spread)
        cells.append(cell)
    return Line(label, cells, "paper")
