"""Small parts that charts are made of."""

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ...comparison.analysis.findings import Findings
from ...core.printable import printable
from ..tables import title
from .axes import Axis
from .chart import Spec, spec_of
from .theme import Style

WIDTH = 640  # of a plot: with axis and margins it fits a column of 830 pixels
PANEL_HEIGHT = 130
_MOST_COLUMNS = 4  # of panels
_PANELS_WIDTH = 708  # of a row of them
_WIDEST = 260
_BETWEEN = 16
_AXIS_BELOW = 40  # for the labels and the title of a panel's axis
_BOLD_LETTER = 7.2  # pixels, of a panel's title in the widest of the usual fonts
_AXIS_LETTER = 6  # pixels, of a name on an axis in the same font
MANY_CLIENTS = 2000  # more are shown as quantiles
_LAST_ROUNDS = 60
_FEW_ROUNDS = 12  # of very many clients
_VERY_MANY = 20_000
IS_PICKED = "datum.client === picked"
NONE_PICKED = "picked === null"


def quantity(field: str, **options: Any) -> Spec:
    """A number on an axis."""
    return {
        "field": field,
        "type": "quantitative",
        **options,
    }


def category(field: str, **options: Any) -> Spec:
    """A name on an axis, or one that a colour or shape stands for; `sort=None` keeps the order of the data."""
    return {
        "field": field,
        "type": "nominal",
        **options,
    }


def shown(field: str, title: str, digits: int | None = None) -> Spec:
    """A line of a tooltip: a text, or a number with so many digits after the point."""
    if digits is None:
        return {
            "field": field,
            "type": "nominal",
            "title": title,
        }
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "format": f".{digits}f",
    }


def named_scale(values: Mapping[str, Any]) -> Spec:
    """What each name stands for: a colour, a shape, a width."""
    return {
        "domain": list(values),
        "range": list(values.values()),
    }


def coloured(looks: Mapping[str, Style]) -> Spec:
    """Colours by algorithm."""
    colours = {label: look.colour for label, look in looks.items()}
    return category("algorithm", scale=named_scale(colours), legend=None)


def shaped(looks: Mapping[str, Style]) -> Spec:
    """Shapes by algorithm."""
    shapes = {label: look.shape for label, look in looks.items()}
    return category("algorithm", scale=named_scale(shapes), legend=None)


def aggregated(by: Sequence[str], **figures: tuple[str, str]) -> Spec:
    """Rows joined to one for each value of `by`: name=(operation, field)."""
    operations = []
    for name, (operation, field) in figures.items():
        operations.append(
            {
                "op": operation,
                "field": field,
                "as": name,
            }
        )
    return {
        "aggregate": operations,
        "groupby": list(by),
    }


def calculated(name: str, expression: str) -> Spec:
    return {
        "calculate": expression,
        "as": name,
    }


def where(expression: str) -> Spec:
    return {"filter": expression}


def text_of(value: str) -> str:
    """A text inside an expression."""
    return json.dumps(printable(value))


def once(layer: Spec) -> Spec:
    """A layer that draws one mark, whatever the rows are."""
    return {
        "data": {"values": [{}]},
        **layer,
    }


def zero_line(direction: str) -> Spec:
    """Where two are equal: `direction` is x or y."""
    return once({"mark": {"type": "rule", "style": "zero"}, "encoding": {direction: {"datum": 0}}})


def picked_dot(x: Spec, y: Spec, tooltip: Sequence[Spec], size: int) -> Spec:
    """A ring around the client to highlight."""
    return {
        "transform": [where(IS_PICKED)],
        "mark": {"type": "point", "style": "picked", "size": size},
        "encoding": {"x": x, "y": y, "tooltip": tooltip},
    }


def better(sign: int, width: float, height: float) -> Spec:
    """In the corner of a plot where both axes are better."""
    x = width - 10 if sign > 0 else 10
    y = 10 if sign > 0 else height - 10
    text = {
        "mark": {
            "type": "text",
            "style": "better",
            "text": "better",
            "align": "right" if sign > 0 else "left",
        },
        "encoding": {
            "x": {"value": x - 12 * sign},
            "y": {"value": y + 3 * sign},
        },
    }
    arrow = {
        "mark": {
            "type": "point",
            "style": "better",
            "shape": "arrow",
            "size": 260,
            "angle": 45 if sign > 0 else 225,
        },
        "encoding": {
            "x": {"value": x},
            "y": {"value": y + 2 * sign},
        },
    }
    return once({"layer": [text, arrow]})


