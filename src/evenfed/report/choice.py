"""Choosing among the entries of a comparison on validation data, and the experiment that confirms the choice."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..comparison.configuration import undamped
from ..comparison.experiment import Experiment
from ..comparison.findings import BASELINE, Entry, Findings
from ..comparison.history import LASTING
from ..comparison.plan import Variant
from ..comparison.reading import read
from ..comparison.statistics import chance
from ..core.errors import InputError
from ..data import DataSettings
from ..settings import VARIANT, Settings
from .tables import LASTING_NOTE, Cell, Column, Line, Table, correlation, measured, title

_OF_ENTRIES = ("seed", "device", "engine", "smooth", "server_optimizer")  # every entry says its own
FIGURES = ("mean", "worst10", LASTING)  # shown; the first two decide


@dataclass(frozen=True)
class Choice:
    """The chosen entry of each method, and why."""

    findings: Findings
    chosen: Mapping[str, Entry]  # by method, FedAvg first
    bar: float  # the mean, in %, that a candidate must reach
    floor: float  # points: standard deviation of the difference of two FedAvg runs' means
    reached: Mapping[str, bool]  # whether any candidate of the method reached the bar

    @property
    def rule(self) -> str:
        return (
            "Of each method the entry with the highest worst 10 % among those whose mean is at least "
            f"{self.bar:.2f} %: the best FedAvg's minus {self.floor:.2f} points, one standard deviation of the "
            f"difference of two FedAvg runs. Averages of the last {self.findings.last_rounds} rounds on validation "
            "data. Where none reaches that mean, the highest mean is taken, and said. FedAvg with the learning rates "
            "of the others is run beside them, to tell re-weighting from a rate"
            + (", and what was chosen with smoothed losses once more without." if _undamped(self) else ".")
        )


def choose(folder: Path, floor_from: Path | None = None) -> Choice:
    """Apply the rule to a comparison on validation data; the noise floor may come from one with more seeds."""
    findings = read(folder)
    if findings.judge != "validation":
        raise InputError(
            f"{folder} was judged on test data, on which nothing may be chosen; run it with [data] judge = "
            "'validation' and a validation_fraction, then choose"
        )
    noisy = read(floor_from) if floor_from else findings
    alone = replace(noisy, repeated=noisy.repeated[:1])  # FedAvg and its other seeds, whatever else stands beside them
    floor = chance([alone], "mean", late=True, seeds=len(findings.seeds))
    if floor is None:
        raise InputError(
            f"{noisy.folder} holds one FedAvg run alone, which has no noise floor; give a comparison with noise_floor "
            "or several seeds by --floor"
        )
    methods = dict.fromkeys(e.method for e in findings.entries)
    bar = max(_mean(findings, e) for e in findings.entries if e.method == BASELINE) - floor.deviation
    chosen, reached = {}, {}
    for method in methods:
        everyone = [e for e in findings.entries if e.method == method]
        candidates = [e for e in everyone if not e.broken] or everyone
        fit = [e for e in candidates if _mean(findings, e) >= bar]
        reached[method] = bool(fit)
        chosen[method] = (
            max(fit, key=lambda e: _rank(findings, e)) if fit else max(candidates, key=lambda e: _mean(findings, e))
        )
    return Choice(findings, chosen, bar, floor.deviation, reached)


@dataclass(frozen=True)
class Grid:
    """A method's candidates over the two dials in which they differ."""

    method: str
    dials: tuple[str, str]
    entries: Mapping[tuple[Any, Any], Entry]  # by the dials' values

    def values(self, dial: int) -> list[Any]:
        """In order; a dial that is off, as `smooth` is by default, comes after all that are on."""
        return sorted({at[dial] for at in self.entries}, key=lambda v: float("inf") if v is None else float(v))


def grids(choice: Choice) -> list[Grid]:
    """Of every method that has just two dials."""
    found = []
    for method in choice.chosen:
        entries = [e for e in choice.findings.entries if e.method == method]
        settings = [dict(_dials(e)) for e in entries]
        varied = [k for k in settings[0] if len({repr(s[k]) for s in settings}) > 1]
        if len(varied) == 2:
            one, other = varied
            at = {(s[one], s[other]): e for s, e in zip(settings, entries, strict=True)}
            found.append(Grid(method, (one, other), at))
    return found


