"""CIFAR's pickled batches, read without an unpickler: dicts, lists, text, whole numbers and arrays of bytes.

A pickle is a program for a small stack machine, and `pickle` lets it call functions. Here it is only parsed
(`pickletools.genops`), and this module executes the few instructions that such a batch has. Arrays are built last, from
their bytes, once shape and size are checked.
"""

import io
import math
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from ..core.files import plain_file

LARGEST = 1 << 29  # bytes of a file; CIFAR-100's training part has 155 million
_MARK = object()


@dataclass(frozen=True)
class _GlobalReference:
    """A name that a pickle refers to; never looked up."""

    name: str


_ARRAY = _GlobalReference("numpy.ndarray")
_DTYPE = _GlobalReference("numpy.dtype")
_ENCODE = _GlobalReference("_codecs.encode")
_RECONSTRUCT = _GlobalReference("numpy.core.multiarray._reconstruct")
_KNOWN = {
    "numpy ndarray": _ARRAY,
    "numpy dtype": _DTYPE,
    "_codecs encode": _ENCODE,
    "numpy.core.multiarray _reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": _RECONSTRUCT,  # as NumPy 2 writes it
}


class _Bytes:
    """The dtype of bytes, the only one a batch has."""


class _Array:
    """An array of bytes that a pickle builds in two instructions: first empty, then filled."""

    values: NDArray[np.uint8] | None = None


class _NotABatchError(Exception):
    """The pickle does something that CIFAR's batches do not."""


def read_batch(path: Path) -> dict[str, Any]:
    """The dict that a pickled batch holds, with keys as text; anything else is refused."""
    try:
        size = plain_file(path).stat().st_size
        if size > LARGEST:
            raise _NotABatchError(f"it has {size:,} bytes")
        machine = _UnpicklingMachine()
        batch = machine.run(path.read_bytes())
    except (IndexError, KeyError) as error:
        raise _refusal(path, "its instructions do not fit together") from error
    except (_NotABatchError, ValueError) as error:
        raise _refusal(path, str(error)) from error
    if not isinstance(batch, dict):
        raise _refusal(path, "it holds no dict")
    entries = {}
    for key, value in batch.items():
        if isinstance(value, _Array):
            value = value.values
        entries[_text(key)] = value
    return entries


def _refusal(path: Path, why: str) -> InputError:
    return InputError(f"{path}: not a pickled batch of CIFAR ({why}); unpack the official archive again")


class _UnpicklingMachine:
    """Executes the instructions of one pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(content)):
            name = opcode.name
            if name in _VALUES:
                value = _VALUES[name](argument)
                self._stack.append(value)
            elif name in _STEPS:
                _STEPS[name](self, argument)
            elif name not in _IGNORED:
                raise _NotABatchError(f"it has the instruction {name}")
        return self._stack.pop()

    def since_mark(self) -> list[Any]:
        """Pop everything above the last mark."""
        values = []
        while self._stack[-1] is not _MARK:
            values.append(self._stack.pop())
        self._stack.pop()
        values.reverse()
        return values

    def tuple_of(self, length: int) -> None:
        values = [self._stack.pop() for _ in range(length)]
        values.reverse()
        self._stack.append(tuple(values))

    def append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise _NotABatchError("it appends to what is no list")
        target.extend(values)

    def set_items(self, flat: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(flat) % 2:
            raise _NotABatchError("it sets keys of what is no dict")
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            if not isinstance(key, bytes | str):
                raise _NotABatchError("it has a key that is not text")
            target[key] = value

    def two(self) -> list[Any]:
        last = self._stack.pop()
        return [self._stack.pop(), last]

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        return self._stack.pop()

    def remember(self, place: int | None) -> None:
        if place is None:
            place = len(self._memo)
        self._memo[place] = self._stack[-1]

    def recall(self, place: int) -> None:
        self._stack.append(self._memo[place])

    def stack_global(self) -> None:
        module, name = self.two()
        if not isinstance(module, str) or not isinstance(name, str):
            raise _NotABatchError("it names a function by what is no text")
        self._stack.append(_known(f"{module} {name}"))

    def call(self) -> None:
        """The three calls that a batch makes, done here instead of by the functions it names."""
        function, arguments = self.two()
        if function is _RECONSTRUCT and arguments in _EMPTY_ARRAY:
            value: Any = _Array()
        elif function is _DTYPE and isinstance(arguments, tuple) and arguments[:1] in _BYTES:
            value = _Bytes()
        elif function is _ENCODE:
            value = _encoded(arguments)
        else:
            raise _NotABatchError("it makes something else than an array of bytes")
        self._stack.append(value)

    def build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if isinstance(target, _Array):
            target.values = _values(state)
        elif not isinstance(target, _Bytes) or not _is_plain(state):
            raise _NotABatchError("it gives something else than an array its content")


_EMPTY_ARRAY = ((_ARRAY, (0,), b"b"), (_ARRAY, (0,), "b"))  # what `_reconstruct` is called with
_BYTES = ((b"u1",), ("u1",), (b"|u1",), ("|u1",))


def _is_plain(state: Any) -> bool:
    """Whether a dtype's state means plain bytes: no byte order, no fields."""
    if not isinstance(state, tuple):
        return False
    return state[:5] in ((3, b"|", None, None, None), (3, "|", None, None, None))


