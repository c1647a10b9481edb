"""The order of a comparison's entries: as comparison.json says, and of labels by the size of their numbers."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import InputError
from ...core.files import plain_file, replace_text

_ORDER = "comparison.json"
_NUMBER = re.compile(r"(?<==)(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")  # the value of an option


def write_order(root: Path, labels: Sequence[str]) -> None:
    """Note that a folder holds a comparison, and the order of its entries."""
    text = json.dumps({"labels": list(labels)}, indent=1)
    replace_text(root / _ORDER, text + "\n")


def read_order(root: Path) -> list[str] | None:
    """The labels in their order; None if a folder does not say that it holds a comparison."""
    path = root / _ORDER
    if not path.exists():
        return None
    try:
        return list(json.loads(plain_file(path).read_text())["labels"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}); remove it, and entries are in alphabetical order") from None


def by_size(label: str) -> tuple[str | float, ...]:
    """A key to sort labels by: options by the size of their numbers, and a label before those with more options.

    >>> sorted(["vred[beta=10.0]", "vred[beta=9.5,smooth=0.1]", "vred[beta=9.5]"], key=by_size)
    ['vred[beta=9.5]', 'vred[beta=9.5,smooth=0.1]', 'vred[beta=10.0]']
    """
    key: list[str | float] = []
    options = label.removesuffix("]")
    for place, part in enumerate(_NUMBER.split(options)):  # texts and numbers in turn
        is_number = place % 2 == 1
        key.append(float(part) if is_number else part)
    return tuple(key)
