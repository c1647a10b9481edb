"""Whom the guard held back, round by round, and over what."""

from collections.abc import Iterator, Mapping, Sequence

from ...comparison.analysis.findings import Entry, Findings
from ...comparison.analysis.history import History
from ..guard_tables import LEFT_OUT, counts_of, most_often, what_of
from .chart import Chart, Row, Spec
from .chart_clients import ChartClients
from .elements import IS_PICKED, NONE_PICKED, calculated, category, named_scale, panels, quantity, shown
from .theme import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

MOST_CLIENTS = 12  # of an entry
MOST_CELLS = 150  # of a client: more rounds are joined
_COLOURS = (ORANGE, PURPLE, GREEN, SKY, BLUE, VERMILION)
_LEAST_GRAVE_FIRST = ("size", "buffers", "weight", "loss", "update", LEFT_OUT)
_Marks = Mapping[int, str]  # number of a cell -> the gravest thing that was bounded in its rounds


def chart(findings: Findings) -> Chart | None:
    """None where nobody was held back."""
    people = ChartClients.of(findings)
    joined = -(-findings.rounds // MOST_CELLS)
    rows: list[Row] = []
    held: list[Entry] = []
    clients: dict[str, None] = {}
    are_all = True
    for entry in findings.everyone:
        often = most_often(counts_of(entry))
        are_all = are_all and len(often) <= MOST_CLIENTS
        for client in often[:MOST_CLIENTS]:
            clients[people.names[client]] = None
            rows += _rows(entry, client, people.names[client], joined)
        if often:
            held.append(entry)
    if not held:
        return None
    says = "A bar: rounds in which what the client reported counted for less, one lane per seed, by the gravest of it."
    if joined > 1:
        says += f" Rounds are joined in groups of {joined}."
    if not are_all:
        says += f" The {MOST_CLIENTS} clients held back most often; the table counts the others."
    return Chart(
        name="guard",
        title="Whom the guard held back, round by round",
        says=says,
        spec=_spec([entry.label for entry in held], list(clients), findings.rounds),
        rows=rows,
    )


def _rows(entry: Entry, client: int, name: str, joined: int) -> Iterator[Row]:
    for seed, run in entry.runs.items():
        marks = _marks(run, client, joined)
        for first, last in _spans(marks):
            begins = first * joined + 1
            ends = min((last + 1) * joined, len(run.records))
            yield {
                "algorithm": entry.label,
                "seed": seed,
                "client": name,
                "round": begins,
                "until": ends,
                "what": marks[first],
            }


def _marks(run: History, client: int, joined: int) -> _Marks:
    marks: dict[int, str] = {}
    for record in run.records:
        cell = record.index // joined
        for clip in record.clipped:
            if clip.client != client:
                continue
            kinds = [what_of(clip), marks.get(cell, _LEAST_GRAVE_FIRST[0])]
            marks[cell] = max(kinds, key=_LEAST_GRAVE_FIRST.index)
    return marks


def _spans(marks: _Marks) -> list[tuple[int, int]]:
    """First and last cell of each stretch of the same kind."""
    spans: list[tuple[int, int]] = []
    for cell in sorted(marks):
        if spans:
            first, last = spans[-1]
            if cell == last + 1 and marks[cell] == marks[first]:
                spans[-1] = (first, cell)
                continue
        spans.append((cell, cell))
    return spans


def _spec(labels: Sequence[str], clients: Sequence[str], rounds: int) -> Spec:
    transform = [
        calculated("from", "datum.round - 0.5"),
        calculated("to", "datum.until + 0.5"),
        calculated("strength", f"{NONE_PICKED} || {IS_PICKED} ? 1 : 0.2"),
    ]
    x_options = {
        "title": "round",
        "scale": {"domain": [0.5, rounds + 0.5], "nice": False, "zero": False},
        "axis": {"tickCount": min(5, rounds), "tickMinStep": 1, "format": "d", "grid": False},
    }
    y_axis = {"ticks": False, "grid": True, "labelFontSize": 9, "labelLimit": 120}
    colours = dict(zip(_LEAST_GRAVE_FIRST, _COLOURS, strict=True))
    bars = {
        "mark": {"type": "bar", "strokeWidth": 1},
        "encoding": {
            "x": quantity("from", **x_options),
            "x2": {"field": "to"},
            "y": category("client", title="client", scale={"domain": list(clients)}, axis=y_axis),
            "yOffset": category("seed"),
            "color": category("what", scale=named_scale(colours), legend={"title": None, "orient": "top"}),
            "opacity": quantity("strength", scale={"domain": [0, 1], "range": [0, 1]}, legend=None),
            "tooltip": [
                shown("client", "client"),
                shown("what", "bounded"),
                shown("round", "from round", 0),
                shown("until", "to round", 0),
                shown("seed", "seed"),
            ],
        },
    }
    height = max(50, 18 * len(clients))
    return panels(labels, [bars], transform, height)
