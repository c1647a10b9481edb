"""The command `evenfed watch`: the page of a comparison while it runs."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .console import console

PORT = 8650
_SECONDS = 0.2  # after which a signal is noticed at the latest


def watch(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of a comparison or Flower run, or of several; it need not exist yet."
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; 0 takes any free port.")] = PORT,
) -> None:
    """Serve a comparison's page on this machine while it runs; new rounds appear by themselves. Ctrl-C ends it."""
    with _ended_by_signals():
        from ..report.live.page_versions import PageVersions
        from ..report.live.server import PageServer

        with PageServer(PageVersions(folder).newest, port) as server:
            address = f"{folder} is shown at {server.address}"
            console().put(f"{address} (on this machine only; Ctrl-C ends it)")
            sys.stdout.flush()
            server.serve_forever(_SECONDS)


class _Ended(BaseException):
    """The user has seen enough."""


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block, as they should: it has no other end."""

    def end(number: int, frame: object) -> None:
        raise _Ended

    before = {}
    for stop in (signal.SIGINT, signal.SIGTERM):
        before[stop] = signal.signal(stop, end)
    try:
        yield
    except _Ended:
        pass
    finally:
        for stop, handler in before.items():
            signal.signal(stop, handler)
