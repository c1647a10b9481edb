"""Several comparisons side by side: the same entries on other federations, or in another set-up."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..comparison.analysis.entry_figures import mean_and_spread
from ..comparison.analysis.findings import BASELINE, Entry, Findings
from ..comparison.analysis.history import History
from ..comparison.analysis.intervals import Array, components
from ..comparison.analysis.side_by_side import differ_in_split_only, names_of, pooled
from ..comparison.analysis.statistics import Differences
from ..fairness import FIGURES
from . import restated
from .beside_paper import paper_line
from .notes import MOVED_NOTE, OSCILLATION_NOTE, definitions, floor_notes, personal_note
from .paired_tables import against_tables, controls, short_unit
from .paper import Numbers
from .table import Cell, Column, Line, Table
from .tables import (
    EXPECTED_WORST10,
    METRIC_COLUMNS,
    WEIGHTS,
    correlation,
    directed,
    figures_at,
    judged_by,
    metric_cells,
    metric_columns,
    name_of,
    share,
    suppression_table,
    when,
)

_LOSS_DIGITS = 3
_MEAN, _, _, _WORST10, _, _ = METRIC_COLUMNS
_GAPS = (Column("mean_gap", "Δ mean [95 %]"), Column("worst10_gap", "Δ worst 10 % [95 %]"))
_EXPECTED_GAPS = (
    Column("expected_mean_gap", "Δ expected mean [95 %]"),
    Column("expected_worst10_gap", "Δ expected worst 10 % [95 %]"),
)


def tables(differences: Differences, numbers: Numbers | None, left_out: str) -> list[Table]:
    """Pooled over federations if only the split differs, else side by side."""
    comparisons = differences.comparisons
    names = names_of(comparisons)
    tables = [_beside(differences, names, numbers, left_out)]
    if not differ_in_split_only(comparisons):
        return [*tables, _within(differences, names)]
    tables.insert(0, _at_a_glance(differences, restated.in_expected(comparisons, differences.late)))
    if len(differences.findings.seeds) > 1:
        tables.append(_components(differences))
    tables.append(_suppression(comparisons, differences.late))
    if differences.late:
        tables.append(_training(comparisons))
    tables += against_tables(differences, names)
    if differences.late:
        tables += restated.expected_differences(comparisons, differences.late, names)
    if differences.findings.controls:
        tables.append(controls(differences))
    return tables


def _at_a_glance(differences: Differences, expected: Differences | None) -> Table:
    """Means over the federations; `expected` are the same differences in expected accuracies, where these fit."""
    first = differences.findings
    late = differences.late
    columns = directed([_MEAN, _WORST10], first.metric)
    gaps = list(_GAPS)
    misfits = []
    if expected is not None:
        columns.append(EXPECTED_WORST10)
        gaps += _EXPECTED_GAPS
        misfits = [entry.label for entry in first.everyone if entry.label not in expected.findings.by_label]
    lines = []
    for entry in first.everyone:
        label = entry.label
        cells = []
        for column in columns:
            figure = _over_federations(differences.comparisons, label, column.key, late)
            if column is EXPECTED_WORST10 and label in misfits:
                figure = Cell()
            cells.append(figure)
        cells += [_gap(differences, label, "mean"), _gap(differences, label, "worst10")]
        if expected is not None:
            cells += [_gap(expected, label, "mean"), _gap(expected, label, "worst10")]
        lines.append(Line.of(entry, cells))
    table = Table(
        name=name_of("glance", late),
        title=f"{differences.federations} federations, {when(first, late)}",
        columns=[*columns, *gaps],
        lines=lines,
        digits=first.metric.digits,
        notes=definitions(_glance_note(differences), _misfits_note(misfits), personal_note(first)),
    )
    return table.with_best()


def _over_federations(comparisons: Sequence[Findings], label: str, metric: str, late: bool) -> Cell:
    means = []
    for findings in comparisons:
        figures = figures_at(findings.rows[label], late)
        if metric in figures:
            means.append(figures[metric][0])
    if not means or np.isnan(means).any():
        return Cell()
    unit = comparisons[0].metric.unit
    return Cell(unit * float(np.mean(means)))


def _gap(differences: Differences, label: str, metric: str) -> Cell:
    known = label in differences.findings.by_label
    if label == BASELINE or not known or not differences.comparable(label, BASELINE):
        return Cell()
    return Cell.of(differences.between(label, BASELINE, metric))


def _misfits_note(labels: Sequence[str]) -> str:
    """Which entries have no expected figures."""
    if not labels:
        return ""
    return f"Expected figures do not fit {', '.join(labels)} on every federation, so they are left out there."


def _glance_note(differences: Differences) -> str:
    metric = differences.findings.metric
    unit = ", in points" if metric.is_share else ""
    note = f"{metric.title.capitalize()} over clients, mean over federations. Δ: minus FedAvg's{unit}."
    if differences.are_over_federations:
        return f"{note} Intervals: over the {differences.federations} federations, what to expect of another one."
    return f"{note} Intervals: over seeds, these federations taken as given."


def _beside(
    differences: Differences,
    names: Sequence[str],
    numbers: Numbers | None,
    left_out: str,
) -> Table:
    """Every metric of every entry in each comparison."""
    first = differences.findings
    late = differences.late
    papers: Numbers = {}  # its figures are of the last round
    if numbers and not late:
        papers = numbers
    lines = []
    for entry in first.everyone:
        for name, findings in zip(names, differences.comparisons, strict=True):
            row = findings.rows[entry.label]
            cells = metric_cells(row, late)
            lines.append(Line.of(entry, cells, name))
        if entry.method in papers and not entry.is_control:
            figures = papers[entry.method]
            lines.append(paper_line(entry.label, figures))
    notes = definitions(
        f"{first.metric.title.capitalize()} over clients, mean ± standard deviation over seeds.",
        *floor_notes(first),
        left_out,
    )
    return Table(
        name=name_of("beside", late),
        title=f"Side by side, {when(first, late)}",
        columns=METRIC_COLUMNS,
        digits=first.metric.digits,
        lines=lines,
        notes=notes,
    )


def _within(differences: Differences, names: Sequence[str]) -> Table:
    findings = differences.findings
    metrics = judged_by(differences.late)
    lines = []
    for entry in findings.everyone[1:]:
        by_comparison: list[list[Cell]] = [[] for _ in names]
        for metric in metrics:
            gaps = differences.on_each(entry.label, BASELINE, metric)
            for cells, gap in zip(by_comparison, gaps, strict=True):
                cells.append(Cell.of(gap))
        for name, cells in zip(names, by_comparison, strict=True):
            line = Line.of(entry, cells, name)
            lines.append(line)
    note = f"{short_unit(differences)}, entry minus FedAvg in the same setting, with the 95 % interval over seeds."
    return Table(
        name=name_of("paired", differences.late),
        title=f"Paired difference from FedAvg in each setting, {when(findings, differences.late)}",
        columns=metric_columns(metrics),
        lines=lines,
        notes=(note,),
        digits=findings.metric.digits,
    )


def _components(differences: Differences) -> Table:
    """How far federations and seeds move a figure, and its difference from FedAvg: standard deviations."""
    comparisons = differences.comparisons
    late = differences.late
    first = comparisons[0]
    note = (
        f"{short_unit(differences)}: the mean over {len(comparisons)} federations and their seeds, and standard "
        "deviations by analysis of variance: what a new federation adds to a figure, and what a new seed on the same "
        "federation adds. With so few of each they are rough; estimates below 0 count as 0."
    )
    lines: list[Line] = []
    only_some_seeds = ""
    for entry in first.everyone:
        own = []
        fedavg = []
        for findings in comparisons:
            same_entry = findings.named(entry.label)
            beside = findings.beside(same_entry)
            own.append(same_entry.runs)
            fedavg.append(dict(zip(same_entry.runs, beside, strict=True)))
        shared_seeds = set.intersection(*map(set, own))
        seeds = sorted(shared_seeds)
        if len(seeds) < max(map(len, own)):
            only_some_seeds = "Only the seeds that all federations have."
        if len(seeds) < 2:
            continue
        figures = _figures(own, seeds, late)
        lines += _spreads(entry, "figure", figures)
        if entry.label != BASELINE:
            gaps = figures - _figures(fedavg, seeds, late)
            lines += _spreads(entry, "minus FedAvg", gaps)
    return Table(
        name=name_of("components", late),
        title=f"Spread over federations and over seeds, {when(first, late)}",
        columns=METRIC_COLUMNS,
        digits=first.metric.digits,
        lines=lines,
        notes=definitions(note, only_some_seeds),
    )


def _figures(
    runs: Sequence[Mapping[int, History]],
    seeds: Sequence[int],
    late: bool,
) -> Array:
    """[federations, seeds, metrics] as shown: accuracies in percent."""
    shape = (len(runs), len(seeds), len(FIGURES))
    figures = np.zeros(shape)
    for i, by_seed in enumerate(runs):
        for j, seed in enumerate(seeds):
            run = by_seed[seed]
            fairness = run.late_fairness if late else run.fairness
            for k, metric in enumerate(FIGURES):
                figure = getattr(fairness, metric)
                figures[i, j, k] = run.metric.unit * figure
    return figures


def _spreads(entry: Entry, what: str, values: Array) -> list[Line]:
    """`values` [federations, seeds, metrics] as three lines."""
    means = []
    between_federations = []
    between_seeds = []
    is_gap = what != "figure"
    for k, mean in enumerate(values.mean(axis=(0, 1))):
        of_metric = values[:, :, k]
        between, within = components(of_metric)
        means.append(Cell(float(mean), signed=is_gap))
        between_federations.append(Cell(between))
        between_seeds.append(Cell(within))
    return [
        Line.of(entry, means, what),
        Line.of(entry, between_federations, f"{what}: federations"),
        Line.of(entry, between_seeds, f"{what}: seeds"),
    ]


def _suppression(comparisons: Sequence[Findings], late: bool) -> Table:
    """Table 2 over all federations: each client against itself under FedAvg."""
    first = comparisons[0]
    rows = {}
    for entry in first.everyone[1:]:
        own = [findings.rows[entry.label] for findings in comparisons]
        rows[entry.label] = pooled(own)
    note = (
        "In % of the clients, mean ± standard deviation over federations and seeds; "
        f"in brackets the mean {first.metric.change}."
    )
    against = f"Clients against FedAvg over {len(comparisons)} federations"
    return suppression_table(first, late, rows, against, note)


def _training(comparisons: Sequence[Findings]) -> Table:
    """How the runs trained: a loss near zero leaves nothing to re-weight."""
    first = comparisons[0]
    lines = []
    for entry in first.everyone:
        rows = [findings.rows[entry.label] for findings in comparisons]
        loss, _ = mean_and_spread([row.training_loss for row in rows])
        moved, _ = mean_and_spread([row.moved for row in rows])
        oscillation, _ = mean_and_spread([row.oscillation for row in rows])
        cells = [Cell(loss, digits=_LOSS_DIGITS), share(moved), correlation(oscillation)]
        lines.append(Line.of(entry, cells))
    notes = (
        f"Training loss: the clients' mean, {when(first, late=True)}.",
        MOVED_NOTE,
        OSCILLATION_NOTE,
        f"Means over {len(comparisons)} federations and their seeds.",
    )
    return Table(
        name="training",
        title=f"Training over {len(comparisons)} federations",
        columns=(Column("training_loss", "training loss"), *WEIGHTS),
        lines=lines,
        notes=notes,
    )
