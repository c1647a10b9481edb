"""One comparison on several splits of the data."""

import json

import pytest

from command import rounds_of

EXPERIMENT = """
seeds = 1
noise_floor = false
federations = {federations}
[data]
name = "digits"
clients = 6
concentration = 1.0
[model]
name = "mlp"
hidden = []
[train]
rounds = 2
lr = 0.1
batch_size = 16
[algorithms.fedavg]
[algorithms.semi_vred]
grid = {{ average = ["none", 0.8] }}
"""


def test_each_federation_has_a_folder_and_the_report_is_on_all(tmp_path, evenfed):
    file = tmp_path / "splits.toml"
    file.write_text(EXPERIMENT.format(federations=[3, 11, 4]))
    done = evenfed("compare", file, "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert "3 federations" in done.stdout
    folder = tmp_path / "runs" / "splits"
    assert (folder / "report" / "report.md").exists()

    alone = evenfed("compare", file, "--set", "federations=[]", "--set", "data.seed=11", "--out", tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    run = "semi_vred[average=0.8]/seed-0"
    rounds = rounds_of(folder / "federation-11" / run)
    assert rounds == rounds_of(tmp_path / "alone" / "splits" / run)
    assert rounds != rounds_of(folder / "federation-3" / run)

    described = json.loads(evenfed("compare", file, "--out", tmp_path / "runs", "--format", "json").stdout)
    by_itself = described["federations"]
    late = [[row["late"]["mean"]["mean"] for row in each["rows"]] for each in (described, *by_itself)]
    assert late[0] == pytest.approx([sum(means) / 3 for means in zip(*late[1:], strict=True)]) and max(late[0]) < 1
    assert by_itself[1].keys() == {"folder", *described} - {"federations"}

    (folder / "federation-12").mkdir()  # as an interrupted comparison leaves it
    packed = evenfed("pack", folder, tmp_path / "packed")
    assert packed.returncode == 0, packed.stderr
    assert f"left out: {folder / 'federation-12'}" in packed.stderr
    reported = evenfed("report", tmp_path / "packed", "--format", "json")
    comparisons = json.loads(reported.stdout)["comparisons"]
    assert [comparison["data"]["seed"] for comparison in comparisons] == [3, 4, 11]

    taken = evenfed("compare", file, "--out", tmp_path / "again", "--reuse", tmp_path / "packed")
    assert taken.returncode == 0, taken.stderr
    again = rounds_of(tmp_path / "again" / "splits" / "federation-11" / run)
    assert [line["current"] for line in again] == [line["current"] for line in rounds]


@pytest.mark.parametrize(
    ("federations", "words"),
    [("[1, 1]", "give a list of different values of data.seed"), ("2", "federations = 2: give a list")],
)
def test_bad_federations_are_refused(tmp_path, evenfed, federations, words):
    file = tmp_path / "splits.toml"
    file.write_text(EXPERIMENT.format(federations=federations))
    done = evenfed("compare", file, "--out", tmp_path / "runs")
    assert done.returncode != 0
    assert words in done.stderr


def test_federations_and_a_split_are_one_too_many(tmp_path, evenfed):
    file = tmp_path / "splits.toml"
    file.write_text(EXPERIMENT.format(federations=[1]).replace("clients = 6", "clients = 6\nseed = 2"))
    done = evenfed("compare", file, "--out", tmp_path / "runs")
    assert "federations and data.seed: give one of them" in done.stderr
