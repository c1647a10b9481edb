"""The keyword arguments of `train` and `compare`: their own, and the options of a run."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..core.choices import refuse_unknown
from ..settings import Settings


def check_arguments(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse an option that neither the function nor `Settings` has; the error lists those of both."""
    allowed = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            allowed.append(parameter.name)
    for field in dataclasses.fields(Settings):
        is_given_apart = "seeds" in allowed and field.name in ("seed", "batch_seed")
        if not is_given_apart:
            allowed.append(field.name)
    refuse_unknown("option", options, allowed)
