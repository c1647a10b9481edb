"""Names of functions and objects that a file can hold: what a run was made with, where that is code and not data."""

import contextlib
import functools
import hashlib
import re
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .errors import InputError

_KEY = "callable"
_VALUES = re.compile(r" \{[^{}]*\}")  # of a module, in its name
_changing: "weakref.WeakKeyDictionary[nn.Module, set[str]]" = weakref.WeakKeyDictionary()  # places in it, by module
_LIBRARIES = ("torch", "evenfed", "numpy", "builtins", "sklearn")


class StoredFunction:
    """Stands for a function of a run that was read from disk: its name is known, its code is not."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise InputError(f"{self.name} is known by its name only: a run's folder holds no code; give it again to train")

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredFunction) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


def described(value: Any) -> Any:
    """A value as JSON can store it and gives it back: a callable by its name, and whatever else as it is.

    >>> described(len), described({"lr": 0.1}), restored(described(len))
    ({'callable': 'builtins.len'}, {'lr': 0.1}, builtins.len)
    """
    if callable(value):
        return {_KEY: name_of(value)}
    if isinstance(value, Mapping):
        items = {}
        for key, item in value.items():
            items[key] = described(item)
        return items
    if isinstance(value, tuple):
        return [described(item) for item in value]
    return value


def restored(value: Any) -> Any:
    """What `described` wrote; a callable comes back as its name."""
    if isinstance(value, dict) and set(value) == {_KEY}:
        return StoredFunction(str(value[_KEY]))
    return value


def name_of(value: Any) -> str:
    """Module and name of a function, with a hash of its code if it is not a library's; an object by its class.

    >>> name_of(functools.partial(int, base=2))
    'partial(builtins.int, base=2)'
    """
    if isinstance(value, StoredFunction):
        return value.name
    if isinstance(value, functools.partial):
        arguments = [name_of(value.func)]
        arguments += map(_argument, value.args)
        for key, item in value.keywords.items():
            arguments.append(f"{key}={_argument(item)}")
        listed = ", ".join(arguments)
        return f"partial({listed})"
    if isinstance(value, types.MethodType):
        return f"{name_of(value.__self__)}.{value.__func__.__name__}"
    if not hasattr(value, "__qualname__"):
        return _object_name(value)
    name = f"{value.__module__}.{value.__qualname__}{_closed_over(value)}"
    code = getattr(value, "__code__", None)
    library = str(value.__module__).partition(".")[0]
    if code is None or library in _LIBRARIES:
        return name
    return f"{name} #{_code_hash(code)}"


class RecordedName(str):
    """The name of a function as a header holds it, which knows how older versions wrote it."""

    earlier: str

    @classmethod
    def of(cls, value: Any) -> "RecordedName":
        name = cls(name_of(value))
        earlier = _VALUES.sub("", name)  # of modules, whose values were not written
        for tensor in _printed_tensors(value):
            earlier = earlier.replace(_argument(tensor), repr(tensor), 1)
        name.earlier = earlier
        return name


def _printed_tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a function, in the order in which its name has them; older versions wrote them as torch does."""
    contents: list[Any] = []
    if isinstance(value, functools.partial):
        contents = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # not set yet
                contents.append(cell.cell_contents)
    for content in contents:
        if isinstance(content, Tensor):
            yield content
        elif content is not value:
            yield from _printed_tensors(content)


def is_known_by_class_only(value: Any) -> bool:
    """Whether two objects that act differently may have the same name."""
    if isinstance(value, functools.partial):
        return is_known_by_class_only(value.func)
    is_shown = hasattr(value, "__qualname__") or isinstance(value, nn.Module)
    return not is_shown and _shows_address(value)


def _object_name(value: Any) -> str:
    """Its own text, or its class if the text holds an address, which changes from process to process.

    >>> name_of(nn.MSELoss(reduction="none"))
    "torch.nn.modules.loss.MSELoss: MSELoss() {reduction='none'}"
    """
    name = _class_name(value)
    with contextlib.suppress(Exception):  # of the object's own code
        if not _shows_address(value):
            name = f"{name}: {value!r}"
        if isinstance(value, nn.Module):
            name += _values_of(value)
    return name


