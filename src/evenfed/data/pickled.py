"""CIFAR's pickled batches, read without an unpickler: dicts, lists, text, whole numbers and arrays of bytes.

A pickle is a program for a small stack machine, and `pickle` lets it call functions. Here it is only parsed
(`pickletools.genops`), and this module executes the few instructions that such a batch has. Arrays are built last, from
their bytes, once shape and size are checked.
"""

import io
import math
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from ..core.files import plain_file

LARGEST = 1 << 29  # bytes of a file; CIFAR-100's training part has 155 million
_MARK = object()
# names that a pickle refers to; they are never looked up
_ARRAY = object()
_DTYPE = object()
_ENCODE = object()
_RECONSTRUCT = object()
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
        batch = _executed(path.read_bytes())
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


def _executed(content: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[Any, Any] = {}  # by number
    for opcode, argument, _ in pickletools.genops(io.BytesIO(content)):
        name = opcode.name
        if name in _VALUES:
            stack.append(_VALUES[name](argument))
        elif name in _MAKERS:
            operands = _popped(stack, opcode)
            stack.append(_MAKERS[name](*operands))
        elif name in _PUTS:
            place = len(memo) if argument is None else argument
            memo[place] = stack[-1]
        elif name in _GETS:
            stack.append(memo[argument])
        elif name not in _IGNORED:
            raise _NotABatchError(f"it has the instruction {name}")
    return stack.pop()


def _popped(stack: list[Any], opcode: pickletools.OpcodeInfo) -> list[Any]:
    """What an instruction takes off the stack: a number of values, or also all above the last mark."""
    operands = []
    single = len(opcode.stack_before)
    if pickletools.markobject in opcode.stack_before:
        single -= 2  # the mark and what is above it
        while stack[-1] is not _MARK:
            operands.append(stack.pop())
        stack.pop()
    for _ in range(single):
        operands.append(stack.pop())
    operands.reverse()
    return operands


def _extended(target: Any, *values: Any) -> list[Any]:
    if not isinstance(target, list):
        raise _NotABatchError("it appends to what is no list")
    target.extend(values)
    return target


def _with_items(target: Any, *flat: Any) -> dict[Any, Any]:
    """A dict with further keys and values, which alternate in `flat`."""
    if not isinstance(target, dict) or len(flat) % 2:
        raise _NotABatchError("it sets keys of what is no dict")
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        if not isinstance(key, bytes | str):
            raise _NotABatchError("it has a key that is not text")
        target[key] = value
    return target


def _named(module: Any, name: Any) -> object:
    if not isinstance(module, str) or not isinstance(name, str):
        raise _NotABatchError("it names a function by what is no text")
    return _known(f"{module} {name}")


def _called(function: Any, arguments: Any) -> Any:
    """The three calls that a batch makes, done here instead of by the functions it names."""
    if function is _RECONSTRUCT and arguments in _EMPTY_ARRAY:
        return _Array()
    if function is _DTYPE and isinstance(arguments, tuple) and arguments[:1] in _BYTES:
        return _Bytes()
    if function is _ENCODE:
        return _encoded(arguments)
    raise _NotABatchError("it makes something else than an array of bytes")


def _built(target: Any, state: Any) -> Any:
    if isinstance(target, _Array):
        target.values = _values(state)
    elif not isinstance(target, _Bytes) or not _is_plain(state):
        raise _NotABatchError("it gives something else than an array its content")
    return target


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
    is_shape = isinstance(shape, tuple) and all(type(axis) is int and axis >= 0 for axis in shape)
    if not is_shape:
        raise _NotABatchError("it has an array of impossible shape")
    if math.prod(shape) != len(content):
        raise _NotABatchError(f"it has an array of shape {shape} with {len(content):,} bytes")
    values = np.frombuffer(content, np.uint8)
    if columns_first is True:
        return values.reshape(shape, order="F")
    return values.reshape(shape)


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


def _known(name: str) -> object:
    if name in _KNOWN:
        return _KNOWN[name]
    dotted = ".".join(name.split(" "))
    raise _NotABatchError(f"refused to unpickle {dotted}, which could run code")


def _small(value: int) -> int:
    if abs(value) >= 1 << 31:
        raise _NotABatchError("it has a number of more than 32 bits")
    return value


def _bytes(value: str) -> bytes:
    return value.encode("latin1")  # Python 2's strings are bytes, which `genops` shows as latin-1


_IGNORED = {"PROTO", "FRAME", "STOP"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_VALUES: dict[str, Callable[[Any], Any]] = {  # of an instruction's argument
    **dict.fromkeys(["INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"], _small),
    **dict.fromkeys(["BINBYTES", "SHORT_BINBYTES", "BINBYTES8"], lambda value: value),
    **dict.fromkeys(["UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"], lambda value: value),
    **dict.fromkeys(["STRING", "BINSTRING", "SHORT_BINSTRING"], _bytes),
    "MARK": lambda _: _MARK,
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "EMPTY_TUPLE": lambda _: (),
    "GLOBAL": _known,
}
_MAKERS: dict[str, Callable[..., Any]] = {  # of what an instruction takes off the stack
    **dict.fromkeys(["TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"], lambda *values: values),
    "LIST": lambda *values: list(values),
    "DICT": lambda *flat: _with_items({}, *flat),
    "APPEND": _extended,
    "APPENDS": _extended,
    "SETITEM": _with_items,
    "SETITEMS": _with_items,
    "STACK_GLOBAL": _named,
    "REDUCE": _called,
    "BUILD": _built,
}