def tables(choice: Choice) -> list[Table]:
    """What was chosen, and for each method all candidates over its two dials."""
    columns = (*(Column(m, title(m)) for m in FIGURES), Column("oscillation", "oscillation"), Column("verdict", ""))
    lines = []
    for method, entry in choice.chosen.items():
        count = sum(e.method == method for e in choice.findings.entries)
        told = f"of {count}" if choice.reached[method] else f"of {count}; none reaches the mean asked for"
        lines.append(Line(entry.label, (*_cells(choice.findings, entry), Cell(verdict=told)), method))
    if floor := choice.findings.floor:
        lines.append(Line(floor.label, (*_cells(choice.findings, floor), Cell(verdict="chance")), BASELINE, True))
    chosen = Table("chosen", "Chosen on validation data", columns, tuple(lines), (choice.rule,), head="entry")
    return [chosen, *(_table(choice, grid) for grid in grids(choice))]


def experiment(choice: Choice, name: str, seeds: Sequence[int]) -> Experiment:
    """The chosen entries on test data: whole training parts, several seeds, as of the run that chose them."""
    config = choice.findings.header["config"]
    data = DataSettings(**{**config["data"], "judge": "test", "validation_fraction": 0.0})
    train = Settings.of({k: v for k, v in config["train"].items() if k not in _OF_ENTRIES})
    variants = [_variant(entry, train) for entry in choice.chosen.values()]
    variants += [_variant(entry, train) for entry in _undamped(choice)]
    variants += _at_their_rates(list(choice.chosen.values()))
    return Experiment(name, tuple(variants), tuple(seeds), True, data, config["model"], train, selected_on="validation")


def _undamped(choice: Choice) -> list[Entry]:
    """Candidates that are a chosen one but for its smoothing: to tell the damping from the re-weighting."""
    twins = undamped({e.label: e.config for e in choice.findings.entries})
    damped = [e for e in choice.chosen.values() if e.method != BASELINE and e.label in twins]
    return [choice.findings.named(twins[e.label]) for e in damped]


def _at_their_rates(chosen: Sequence[Entry]) -> list[Variant]:
    """FedAvg with the learning rates of the others, where it has another: to tell re-weighting from a rate."""
    own, *others = (entry.config["train"]["lr"] for entry in chosen)
    rates = sorted(set(others) - {own})
    return [Variant.of(f"{BASELINE}[lr={rate}]", {"algorithm": BASELINE, "lr": rate}) for rate in rates]


def _variant(entry: Entry, shared: Settings) -> Variant:
    """The entry again; FedAvg, whatever its rate, is what others are set against."""
    options = {k: v for k, v in entry.config["train"].items() if k in VARIANT and v != getattr(shared, k)}
    table = {"algorithm": entry.method, **entry.config["hyper_parameters"], **options}
    label = BASELINE if entry.method == BASELINE else entry.label
    return Variant.of(label, {k: v for k, v in table.items() if v is not None})


def _table(choice: Choice, grid: Grid) -> Table:
    """Mean, worst 10 % and oscillation, a line for each value of the first dial, a column for each of the second."""
    findings, (one, other) = choice.findings, grid.dials
    lines = []
    for value in grid.values(0):
        held = [grid.entries.get((value, across)) for across in grid.values(1)]
        parts = (*FIGURES, "oscillation")
        cells = [_cells(findings, entry) if entry else (Cell(),) * len(parts) for entry in held]
        for k, part in enumerate(parts):
            lines.append(Line(f"{one}={value}", tuple(c[k] for c in cells), part))
    heads = tuple(Column(f"{other}={v}", f"{other}={shown(v)}") for v in grid.values(1))
    fedavg = choice.chosen[BASELINE]
    beside = (f"{title(m)} {c.text(2)}" for m, c in zip(FIGURES, _cells(findings, fedavg), strict=False))
    told = (
        f"Validation accuracy in %, average of the last {findings.last_rounds} rounds. Beside it {fedavg.label}, "
        f"chosen the same way: {', '.join(beside)}. {LASTING_NOTE}"
    )
    notes = (told, *(f"{broken}." for entry in grid.entries.values() for broken in entry.broken))
    return Table(f"grid-{grid.method}", f"{grid.method} over {one} and {other}", heads, tuple(lines), notes, head="")


def shown(value: Any) -> str:
    """As an experiment's file has it."""
    return "none" if value is None else str(value)


def _dials(entry: Entry) -> Iterator[tuple[str, Any]]:
    yield from entry.config["hyper_parameters"].items()
    yield from ((k, entry.config["train"].get(k)) for k in VARIANT)


def _cells(findings: Findings, entry: Entry) -> tuple[Cell, ...]:
    row = findings.rows[entry.label]
    return (*(measured(row, True, m) for m in FIGURES), correlation(row.oscillation))


def _mean(findings: Findings, entry: Entry) -> float:
    return 100 * findings.rows[entry.label].late["mean"][0]


def _rank(findings: Findings, entry: Entry) -> tuple[float, float]:
    late = findings.rows[entry.label].late
    return late["worst10"][0], late["mean"][0]
