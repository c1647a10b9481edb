"""Charts as files: SVG, PNG and PDF (extra `evenfed[report]`)."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.files import replace_bytes, replace_text
from ...core.printable import printable
from .chart import Chart

_LONGEST = 1000  # characters of a text; the renderer takes minutes for 100,000
_EXPRESSIONS = {"calculate", "expr", "filter", "labelExpr", "test"}  # code, whose texts are safe already


def save_all(charts: Sequence[Chart], folder: Path, with_pdf: bool = True) -> list[Path]:
    """`save` of each."""
    written: list[Path] = []
    for chart in charts:
        written += save(chart, folder, with_pdf)
    return written


def save(chart: Chart, folder: Path, with_pdf: bool = False) -> list[Path]:
    """Write a chart as SVG and PNG, and as PDF if asked; an empty list where `evenfed[report]` is not installed.

    A PDF holds its date, so it is rewritten only if the chart has changed.
    """
    try:
        import vl_convert
    except ImportError:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    svg = folder / f"{chart.name}.svg"
    png = folder / f"{chart.name}.png"
    pdf = folder / f"{chart.name}.pdf"
    specification = drawable(chart.still())
    drawn = _numbered_afresh(vl_convert.vegalite_to_svg(specification))
    is_unchanged = svg.exists() and svg.read_text() == drawn
    replace_text(svg, drawn)
    replace_bytes(png, vl_convert.svg_to_png(drawn, scale=2))
    if not with_pdf:
        return [svg, png]
    if not (is_unchanged and pdf.exists()):
        replace_bytes(pdf, vl_convert.svg_to_pdf(drawn))
    return [svg, pdf, png]


def _numbered_afresh(svg: str) -> str:
    """The same with the numbers of its clipping paths from 1: the renderer counts on from picture to picture."""
    numbers: dict[str, str] = {}

    def renamed(match: re.Match[str]) -> str:
        return numbers.setdefault(match[0], f"clip{len(numbers) + 1}")

    return re.sub(r"(?<=[\"#])clip[0-9]+(?=[\")])", renamed, svg)


def drawable(part: Any) -> Any:
    """A specification whose texts are safe to draw: the renderer ends the process at a control character."""

    def short(text: str) -> str:
        text = printable(text)
        if len(text) <= _LONGEST:
            return text
        beginning = text[: _LONGEST - 1]
        return f"{beginning}…"

    return in_texts(part, short)


def in_texts(part: Any, shown: Callable[[str], str]) -> Any:
    """A part of JSON in which every text is as `shown` makes it, but for code."""
    if isinstance(part, str):
        return shown(part)
    if isinstance(part, Mapping):
        changed = {}
        for key, value in part.items():
            is_code = key in _EXPRESSIONS and isinstance(value, str)
            changed[key] = value if is_code else in_texts(value, shown)
        return changed
    if isinstance(part, list | tuple):
        return [in_texts(each, shown) for each in part]
    return part
