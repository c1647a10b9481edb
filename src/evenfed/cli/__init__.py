"""The command line."""

import sys
from typing import NoReturn

from . import rerun


def main() -> NoReturn:
    """Entry point. A finished comparison asked for again is printed at once; all else loads the commands, and torch."""
    before = rerun.printed(sys.argv[1:])
    if before is None:
        from .commands import run

        run()
    try:
        sys.stdout.write(before)
        sys.stdout.flush()
    except BrokenPipeError:
        sys.exit(1)
    sys.exit(0)


__all__ = ["main"]
