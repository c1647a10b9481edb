"""A page as one HTML file: content, scripts and styles in one text, without any request to elsewhere."""

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ...core.files import replace_text
from .contents import Page
from .runtime import runtime

NAME = "report.html"
_SCRIPTS = (
    "elements.js",
    "columns.js",
    "intervals.js",
    "sorting.js",
    "verdict.js",
    "tables.js",
    "switches.js",
    "saving.js",
    "charts.js",
    "live.js",
    "page.js",
)


def write(page: Page, path: Path) -> Path | None:
    """Write the page to `path`; None where `evenfed[report]` is not installed."""
    text = html(page)
    if text is None:
        return None
    replace_text(path, text)
    return path


def html(page: Page, live: str = "", edition: str = "") -> str | None:
    """The page's text; None where `evenfed[report]` is not installed.

    `live`: an address on the server that serves the page. Every two seconds it asks there, with `?after=EDITION`, for
    what came after this edition: `data` of the newest one, or nothing (204).
    """
    drawing = runtime()
    if drawing is None:
        return None
    content, columns = page.describe()
    style = _file("page.css")
    script = _script()
    sources = " ".join(map(_digest, (drawing, script)))
    connect = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src {sources}; style-src {_digest(style)}; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    return Template(_file("page.html")).substitute(
        title=escape(content["title"]),
        sentence=escape(content["verdicts"][0]["sentence"]) if content["verdicts"] else "",
        policy=policy,
        live=escape(live),
        edition=escape(edition),
        style=style,
        content=_in_script(content),
        columns=columns,
        drawing=drawing,
        script=script,
    )


def data(page: Page, edition: str) -> str:
    """What a live page fetches: its content and its columns, as JSON."""
    content, columns = page.describe()
    return json.dumps({"edition": edition, "content": content, "columns": columns}, allow_nan=False)


def _in_script(content: Any) -> str:
    """JSON that ends no script element, whatever texts it holds."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))  # ASCII: other letters are escaped
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _digest(text: str) -> str:
    """By which a page's policy allows a script or a style that stands inside it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


@cache
def _script() -> str:
    """All scripts of the page as one, with names of its own."""
    parts = [_file(name) for name in _SCRIPTS]
    return "\n".join(['"use strict";', "(() => {", *parts, "})();"])


@cache
def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
