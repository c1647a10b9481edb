"""Packages whose names are loaded when they are first asked for: a short command need not wait for torch."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any


def attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `homes`: the module each name is from; other names may be submodules."""

    def load(name: str) -> Any:
        if name in homes:
            home = importlib.import_module(f"{package}.{homes[name]}")
            value = getattr(home, name)
            setattr(sys.modules[package], name, value)
            return value
        module = f"{package}.{name}"
        if name.startswith("__") or importlib.util.find_spec(module) is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return importlib.import_module(module)

    return load
