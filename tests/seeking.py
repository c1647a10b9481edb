"""Properties that seek bad input: whatever is given, the answer is right or our own message.

`make test` tries 16 cases of each property, always the same. `python tools/seek.py --cases 10000` tries new ones.
"""

import atexit
import contextlib
import functools
import io
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from evenfed.cli import main
from evenfed.core.errors import InputError

USUAL = 16  # cases of a property
CASES = int(os.environ.get("EVENFED_CASES", USUAL))
IS_USUAL = CASES == USUAL
COUNTS = os.environ.get("EVENFED_COUNTS")  # a file that is told how many cases were tried
EXIT_CODES = (0, 1, 2)
_tried: Counter[str] = Counter()
_finds: Counter[str] = Counter()  # kinds of errors, while `tools/seek.py` counts them; else the first one ends a test
_profile = settings(
    max_examples=CASES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=IS_USUAL,
    database=None,
    phases=(Phase.explicit, Phase.generate),  # shrinking takes minutes; seek again with Phase.shrink where it helps
    print_blob=True,
)

numbers = st.one_of(
    st.integers(),
    st.sampled_from([0, 1, 2, 10, -1, 2**31, 2**63 - 1, 2**63, 2**64, 10**30]),
    st.floats(),
    st.sampled_from([0.1, 0.5, 1.0, -0.0, 1e308, 1e-300, float("nan"), float("inf")]),
)
odd_text = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", "\x1b[31mred", "a\nb", "<script>", "javascript:alert(1)", "=1+1", "\x00", "..", "/", "‮"]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, odd_text, st.binary(max_size=3))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(odd_text, inner, max_size=3)),
    max_leaves=6,
)


def seek(*strategies: Any, **named: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A property over these cases."""

    def of(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def counted(*arguments: Any, **options: Any) -> None:
            _tried[function.__name__] += 1
            try:
                function(*arguments, **options)
            except HypothesisException:
                raise
            except Exception as error:
                if not COUNTS:
                    raise
                _note(error)

        return _profile(given(*strategies, **named)(counted))

    return of


def _note(error: Exception) -> None:
    """Keep a find, by its kind and place, and go on."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/evenfed/" in frame.filename] or frames
    place = f"{Path(ours[-1].filename).name}:{ours[-1].name}"
    key = f"{type(error).__name__} in {place}"
    _finds[key] += 1
    if _finds[key] == 1:
        traceback.print_exception(error)


@atexit.register
def _tell() -> None:
    if COUNTS:
        Path(COUNTS).write_text(json.dumps({"cases": _tried.total(), "finds": _finds}))


def is_answered(function: Callable[..., Any], *arguments: Any, **options: Any) -> bool:
    """Whether the arguments are taken, or refused with a message of our own that is not empty; other errors pass on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*arguments, **options)
        except InputError as error:
            return bool(str(error).strip())
    return True


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """An empty one."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def command(cwd: Path, *words: str) -> tuple[int, str]:
    """`evenfed` as typed in `cwd`, in this process: its exit code, and all that it says."""
    said = io.StringIO()
    before = Path.cwd()
    os.chdir(cwd)
    try:
        with (
            mock.patch.object(sys, "argv", ["evenfed", *words]),
            mock.patch.dict(os.environ, {"EVENFED_DATA": str(cwd / "cache"), "COLUMNS": "100"}),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            main()
    except SystemExit as ended:
        code = 0 if ended.code is None else ended.code
        assert isinstance(code, int), code
        return code, said.getvalue()
    finally:
        os.chdir(before)
    raise AssertionError("it did not end")


def is_told(cwd: Path, *words: str) -> bool:
    """Whether a command ends well, or badly with a message, and prints nothing that a terminal would obey."""
    code, said = command(cwd, *words)
    assert code in EXIT_CODES, (code, said)
    assert code == 0 or said.strip()
    assert "Traceback" not in said, said
    hidden = {letter for letter in said if ord(letter) < 32 and letter not in "\n\r\t"}
    assert not hidden, (hidden, said)
    return True


def damage(content: bytes) -> st.SearchStrategy[bytes]:
    """The same content with a few bytes changed, cut, repeated, or put in."""
    place = st.integers(0, max(0, len(content) - 1))
    kinds = st.sampled_from(["flip", "cut", "drop", "repeat", "insert", "large"])
    steps = st.lists(st.tuples(kinds, place, st.integers(1, 64), st.binary(min_size=1, max_size=8)), max_size=4)
    return st.builds(_damaged, st.just(content), steps)


def _damaged(content: bytes, steps: list[tuple[str, int, int, bytes]]) -> bytes:
    for kind, place, length, new in steps:
        before, inside, after = content[:place], content[place : place + length], content[place + length :]
        if kind == "flip":
            content = before + bytes(byte ^ new[0] for byte in inside[:1]) + inside[1:] + after
        elif kind == "cut":
            content = before
        elif kind == "drop":
            content = before + after
        elif kind == "repeat":
            content = before + inside + inside + after
        elif kind == "insert":
            content = before + new + inside + after
        else:
            content = before + b"\xff" * min(8, len(inside)) + content[place + min(8, len(inside)) :]
    return content


@st.composite
def changed(draw: Any, tree: Any, changes: int = 2) -> Any:
    """A JSON tree with a few of its nodes replaced, removed or doubled."""
    tree = json.loads(json.dumps(tree))
    for _ in range(draw(st.integers(1, changes))):
        node = tree
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            below = node[key]
            if isinstance(below, dict | list) and below and draw(st.integers(0, 3)):
                node = below
                continue
            _change(draw, node, key)
            break
    return tree


def _change(draw: Any, node: Any, key: Any) -> None:
    kind = draw(st.sampled_from(["replace", "remove", "double", "near"]))
    value = node[key]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "remove":
        del node[key]
    elif kind == "double" and isinstance(value, list):
        node[key] = value + value
    elif kind == "near" and is_number:
        node[key] = draw(st.sampled_from([-value, value + 1, value * 1000, value / 3, str(value)]))
    else:
        node[key] = draw(in_json)


in_json = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, odd_text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(odd_text, inner, max_size=2)),
    max_leaves=5,
)
