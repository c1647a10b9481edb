"""Every client: accuracies as sorted curves, and each client's change against the baseline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...comparison.analysis.findings import Entry, Findings
from ...comparison.analysis.history import History
from ...comparison.runs import FLOOR_NAMES
from ...fairness import Vector
from ..notes import is_alone, measured_on
from ..tables import when
from .axes import WORTH, Axis, Extent
from .chart import Chart, Row, Spec
from .chart_clients import ChartClients
from .elements import (
    IS_PICKED,
    MANY_CLIENTS,
    NONE_PICKED,
    PANEL_HEIGHT,
    aggregated,
    calculated,
    category,
    panels,
    picked_dot,
    quantity,
    rounded,
    shown,
    where,
    zero_line,
)
from .theme import BLUE, GREY, VERMILION

_QUANTILES = np.linspace(0, 1, 101)
GAINS = BLUE
PAYS = VERMILION


def sorted_curves(findings: Findings) -> Chart:
    """Clients from the worst served to the best: a curve that starts higher is fairer."""
    cast = _Cast.of(findings)
    baseline = findings.baseline_name
    says = "Clients from the worst served to the best"
    if len(findings.seeds) > 1 or not is_alone(findings):
        says += ", each averaged over seeds"
    says += "."
    if not is_alone(findings):
        says += f" Dashed grey: {baseline}."
    return Chart(
        name="clients",
        title=f"How evenly clients are served: {measured_on(findings).lower()}, {when(findings, True)}",
        says=says + cast.note,
        spec=_curves(findings, cast),
        rows=list(cast.rows()),
    )


def changes(findings: Findings) -> Chart | None:
    """Who gains and who pays; None where there is nothing but the baseline."""
    cast = _Cast.of(findings, with_chance=True)
    if len(findings.planned) < 2:
        return None
    baseline = findings.baseline_name
    says = (
        f"A dot is a client: how {baseline} serves it, and what it gains or loses. Part of the slope is chance: a "
        "client measured low by bad luck tends to gain"
    )
    if len(cast.entries) > len(findings.planned) - 1:
        says += f"; the last panel shows chance alone: {baseline} run again"
    return Chart(
        name="changes",
        title=f"Who gains, who pays, against {baseline}: {measured_on(findings).lower()}, {when(findings, True)}",
        says=says + "." + cast.note,
        spec=_changes(findings, cast),
        rows=list(cast.rows()),
    )


@dataclass(frozen=True)
class _Cast:
    """The entries that have a panel, and the clients in it."""

    findings: Findings
    entries: Sequence[Entry]
    people: ChartClients

    @classmethod
    def of(cls, findings: Findings, with_chance: bool = False) -> "_Cast":
        baseline = findings.baseline
        others = [entry for entry in findings.planned if entry is not baseline]
        if with_chance:
            repeated = [entry for entry in findings.controls if entry.label in FLOOR_NAMES]
            others += repeated[:1]
        people = ChartClients.of(findings)
        return cls(findings, others or [baseline], people)

    @property
    def labels(self) -> list[str]:
        return [entry.label for entry in self.entries]

    @property
    def are_quantiles(self) -> bool:
        return len(self.people) > MANY_CLIENTS

    @property
    def note(self) -> str:
        """What is shown of very many clients."""
        if not self.are_quantiles:
            return ""
        return f" {len(self.people):,} clients, shown as {len(_QUANTILES)} quantiles."

    def rows(self) -> Iterator[Row]:
        """A client of a run each, or a quantile of a run's clients."""
        for entry in self.entries:
            beside = self.findings.beside(entry)
            seeds = [*entry.runs]
            if entry.label in FLOOR_NAMES:
                seeds = self.findings.seeds
            for seed, run, baseline in zip(seeds, entry.histories, beside, strict=False):
                for row in self._of_run(run, baseline):
                    yield {"algorithm": entry.label, "seed": seed, **row}

    def _of_run(self, run: History, baseline: History) -> Iterator[Row]:
        own = run.late_figures
        baselines = baseline.late_figures
        if own is None or baselines is None:
            return
        unit = self.findings.metric.unit
        own = unit * own
        baselines = unit * baselines
        is_missing = np.isnan(own) | np.isnan(baselines)
        known = np.flatnonzero(~is_missing)
        if self.are_quantiles:
            yield from _quantiles(own[known], baselines[known])
            return
        for client in known.tolist():
            yield {
                "client": self.people.names[client],
                "value": rounded(float(own[client])),
                "baseline": rounded(float(baselines[client])),
                "change": rounded(float(own[client] - baselines[client])),
            }


