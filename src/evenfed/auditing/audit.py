"""`evenfed.audit`: how evenly any system serves its clients, from a table of their results."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..comparison.analysis.entry_figures import EntryFigures
from ..comparison.analysis.findings import Findings, Origin
from ..comparison.analysis.intervals import Difference
from ..comparison.analysis.statistics import Differences
from ..comparison.display import Shown, print_report
from ..comparison.storage.pack import holds_runs
from ..comparison.storage.reading import read
from ..core.errors import InputError, check_text, unknown
from . import column_roles
from .column_roles import Roles
from .reading import Options, Reading
from .sources import IN_MEMORY, sheet_of

if TYPE_CHECKING:
    from ..report.document import Report
    from ..report.files import WrittenFiles
    from ..report.table import Table


@dataclass(frozen=True, repr=False)
class Audit(Shown):
    """The audited results. `print` shows a table; `report` writes all tables, the figures and the page."""

    findings: Mapping[str, Findings]  # by metric; the properties below are of the first

    @property
    def first(self) -> Findings:
        return next(iter(self.findings.values()))

    @property
    def facts(self) -> list[str]:
        """What was read, which column as what, and what had to be left out."""
        return self._document(self.first).facts  # type: ignore[return-value]

    @property
    def rows(self) -> list[EntryFigures]:
        """One row per algorithm: metrics, and what it does to the clients that the baseline serves worst and best."""
        return [self.first.rows[entry.label] for entry in self.first.entries]

    def __getitem__(self, label: str) -> EntryFigures:
        if label not in self.first.rows:
            raise unknown("algorithm", str(label), self.first.rows)
        return self.first.rows[label]

    def difference(self, label: str, metric: str = "worst10") -> Difference:
        """An algorithm minus the baseline, with its 95 % interval over seeds; accuracies in points."""
        self[label]
        differences = Differences([self.first], late=True)
        baseline = self.first.baseline.label
        return differences.between(label, baseline, metric)

    def report(self, out: str | Path, show: bool = True, full: bool = False) -> list[Path]:
        """Write tables, figures and the page to `out`, a folder per metric if there are several; returns the paths.

        The first table is printed; with `full` every table, with `show=False` none.
        """
        from rich.console import Console

        paths = []
        for written in self.write(out):
            paths += written.paths
        if show:
            page = Console(highlight=False, force_jupyter=False)
            for document in self.documents():
                print_report(document, page, full)
        return paths

    def write(self, out: str | Path, with_figures: bool = True) -> "list[WrittenFiles]":
        """Write the files of `report`; what was written, one for each metric."""
        from ..report.files import write_report

        every = []
        for metric, findings in self.findings.items():
            folder = Path(out)
            if len(self.findings) > 1:
                folder /= column_roles.normal(metric) or "metric"
            in_memory = findings.folder == Path(IN_MEMORY)
            every.append(write_report(self._document(findings), folder, with_figures, in_memory))
        return every

    def documents(self) -> "list[Report]":
        """A report for each metric, before it takes a format."""
        return [self._document(findings) for findings in self.findings.values()]

    def _document(self, findings: Findings) -> "Report":
        from ..report.document import Report

        return Report.of_findings([findings], beside_paper=False)

    def _tables(self) -> "list[Table]":
        tables = []
        for document in self.documents():
            (table,) = document.in_brief().tables
            notes = (*document.facts, *table.notes)
            tables.append(replace(table, notes=notes))
        return tables


def audit(
    source: Any,
    *,
    metric: str | Sequence[str] | None = None,
    baseline: str | None = None,
    lower_is_better: bool | None = None,
    unit: str | None = None,
    missing: str = "refuse",
    last_rounds: int | None = None,
    client: str | None = None,
    algorithm: str | None = None,
    seed: str | None = None,
    round: str | None = None,
    size: str | None = None,
    group: str | None = None,
) -> Audit:
    """How evenly clients are served, from their results in any system.

    `source`: a pandas table, rows or columns, a path (.csv, .json, .jsonl, .parquet; a folder of evenfed's runs,
    TensorBoard's or MLflow's; mlflow.db), or a result of Flower. One row per client, or one column per algorithm or
    per client. Columns are known by their names; `client`, `algorithm`, `seed`, `round`, `size`, `group` name others.

    `metric`: the column to judge by, or several. `lower_is_better`: if its name does not say (loss, error: it does).
    `baseline`: what algorithms are compared with; FedAvg, or the first. `unit`: "fraction" or "percent" of accuracies.
    `missing`: "drop" leaves out rows without a figure. `last_rounds`: figures are averaged over these; 1 by default.

    >>> results = audit({"client": ["a", "b", "c"], "fedavg": [0.9, 0.8, 0.1], "fair": [0.8, 0.8, 0.5]})
    >>> round(results["fair"].late["mean"][0], 3), results["fair"].late["improved"][0]
    (0.7, 1.0)
    """
    options = Options(baseline, lower_is_better, unit, missing, last_rounds)
    metrics = _metrics(metric)
    own = _own_runs(source, metrics)
    if own is not None:
        findings = own.with_last_rounds(last_rounds)
        return Audit({findings.metric.name: _against(findings, baseline)})
    sheet = sheet_of(source)
    named_columns = {
        column_roles.CLIENT: client,
        column_roles.ALGORITHM: algorithm,
        column_roles.SEED: seed,
        column_roles.ROUND: round,
        column_roles.SIZE: size,
        column_roles.GROUP: group,
    }
    for role, column in named_columns.items():
        check_text(role, column)
    typed = {
        "baseline": baseline,
        "metric": metrics or None,
        "lower-is-better": lower_is_better,
        "unit": unit,
        "missing": None if missing == "refuse" else missing,
        "last-rounds": last_rounds,
        **named_columns,
    }
    columns = Roles.of(sheet, named_columns, metrics)
    place = Path(IN_MEMORY)
    if isinstance(source, str | Path):
        place = Path(source)
    reading = Reading(sheet, columns, place, options, _origin(source, typed))
    names = list(columns.metrics)
    if columns.wide:
        names = metrics[:1] or [""]
    by_metric = {}
    for name in names:
        by_metric[name or "score"] = reading.findings(name)
    return Audit(by_metric)


def _metrics(metric: Any) -> list[str]:
    if metric is None or isinstance(metric, str):
        return [metric] if metric else []
    if not isinstance(metric, Sequence):
        raise InputError(f"metric={metric!r}: give the name of a column, or several")
    for name in metric:
        check_text("metric", name)
    return list(metric)


def _origin(source: Any, options: Mapping[str, Any]) -> Origin:
    """The file that is audited, and the command that audits it again.

    `options`: by the command line's names, None where not given.
    """
    if not isinstance(source, str | Path):
        return Origin((), source={"Read with": f"evenfed {__version__}"})
    path = Path(source)
    terms = {"Read from": str(path), "Read with": f"evenfed {__version__}"}
    if path.is_file():
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        terms["Changed"] = f"{changed:%Y-%m-%d %H:%M} UTC"
        with path.open("rb") as file:
            terms["SHA-256"] = hashlib.file_digest(file, "sha256").hexdigest()
    words = ["evenfed", "audit", str(path)]
    for name, value in options.items():
        words += _option(name, value)
    return Origin((), source=terms, command=shlex.join(words))


def _option(name: str, value: Any) -> list[str]:
    """As typed; nothing for what was not given."""
    if value is None:
        return []
    if name == "lower-is-better":
        return ["--lower-is-better" if value else "--higher-is-better"]
    words = []
    values = value if isinstance(value, list) else [value]
    for each in values:
        words += [f"--{name}", str(each)]
    return words


def _own_runs(source: Any, metrics: Sequence[str]) -> Findings | None:
    """The findings of a folder of evenfed's runs, just as `evenfed report` reads them."""
    if not isinstance(source, str | Path):
        return None
    folder = Path(source)
    if not folder.is_dir() or not holds_runs(folder):
        return None
    findings = read(folder)
    if metrics and list(metrics) != [findings.metric.name]:
        listed = ", ".join(metrics)
        raise InputError(f"{folder}: these runs are judged by {findings.metric.name}, not by {listed}")
    return findings


def _against(findings: Findings, baseline: str | None) -> Findings:
    """The same compared with another entry; the noise floor is FedAvg's and stays behind."""
    if baseline is None or baseline == findings.baseline.label:
        return findings
    labels = [entry.label for entry in findings.entries]
    if baseline not in labels:
        raise unknown("baseline", baseline, labels)
    chosen = findings.named(baseline)
    others = []
    for entry in findings.entries:
        shared = entry.with_seeds_of(chosen)
        if entry is not chosen and shared.runs:
            others.append(shared)
    return replace(
        findings,
        entries=(chosen, *others),
        controls=(),
        repeated=((chosen,),),
    )
