"""Questions and answers, each user a client: a Stack Exchange dump, and StackOverflow from TensorFlow Federated."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from . import hdf5
from .archive import DAMAGES, BoundedReader
from .dataset import Dataset
from .text import NextWordRows, sentences

_USED_TYPES = ("1", "2")  # PostTypeId of questions and answers; others are wiki pages and moderators' notes
_THE_SITE = "-1"  # OwnerUserId of what nobody in particular owns
_HDF5 = b"\x89HDF\r\n\x1a\n"  # how a file begins


def read_stackexchange(source: Path) -> Dataset:
    """Posts.xml of the public Stack Exchange dump (or .xml.xz, or its folder): each user a client, next word."""
    remedy = "unpack the dump's archive with `7z x` and give its Posts.xml"
    path = _find(source, "Posts.xml", (".xml", ".xml.xz"), remedy)
    rows = NextWordRows()
    posts: Counter[str] = Counter()
    for post in _posts(path):
        owner = post.get("OwnerUserId")
        if post.get("PostTypeId") not in _USED_TYPES:
            posts["other"] += 1
        elif owner is None or owner == _THE_SITE:
            posts["ownerless"] += 1
        else:
            posts["used"] += 1
            for words in sentences(_prose(post.get("Body", ""))):
                rows.add(owner, words)
    if not rows:
        raise InputError(
            f"{path}: none of its {posts.total():,} rows is a question or answer with text and an owner; "
            "expected is Posts.xml of a Stack Exchange dump; check that it is not another of its files"
        )
    notes = [
        f"{posts['used']:,} questions and answers are used, without their titles and blocks of code",
        f"{posts['ownerless']:,} have no owner (users who left, the site itself) and are skipped",
        f"{posts['other']:,} rows are neither (wiki pages and the like) and are skipped",
    ]
    return rows.dataset("stackexchange", notes)


def _posts(path: Path) -> Iterator[dict[str, str]]:
    """The attributes of each row, one row at a time: a dump may be larger than memory."""
    with BoundedReader(path) as stream:
        try:
            parsed = ET.iterparse(stream, events=("start", "end"))
            _, root = next(parsed)
            for event, element in parsed:
                if event == "end" and element.tag == "row":
                    yield element.attrib
                    root.clear()  # else every row stays in memory as a child of the root
        except (ET.ParseError, *DAMAGES) as error:
            raise InputError(
                f"{path} cannot be read to its end ({error}); expected is the XML of a Stack Exchange dump, "
                "as it is or compressed by xz; get the file again"
            ) from error


class _Prose(HTMLParser):
    """Collects the text of a post; blocks of code are left out, since their next word is a matter of syntax."""

    BLOCKS = frozenset(["p", "li", "br", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "pre", "hr", "div"])

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._code_blocks = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "pre":
            self._code_blocks += 1
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre" and self._code_blocks:
            self._code_blocks -= 1
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._code_blocks:
            self.parts.append(re.sub(r"\s+", " ", data))  # in HTML a line break is a space


def _prose(html: str) -> str:
    parser = _Prose()
    parser.feed(html)
    parser.close()
    return "".join(parser.parts)


def read_stackoverflow(
    source: Path, *, min_examples: int = 10_000, max_examples: int = 12_500, first_users: int = 10_000
) -> Dataset:
    """StackOverflow in TensorFlow Federated's HDF5 layout, /examples/USER/tokens: each user a client, next word.

    Of the first users, by name, those with more than `min_examples` and fewer than `max_examples` sentences are used.
    The defaults are the authors' and give 20 users of the official train file.
    """
    hdf5.check_installed()
    path = _find(source, "stackoverflow_train.h5", (".h5", ".hdf5"), "unpack TensorFlow Federated's archive of it")
    with path.open("rb") as file:
        start = file.read(len(_HDF5))
    if start != _HDF5:
        raise InputError(f"{path} is not an HDF5 file; expected is stackoverflow_train.h5; get the file again")
    rows = NextWordRows()
    counts = hdf5.Counts(0, 0)
    for piece in hdf5.read(path, hdf5.Choice(min_examples, max_examples, first_users)):
        if isinstance(piece, hdf5.Counts):
            counts = piece
            continue
        user, sentences_said = piece
        for sentence in sentences_said:
            words = sentence.split()
            if words:
                rows.add(user, words)
    if not rows:
        raise InputError(
            f"{path}: of the first {counts.users:,} users none has more than {min_examples:,} and fewer than "
            f"{max_examples:,} sentences (the most is {counts.largest:,}); "
            "change min_examples, max_examples or first_users"
        )
    notes = [
        f"users with more than {min_examples:,} and fewer than {max_examples:,} sentences, "
        f"of the first {counts.users:,} in the file",
        "each sentence is there once, so train and test share none by the split; "
        "the authors' code drew with replacement, so that theirs overlap",
    ]
    return rows.dataset("stackoverflow", notes)


def _find(source: Path, usual_name: str, endings: tuple[str, ...], remedy: str) -> Path:
    """The file itself, or the only fitting one in a folder; the usual name is preferred."""
    if source.is_dir():
        fitting = []
        usual = []
        for path in sorted(source.rglob("*")):
            if not path.is_file() or not path.name.endswith(endings):
                continue
            fitting.append(path)
            if path.name.removesuffix(".xz").endswith(usual_name):
                usual.append(path)
        candidates = usual or fitting
        if len(candidates) == 1:
            return candidates[0]
        what = f"a folder with {len(candidates)} fitting files"
    elif not source.is_file():
        what = "not there"
    elif source.name.endswith(endings):
        return source
    else:
        what = f"a file that ends in '{source.suffix}'"
    allowed = " or ".join(endings)
    raise InputError(f"{source} is {what}; expected is {usual_name} (ending: {allowed}); {remedy}")
