"""What draws charts in a browser: Vega and Vega-Lite, bundled by the package that draws still figures."""

import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

from ...core.files import replace_text

_PACKAGE = "vl-convert-python"
_SNIPPET = "window.vegaEmbed = vegaEmbed;"


@cache
def runtime() -> str | None:
    """The scripts; None where `evenfed[report]` is not installed.

    Bundling takes seconds, so the bundle is kept in the user's own cache folder, by the version of the package.
    """
    try:
        import vl_convert
    except ImportError:
        return None
    kept = _user_cache() / f"vega-embed-{version(_PACKAGE)}.js"
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


def _user_cache() -> Path:
    """Not the data's folder, which others may write to: what lies here becomes part of pages."""
    named = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    base = Path(named) if named else Path.home() / ".cache"
    return base / "evenfed" / "page"
