"""The command line."""

import sys
from typing import NoReturn

from . import printed_output


def main() -> NoReturn:
    """Entry point. A finished comparison asked for again is printed at once; all else loads the commands, and torch."""
    before = printed_output.printed(sys.argv[1:])
    if before is not None:
        try:
            sys.stdout.write(before)
            sys.stdout.flush()
        except BrokenPipeError:
            sys.exit(1)
        sys.exit(0)
    try:
        from .commands import run
    except KeyboardInterrupt:  # loading takes a while
        sys.stderr.write("evenfed: stopped before anything was done\n")
        sys.exit(130)
    run()


__all__ = ["main"]
