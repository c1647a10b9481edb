"""Folders of very many clients: columns beside the lines, clients beside the header, which is written once."""

import json
import os

import numpy as np
import pytest
import torch

import evenfed
from command import wait_for
from evenfed.comparison.analysis import diagnostics
from evenfed.comparison.storage import client_table
from evenfed.comparison.storage.columns_file import places_in
from evenfed.comparison.storage.folder import RunFolder
from evenfed.comparison.storage.pack import pack
from evenfed.core.errors import DamageError, DamageWarning
from evenfed.core.server import PER_CLIENT
from evenfed.fairness import moved, oscillation

MANY = 6000
OPTIONS = {"lr": 0.1, "participation": 50, "device": "cpu", "progress": False, "smooth": 0.5}


@pytest.fixture(scope="module")
def clients():
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn((2 * MANY, 4), generator=draw)
    examples = (inputs, (inputs.sum(1) > 0).long())
    sizes = np.full(MANY, 2)
    return evenfed.Clients(examples, sizes, test=examples, test_sizes=sizes)


def train(clients, rounds, **options):
    torch.manual_seed(0)
    return evenfed.train(torch.nn.Linear(4, 2), clients, "semi_vred", rounds=rounds, **OPTIONS, **options)


@pytest.fixture(scope="module")
def whole(clients, tmp_path_factory):
    """Four rounds in one go, all clients evaluated."""
    return train(clients, 4, out=tmp_path_factory.mktemp("whole"))


def same(one, two):
    assert len(one.records) == len(two.records)
    for first, second in zip(one.records, two.records, strict=True):
        for field in PER_CLIENT:
            assert np.array_equal(_array(first, field), _array(second, field), equal_nan=True), field
    assert torch.equal(one.server.theta, two.server.theta)


def _array(record, field):
    values = getattr(record, field)
    return np.zeros(0) if values is None else values


def test_a_folder_gives_back_what_memory_holds(clients, whole):
    same(whole, train(clients, 4))
    loaded = evenfed.load(whole.folder.parent.parent)
    same(whole, loaded)
    assert loaded.client_names == whole.client_names and len(loaded.client_names) == MANY
    assert loaded.fairness == whole.fairness and np.array_equal(loaded.shares, whole.shares)


def test_lines_and_header_stay_small(whole):
    lines = (whole.folder / "rounds.jsonl").read_text().splitlines()
    assert max(map(len, lines)) < 10_000
    assert (whole.folder / "header.json").stat().st_size < 10_000
    places = [place for line in lines for place in places_in(json.loads(line))]
    assert len(places) == 2 * len(lines)  # test losses and accuracies of everyone
    first = np.fromfile(whole.folder / "columns.bin", places[0]["type"], places[0]["count"], offset=places[0]["at"])
    assert np.array_equal(first, whole.records[0].accuracy)
    assert not (whole.folder / "reached.json").exists()


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_goes_on_is_the_same_to_the_bit(clients, whole, tmp_path, killed):
    half = train(clients, 2, out=tmp_path)
    if killed:  # after the columns of a third round were written, in the middle of its line
        with (half.folder / "columns.bin").open("ab") as file:
            file.write(b"\1" * 48_001)
        with (half.folder / "rounds.jsonl").open("a") as file:
            file.write('{"index": 2, "losses": {"cli')
    same(whole, train(clients, 4, out=tmp_path))
    for name in ("columns.bin", "clients.npz"):
        assert (half.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_the_header_is_written_once_and_the_clients_too(clients, tmp_path, monkeypatch):
    monkeypatch.setenv("EVENFED_CHECKPOINT_SECONDS", "0")
    seen = []

    def look(progress):
        names = ("header.json", "clients.npz")
        seen.append([os.stat(progress.folder / name).st_ino for name in names])
        if progress.round == 4:
            folder = RunFolder(progress.folder)
            wait_for(lambda: folder.header().seconds > 0)  # another thread writes the checkpoints
            header = folder.header()
            seen.append([header.lines_digest is not None, not header.finished])

    result = train(clients, 5, out=tmp_path, evaluate_participation=20, callbacks=[look])
    standing = seen.pop(4)
    assert standing == [True, True]
    assert all(each == seen[0] for each in seen)
    assert RunFolder(result.folder).header().finished


def test_damaged_columns_are_noticed_and_the_run_is_trained_again(clients, whole, tmp_path):
    result = train(clients, 4, out=tmp_path)
    path = result.folder / "columns.bin"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamageError, match=r"columns\.bin is damaged"):
        evenfed.load(tmp_path)
    with pytest.warns(DamageWarning, match="starts again"), pytest.warns(DamageWarning, match="columns.bin is damaged"):
        again = train(clients, 4, out=tmp_path)
    same(whole, again)