def _class_name(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def matches_stored(stored: Any, current: Any) -> bool:
    """Whether two names are equal; the stored one may be of an older version."""
    if stored == current:
        return True
    if isinstance(current, RecordedName):
        return bool(stored == current.earlier)
    return isinstance(current, str) and stored == _VALUES.sub("", current)


@contextlib.contextmanager
def noticing_changes(value: Any) -> Iterator[None]:
    """What a call inside changes in a loss or score module (counters, running buffers) is left out of its name.

    Such values are not configuration: they differ whenever the object was used. A first call on a few examples shows
    which they are, in every process alike; for an object that was used before, they are remembered.
    """
    if isinstance(value, types.MethodType):
        value = value.__self__
    if not isinstance(value, nn.Module):
        yield
        return
    before = _values_in(value)
    yield
    after = _values_in(value)
    changed = {place for place in {*before, *after} if before.get(place) != after.get(place)}
    _changing.setdefault(value, set()).update(changed)


def _values_of(module: nn.Module) -> str:
    """The attributes of a module and its parts, most of which its text does not show; tensors by their content."""
    left_out = _changing.get(module, set())
    values = []
    for place, text in _values_in(module).items():
        if place not in left_out:
            values.append(f"{place}={text}")
    for name, tensor in module.named_parameters():
        values.append(f"{name}={_argument(tensor)}")
    listed = ", ".join(values).replace("{", "(").replace("}", ")")
    return f" {{{listed}}}"


def _values_in(module: nn.Module) -> dict[str, str]:
    """The text of each attribute and buffer, by its place in the module."""
    texts = {}
    for path, part in module.named_modules():
        for name, value in sorted(vars(part).items()):
            if name.startswith("_") or name == "training":
                continue
            place = f"{path}.{name}" if path else name
            texts[place] = _argument(value)
    for name, tensor in module.named_buffers():
        texts[name] = _argument(tensor)
    return texts


def _tensor_name(tensor: Tensor) -> str:
    """Type, shape and a hash of the content."""
    parts = [tensor.detach()]
    if tensor.layout != torch.strided:
        entries = parts[0].to_sparse_coo().coalesce()
        parts = [entries.indices(), entries.values()]
    digest = hashlib.blake2b(digest_size=4)
    for part in parts:
        content = part.cpu().contiguous().flatten().view(torch.uint8)
        digest.update(content.numpy().data)
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape)} #{digest.hexdigest()}"


def _shows_address(value: Any) -> bool:
    """Whether its text has an address; an object whose text cannot be had counts as one."""
    try:
        return " at 0x" in repr(value)
    except Exception:
        return True


def _closed_over(function: Any) -> str:
    """The values that a function made by another function has from it."""
    cells = getattr(function, "__closure__", None)
    if not cells:
        return ""
    values = []
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # not set yet
            content = cell.cell_contents
            if content is not function:
                values.append(f"{name}={_argument(content)}")
    return f"({', '.join(values)})"


def _argument(value: Any) -> str:
    """The text of a value; its class where the text cannot be had."""
    if callable(value) or _shows_address(value):
        return name_of(value)
    try:
        return _text(value)
    except Exception:  # of a tensor that has no content, say
        return _class_name(value)


def _text(value: Any) -> str:
    """`repr`, but tensors by their content, and sets, whose order changes from process to process, in order."""
    if isinstance(value, Tensor):
        return _tensor_name(value)
    if type(value) in (set, frozenset) and value:
        members = ", ".join(sorted(map(_text, value)))
        return f"{{{members}}}" if type(value) is set else f"frozenset({{{members}}})"
    if type(value) in (list, tuple):
        members = ", ".join(map(_text, value))
        if type(value) is list:
            return f"[{members}]"
        return f"({members},)" if len(value) == 1 else f"({members})"
    if type(value) is dict:
        items = [f"{key!r}: {_text(item)}" for key, item in value.items()]
        return f"{{{', '.join(items)}}}"
    return repr(value)


def _code_hash(code: types.CodeType) -> str:
    """Of what the function does, not of where it is defined."""
    digest = hashlib.blake2b(digest_size=4)
    _feed(digest, code)
    return digest.hexdigest()


def _feed(digest: "hashlib.blake2b", code: types.CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _feed(digest, constant)
        elif isinstance(constant, frozenset):  # whose order changes from process to process
            members = sorted(map(repr, constant))
            digest.update(repr(members).encode())
        else:
            digest.update(repr(constant).encode())
