"""The command line: all commands, in the order a newcomer needs them, and how they end."""

import errno
import io
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer

from .. import __version__
from ..core.errors import DamageWarning, InputError, Interruption
from ..core.printable import words_without_passwords
from . import examples
from .algorithms import algorithms
from .audit import audit
from .common_options import COMPLETION
from .compare import compare, tune
from .console import say
from .data import data_app
from .experiments import experiments, new
from .flower import flower_app
from .report import choose, fill, pack, report
from .watch import watch

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
_FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk, or a user's part of it

app = typer.Typer(
    help="Fair federated learning: compare algorithms on many clients and see who is served worst.",
    no_args_is_help=True,
    epilog=COMPLETION,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _command in (compare, watch, new, experiments, algorithms, report, audit, tune):
    app.command(epilog=examples.of(_command.__name__))(_command)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")
for _maintainers_command in (pack, choose, fill):
    _epilog = examples.of(_maintainers_command.__name__)
    app.command(rich_help_panel="Publishing results", epilog=_epilog)(_maintainers_command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"evenfed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Show the version.",
        ),
    ] = False,
) -> None:
    pass


def run() -> NoReturn:
    """Carry out the command: bad input ends in one message and a non-zero exit, never in a traceback."""
    command = shlex.join(words_without_passwords(["evenfed", *sys.argv[1:]]))
    at_once = f"stopped; what is not saved yet is lost. Resume with:\n  {command}"
    try:
        with _damage_said():
            code = app(prog_name="evenfed", standalone_mode=False, obj=sys.argv[1:])
    except InputError as error:
        _fail(str(error), 2)
    except Interruption:
        _fail(f"stopped; every finished round is saved. Resume with:\n  {command}", INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        _fail(at_once, INTERRUPTED)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        if error.errno in _FULL:
            place = error.filename or "the output"
            _fail(f"{place}: {error.strerror}; what was saved is kept: free some space, then rerun the command", 1)
        if error.filename is None:
            raise
        _fail(f"{error.filename}: {error.strerror}; fix that, then rerun the command", 1)
    except Exception as error:
        show = getattr(error, "show", None)  # of a usage error; typer does not say where it takes click from
        if show is None or not type(error).__module__.startswith(("click", "typer")):
            raise
        words = io.StringIO()
        show(file=words)
        message = words.getvalue().rstrip()
        say(re.sub(r"( Did you mean [^?]*\?)\1+", r"\1", message))  # typer and click may both add a suggestion
        sys.exit(getattr(error, "exit_code", 2))
    if code == INTERRUPTED:  # typer turns KeyboardInterrupt into this code, and returns it
        _fail(at_once, INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _damage_said() -> Iterator[None]:
    """Warnings of damaged files as sentences."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(message: Warning | str, category: type[Warning], *where: Any, **also: Any) -> None:
            if issubclass(category, DamageWarning):
                say(f"evenfed: {message}")
            else:
                show(message, category, *where, **also)

        warnings.showwarning = shown
        warnings.simplefilter("always", DamageWarning)
        yield


def _fail(message: str, code: int) -> NoReturn:
    say(f"evenfed: {message}")
    sys.exit(code)
