"""Errors a user can act on: what was given, what is allowed, what to do."""

import difflib
from collections.abc import Iterable
from typing import Any

from .visible import visible

_TOO_LARGE = 1 << 63  # the first number that 64 bits with a sign do not hold


class InputError(ValueError):
    """Something the caller gave cannot be used; the command line prints it without a traceback."""

    def __init__(self, message: object) -> None:
        super().__init__(visible(str(message), lines=True))


class DamageError(InputError):
    """A file is not what was written."""


class DamageWarning(UserWarning):
    """A damaged file was left out; the run goes on from its last good state."""


class Interruption(BaseException):
    """The user asked to stop; everything up to the last finished round is on disk."""


def unknown(kind: str, given: str, allowed: Iterable[str]) -> InputError:
    """An unknown name, with the nearest valid one.

    >>> print(unknown("algorithm", "semivred", ["fedavg", "semi_vred"]))
    unknown algorithm 'semivred'; did you mean 'semi_vred'? Allowed: fedavg, semi_vred
    """
    names = list(allowed)
    nearest = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = "allowed"
    if nearest:
        hint = f"did you mean '{nearest[0]}'? Allowed"
    choices = ", ".join(names) or "none"
    return InputError(f"unknown {kind} '{given}'; {hint}: {choices}")


def check_text(name: str, value: Any) -> None:
    """Refuse what is neither a text nor None."""
    if value is not None and not isinstance(value, str):
        raise InputError(f"{name}={value!r}: give a text")


def first_line(error: BaseException) -> str:
    """The first line of another library's error, to quote in a sentence."""
    text = str(error).strip()
    line, _, _ = text.partition("\n")
    return line


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    is_whole = isinstance(value, int)
    is_flag = isinstance(value, bool)
    if not is_whole or is_flag or value < least:
        raise InputError(f"{name}={value!r}: give a whole number, at least {least}")
    if value >= _TOO_LARGE:
        raise InputError(f"{name}={value!r}: give a whole number below 2**63")
