"""What a search tried: mean against worst 10 % of every candidate, and those that no other beats in both."""

from ...comparison.tuning.tune import Tuned
from ..tuning import judged_on, values_of
from .chart import Chart, Row, Spec, spec_of
from .elements import WIDTH, better, category, named_scale, quantity, rounded, shown, where
from .theme import GREY, PALETTE, SHAPES

_HEIGHT = 400


def chart(tuned: Tuned) -> Chart:
    """Every candidate, those chosen, and the front."""
    judged_by = tuned.search.judged_by
    unit = judged_by.unit
    rows: list[Row] = []
    for candidate in tuned.candidates:
        rows.append(
            {
                "algorithm": candidate.label,
                "values": values_of(candidate),
                "chosen": tuned.chosen.get(candidate.label) is candidate,
                "mean": rounded(unit * candidate.figures["mean"]),
                "worst10": rounded(unit * candidate.figures["worst10"]),
            }
        )
    return Chart(
        name="pareto",
        title=f"Candidates: mean against worst 10 %, {judged_by.name} on {judged_on(tuned)}",
        says="Large and ringed: chosen. Dashed: candidates that no other beats in both.",
        spec=_spec(tuned),
        rows=rows,
    )


def _front(sign: int) -> list[Spec]:
    """Candidates that no other beats: from the best mean on, each with a better worst 10 % than all before."""
    order = "descending" if sign > 0 else "ascending"
    from_best = [{"field": "mean", "order": order}, {"field": "worst10", "order": order}]
    best = {"op": "max" if sign > 0 else "min", "field": "worst10", "as": "best"}
    before = {"op": "lag", "field": "best", "as": "before"}
    is_better = "datum.worst10 > datum.before" if sign > 0 else "datum.worst10 < datum.before"
    return [
        {"window": [best], "sort": from_best, "frame": [None, 0]},
        {"window": [before], "sort": from_best},
        where(f"!isValid(datum.before) || {is_better}"),
    ]


def _spec(tuned: Tuned) -> Spec:
    judged_by = tuned.search.judged_by
    percent = ", %" if judged_by.is_share else ""
    scale = {"zero": False, "padding": 14}
    x = quantity("mean", title=f"mean {judged_by.name}{percent}", scale=scale)
    y = quantity("worst10", title=f"{judged_by.name} of the worst 10 %{percent}", scale=scale)
    labels = list(dict.fromkeys(candidate.label for candidate in tuned.candidates))
    colours = {}
    shapes = {}
    for position, label in enumerate(labels):
        colours[label] = PALETTE[position % len(PALETTE)]
        turn = position // len(PALETTE)
        shapes[label] = SHAPES[turn % len(SHAPES)]
    legend = {"title": None, "orient": "bottom", "columns": 4, "symbolOpacity": 1}
    colour = category("algorithm", scale=named_scale(colours), legend=legend)
    shape = category("algorithm", scale=named_scale(shapes), legend=legend)
    tooltip = [
        shown("algorithm", "entry"),
        shown("values", "values"),
        shown("mean", "mean", judged_by.digits + 1),
        shown("worst10", "worst 10 %", judged_by.digits + 1),
    ]
    line = {
        "transform": _front(judged_by.sign),
        "mark": {"type": "line", "color": GREY, "strokeDash": [4, 3]},
        "encoding": {"x": x, "y": y, "order": quantity("mean")},
    }
    points = {
        "mark": {"type": "point", "filled": True, "opacity": 0.9},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "shape": shape,
            "size": {"condition": {"test": "datum.chosen", "value": 170}, "value": 45},
            "tooltip": tooltip,
        },
    }
    rings = {
        "transform": [where("datum.chosen")],
        "mark": {"type": "point", "style": "picked", "size": 330, "strokeWidth": 1.3},
        "encoding": {"x": x, "y": y, "tooltip": tooltip},
    }
    layers = [line, points, rings, better(judged_by.sign, WIDTH, _HEIGHT)]
    return spec_of({"width": WIDTH, "height": _HEIGHT, "layer": layers})