def _quantiles(own: Vector, baselines: Vector) -> Iterator[Row]:
    """Each figure by itself: a quantile is no client, and its change is not the difference of the two others."""
    values = np.quantile(own, _QUANTILES)
    gains = np.quantile(own - baselines, _QUANTILES)
    baselines = np.quantile(baselines, _QUANTILES)
    for place, share in enumerate(_QUANTILES):
        yield {
            "client": f"quantile {share:.0%}",
            "quantile": round(100 * float(share), 2),
            "value": rounded(float(values[place])),
            "baseline": rounded(float(baselines[place])),
            "change": rounded(float(gains[place])),
        }


def _over_seeds() -> Spec:
    return aggregated(
        ["algorithm", "client"],
        value=("mean", "value"),
        baseline=("mean", "baseline"),
        change=("mean", "change"),
        quantile=("max", "quantile"),
        least=("min", "change"),
        most=("max", "change"),
    )


def _ranked(field: str, sign: int) -> list[Spec]:
    """Clients' places between 0, the worst served, and 100."""
    order = "ascending" if sign > 0 else "descending"
    place = f"{field}_place"
    return [
        {
            "window": [{"op": "row_number", "as": place}],
            "sort": [{"field": field, "order": order}, {"field": "client", "order": "ascending"}],
            "groupby": ["algorithm"],
        },
        calculated(f"{field}_rank", f"100 * (datum.{place} - 0.5) / datum.clients"),
    ]


def _curves(findings: Findings, cast: _Cast) -> Spec:
    sign = findings.metric.sign
    clients = {
        "joinaggregate": [{"op": "count", "as": "clients"}],
        "groupby": ["algorithm"],
    }
    axis = findings.metric.axis
    digits = findings.metric.digits + 1
    places = ["clients, %", "(worst served first)"]  # in two lines: panels are narrow on a phone
    x_options = {"title": places, "scale": {"domain": [0, 100]}, "axis": {"tickCount": 5}}
    y_options = {"title": axis, "scale": {"zero": False}, "axis": {"tickCount": 5}}
    baseline = {
        "mark": {
            "type": "line",
            "color": GREY,
            "strokeWidth": 2,
            "strokeDash": [4, 2],
        },
        "encoding": {"x": quantity("baseline_rank", **x_options), "y": quantity("baseline", **y_options)},
    }
    x = quantity("value_rank", **x_options)
    y = quantity("value", **y_options)
    own = {
        "mark": {"type": "line", "color": BLUE, "strokeWidth": 2},
        "encoding": {"x": x, "y": y},
    }
    tooltip = [
        shown("client", "client"),
        shown("value", axis, digits),
        shown("baseline", findings.baseline_name, digits),
    ]
    each = {
        "mark": {
            "type": "point",
            "filled": True,
            "color": BLUE,
            "size": 14,
        },
        "encoding": {
            "x": x,
            "y": y,
            "opacity": {"condition": {"test": NONE_PICKED, "value": 0.5}, "value": 0.15},
            "tooltip": tooltip,
        },
    }
    layers = [own, each, picked_dot(x, y, tooltip, size=130)]
    if not is_alone(findings):
        layers.insert(0, baseline)
    transform = [_over_seeds(), clients, *_ranked("value", sign), *_ranked("baseline", sign)]
    return panels(cast.labels, layers, transform)


