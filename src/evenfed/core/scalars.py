"""NumPy's scalars as Python's own numbers, which files hold and identities compare."""

import dataclasses
from typing import Any, TypeGuard

import numpy as np


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is one of Python's own numbers; True and False are none.

    >>> is_number(0.5), is_number(True), is_number("0.5")
    (True, False, False)
    """
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float)


def unwrapped(value: Any) -> Any:
    """A NumPy scalar as Python has it, also in tables, lists and tuples; anything else as it is.

    >>> unwrapped({"every": np.int64(2), "betas": (np.float64(0.5), 0.9)})
    {'every': 2, 'betas': (0.5, 0.9)}
    """
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {key: unwrapped(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        kind = type(value)
        return kind(unwrapped(item) for item in value)
    return value


def unwrap_fields(instance: Any) -> None:
    """The same for every field of a dataclass, frozen or not."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        object.__setattr__(instance, field.name, unwrapped(value))