def _values(state: Any) -> NDArray[np.uint8]:
    """An array's bytes in its shape: (version, shape, dtype, whether columns come first, content)."""
    if not isinstance(state, tuple) or len(state) != 5:
        raise _NotABatchError("it has an array of unknown form")
    _, shape, dtype, columns_first, content = state
    if not isinstance(dtype, _Bytes) or not isinstance(content, bytes):
        raise _NotABatchError("it has an array of something else than bytes")
    if not isinstance(shape, tuple) or not all(map(_is_length, shape)):
        raise _NotABatchError("it has an array of impossible shape")
    if math.prod(shape) != len(content):
        raise _NotABatchError(f"it has an array of shape {shape} with {len(content):,} bytes")
    values = np.frombuffer(content, np.uint8)
    if columns_first is True:
        return values.reshape(shape, order="F")
    return values.reshape(shape)


def _is_length(axis: Any) -> bool:
    return type(axis) is int and axis >= 0


def _encoded(arguments: Any) -> bytes:
    """Bytes as Python 3 writes them for Python 2: a text and "latin1"."""
    is_pair = isinstance(arguments, tuple) and len(arguments) == 2
    if not is_pair or not isinstance(arguments[0], str) or _text(arguments[1]) != "latin1":
        raise _NotABatchError("it asks for a codec")
    return arguments[0].encode("latin1")


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin1")
    return value


def _known(name: str) -> _GlobalReference:
    if name in _KNOWN:
        return _KNOWN[name]
    dotted = ".".join(name.split(" "))
    raise _NotABatchError(f"refused to unpickle {dotted}, which could run code")


def _dict_of(machine: _UnpicklingMachine) -> None:
    flat = machine.since_mark()
    machine.push({})
    machine.set_items(flat)


def _same(value: Any) -> Any:
    return value


def _small(value: int) -> int:
    if abs(value) >= 1 << 31:
        raise _NotABatchError("it has a number of more than 32 bits")
    return value


def _old_text(value: str) -> bytes:
    """Python 2's strings are bytes; `genops` shows them as latin-1."""
    return value.encode("latin1")


def _by_name(names: str, function: Any) -> Iterator[tuple[str, Any]]:
    for name in names.split():
        yield name, function


_IGNORED = {"PROTO", "FRAME", "STOP"}
_VALUES: dict[str, Callable[[Any], Any]] = {
    **dict(_by_name("INT BININT BININT1 BININT2 LONG LONG1 LONG4", _small)),
    **dict(_by_name("BINBYTES SHORT_BINBYTES BINBYTES8", _same)),
    **dict(_by_name("UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8", _same)),
    **dict(_by_name("STRING BINSTRING SHORT_BINSTRING", _old_text)),
    "MARK": lambda _: _MARK,
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "EMPTY_TUPLE": lambda _: (),
    "GLOBAL": _known,
}
_STEPS: dict[str, Callable[[_UnpicklingMachine, Any], None]] = {
    **dict(_by_name("PUT BINPUT LONG_BINPUT MEMOIZE", _UnpicklingMachine.remember)),
    **dict(_by_name("GET BINGET LONG_BINGET", _UnpicklingMachine.recall)),
    "LIST": lambda machine, _: machine.push(machine.since_mark()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "DICT": lambda machine, _: _dict_of(machine),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "APPEND": lambda machine, _: machine.append([machine.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_items(machine.two()),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "STACK_GLOBAL": lambda machine, _: machine.stack_global(),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
}
