"""Charts to files: the only place that knows how Altair is loaded and how it saves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def altair() -> Any | None:
    """The drawing package, or None where `evenfed[report]` is not installed."""
    try:
        import altair
        import vl_convert  # noqa: F401  (altair saves pictures with it)
    except ImportError:
        return None
    return altair


def save(chart: Any, folder: Path, name: str, endings: Sequence[str] = ("svg", "png")) -> list[Path]:
    """One chart definition in every format asked for; what is drawn already stays, as a PDF is never twice the same."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{name}.{ending}" for ending in endings]
    drawn = {path.suffix: path.read_bytes() for path in written if path.exists()}
    for path in sorted(written, key=lambda p: p.suffix != ".svg"):
        if (
            path.suffix == ".pdf"
            and path.suffix in drawn
            and drawn.get(".svg") == path.with_suffix(".svg").read_bytes()
        ):
            continue
        chart.save(str(path), **({"scale_factor": 2} if path.suffix == ".png" else {}))
    return written