def _changes(findings: Findings, cast: _Cast) -> Spec:
    """Over how the baseline serves a client. Quantiles have no client behind them: they are drawn in their order."""
    axis = _axis(list(cast.rows()))
    metric = findings.metric
    unit = f"{metric.change} ({'↑' if metric.higher_is_better else '↓'} better)"
    x_field = "baseline"
    x_title = f"{findings.baseline_name}: {metric.axis}"
    if cast.are_quantiles:
        x_field = "quantile"
        x_title = "clients, % (least change first)"
    x = quantity(x_field, title=x_title, scale={"zero": False}, axis={"tickCount": 5})
    y_options = {"title": unit, "scale": axis.widened(0.2).scale, "axis": {"tickCount": 5}}
    y = quantity("shown", **y_options)
    is_gain = "datum.change >= 0" if metric.higher_is_better else "datum.change <= 0"
    colour = {"condition": {"test": is_gain, "value": GAINS}, "value": PAYS}
    spread = {
        "mark": {"type": "rule", "strokeWidth": 1, "opacity": 0.25, "clip": True},
        "encoding": {"x": x, "y": quantity("least", **y_options), "y2": {"field": "most"}, "color": colour},
    }
    tooltip = _tooltip(findings, cast)
    size: Spec = {"value": 30}
    if not cast.are_quantiles and cast.people.has_sizes:  # by the number of a client's examples
        size = quantity("size", scale={"range": [14, 90]}, legend=None)
    dots = {
        "mark": {"type": "point", "filled": True},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "opacity": {"condition": {"test": f"{NONE_PICKED} || {IS_PICKED}", "value": 0.8}, "value": 0.15},
            "size": size,
            "tooltip": tooltip,
        },
    }
    layers = [zero_line("y"), spread, dots, picked_dot(x, y, tooltip, size=150), *_beyond()]
    transform = [
        _over_seeds(),
        calculated("shown", axis.clamped("change")),
        calculated("outside", axis.is_outside("change")),
    ]
    if not cast.are_quantiles:
        people = {"data": {"values": list(cast.people.about())}, "key": "client"}
        transform.append({"lookup": "client", "from": {**people, "fields": ["size", "judged", "labels"]}})
    return panels(cast.labels, layers, transform)


def _tooltip(findings: Findings, cast: _Cast) -> list[Spec]:
    digits = findings.metric.digits + 1
    lines = [
        shown("client", "client"),
        shown("change", "change", digits),
        shown("least", "least over seeds", digits),
        shown("most", "most over seeds", digits),
    ]
    if cast.are_quantiles:
        return lines
    lines.append(shown("baseline", f"with {findings.baseline_name}", digits))
    if cast.people.has_sizes:
        lines.append(shown("size", "training examples", 0))
        lines.append(shown("judged", "judged on", 0))
    lines.append(shown("labels", "labels"))
    return lines


def _beyond() -> list[Spec]:
    """How many clients are drawn at the edge, and how far beyond it they reach."""
    layers = []
    for side, most, corner in (("low", "min", PANEL_HEIGHT - 5), ("high", "max", 5)):
        is_there = f"datum.outside && datum.change {'<' if side == 'low' else '>'} 0"
        text = "datum.number + ' off the scale, to ' + format(datum.most, '+.0f')"
        transform = [
            where(is_there),
            aggregated(["algorithm"], number=("count", "change"), most=(most, "change")),
            calculated("text", text),
        ]
        place = {"x": {"value": "width"}, "y": {"value": corner}, "text": category("text")}
        mark = {"type": "text", "style": "note", "align": "right"}
        layers.append({"transform": transform, "mark": mark, "encoding": place})
    return layers


def _axis(rows: Sequence[Row]) -> Axis:
    """Around what most clients of most entries gain and lose; around all, if these need less than twice the room."""
    by_algorithm: dict[str, list[float]] = {}
    for row in rows:
        by_algorithm.setdefault(row["algorithm"], []).append(row["change"])
    extents = []
    for values in by_algorithm.values():
        low, high = np.quantile(values, [0.05, 0.95])
        extents.append(Extent(float(low), float(high)))
    axis = Axis.of_differences(extents, margin=0.02)
    changes = [row["change"] for row in rows]
    whole = axis.around(min(changes, default=0.0), max(changes, default=0.0))
    return axis if whole.length > WORTH * axis.length else whole
