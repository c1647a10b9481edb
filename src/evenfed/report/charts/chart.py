"""A chart: one Vega-Lite specification and its rows, for the page and for still pictures alike."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .theme import LIGHT

Spec = dict[str, Any]  # a chart, or a part of one, in Vega-Lite's JSON
Row = dict[str, Any]  # one row of the data it draws

ROWS = "rows"  # the name of a chart's data
PICKED: Spec = {"name": "picked", "value": None}  # the client to highlight, by its name
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
_MARGINS = {
    "left": 8,
    "top": 5,
    "right": 16,
    "bottom": 5,
}  # a reader's fonts may be wider
_TITLE_SHARE = 0.8  # of the letters of a line: a title's are larger


@dataclass(frozen=True)
class Chart:
    """One picture.

    `spec` draws the data named "rows" and has the parameter `picked`, the name of a client or null. It has no title
    and no colours of text: `title` and `says` go around it, and a theme gives the colours.

    `rows` carry `algorithm`, `seed`, `client` and `round` where they apply. What is shown is computed from them by
    the specification, so any selection of rows by algorithm and seed draws what holds for these. A row whose `round`
    is a list stands for as many rounds; the specification flattens it, with the row's other lists.
    """

    name: str  # of its files
    title: str
    says: str  # how to read it, in a sentence or two
    spec: Spec
    rows: Sequence[Row] = field(repr=False)
    narrow: Spec | None = field(default=None, repr=False)  # the same for a phone, if its width takes another drawing
    letters: int = 100  # of a line below the title, as many as fit in the widest of the usual fonts

    def still(self) -> Spec:
        """The specification with its rows, title and colours: all that a renderer needs."""
        heading = {
            "text": textwrap.wrap(self.title, int(_TITLE_SHARE * self.letters)) or [""],
            "subtitle": textwrap.wrap(self.says, self.letters),
            "anchor": "start",
            "offset": 10,
        }
        return {
            "$schema": SCHEMA,
            "padding": _MARGINS,
            **self.spec,
            "title": heading,
            "data": {"name": ROWS, "values": list(self.rows)},
            "config": LIGHT.config,
        }


def spec_of(drawing: Mapping[str, Any], *params: Spec) -> Spec:
    """A chart's specification from what it draws."""
    return {
        "data": {"name": ROWS},
        "params": [PICKED, *params],
        **drawing,
    }
