"""What all figures share: how they are saved, how they look, and which colours stand for what."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...comparison.findings import BASELINE, Entry

Spec = dict[str, Any]  # a figure, or a part of one, in Vega-Lite's JSON
Point = dict[str, Any]  # one row of the data it draws

BLUE = "#2f6db5"
RED = "#c4361d"
GREY = "#888888"
BLACK = "#222222"
KINDS = {"FedAvg": "#444444", "VRed, Semi-VRed": RED, "other": BLUE, "repetition": GREY}
HEADING = {"anchor": "start", "subtitleColor": "#555555"}
AXIS = {"gridColor": "#e4e4e4", "titleFontWeight": "normal"}
NO_FRAME = {"stroke": None}


def save(figure: Spec, folder: Path, name: str, with_pdf: bool = False) -> list[Path]:
    """Write a figure as SVG and PNG, and as PDF if asked; an empty list where `evenfed[report]` is not installed.

    A PDF holds its date, so it is rewritten only if the figure has changed.
    """
    try:
        import vl_convert
    except ImportError:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    svg = folder / f"{name}.svg"
    png = folder / f"{name}.png"
    pdf = folder / f"{name}.pdf"
    drawn = vl_convert.vegalite_to_svg(figure)
    is_unchanged = svg.exists() and svg.read_text() == drawn
    svg.write_text(drawn)
    png.write_bytes(vl_convert.vegalite_to_png(figure, scale=2))
    if not with_pdf:
        return [svg, png]
    if not (is_unchanged and pdf.exists()):
        pdf.write_bytes(vl_convert.vegalite_to_pdf(figure))
    return [svg, pdf, png]


def quantity(field: str, **options: Any) -> Spec:
    """A number on an axis."""
    return {"field": field, "type": "quantitative", **options}


def category(field: str, **options: Any) -> Spec:
    """A name on an axis, or one that a colour or shape stands for; `sort=None` keeps the order of the data."""
    return {"field": field, "type": "nominal", **options}


def kind(entry: Entry) -> str:
    """What an entry's colour stands for."""
    if entry.repeats is not None:
        return "repetition"
    if entry.method == BASELINE:
        return "FedAvg"
    if entry.method in ("vred", "semi_vred"):
        return "VRed, Semi-VRed"
    return "other"


def colour_by_kind(entries: Sequence[Entry]) -> Spec:
    """Colours by the field `kind`, with a legend of the kinds among these entries."""
    present = set(map(kind, entries))
    colours = {name: colour for name, colour in KINDS.items() if name in present}
    return category(
        "kind",
        scale={"domain": list(colours), "range": list(colours.values())},
        legend={"title": None, "orient": "bottom"},
    )
