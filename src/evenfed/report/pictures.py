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
    """One chart definition in every format asked for; a PDF, which says when it was made, only if the chart is new."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{name}.{ending}" for ending in endings]
    drawn = folder / f"{name}.svg"
    before = drawn.read_bytes() if drawn.exists() else None
    for path in sorted(written, key=lambda p: p != drawn):
        if path.suffix == ".pdf" and path.exists() and drawn.read_bytes() == before:
            continue
        chart.save(str(path), **({"scale_factor": 2} if path.suffix == ".png" else {}))
    return written
