"""Options, experiments, entries and shown text."""

import dataclasses

from hypothesis import strategies as st

from evenfed.comparison.experiment import Experiment
from evenfed.comparison.variants import Variant, parse_list
from evenfed.core.printable import in_markdown, in_sheet, name_in_markdown, printable
from evenfed.data import DataSettings
from evenfed.report.write import latex_escape
from evenfed.settings import Settings
from seeking import damage, folder, is_answered, seek, values


def options_of(kind):
    names = [field.name for field in dataclasses.fields(kind)]
    return st.dictionaries(st.sampled_from(names), values, min_size=1, max_size=3)


@seek(options_of(Settings))
def test_settings(options):
    assert is_answered(Settings.of, options)


@seek(options_of(DataSettings))
def test_data_settings(options):
    assert is_answered(DataSettings, **options)


TABLES = ("name", "data", "model", "train", "algorithms", "quick", "tune", "seeds", "noise_floor", "federations")


@seek(st.dictionaries(st.one_of(st.sampled_from(TABLES), st.text(max_size=4)), values, max_size=4))
def test_experiments(table):
    assert is_answered(Experiment.of, {"algorithms": {"fedavg": {}}, **table}, "mine")


@seek(options_of(DataSettings), options_of(Settings), st.dictionaries(st.sampled_from(["name", "hidden"]), values))
def test_tables_of_an_experiment(data, train, model):
    table = {"algorithms": {"fedavg": {}}, "data": {"name": "digits", **data}, "train": train, "model": model}
    assert is_answered(Experiment.of, table, "mine")


TOML = b"""
name = "mine"
seeds = [0, 1]
[algorithms.fedavg]
[algorithms.semi_vred]
beta = [0.5, 1.0]
[data]
name = "digits"
clients = 5
[model]
name = "mlp"
hidden = [8]
[train]
rounds = 3
lr_schedule = { name = "cosine" }
[quick]
train.rounds = 1
[tune]
trials = 2
"""


@seek(st.one_of(damage(TOML), st.binary(max_size=40), st.text(max_size=40).map(str.encode)))
def test_toml_files(content):
    with folder() as place:
        (place / "mine.toml").write_bytes(content)
        assert is_answered(Experiment.read, place / "mine.toml")


@seek(st.text(alphabet="fedavgqv[]=,.0123 -_\x1b", max_size=20), values)
def test_entries(text, value):
    assert is_answered(parse_list, text)
    assert is_answered(Variant.of_entry, value)
    assert is_answered(Variant.of_entry, {"algorithm": "semi_vred", "beta": value})


@seek(st.text())
def test_shown_text_holds_nothing_hidden(text):
    for shown in (printable(text), in_sheet(text), in_markdown(text), name_in_markdown(text)):
        assert not any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in shown)
        shown.encode()
    assert not in_sheet(text).startswith(("=", "+", "-", "@"))
    assert printable(printable(text)) == printable(text)
    latex_escape(printable(text))
