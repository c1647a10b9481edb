"""Words of sentences that messages and reports have in common."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things.

    >>> counted(1, "round"), counted(3, "seed"), counted(2, "entry", "entries")
    ('1 round', '3 seeds', '2 entries')
    """
    if number == 1:
        return f"1 {one}"
    plural = many or f"{one}s"
    return f"{number} {plural}"


def assignments(values: Mapping[str, Any], written: Callable[[Any], str] = str) -> str:
    """Names with their values. `written`: a value as text.

    >>> assignments({"lr": 0.1, "steps": 2})
    'lr=0.1, steps=2'
    """
    return ", ".join(f"{name}={written(value)}" for name, value in values.items())


def first_of(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are.

    >>> first_of(["a", "b"], 2), first_of(["a", "b", "c"], 2)
    ('a, b', 'a, b and 1 more')
    """
    text = ", ".join(names[:most])
    more = len(names) - most
    if more > 0:
        text += f" and {more} more"
    return text
