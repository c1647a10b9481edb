"""Who is last, round by round: clients that take turns at being among the worst 10 %."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...comparison.analysis.averaging import before_and_after
from ...comparison.analysis.findings import Entry, Findings
from ...comparison.analysis.history import History
from ...fairness import Vector
from ..notes import measured_on
from .chart import Chart, Row, Spec
from .chart_clients import ChartClients
from .elements import (
    IS_PICKED,
    MANY_CLIENTS,
    NONE_PICKED,
    aggregated,
    calculated,
    category,
    last_rounds,
    noted_at_right,
    panels,
    quantity,
    shown,
)
from .theme import BLUE, VERMILION

_WORST = 0.1
_GROUPS = 20  # of very many clients
_ROW = 13  # pixels of a client's row
_HIGHEST = 420
Groups = NDArray[np.int64]  # [n] the number of each client's group
_Turns = Mapping[str, Mapping[int, float]]  # client or group -> round -> the part of it that is among the worst


def chart(findings: Findings) -> Chart | None:
    """None where fewer than two rounds were evaluated."""
    people = ChartClients.of(findings)
    group_of = None
    if len(people) > MANY_CLIENTS:
        group_of = _groups(findings)
    entries = before_and_after(findings)
    rows = list(_rows(entries, people, group_of))
    seen: set[int] = set()
    for row in rows:
        seen.update(row["round"])
    rounds = sorted(seen)
    if len(rounds) < 2:
        return None
    last = min(last_rounds(len(people)), findings.reached)
    says = (
        "Marked: among the worst-served 10 % in that round, darker the more seeds agree. Evaluations in the last "
        f"{last} rounds; "
    )
    if group_of is None:
        says += "first the client that is most often among them; those that never are have no row."
    else:
        says += f"{len(people):,} clients in {_GROUPS} groups, by how {findings.baseline_name} serves them."
    return Chart(
        name="turns",
        title=f"Who is served worst, round by round: {findings.header.data['name']}, {measured_on(findings).lower()}",
        says=says,
        spec=_spec(entries, _order(rows, group_of is not None), rounds, group_of is not None),
        rows=rows,
    )


def worst_clients(figures: Vector, higher_is_better: bool) -> list[int]:
    """The tenth of the clients that is served worst, at least one; those without a figure do not count."""
    known = np.flatnonzero(~np.isnan(figures))
    number = max(1, round(_WORST * len(known)))
    order = np.argsort(figures[known], kind="stable")
    if not higher_is_better:
        order = order[::-1]
    worst: list[int] = known[order[:number]].tolist()
    return worst


def _groups(findings: Findings) -> Groups:
    """For each client, its group: 0 are those that the baseline serves worst."""
    of_seeds = []
    for run in findings.baseline.histories:
        if run.late_figures is not None:
            of_seeds.append(run.late_figures)
    means = findings.metric.sign * np.mean(of_seeds, axis=0)
    order = np.argsort(means, kind="stable")
    groups = np.empty(len(order), dtype=np.int64)
    places = np.arange(len(order))
    groups[order] = places * _GROUPS // len(order)
    return groups


def _group_name(group: int) -> str:
    step = 100 // _GROUPS
    return f"{step * group} to {step * (group + 1)} %"


def _rows(entries: Sequence[Entry], people: ChartClients, group_of: Groups | None) -> Iterator[Row]:
    """A client of a run each, or a group of them, with the rounds in which it is among the worst."""
    for entry in entries:
        for seed, run in entry.runs.items():
            turns = _turns(run, people, group_of)
            for client, by_round in turns.items():
                row: Row = {
                    "algorithm": entry.label,
                    "seed": seed,
                    "client": client,
                    "round": list(by_round),
                }
                if group_of is not None:
                    row["part"] = [round(part, 4) for part in by_round.values()]
                yield row


def _turns(run: History, people: ChartClients, group_of: Groups | None) -> _Turns:
    first = len(run.records) - last_rounds(len(people))
    turns: dict[str, dict[int, float]] = {}
    for record in run.evaluated:
        figures = run.figures(record)
        if record.index < first or figures is None or np.isnan(figures).all():
            continue
        worst = worst_clients(figures, run.metric.higher_is_better)
        parts = {people.names[client]: 1.0 for client in worst}
        if group_of is not None:
            parts = _parts(worst, group_of)
        for name, part in parts.items():
            by_round = turns.setdefault(name, {})
            by_round[record.index + 1] = part
    return turns


def _parts(worst: Sequence[int], group_of: Groups) -> dict[str, float]:
    sizes = np.bincount(group_of, minlength=_GROUPS)
    numbers = np.bincount(group_of[list(worst)], minlength=_GROUPS)
    parts = {}
    for group in np.flatnonzero(numbers).tolist():
        part = numbers[group] / sizes[group]
        parts[_group_name(group)] = float(part)
    return parts


def _order(rows: Sequence[Row], are_groups: bool) -> list[str]:
    """Clients from the one most often last; groups from the worst served."""
    if are_groups:
        return list(map(_group_name, range(_GROUPS)))
    times = Counter[str]()
    for row in rows:
        times[row["client"]] += len(row["round"])
    return [client for client, _ in times.most_common()]


def _spec(entries: Sequence[Entry], clients: Sequence[str], rounds: Sequence[int], are_groups: bool) -> Spec:
    height = max(60, min(_HIGHEST, _ROW * (len(clients) + 2)))
    flattened = ["round", "part"] if are_groups else ["round"]
    part = "sum" if are_groups else "count"
    transform: list[Spec] = [
        {"joinaggregate": [{"op": "distinct", "field": "seed", "as": "seeds"}], "groupby": ["algorithm"]},
        {"flatten": flattened},
        aggregated(["algorithm", "client", "round"], parts=(part, flattened[-1]), seeds=("max", "seeds")),
        calculated("share", "datum.parts / datum.seeds"),
        calculated("strength", f"datum.share * ({NONE_PICKED} || {IS_PICKED} ? 1 : 0.25)"),
    ]
    x_axis = {
        "labelAngle": 0,
        "labelOverlap": "greedy",
        "labelSeparation": 8,
        "grid": False,
        "ticks": False,
    }
    x = {
        "field": "round",
        "type": "ordinal",
        "title": "round",
        "scale": {"domain": list(rounds), "paddingInner": 0.08},
        "axis": x_axis,
    }
    y_axis = {
        "ticks": False,
        "grid": False,
        "labelFontSize": 9,
        "labelOverlap": _ROW * len(clients) > _HIGHEST,
        "labelLimit": 90,
    }
    y = category(
        "client",
        title="clients, by how they are served" if are_groups else None,  # names say that they are clients
        scale={"domain": [*clients, " ", "  "], "paddingInner": 0.12},  # the last rows are for words
        axis=y_axis,
    )
    cells = {
        "mark": {"type": "rect"},
        "encoding": {
            "x": x,
            "y": y,
            "color": {"condition": {"test": IS_PICKED, "value": BLUE}, "value": VERMILION},
            "opacity": quantity("strength", scale={"domain": [0, 1], "range": [0, 1]}, legend=None),
            "tooltip": [shown("client", "client"), shown("round", "round", 0), shown("share", "part of the runs", 2)],
        },
    }
    labels = [entry.label for entry in entries]
    layers: list[Spec] = [cells]
    if not are_groups:  # how many clients take turns, in the corner where the fewest are
        number = [
            aggregated(["algorithm"], number=("distinct", "client")),
            calculated("text", "datum.number + (datum.number === 1 ? ' client' : ' different clients')"),
        ]
        layers += noted_at_right(number, y=height - 8)
    return panels(labels, layers, transform, height)
