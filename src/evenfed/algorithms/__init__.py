"""The algorithms by name: every module of this folder, every entry point of group `evenfed.algorithms`, and what
`register` was given. Spelling is free: case, dashes and underscores do not count.

>>> get("semi_vred", beta=0.5)
SemiVRed(beta=0.5, safe=None)
>>> get("Semi-VRed", beta=0.5) == get("semi_vred", beta=0.5)
True
"""

import functools
import importlib
import pkgutil
import re
import warnings
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from ..core.algorithm import Algorithm, build, check_declared
from ..core.errors import InputError, unknown

_NAME = re.compile(r"[\w.+\-]{1,100}")
_OTHER_NAMES = {
    "qfedavg": "qffl",
    "δfl": "delta_fl",
    "gifairfl": "gifair",
    "agnosticfl": "afl",
    "agnosticfederatedlearning": "afl",
    "federatedaveraging": "fedavg",
}  # names in papers, as `plain` writes them


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
        _check_class(cls, f"entry point {point.name} = {point.value}")
        cls.name = point.name
        classes.setdefault(point.name, cls)
    return classes


def register(cls: Any = None, *, name: str | None = None) -> Any:
    """Make an algorithm of your own known by its name, in this process. Also a decorator, with or without a name.

    `register(MyMethod)`, `@register` above the class, or `@register(name="my_method")`. `@dataclass` comes below it.
    """
    if cls is None:
        return functools.partial(register, name=name)
    _check_class(cls, f"register({cls!r})")
    chosen = cls.name if name is None else name
    if not isinstance(chosen, str) or not _NAME.fullmatch(chosen):
        raise InputError(f"register: the name {chosen!r} cannot be used; give letters, digits and any of . _ + -")
    known = _all().get(chosen)
    is_made_again = known is not None and _full_name(known) == _full_name(cls)  # a notebook's cell run twice
    if known is not None and known is not cls and not is_made_again:
        raise InputError(
            f"register: '{chosen}' is {_full_name(known)} already; give another name, "
            f"e.g. register({cls.__name__}, name='my_{chosen}')"
        )
    cls.name = chosen
    _all()[chosen] = cls
    return cls


def names() -> list[str]:
    """Names of all algorithms, FedAvg first."""
    return sorted(_all(), key=lambda name: (name != "fedavg", name))


def plain(name: str) -> str:
    """A name without what spellings differ in.

    >>> plain("Semi-VRed"), plain("q-FFL"), plain("fedmgda+")
    ('semivred', 'qffl', 'fedmgda')
    """
    letters = [letter for letter in name.casefold() if letter.isalnum()]
    return "".join(letters)


def find(name: str) -> type[Algorithm]:
    """The class called `name`, in any spelling; an unknown name gets the nearest valid one."""
    algorithms = _all()
    if name in algorithms:
        return algorithms[name]
    spelled = plain(str(name))
    matching = [known for known in names() if plain(known) == spelled]
    if not matching and spelled in _OTHER_NAMES:
        matching = [_OTHER_NAMES[spelled]]
    if len(matching) > 1:
        listed = " and ".join(matching)
        raise InputError(f"algorithm '{name}' may be {listed}; write the one you mean exactly so")
    if not matching:
        raise unknown("algorithm", str(name), names())
    return algorithms[matching[0]]


def get(name: str, **hyper_parameters: Any) -> Algorithm:
    """The algorithm `name` with these hyper-parameters, the others at their defaults."""
    return build(find(name), hyper_parameters)


def _check_class(cls: Any, where: str) -> None:
    is_algorithm = isinstance(cls, type) and issubclass(cls, Algorithm)
    if not is_algorithm:
        raise InputError(f"{where} is not a subclass of Algorithm; give a class that is")
    check_declared(cls)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
