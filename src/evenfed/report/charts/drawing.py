"""What all figures share: how they are saved, how they look, and which colours stand for what."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...algorithms import BUILT_IN
from ...comparison.findings import BASELINE, Entry
from ...core.visible import visible

Spec = dict[str, Any]  # a figure, or a part of one, in Vega-Lite's JSON
Point = dict[str, Any]  # one row of the data it draws

BLUE = "#2f6db5"
RED = "#c4361d"
ORANGE = "#d98200"  # told from BLUE by everyone
GREY = "#888888"
BLACK = "#222222"
OWN = "#1a7f37"
KINDS = {"FedAvg": "#444444", "your own": OWN, "VRed, Semi-VRed": RED, "other": BLUE, "repetition": GREY}
HEADING = {"anchor": "start", "subtitleColor": "#555555"}
AXIS = {"gridColor": "#e4e4e4", "titleFontWeight": "normal"}
_LONGEST = 1000  # characters of a text; the renderer takes minutes for 100,000
NO_FRAME = {"stroke": None}
MARGINS = {"left": 8, "top": 5, "right": 16, "bottom": 5}  # a reader's fonts may be wider


def save_changed(figures: Mapping[str, Spec], folder: Path) -> list[Path]:
    """`save` of the figures that differ from those drawn last; the paths of all. `.drawn.json` remembers them."""
    stamps_path = folder / ".drawn.json"
    stamps = {}
    if stamps_path.exists():
        stamps = json.loads(stamps_path.read_text())
    paths = []
    for name, figure in figures.items():
        described = json.dumps(figure, sort_keys=True)
        stamp = hashlib.sha256(described.encode()).hexdigest()
        drawn = [folder / f"{name}.svg", folder / f"{name}.png"]
        are_there = all(path.exists() for path in drawn)
        if stamps.get(name) != stamp or not are_there:
            drawn = save(figure, folder, name)
        if drawn:
            stamps[name] = stamp
        paths += drawn
    if paths:
        stamps_path.write_text(json.dumps(stamps))
    return paths


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
    figure = _shown(figure)
    drawn = vl_convert.vegalite_to_svg(figure)
    is_unchanged = svg.exists() and svg.read_text() == drawn
    svg.write_text(drawn)
    png.write_bytes(vl_convert.svg_to_png(drawn, scale=2))
    if not with_pdf:
        return [svg, png]
    if not (is_unchanged and pdf.exists()):
        pdf.write_bytes(vl_convert.svg_to_pdf(drawn))
    return [svg, pdf, png]


def _shown(part: Any) -> Any:
    """A figure whose texts are safe to draw: the renderer ends the process at a control character."""
    if isinstance(part, str):
        text = visible(part)
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    if isinstance(part, Mapping):
        return {key: _shown(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return list(map(_shown, part))
    return part


def quantity(field: str, **options: Any) -> Spec:
    """A number on an axis."""
    return {"field": field, "type": "quantitative", **options}


def category(field: str, **options: Any) -> Spec:
    """A name on an axis, or one that a colour or shape stands for; `sort=None` keeps the order of the data."""
    return {"field": field, "type": "nominal", **options}


def label_lines(label: str, width: int) -> list[str]:
    """A label in lines of about that many letters, broken before its options and between them.

    >>> label_lines("semi_vred[beta=1,smooth=0.1,average=0.9]", 24)
    ['semi_vred', 'beta=1, smooth=0.1,', 'average=0.9']
    >>> label_lines("vred[beta=1]", 24)
    ['vred beta=1']
    """
    name, _, options = label.removesuffix("]").partition("[")
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
    return [*lines, line.removesuffix(",")]


def named_scale(values: Mapping[str, Any]) -> Spec:
    """What each name stands for: a colour, a shape, a width."""
    return {"domain": list(values), "range": list(values.values())}


def is_own(entry: Entry) -> bool:
    """Whether the algorithm is one's own: not among those of this package."""
    return entry.method not in BUILT_IN


def kind(entry: Entry) -> str:
    """What an entry's colour stands for."""
    if entry.repeats is not None:
        return "repetition"
    if entry.method == BASELINE:
        return "FedAvg"
    if is_own(entry):
        return "your own"
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
