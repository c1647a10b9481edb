"""comparison.json: that a folder holds a comparison, and the order of its entries."""

import json
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import InputError
from ..core.files import plain_file, replace_text

_ORDER = "comparison.json"


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
