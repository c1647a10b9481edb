"""The store: whole or not at all, mapped and not copied, chunk by chunk, and clear about what is missing."""

import json

import numpy as np
import pytest

from evenfed.core.errors import InputError
from evenfed.data import catalogue, fetch, store


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVENFED_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(name="mine", **changes):
    arrays = {"inputs": np.arange(12, dtype=np.uint8).reshape(4, 1, 1, 3), "targets": np.array([0, 1, 0, 2])}
    store.write(store.folder(name), **{"name": name, "classes": 3, **arrays, **changes})


def test_what_is_written_is_read_back_mapped_and_read_only():
    write(owners=[0, 0, 1, 1], owner_names=("ann", "bea"), padding=2, notes=("two rows left out",))
    found = store.read("mine")
    assert isinstance(found.inputs, np.memmap) and not found.inputs.flags.writeable
    np.testing.assert_array_equal(found.inputs.ravel(), np.arange(12))
    assert found.targets.dtype == np.int64 and found.targets.tolist() == [0, 1, 0, 2]
    assert found.owners is not None and found.owners.tolist() == [0, 0, 1, 1]
    assert (found.owner_names, found.padding, found.notes) == (("ann", "bea"), 2, ("two rows left out",))
    assert (found.classes, found.name, store.names()) == (3, "mine", ["mine"])


def test_chunks_make_the_same_file_as_one_array(cache):
    whole = np.random.default_rng(0).integers(0, 1000, (1234, 7))
    store.write(cache / "whole", name="whole", inputs=whole, targets=whole, classes=1000)
    pieces = (iter(np.array_split(whole, 5)) for _ in range(2))
    store.write(cache / "pieces", name="pieces", inputs=next(pieces), targets=next(pieces), classes=1000)
    assert (cache / "whole/inputs.npy").read_bytes() == (cache / "pieces/inputs.npy").read_bytes()
    np.testing.assert_array_equal(np.load(cache / "pieces/targets.npy"), whole)


def test_an_iterator_may_fill_the_other_lists_as_it_goes():
    targets, notes = [], []

    def chunks():
        for label in (1, 0, 2):
            targets.extend([label] * 2)
            yield np.full((2, 5), label, np.float32)
        notes.append("done")

    write(inputs=chunks(), targets=targets, notes=notes)
    found = store.read("mine")
    assert found.targets.tolist() == [1, 1, 0, 0, 2, 2] and found.notes == ("done",)
    assert found.inputs.dtype == np.float32


def test_a_writer_that_fails_leaves_what_was_there(cache):
    write()

    def breaks():
        yield np.zeros((2, 3), np.uint8)
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="fire"):
        write(inputs=breaks())
    assert store.read("mine").inputs.shape == (4, 1, 1, 3)
    assert [p.name for p in cache.iterdir()] == ["mine"]


def test_writing_again_replaces():
    write()
    write(targets=[2, 2, 2, 2])
    assert store.read("mine").targets.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("changes", [{"targets": [0, 1]}, {"inputs": iter([])}, {"owners": [0]}])
def test_rows_that_do_not_match_are_refused(changes):
    with pytest.raises(InputError, match=r"mine: found .*check that the path"):
        write(**changes)
    assert store.names() == []


def test_rows_of_two_shapes_are_refused():
    with pytest.raises(InputError, match="one shape"):
        write(inputs=iter([np.zeros((2, 3)), np.zeros((2, 4))]))


@pytest.mark.parametrize("name", [n for n, s in catalogue.SOURCES.items() if not s.bundled])
def test_a_missing_data_set_says_what_to_get_and_what_to_type(name):
    with pytest.raises(InputError, match=f"evenfed data add {name} ") as told:
        store.read(name)
    for file in catalogue.SOURCES[name].files:
        assert file.name in str(told.value) and file.url.rpartition("/")[0] in str(told.value)
        assert f"evenfed data fetch {name}" in str(told.value)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        store.read("cifar-10")


def test_digits_need_nothing():
    assert store.read("digits").inputs.shape == (1797, 1, 8, 8)


def test_damage_is_found_and_named(cache):
    write()
    assert store.damage("mine") == []
    content = bytearray((cache / "mine/inputs.npy").read_bytes())
    content[-1] ^= 1
    (cache / "mine/inputs.npy").write_bytes(content)
    (cache / "mine/targets.npy").unlink()
    changed, missing = store.damage("mine")
    assert "inputs.npy is not what was written" in changed and "targets.npy is missing" in missing


def test_a_file_cut_short_is_an_error_with_a_remedy(cache):
    write()
    content = (cache / "mine/inputs.npy").read_bytes()
    (cache / "mine/inputs.npy").write_bytes(content[:-4])
    with pytest.raises(InputError, match=r"damaged .*add the data set again"):
        store.read("mine")


def test_another_format_is_not_guessed_at(cache):
    write()
    meta = json.loads((cache / "mine/meta.json").read_text())
    (cache / "mine/meta.json").write_text(json.dumps({**meta, "format": 99}))
    with pytest.raises(InputError, match="format 99, this version reads 1"):
        store.read("mine")


def test_every_source_has_a_converter_or_is_bundled():
    converted = {name for name, source in catalogue.SOURCES.items() if not source.bundled}
    assert set(fetch.CONVERTERS) == converted and all(map(callable, fetch.CONVERTERS.values()))
    assert set(catalogue.SOURCES) - converted == {"digits"}
