"""What an audit was made from: the file, and the command that audits it again."""

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .._version import __version__

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Provenance:
    """Nothing is known of what came from memory."""

    source: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    @classmethod
    def of(cls, source: Any, options: Mapping[str, Any]) -> "Provenance":
        """Of a path; `options` by the command line's names, None where not given."""
        if not isinstance(source, str | Path):
            return cls({"Read with": f"evenfed {__version__}"})
        path = Path(source)
        terms = {"Read from": str(path), "Read with": f"evenfed {__version__}"}
        if path.is_file():
            changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            terms["Changed"] = f"{changed:%Y-%m-%d %H:%M} UTC"
            terms["SHA-256"] = _digest(path)
        words = ["evenfed", "audit", str(path)]
        for name, value in options.items():
            words += _option(name, value)
        return cls(terms, shlex.join(words))


def _option(name: str, value: Any) -> list[str]:
    """As typed; nothing for what was not given."""
    if value is None:
        return []
    if name == "lower-is-better":
        return ["--lower-is-better" if value else "--higher-is-better"]
    words = []
    values = value if isinstance(value, list) else [value]
    for each in values:
        words += [f"--{name}", str(each)]
    return words


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()
