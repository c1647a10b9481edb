"""The algorithms by name: every module of this folder, and every entry point of group `evenfed.algorithms`.

>>> get("semi_vred", beta=0.5)
SemiVRed(beta=0.5, safe=None)
"""

import importlib
import pkgutil
import warnings
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from ..core.algorithm import Algorithm, build
from ..core.errors import InputError, unknown


def _defined_in(module_name: str) -> type[Algorithm]:
    """The one Algorithm that a module of this folder defines."""
    module = importlib.import_module(module_name)
    classes: list[type[Algorithm]] = []
    for value in vars(module).values():
        is_algorithm = isinstance(value, type) and issubclass(value, Algorithm)
        if is_algorithm and value.__module__ == module_name:
            classes.append(value)
    if len(classes) != 1:
        raise InputError(f"{module_name} defines {len(classes)} algorithms; a file of this folder defines exactly one")
    return classes[0]


BUILT_IN: dict[str, type[Algorithm]] = {}
for _info in pkgutil.iter_modules(__path__):
    _cls = _defined_in(f"{__name__}.{_info.name}")
    BUILT_IN[_info.name] = _cls
    globals()[_cls.__name__] = _cls


@cache
def _all() -> dict[str, type[Algorithm]]:
    classes = dict(BUILT_IN)
    for point in entry_points(group="evenfed.algorithms"):
        try:
            cls = point.load()
        except Exception as error:  # another package's fault must not take these down
            complaint = f"algorithm {point.name} = {point.value} cannot be loaded: {error!r}"
            warnings.warn(complaint, stacklevel=3)
            continue
        is_algorithm = isinstance(cls, type) and issubclass(cls, Algorithm)
        if not is_algorithm:
            raise InputError(f"entry point {point.name} = {point.value} is not a subclass of Algorithm")
        cls.name = point.name
        classes.setdefault(point.name, cls)
    return classes


def names() -> list[str]:
    """Names of all algorithms, FedAvg first."""
    return sorted(_all(), key=lambda name: (name != "fedavg", name))


def find(name: str) -> type[Algorithm]:
    """The class called `name`; an unknown name gets the nearest valid one."""
    if name not in _all():
        raise unknown("algorithm", str(name), names())
    return _all()[name]


def get(name: str, **hyper_parameters: Any) -> Algorithm:
    """The algorithm `name` with these hyper-parameters, the others at their defaults."""
    return build(find(name), hyper_parameters)
