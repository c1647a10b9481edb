"""A page as one HTML file: content, scripts and styles in one text, without any request to elsewhere.

Vega and Vega-Lite draw its charts; the package that draws still figures, `evenfed[report]`, has them.
"""

import base64
import hashlib
import json
import os
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ...core.files import replace_text
from .contents import Page

PAGE = "report.html"
_PACKAGE = "vl-convert-python"
_SNIPPET = "window.vegaEmbed = vegaEmbed;"
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


@cache
def runtime() -> str | None:
    """The scripts that draw charts; None where `evenfed[report]` is not installed.

    Bundling takes seconds, so the bundle is kept in the user's own cache folder, by the version of the package.
    """
    try:
        import vl_convert
    except ImportError:
        return None
    # not the data's folder, which others may write to: what lies here becomes part of pages
    named = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    cache_folder = Path(named) if named else Path.home() / ".cache"
    kept = cache_folder / "evenfed" / "page" / f"vega-embed-{version(_PACKAGE)}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    bundle = str(vl_convert.javascript_bundle(_SNIPPET))
    bundle = bundle.replace("\r", "").replace("</script", r"<\/script").replace("<!--", r"<\!--")  # ends no element
    try:
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_text(kept, bundle)
    except OSError:
        pass  # a full disk, say: the next page takes as long as this one
    return bundle


def html(page: Page, live: str = "", edition: str = "") -> str:
    """The page's text, where `evenfed[report]` is installed.

    `live`: an address on the server that serves the page. Every two seconds it asks there, with `?after=EDITION`, for
    what came after this edition: `data` of the newest one, or nothing (204).
    """
    drawing = runtime()
    assert drawing is not None
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
        sentence=escape("".join(content["verdicts"][0]["sentence"])) if content["verdicts"] else "",
        elsewhere=escape(page.elsewhere),
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
