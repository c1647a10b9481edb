"""Errors a user can act on: what was given, what is allowed, what to do."""

import difflib
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Something the caller gave cannot be used; the command line prints it without a traceback."""


def unknown(kind: str, given: str, allowed: Iterable[str]) -> InputError:
    """An unknown name, with the nearest valid one.

    >>> print(unknown("algorithm", "semivred", ["fedavg", "semi_vred"]))
    unknown algorithm 'semivred'; did you mean 'semi_vred'? Allowed: fedavg, semi_vred
    """
    names = list(allowed)
    nearest = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'? Allowed" if nearest else "allowed"
    choices = ", ".join(names) or "none"
    return InputError(f"unknown {kind} '{given}'; {hint}: {choices}")


def first_line(error: BaseException) -> str:
    """The first line of another library's error, to quote in a sentence."""
    return str(error).strip().partition("\n")[0]


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least:
        raise InputError(f"{name}={value!r}: give a whole number, at least {least}")
