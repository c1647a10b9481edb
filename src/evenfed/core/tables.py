"""Tables of options, without what need not be said."""

import dataclasses
from collections.abc import Mapping
from typing import Any


def changed_fields(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not at their defaults."""
    changed = {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if value != field.default:
            changed[field.name] = value
    return changed


def without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that have a value.

    >>> without_none({"lr": 0.1, "clip": None})
    {'lr': 0.1}
    """
    stated = {}
    for name, value in table.items():
        if value is not None:
            stated[name] = value
    return stated
