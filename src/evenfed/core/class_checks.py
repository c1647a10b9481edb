"""Mistakes in an algorithm's class that Python does not report.

Every run, and every folder that is read back, makes a new instance from the dataclass fields. A value stored anywhere
else would be lost silently.
"""

import dataclasses
import inspect
from typing import Any

from .errors import InputError, nearest

_DECORATOR = "@dataclass(frozen=True)"


def check_fields(cls: Any, root: type) -> None:
    """Refuse a class, below `root`, with hyper-parameters that are not what its dataclass has read."""
    for base in _below(root, cls):
        if _is_own_dataclass(base):
            continue
        forgotten = _undeclared(base)
        if forgotten:
            listed = ", ".join(forgotten)
            raise InputError(
                f"{base.__name__} declares {listed} but is no dataclass; write {_DECORATOR} above the class"
            )
    _check_init(cls)
    for field in dataclasses.fields(cls):
        _check_default(cls, field.name)


def check_names(cls: type, root: type) -> None:
    """Refuse what is nearly called like something that `root` offers: nothing would call or read it."""
    methods = hooks(root)
    attributes = _public(root) - set(methods)
    for base in _below(root, cls):
        fields = inspect.get_annotations(base)
        for name in sorted(_public(base).difference(fields, _public(root))):
            offered = sorted(attributes)
            use = "reads no attribute"
            if inspect.isroutine(vars(base)[name]):
                offered = methods
                use = "calls no method"
            length = max(len(name), 4)
            one_letter = 1 - 1 / length  # total_loss is further from local_loss than a slip of a finger
            meant = nearest(name, offered, alike=one_letter)
            if meant is None or meant in vars(base):  # next to the hook itself it is a helper
                continue
            raise InputError(
                f"{base.__name__}.{name}: evenfed {use} of this name; did you mean '{meant}'? If it is a helper of "
                f"yours, begin its name with an underscore: _{name}"
            )


def check_signatures(cls: type, root: type) -> None:
    """Refuse a hook that does not take the arguments it will be called with."""
    for base in _below(root, cls):
        for name in hooks(root):
            hook = vars(base).get(name)
            if not inspect.isfunction(hook):
                continue
            expected = inspect.signature(vars(root)[name])
            _, *arguments = expected.parameters
            try:
                inspect.signature(hook).bind(None, *arguments)
            except TypeError as error:
                listed = ", ".join(["self", *arguments])
                raise InputError(f"{base.__name__}.{name} is called as {name}({listed}): {error}") from None


def hooks(root: type) -> list[str]:
    """The methods that a class below `root` may give."""
    methods = []
    for name in sorted(_public(root)):
        value = vars(root)[name]
        if inspect.isroutine(value):
            methods.append(name)
    return methods


def overridden(cls: type, root: type) -> list[str]:
    """The hooks that the class or one it inherits from gives."""
    defined: set[str] = set()
    for base in _below(root, cls):
        defined.update(vars(base))
    return [name for name in hooks(root) if name in defined]


def _public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


def _below(root: type, cls: type) -> list[type]:
    """The class and those it inherits from, up to `root`."""
    classes = list(cls.__mro__)
    return classes[: classes.index(root)]


def _is_own_dataclass(cls: type) -> bool:
    return "__dataclass_fields__" in vars(cls)


def _undeclared(cls: type) -> list[str]:
    """What a dataclass would have made a hyper-parameter of."""
    names = []
    for name, annotation in inspect.get_annotations(cls).items():
        if "ClassVar" not in str(annotation):
            names.append(name)
    for name, value in vars(cls).items():
        if isinstance(value, dataclasses.Field) and name not in names:
            names.append(name)
    return names


def _check_init(cls: type) -> None:
    """Values that only a hand-written `__init__` knows would be forgotten."""
    owners = [base for base in cls.__mro__ if "__init__" in vars(base)]
    owner = owners[0]
    signature = inspect.signature(vars(owner)["__init__"])
    _, *taken = signature.parameters
    if _is_own_dataclass(owner):
        fields = [field.name for field in dataclasses.fields(owner) if field.init]
        if set(taken) == set(fields):
            return
    listed = ", ".join(taken)
    raise InputError(
        f"{owner.__name__} has __init__({listed}), but hyper-parameters are the fields of a dataclass; write "
        f'{_DECORATOR} above the class and, in place of __init__, fields such as: beta: float = hyper(1.0, "its use")'
    )


def _check_default(cls: type, name: str) -> None:
    """A default without a type is an attribute of the class, which every instance hides behind its own."""
    for base in cls.__mro__:
        if _is_own_dataclass(base) and name in inspect.get_annotations(base):
            return
        if name in vars(base):
            raise InputError(
                f"{base.__name__} sets {name} without a type, which changes nothing: the hyper-parameter keeps its "
                f"default. Give {name} to the instance, {base.__name__}({name}=...), or declare it again with its "
                f"type, under {_DECORATOR}"
            )
