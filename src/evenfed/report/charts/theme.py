"""Colours: those of algorithms, told apart by everyone, and of all else on a light or a dark ground."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...algorithms import BUILT_IN
from ...comparison.analysis.findings import Entry

BLUE = "#0072b2"
VERMILION = "#d55e00"
GREEN = "#009e73"
PURPLE = "#cc79a7"
ORANGE = "#e69f00"
SKY = "#56b4e9"
GREY = "#888888"  # FedAvg, and what chance does

PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)  # Okabe and Ito's
SHAPES = ("circle", "diamond", "triangle-up", "square", "cross", "triangle-down")  # one for each turn of the palette


@dataclass(frozen=True)
class Theme:
    """The colours that depend on the ground. Marks ask for them by the name of a style."""

    ground: str
    text: str
    soft: str  # text of less weight
    grid: str
    shade: str  # regions

    @property
    def config(self) -> dict[str, Any]:
        """Vega-Lite's `config`."""
        text = self.text
        soft = self.soft
        return {
            "background": self.ground,
            "title": {
                "color": text,
                "subtitleColor": soft,
                "fontSize": 14,
                "subtitleFontSize": 11,
            },
            "axis": {
                "labelColor": text,
                "titleColor": text,
                "titleFontWeight": "normal",
                "gridColor": self.grid,
                "domainColor": GREY,
                "tickColor": GREY,
                "labelLimit": 240,
            },
            "header": {"labelColor": text, "titleColor": text, "labelFontSize": 11},
            "legend": {
                "labelColor": text,
                "titleColor": text,
                "titleFontWeight": "normal",
                "labelLimit": 300,
                "columnPadding": 30,  # browsers may have a wider font than the one that the labels were measured in
            },
            "view": {"stroke": None},
            "text": {"color": text, "fontSize": 11},
            "style": {
                "halo": {
                    "color": self.ground,
                    "stroke": self.ground,
                    "strokeWidth": 3,
                    "strokeJoin": "round",
                },
                "note": {"color": soft, "fontSize": 10},
                "better": {
                    "color": soft,
                    "fontSize": 12,
                    "fontWeight": "bold",
                    "filled": True,
                },
                "zero": {"color": text, "strokeWidth": 1},
                "leader": {"color": soft, "strokeWidth": 0.7},
                "error": {"color": text, "strokeWidth": 1.2},
                "chance": {"color": self.shade},
                "hollow": {
                    "color": self.ground,
                    "stroke": text,
                    "strokeWidth": 1.2,
                    "filled": True,
                },
                "picked": {"color": text, "strokeWidth": 2, "filled": False},
            },
        }


LIGHT = Theme(ground="#ffffff", text="#222222", soft="#555555", grid="#e4e4e4", shade="#e6e6e6")
DARK = Theme(ground="#16181d", text="#e8e8e8", soft="#b4b4b4", grid="#33373f", shade="#2c3038")
THEMES = {"light": LIGHT, "dark": DARK}


@dataclass(frozen=True)
class Style:
    """The colour and shape of an algorithm. No two of a comparison have the same colour and shape."""

    colour: str
    shape: str


def looks(entries: Sequence[Entry]) -> dict[str, Style]:
    """By label. The first, what the others are compared with, and repetitions are grey."""
    look_of: dict[str, Style] = {}
    greys = 0
    others = 0
    for entry in entries:
        if entry is entries[0] or entry.is_control:
            shape = SHAPES[greys % len(SHAPES)]
            look_of[entry.label] = Style(GREY, shape)
            greys += 1
            continue
        turn, place = divmod(others, len(PALETTE))
        shape = SHAPES[turn % len(SHAPES)]
        look_of[entry.label] = Style(PALETTE[place], shape)
        others += 1
    return look_of


def is_own(entry: Entry) -> bool:
    """Whether the algorithm is one's own: not among those of this package."""
    return entry.method not in BUILT_IN
