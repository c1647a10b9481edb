"""What commands have in common: how much they say, and what a shell completes."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from ..core.errors import InputError
from ..core.verbosity import Verbosity
from ..data.catalogue import SOURCES
from ..experiments import bundled

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only results, warnings and errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show every step, not only the progress.")]


class Format(StrEnum):
    table = "table"
    json = "json"


COMPLETION = """Completion of commands, options, experiments and data sets in bash, zsh, fish and PowerShell:

[bold]evenfed --install-completion[/]"""


def detail_of(quiet: bool, verbose: bool) -> Verbosity:
    """How much the options ask to be said."""
    if quiet and verbose:
        raise InputError("--quiet and --verbose were both given; give one of them, or neither")
    if quiet:
        return Verbosity.QUIET
    return Verbosity.VERBOSE if verbose else Verbosity.NORMAL


def experiments_like(incomplete: str) -> Iterator[tuple[str, str]]:
    """Experiments of the package that begin so, for a shell; files are the shell's own business."""
    for name, about in bundled().items():
        if f"@{name}".startswith(incomplete):
            yield f"@{name}", about


def data_sets_like(incomplete: str) -> Iterator[tuple[str, str]]:
    """Data sets that begin so, for a shell."""
    for name, source in SOURCES.items():
        if name.startswith(incomplete):
            yield name, source.about
