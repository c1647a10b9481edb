"""Folders in progress: what is read, how often, and what it adds up to."""

import numpy as np
import pytest

from evenfed.comparison.storage.live_reader import LiveFolder, LiveRun
from evenfed.comparison.storage.pack import pack
from evenfed.comparison.storage.reading import read
from evenfed.core.files import replace_text
from growing import Growing


@pytest.fixture
def growing(small, tmp_path):
    return Growing(small, tmp_path / "mine")


@pytest.fixture
def following(growing):
    return LiveFolder(growing.folder)


def rounds_in(findings) -> dict[str, tuple[int, ...]]:
    return {entry.label: tuple(len(run.records) for run in entry.histories) for entry in findings.everyone}


def is_fedavg(label, seed):
    return label == "fedavg"


def test_nothing_was_written_yet(following):
    assert not following.look()
    assert following.comparable() is None and following.so_far() is None
    assert not following.progress.has_begun and not following.progress.is_complete


def test_runs_are_compared_at_the_last_round_that_all_have_reached(growing, following):
    growing.write(3)
    growing.write(4, lambda label, seed: label != "fedavg" and seed == 0)
    assert following.look()
    assert {*rounds_in(following.comparable()).values()} == {(3, 3)}
    assert sorted(rounds_in(following.so_far())["vred"]) == [3, 4]
    sentence = following.progress.sentence()
    assert sentence.startswith("2 of 8 runs have finished, the others are at round 3 of 4, last written at")


def test_complete_runs_are_not_compared_with_runs_that_lag(growing, following):
    growing.finish(is_fedavg)
    following.look()
    assert rounds_in(following.comparable()) == {"fedavg": (4, 4)}
    growing.write(1, lambda label, seed: label == "vred")
    following.look()
    assert rounds_in(following.comparable()) == {"fedavg": (1, 1), "vred": (1, 1)}
    assert rounds_in(following.so_far()) == {"fedavg": (4, 4), "vred": (1, 1)}
    growing.finish(lambda label, seed: label == "vred" and seed == 0)
    growing.write(2, lambda label, seed: label == "semi_vred")
    following.look()
    assert rounds_in(following.comparable()) == {"fedavg": (4, 4), "vred": (4,)}
    assert rounds_in(following.so_far()) == {"fedavg": (4, 4), "vred": (4, 1), "semi_vred": (2, 2)}


def test_figures_are_those_of_the_report_in_the_end(small, growing, following):
    for rounds in (1, 2, 3):
        growing.write(rounds)
        following.look()
    growing.finish()
    assert following.look()
    assert following.progress.is_complete and following.progress.sentence() == "All 8 runs have finished."
    in_the_end = following.comparable().describe()
    assert in_the_end == read(small).describe() == following.so_far().describe()


def test_a_single_algorithm_is_its_own_baseline(growing, following):
    growing.write(2, lambda label, seed: label == "vred")
    following.look()
    assert following.comparable().baseline.label == "vred"


def test_without_its_baseline_nothing_is_compared_yet(growing, following):
    growing.write(2, lambda label, seed: label != "fedavg")
    following.look()
    assert following.comparable() is None
    growing.write(1, is_fedavg)
    following.look()
    assert rounds_in(following.comparable())["vred"] == (1, 1)


def test_only_new_lines_are_read(growing, monkeypatch):
    growing.write(2)
    source, target = growing.runs["fedavg", 0]
    run = LiveRun(target)
    read_lines = []
    records = type(target.lines).records

    def counted(lines, texts, first=0):
        read_lines.append(len(texts))
        return records(lines, texts, first)

    monkeypatch.setattr(type(target.lines), "records", counted)
    assert run.look() and not run.look()
    growing.write(3)
    assert run.look() and not run.look()
    growing.finish()
    assert run.look()
    assert read_lines == [2, 1, 1]
    for own, other in zip(run.so_far.history.records, source.history().records, strict=True):
        np.testing.assert_array_equal(own.accuracy, other.accuracy)


def test_an_unfinished_line_is_left_for_later(growing):
    growing.write(1)
    _, target = growing.runs["fedavg", 0]
    run = LiveRun(target)
    source, _ = growing.runs["fedavg", 0]
    second = source.lines.texts()[1]
    with target.rounds_path.open("a") as file:
        file.write(second[:20])
    run.look()
    assert run.so_far.rounds == 1
    with target.rounds_path.open("a") as file:
        file.write(second[20:])
    assert run.look() and run.so_far.rounds == 2


def test_a_run_that_starts_again_is_read_again(growing):
    growing.write(3)
    _, target = growing.runs["fedavg", 0]
    run = LiveRun(target)
    run.look()
    replace_text(target.rounds_path, "".join(target.lines.texts()[:1]))
    assert run.look() and run.so_far.rounds == 1


def test_a_damaged_run_is_named_and_the_others_go_on(growing, following):
    growing.finish()
    _, target = growing.runs["vred", 0]
    target.rounds_path.write_text(target.rounds_path.read_text().replace("0", "1", 5))
    following.look()
    (damage,) = following.progress.damaged
    assert "vred" in damage and "damaged" in damage
    assert len(rounds_in(following.comparable())["vred"]) == 1


def test_a_packed_comparison(small, tmp_path):
    pack(small, tmp_path)
    following = LiveFolder(tmp_path)
    assert following.look() and not following.look()
    assert following.comparable().describe() == read(tmp_path).describe()
