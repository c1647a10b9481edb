"""Whatever is given, the answer is a value or our own message.

`EVENFED_CASES=2000 pytest tests/test_properties.py` tries 2,000 cases of each property instead of 25.
"""

import dataclasses
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenfed.comparison.experiment import Experiment
from evenfed.comparison.plan import Variant, parse_list
from evenfed.core.errors import InputError
from evenfed.core.visible import in_markdown, in_sheet, name_in_markdown, visible
from evenfed.data import DataSettings
from evenfed.report.write import latex_escape
from evenfed.settings import Settings

CASES = int(os.environ.get("EVENFED_CASES", "25"))
tried = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=CASES == 25)

numbers = st.one_of(st.integers(), st.sampled_from([0, 1, 2**31, 2**63, 2**64, -1]), st.floats())
scalars = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8), st.binary(max_size=3))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
)


def options_of(kind):
    names = [field.name for field in dataclasses.fields(kind)]
    return st.dictionaries(st.sampled_from(names), values, min_size=1, max_size=3)


def is_answered(function, *arguments, **options):
    """Whether the arguments are taken, or refused with a message of our own that is not empty; other errors pass on."""
    try:
        function(*arguments, **options)
    except InputError as error:
        return bool(str(error).strip())
    return True


@tried
@given(options_of(Settings))
def test_settings(options):
    assert is_answered(Settings.of, options)


@tried
@given(options_of(DataSettings))
def test_data_settings(options):
    assert is_answered(DataSettings, **options)


TABLES = ("name", "data", "model", "train", "algorithms", "quick", "tune", "seeds", "noise_floor", "federations")


@tried
@given(st.dictionaries(st.one_of(st.sampled_from(TABLES), st.text(max_size=4)), values, max_size=4))
def test_experiments(table):
    assert is_answered(Experiment.of, {"algorithms": {"fedavg": {}}, **table}, "mine")


@tried
@given(options_of(DataSettings), options_of(Settings), st.dictionaries(st.sampled_from(["name", "hidden"]), values))
def test_tables_of_an_experiment(data, train, model):
    table = {"algorithms": {"fedavg": {}}, "data": {"name": "digits", **data}, "train": train, "model": model}
    assert is_answered(Experiment.of, table, "mine")


@tried
@given(st.text(alphabet="fedavgqv[]=,.0123 -_\x1b", max_size=20), values)
def test_entries(text, value):
    assert is_answered(parse_list, text)
    assert is_answered(Variant.of_entry, value)
    assert is_answered(Variant.of_entry, {"algorithm": "semi_vred", "beta": value})


@tried
@given(st.text())
def test_shown_text_holds_nothing_hidden(text):
    for shown in (visible(text), in_sheet(text), in_markdown(text), name_in_markdown(text)):
        assert not any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in shown)
        shown.encode()
    assert not in_sheet(text).startswith(("=", "+", "-", "@"))
    assert visible(visible(text)) == visible(text)
    latex_escape(visible(text))
