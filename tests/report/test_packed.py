"""Results that are kept: packed, unpacked, and taken into another comparison."""

import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest

import evenfed as package
from evenfed.comparison.storage.pack import pack
from evenfed.comparison.storage.reading import read
from reports import figures_in, numbers


def test_a_packed_comparison_gives_the_tables_of_its_folder(small, evenfed, tmp_path):
    done = evenfed("pack", small, tmp_path / "kept")
    assert done.returncode == 0 and "runs.tar.xz" in done.stdout
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["runs.tar.xz"]
    ours, theirs = (
        figures_in(evenfed("report", "--no-figures", f, "--format", "csv").stdout) for f in (tmp_path / "kept", small)
    )
    assert list(ours) == list(theirs)
    for key in ours:
        assert ours[key]["verdict"] == theirs[key]["verdict"]
        assert numbers(ours[key]) == pytest.approx(numbers(theirs[key]), rel=1e-4, abs=1e-4), key


def test_packing_twice_gives_the_same_bytes_with_headers_entire_and_no_models(small, tmp_path):
    (one, unfinished), (two, _) = (
        pack(small, tmp_path / "one"),
        pack(shutil.copytree(small, tmp_path / "copy"), tmp_path / "two"),
    )
    assert not unfinished
    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as tar:
        names = tar.getnames()
        assert {Path(n).name for n in names} == {"header.json", "rounds.jsonl"} and len(names) == 2 * 8
        kept = json.loads(tar.extractfile("vred/seed-0/header.json").read())
        line = json.loads(tar.extractfile("vred/seed-0/rounds.jsonl").readline())
    header = json.loads((small / "vred" / "seed-0" / "header.json").read_text())
    assert {**kept, "lines_digest": ""} == {**header, "lines_digest": ""} and kept != header  # its lines are rounded
    with (small / "vred" / "seed-0" / "rounds.jsonl").open() as lines:
        exact = json.loads(lines.readline())
    assert line["accuracy"] == exact["accuracy"]  # shares: a rounded one would count as a change
    assert line["losses"] == [float(f"{v:.6g}") for v in exact["losses"]] != exact["losses"]


def test_another_comparisons_packed_file_is_not_replaced(small, edited, evenfed, tmp_path):
    assert evenfed("pack", small, tmp_path / "kept").returncode == 0
    assert evenfed("pack", small, tmp_path / "kept").returncode == 0  # the same again
    before = (tmp_path / "kept" / "runs.tar.xz").read_bytes()
    other = edited(lambda label, seed, header, rounds: header["config"]["data"].update(seed=7))
    done = evenfed("pack", other, tmp_path / "kept")
    assert done.returncode == 2 and "holds another comparison (data.seed: 0 there, 7 here)" in done.stderr
    assert (tmp_path / "kept" / "runs.tar.xz").read_bytes() == before
    fewer = tmp_path / "fewer"
    shutil.copytree(small, fewer)
    shutil.rmtree(fewer / "vred" / "seed-1")
    done = evenfed("pack", fewer, tmp_path / "kept")
    assert done.returncode == 2 and "has not finished (vred/seed-1)" in done.stderr
    assert (tmp_path / "kept" / "runs.tar.xz").read_bytes() == before
    again = evenfed("pack", tmp_path / "kept", tmp_path / "x")
    assert again.returncode == 2 and "is packed already" in again.stderr


def test_unfinished_runs_are_not_packed_and_damage_is_told(edited, evenfed, tmp_path):
    folder = edited(lambda label, seed, header, rounds: header.update(finished=label != "vred"))
    told = evenfed("pack", folder, tmp_path / "kept").stdout
    assert told.count("is not finished") == 2 and "vred/seed-1" in told
    assert [e.label for e in read(tmp_path / "kept").entries] == ["fedavg", "semi_vred"]
    (tmp_path / "kept" / "runs.tar.xz").write_bytes(b"not an archive")
    for arguments, told in (
        (["report", tmp_path / "kept"], "cannot be unpacked"),
        (["pack", folder / "vred", tmp_path / "x"], "no finished run"),
    ):
        done = evenfed(*arguments)
        assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


def test_a_comparison_is_found_in_the_folder_it_was_written_to(small, evenfed, tmp_path):
    """`compare --out DIR` writes to DIR/NAME."""
    out = tmp_path / "out"
    shutil.copytree(small, out / "demo")
    done = evenfed("report", "--no-figures", out)
    assert done.returncode == 0 and f"{out} holds one comparison: {out / 'demo'}" in done.stderr
    assert (out / "demo" / "report" / "tables.csv").exists() and not (out / "report").exists()
    assert evenfed("pack", out, tmp_path / "kept").returncode == 0
    assert (tmp_path / "kept" / "runs.tar.xz").exists()
    assert set(package.load(out)) == {"fedavg", "vred", "semi_vred"}
    shutil.copytree(out / "demo", out / "other")
    several = f"holds 2 comparisons: {out / 'demo'}, {out / 'other'}; give one of them"
    with pytest.raises(package.InputError, match=re.escape(several)):
        package.load(out)
    for command in (["report", out], ["pack", out, tmp_path / "x"], ["choose", out, "--out", tmp_path / "x.toml"]):
        assert several in evenfed(*command).stderr


def test_runs_of_the_same_configuration_are_taken_from_another_comparison(small, evenfed, tmp_path):
    """FedAvg, its other seeds and VRed come from a packed one, VRed under another label; another beta is run."""
    pack(small, tmp_path / "kept")
    same, other = "vred[beta=0.2]", "vred[beta=1.0]"
    asked = f"compare --algorithms fedavg,{same},{other} --rounds 4 --seeds 1,2 --set data.clients=6 --reuse kept"
    asked += " --set noise_floor=seeds"
    done = evenfed(*asked.split(), "--set", "train.last_rounds=2", "--out", "runs", "--format", "json")
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stderr.split())
    assert f"taken from kept: fedavg seed 1, {same} seed 1, fedavg-other-seeds seed 1001" in told
    header = json.loads((tmp_path / "runs" / "demo" / same / "seed-1" / "header.json").read_text())
    was = json.loads((small / "vred" / "seed-1" / "header.json").read_text())
    assert (header["label"], header["taken_from"]) == (same, "kept")
    assert (header["started"], header["command"]) == (was["started"], was["command"])
    found, before = read(tmp_path / "runs" / "demo"), read(small)
    assert found.named(same).runs[1].last_figures.tolist() == before.named("vred").runs[1].last_figures.tolist()
    assert found.named(other).runs[1].last_figures.tolist() != found.named(same).runs[1].last_figures.tolist()
    refused = evenfed("compare", "--reuse", "nowhere")
    assert refused.returncode == 2 and "there is no folder nowhere" in refused.stderr
