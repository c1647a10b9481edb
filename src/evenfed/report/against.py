"""Entries against FedAvg: paired differences, the noise floor beside them, and what was found in a sentence each."""

from collections.abc import Mapping, Sequence

from ..comparison.configuration import undamped as undamped_twins
from ..comparison.findings import BASELINE, Entry
from ..comparison.history import LASTING
from ..comparison.statistics import Chance, Difference, Pairs, between_all, chance
from .tables import LASTING_NOTE, ONE_SEED, Cell, Column, Line, Table, judged_by, name_of, title, when

_FIXED = ", the federations taken as they are"


def differences(several: Sequence[Pairs], names: Sequence[str] = ()) -> list[Table]:
    """Every table of entries against something, where there is anything to compare.

    Over several federations the mean difference stands first, then each one's under its name.
    """
    return [table for of in (paired, same_rate, undamped) if (table := of(several, names)) is not None]


def controls(several: Sequence[Pairs]) -> Table:
    """The noise floor as differences: what other seeds and another precision alone do."""
    findings, late = several[0].findings, several[0].late
    lines = []
    for entry in findings.controls:
        assert entry.repeats is not None
        gaps = [between_all(several, entry.label, entry.repeats, m) for m in judged_by(late)]
        shown = (Cell(g.points, low=g.low, high=g.high, signed=True) for g in gaps)
        lines.append(Line(entry.label, tuple(shown), f"minus {entry.repeats}", control=True))
    for seeds in dict.fromkeys((1, len(findings.seeds))):
        known = [_chance(several, m, seeds) for m in judged_by(late)]
        cells = tuple(Cell(found.deviation) if found else Cell() for found in known)
        count = f"{seeds} seed{'s' * (seeds > 1)}" + f" x {len(several)} federations" * (len(several) > 1)
        lines.append(Line("two FedAvg figures", cells, f"of {count}", control=True))
    told = (
        "Points, with the 95 % interval over clients and seeds. Two FedAvg figures: the standard deviation of their "
        "difference, pooled from all FedAvg runs."
    )
    columns = tuple(Column(m, title(m)) for m in judged_by(late))
    return Table(
        name_of("controls", late), f"What chance alone does, {when(findings, late)}", columns, tuple(lines), (told,)
    )


def _chance(several: Sequence[Pairs], metric: str, seeds: int) -> Chance | None:
    return chance([p.findings for p in several], metric, several[0].late, seeds)


def paired(several: Sequence[Pairs], names: Sequence[str] = ()) -> Table | None:
    """Each entry against FedAvg over clients and seeds; "better" is said only where the interval excludes zero."""
    against = dict.fromkeys((e.label for e in several[0].findings.everyone[1:]), BASELINE)
    return _against(several, names, against, "paired", "Paired difference from FedAvg")


def same_rate(several: Sequence[Pairs], names: Sequence[str] = ()) -> Table | None:
    """Entries whose learning rate is not FedAvg's against FedAvg with theirs: to tell re-weighting from a rate."""
    entries = several[0].findings.entries
    rates = {_rate(e): e.label for e in reversed(entries) if e.method == BASELINE}
    others = {e.label: rates.get(_rate(e), BASELINE) for e in entries if e.method != BASELINE}
    against = {label: rival for label, rival in others.items() if rival != BASELINE}
    head = "Paired difference from FedAvg with the same learning rate"
    return _against(several, names, against, "same-rate", head)


def undamped(several: Sequence[Pairs], names: Sequence[str] = ()) -> Table | None:
    """Entries whose losses are smoothed against the same without: to tell the damping from the re-weighting."""
    entries = several[0].findings.entries
    against = undamped_twins({e.label: e.config for e in entries})
    head = "Paired difference from the same without smoothing"
    return _against(several, names, against, "undamped", head)


def _rate(entry: Entry) -> float:
    return float(entry.config["train"]["lr"])


def _against(
    several: Sequence[Pairs], names: Sequence[str], asked: Mapping[str, str], kind: str, head: str
) -> Table | None:
    """Entries against their rivals, by label, and for each a sentence that says what was found."""
    against = {one: rival for one, rival in asked.items() if all(p.shares(one, rival) for p in several)}
    if not against:
        return None
    findings, late = several[0].findings, several[0].late
    lines, answers = [], []
    for label, rival in against.items():
        shown = label if rival == BASELINE else f"{label} minus {rival}"
        control = findings.named(label).repeats is not None
        gaps = {m: between_all(several, label, rival, m) for m in judged_by(late)}
        floors = {m: _chance(several, m, gap.seeds) for m, gap in gaps.items()}
        for metric, gap in gaps.items():
            each = [between_all([p], label, rival, metric).points for p in several] if names else []
            pooled = Cell(gap.points, low=gap.low, high=gap.high, signed=True)
            cells = (
                pooled,
                *(Cell(points, signed=True) for points in each),
                Cell(verdict=verdict(gap, floors[metric])),
            )
            lines.append(Line(shown, cells, metric, control))
        if not control and gaps["mean"].seeds > 1:
            answers.append(answer(shown, gaps, floors))
    told = (
        f"Points of accuracy, paired by seed; Student's 95 % interval over clients and seeds{_FIXED * bool(names)}. "
        "No correction for the number of lines: of 20 without any effect one is expected to show a difference. "
        "Noise floor: what 95 % of the differences between FedAvg and FedAvg with other seeds stay within. "
        f"{LASTING_NOTE * late} {ONE_SEED * (len(findings.seeds) == 1)}"
    )
    columns = (Column("difference", "difference [95 %]"), *(Column(n, n) for n in names), Column("verdict", ""))
    title = f"{head}, {when(findings, late)}"
    return Table(name_of(kind, late), title, columns, tuple(lines), (told.strip(), *answers))


def verdict(gap: Difference, floor: Chance | None) -> str:
    """Better or worse only where the interval excludes zero and the gap is beyond what chance alone does."""
    if gap.direction and floor and abs(gap.points) <= floor.bound:
        return "within the noise floor"
    return gap.verdict


def answer(label: str, gaps: Mapping[str, Difference], floors: Mapping[str, Chance | None]) -> str:
    """Whether the worst served are lifted by more than the noise floor without lowering the mean, in a sentence."""
    told = []
    for metric in (m for m in ("worst10", LASTING, "mean", "std") if m in gaps):
        gap, floor = gaps[metric], floors[metric]
        beside = f"; noise floor {floor.bound:.2f}" if floor else ""
        shown = f"{gap.points:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]{beside}"
        said = {
            "better": "narrowed" if metric == "std" else "lifted",
            "worse": "widened" if metric == "std" else "lowered",
            "within the noise floor": "moved by less than the noise floor",
            "no difference shown": "not shown to change",
        }[verdict(gap, floor)]
        told.append(f"the {title(metric)} {'is' if metric in ('mean', 'std') else 'are'} {said} ({shown})")
    return f"{label}: {'; '.join(told)}."
