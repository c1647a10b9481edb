"""Flower's log. What clients and files are called is shown as text: a name cannot write lines or colours of its own."""

from flwr.supercore import log as write

from ..core.printable import printable


def log(level: int, message: str, *values: object) -> None:
    """One line; only `message` may hold line breaks and tabs."""
    shown: list[object] = []
    for value in values:
        is_number = isinstance(value, int | float)
        shown.append(value if is_number else printable(str(value)))
    write(level, message, *shown)