def panel_columns(panels: int) -> int:
    """How many are side by side: so that all rows are full, else so that they are as even as can be."""
    if panels > _MOST_COLUMNS and panels % _MOST_COLUMNS and panels % (_MOST_COLUMNS - 1) == 0:
        return _MOST_COLUMNS - 1
    rows = -(-panels // _MOST_COLUMNS)
    return -(-panels // rows)


def panel_width(panels: int) -> int:
    columns = panel_columns(panels)
    room = _PANELS_WIDTH - _BETWEEN * (columns - 1)
    return min(_WIDEST, room // columns)


def panels(
    labels: Sequence[str],
    layers: Sequence[Spec],
    transform: Sequence[Spec],
    height: int = PANEL_HEIGHT,
) -> Spec:
    """A chart with a panel of these layers for each algorithm, side by side in rows."""
    width = panel_width(len(labels))
    room = min(width, panel_width(_MOST_COLUMNS)) if len(labels) >= _MOST_COLUMNS else width  # two fit on a phone
    names = {label: label_lines(title(label), int(room / _BOLD_LETTER)) for label in labels}
    most_lines = max(map(len, names.values()))
    header = {
        "title": None,
        "labelExpr": f"({json.dumps(names)})[datum.value]",
        "labelAnchor": "start",
        "labelFontWeight": "bold",
        "labelPadding": 4,
    }
    columns = panel_columns(len(labels))
    below = 22 + 14 * most_lines
    own_axes = {}
    if len(labels) % columns:  # else the last row would have an axis where it has no panel
        own_axes = {"resolve": {"axis": {"x": "independent"}}}
        below += _AXIS_BELOW
    facets = {
        "transform": transform,
        "facet": category("algorithm", sort=list(labels), header=header),
        "columns": columns,
        "bounds": "flush",
        "spacing": {"row": below, "column": _BETWEEN},
        **own_axes,
        "spec": {"width": width, "height": height, "layer": layers},
    }
    return spec_of(facets)


def label_lines(label: str, width: int) -> list[str]:
    """A label in lines of at most that many letters, broken before its options and between them, else anywhere.

    >>> label_lines("semi_vred[beta=1,smooth=0.1,average=0.9]", 24)
    ['semi_vred', 'beta=1, smooth=0.1,', 'average=0.9']
    >>> label_lines("vred[beta=1]", 24)
    ['vred beta=1']
    >>> label_lines("an-algorithm-of-my-own[beta=1]", 16)
    ['an-algorithm-of-', 'my-own', 'beta=1']
    """
    name, _, options = printable(label).removesuffix("]").partition("[")
    words = [name, *options.split(",")] if options else [name]
    whole = f"{name} {', '.join(words[1:])}".strip()
    if len(whole) <= width:
        return [whole]
    lines = [name]
    line = ""
    for word in words[1:]:
        longer = f"{line} {word}," if line else f"{word},"
        if line and len(longer) > width:
            lines.append(line)
            longer = f"{word},"
        line = longer
    lines.append(line.removesuffix(","))
    short = []
    for line in lines:
        short += textwrap.wrap(line, width)
    return short


def names_extent(names: Mapping[str, Sequence[str]]) -> int:
    """Pixels beside a plot that the names of `names_axis` need."""
    letters = 0
    for lines in names.values():
        for line in lines:
            letters = max(letters, len(line))
    return _AXIS_LETTER * letters


def names_axis(names: Mapping[str, Sequence[str]], **options: Any) -> Spec:
    """A vertical axis with a name of one line or more for each value.

    Browsers may draw a picture in a wider font than the one it was measured in, so it reserves their room itself.
    """
    lines_of_value = f"({json.dumps(names)})[datum.value]"
    return {
        "labelExpr": lines_of_value,
        "labelOffset": {"expr": f"-6 * ({lines_of_value}.length - 1)"},
        "labelLimit": 0,  # none: what tells two names apart often stands at the end
        "minExtent": names_extent(names),
        "ticks": False,
        "grid": False,
        **options,
    }


def last_rounds(clients: int) -> int:
    """How many rounds charts of single rounds show. Means over rounds would hide what swings from one to the next."""
    return _FEW_ROUNDS if clients > _VERY_MANY else _LAST_ROUNDS


def percent(findings: Findings) -> str:
    """What follows a metric's name on an axis."""
    return ", %" if findings.metric.is_share else ""


def rounded(value: float) -> float | None:
    """As rows keep it: six digits, None if unknown or not finite."""
    if not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def beyond_edges(axis: Axis, x: Spec, y: Spec) -> list[Spec]:
    """Points drawn at an end of the axis, with what they are."""
    below = [where(f"datum.points < {axis.low}"), calculated("text", "'← ' + format(datum.points, '.3~g')")]
    above = [where(f"datum.points > {axis.high}"), calculated("text", "format(datum.points, '.3~g') + ' →'")]
    at_left = noted(below, x, y, align="left", dx=8, dy=-7, fontSize=10)
    at_right = noted(above, x, y, align="right", dx=-8, dy=-7, fontSize=10)
    return [*at_left, *at_right]


def noted_at_right(transform: Sequence[Spec], y: int) -> list[Spec]:
    """The field `text` at the right edge of a panel, so many pixels below its top."""
    return noted(transform, {"value": "width"}, {"value": y}, align="right", fontSize=10)


def noted(transform: Sequence[Spec], x: Spec, y: Spec, **options: Any) -> list[Spec]:
    """The field `text` on a halo."""
    layers = []
    for style in ("halo", "note"):
        layer = {
            "transform": transform,
            "mark": {"type": "text", "style": style, **options},
            "encoding": {"x": x, "y": y, "text": category("text")},
        }
        layers.append(layer)
    return layers