def test_damaged_clients_are_named(clients, tmp_path):
    result = train(clients, 1, out=tmp_path, evaluate_participation=20)
    path = result.folder / client_table.FILE
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DamageError, match=r"clients\.npz cannot be read"):
        evenfed.load(tmp_path)


def test_names_are_kept(clients, tmp_path):
    names = [f"tëst\0 {k}" for k in range(MANY)]
    named = evenfed.Clients(clients.train, clients.sizes.numpy(), names=names)
    result = train(named, 1, out=tmp_path)
    assert evenfed.load(tmp_path).client_names == names
    header = RunFolder(result.folder).header()
    assert header.clients == client_table.many(client_table.inline(header.clients))
    assert header.clients != client_table.many({**client_table.inline(header.clients), "names": names[::-1]})


def test_packed_runs_hold_all_of_it(clients, whole, tmp_path):
    pack(whole.folder.parent.parent, tmp_path)
    loaded = evenfed.load(tmp_path)
    assert np.array_equal(loaded.records[-1].accuracy, whole.records[-1].accuracy)
    assert np.allclose(loaded.records[-1].losses, whole.records[-1].losses, rtol=1e-5, equal_nan=True)
    assert loaded.client_names == whole.client_names


def test_what_rounds_add_up_to_is_the_same_without_writing_them_out(clients):
    result = train(clients, 24, evaluate_participation=20)
    records = []
    for record in result.records:  # of clients that come often enough to have a correlation
        assert len(record.kept("losses").ids) == 50
        crowded = record.kept("losses").ids % 80
        ids, first = np.unique(crowded, return_index=True)
        losses = diagnostics.SparseNumbers(MANY, ids, record.kept("losses").values[first], np.nan)
        weights = diagnostics.SparseNumbers(MANY, ids, record.weights[record.kept("losses").ids][first], 0.0)
        records.append(record.but(losses=losses, weights=weights))
    losses = np.array([record.losses for record in records])
    weights = np.array([record.weights for record in records])
    assert diagnostics.swing(records, result.shares) == pytest.approx(oscillation(losses, result.shares))
    assert diagnostics.moved_weight(records, result.shares) == pytest.approx(moved(weights, losses, result.shares))
    history = result.history
    figures = np.array([record.accuracy for record in history.late])
    assert np.allclose(history.late_figures, figures.mean(0), equal_nan=True)
    assert history.late_fairness.mean == pytest.approx(np.nanmean(figures))


def test_a_data_frame_has_those_who_took_part_or_were_evaluated(clients):
    result = train(clients, 2, evaluate_participation=20)
    frame = result.to_pandas()
    record = result.records[1]
    known = np.flatnonzero(~np.isnan(record.losses) | ~np.isnan(record.accuracy))
    second = frame[frame["round"] == 2]
    assert second["client"].tolist() == [str(k) for k in known]
    assert np.array_equal(second["loss"], record.losses[known], equal_nan=True)


@pytest.mark.slow
def test_reports_and_pages_of_many_clients(clients, tmp_path):
    comparison = evenfed.compare(
        torch.nn.Linear(4, 2),
        clients,
        ["vred"],
        seeds=2,
        rounds=2,
        evaluate_participation=0.02,
        out=tmp_path,
        **OPTIONS,
    )
    page = comparison.page(tmp_path / "page.html")
    assert page.stat().st_size < 3_000_000
    assert "6000 clients" in str(evenfed.load(tmp_path))
    assert comparison.report(show=False)
