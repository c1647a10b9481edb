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
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? Allowed" if close else "allowed"
    return InputError(f"unknown {kind} '{given}'; {hint}: {', '.join(names) or 'none'}")


def first_line(error: BaseException) -> str:
    """What an error of somebody else's says, cut to fit into a sentence."""
    return str(error).strip().partition("\n")[0]


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name}={value!r}: give a whole number, at least {least}")
