"""Errors a user can act on: what was given, what is allowed, what to do."""

import difflib
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

from .printable import printable

_ALIKE = 0.6  # of difflib's ratio; below it, names that share a few letters pass for a misspelling
_LONGEST_SHOWN = 80  # characters
_FEW = 20  # names that an error lists although it guesses one
_TOO_LARGE = 1 << 63  # the first number that 64 bits with a sign do not hold


class InputError(ValueError):
    """Something the caller gave cannot be used; the command line prints it without a traceback."""

    def __init__(self, message: object) -> None:
        super().__init__(printable(str(message), lines=True))


class DamageError(InputError):
    """A file is not what was written."""


class DamageWarning(UserWarning):
    """A damaged file was left out; the run resumes from its last good state."""


class Interruption(BaseException):
    """The user asked to stop; everything up to the last finished round is on disk."""


def unknown(
    kind: str,
    given: str,
    allowed: Iterable[str],
    hint: str | None = None,
) -> InputError:
    """An unknown name, with the nearest valid one, else with all of them. `hint`: a sentence in place of the guess.

    >>> print(unknown("algorithm", "semivred", ["fedavg", "semi_vred"]))
    unknown algorithm 'semivred'; did you mean 'semi_vred'? Allowed: fedavg, semi_vred
    """
    names = list(allowed)
    choices = ", ".join(names) or "none"
    closest = nearest(given, names)
    if hint is None and closest is not None:
        hint = f"did you mean '{closest}'?"
    if hint is None:
        return InputError(f"unknown {kind} '{given}'; allowed: {choices}")
    if len(names) > _FEW:
        return InputError(f"unknown {kind} '{given}'; {hint}")
    return InputError(f"unknown {kind} '{given}'; {hint} Allowed: {choices}")


def nearest(given: str, names: Sequence[str], alike: float = _ALIKE) -> str | None:
    """The name that is spelt most alike, if any is; capitals do not count."""
    by_spelling = {name.lower(): name for name in names}
    closest = difflib.get_close_matches(given.lower(), by_spelling, n=1, cutoff=alike)
    return by_spelling[closest[0]] if closest else None


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        raise unknown(name, str(value), choices)


def check_text(name: str, value: Any) -> None:
    """Refuse what is neither a text nor None."""
    if value is not None and not isinstance(value, str):
        raise InputError(f"{name}={value!r}: give a text")


def first_line(error: BaseException) -> str:
    """The first line of another library's error, to quote in a sentence."""
    text = str(error).strip()
    line, _, _ = text.partition("\n")
    return line


def shown(value: Any) -> str:
    """A refused value in an error: as Python writes it, or its type if that is long.

    >>> shown(3), shown(list(range(100)))
    ('3', '<list>')
    """
    text = repr(value)
    if len(text) <= _LONGEST_SHOWN and "\n" not in text:
        return text
    return f"<{type(value).__name__}>"


def check_whole(name: str, value: Any, least: int) -> int:
    """The whole number, as Python's own; refuse what is none of at least `least`."""
    is_whole = isinstance(value, numbers.Integral)  # NumPy's too
    is_flag = isinstance(value, bool)
    if not is_whole or is_flag or value < least:
        raise InputError(f"{name}={value!r}: give a whole number, at least {least}")
    if value >= _TOO_LARGE:
        raise InputError(f"{name}={value!r}: give a whole number below 2**63")
    return int(value)
