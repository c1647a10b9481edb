"""Trying what the device's memory may not hold."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

Made = TypeVar("Made")


def fitting(make: Callable[[], Made]) -> Made | None:
    """What `make` makes; None where the device's memory does not suffice, once what it held is given back."""
    try:
        return make()
    except torch.OutOfMemoryError:
        pass  # and forgotten here: its traceback holds what was made
    gc.collect()
    torch.cuda.empty_cache()
    return None
