"""reached.json: how far a run has come since its header was written. The header itself is not written again."""

import dataclasses
import json
import warnings
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import DamageWarning
from ...core.files import plain_file, replace_text
from .header import Header

FILE = "reached.json"


@dataclass(frozen=True)
class Reached:
    """What changes with every checkpoint."""

    session: int  # the number of the session it was written in, from 1
    seconds: float  # of the rounds that are kept
    engine: str | None
    lines_digest: str | None

    def write(self, folder: Path) -> None:
        """Replace the last one."""
        text = json.dumps(dataclasses.asdict(self))
        replace_text(folder / FILE, text + "\n")


def with_reached(header: Header, folder: Path) -> Header:
    """The header of a run under way as it would be written now."""
    path = folder / FILE
    if header.finished or not path.exists():
        return header
    try:
        standing = Reached(**json.loads(plain_file(path).read_text()))
    except (ValueError, TypeError):
        warnings.warn(f"{path} is damaged, and not needed: it is left out", DamageWarning, stacklevel=3)
        return header
    if standing.session != len(header.resumed_at):
        return header  # of an earlier session, whose rounds the header counts
    return dataclasses.replace(
        header,
        seconds=standing.seconds,
        engine=standing.engine,
        lines_digest=standing.lines_digest,
    )
