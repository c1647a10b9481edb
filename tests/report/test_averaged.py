"""Runs that deploy an average, shown beside the models that were averaged."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import evenfed
from evenfed.callbacks.measures import numbers, per_client
from evenfed.comparison.storage.reading import read
from evenfed.fairness import Fairness
from evenfed.report import averaged
from evenfed.report.document import Report

ENTRY = "vred[average=0.8]"


@pytest.fixture(scope="module")
def clients():
    made = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(12, 3, generator=generator)
        targets = torch.randint(0, 2, (12,), generator=generator)
        made.append(evenfed.Client(train=(inputs, targets), test=(inputs, targets)))
    return made


@pytest.fixture(scope="module")
def tracked():
    """What trackers would write, by label and seed, after the last round."""
    return {}


@pytest.fixture(scope="module")
def comparison(clients, tracked, tmp_path_factory):
    def track(progress):
        tracked[progress.label, progress.seed] = (numbers(progress), per_client(progress))

    options = {"seeds": 2, "rounds": 4, "lr": 2.0, "last_rounds": 2, "noise_floor": False}
    out = tmp_path_factory.mktemp("averaged")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return evenfed.compare(
            lambda: nn.Linear(3, 2), clients, ["fedavg", "vred", ENTRY], callbacks=track, out=out, **options
        )


def test_the_current_model_has_a_history_of_its_own(comparison):
    for plain, average in zip(comparison["vred"], comparison[ENTRY], strict=True):
        assert plain.history.current is None
        assert plain.current_accuracy is None
        current = average.history.current
        assert current.fairness == plain.fairness
        assert current.late_fairness == plain.late_fairness
        assert current.lasting == plain.history.lasting
        np.testing.assert_array_equal(average.current_accuracy, plain.accuracy)
        assert current.late_fairness != average.late_fairness
        assert current.moved == plain.history.moved  # by the same weights


def test_a_report_shows_both_models_of_averaged_entries_alone(comparison):
    findings = read(comparison.folder)
    late, last = averaged.tables(findings)
    assert (late.name, last.name) == ("averaged-late", "averaged-last")
    assert [(line.entry, line.part) for line in late.lines] == [(ENTRY, "average"), (ENTRY, "current model")]
    rows = {row.label: row for row in comparison.rows}
    for line, label in zip(late.lines, (ENTRY, "vred"), strict=True):
        cells = dict(zip([column.key for column in late.columns], line.cells, strict=True))
        for name in ("mean", "worst10", "lasting10", "std"):
            assert cells[name].value == pytest.approx(100 * rows[label].late[name][0])
    names = [table.name for table in Report.of([comparison.folder], beside_paper=False).tables]
    assert {"averaged-late", "averaged-last"} < set(names)
    assert averaged.tables(findings.only(["fedavg", "vred"])) == []


def test_a_runs_table_has_a_line_for_the_newest_model(comparison):
    assert "not averaged, last round" in str(comparison[ENTRY][0])
    assert "not averaged" not in str(comparison["vred"][0])


def test_trackers_and_data_frames_have_both(comparison, tracked):
    result = comparison[ENTRY][1]
    values, arrays = tracked[ENTRY, result.seed]
    assert values["fairness/mean"] == pytest.approx(result.fairness.mean)
    assert values["current/worst10"] == pytest.approx(Fairness.of(result.current_accuracy).worst10)
    np.testing.assert_array_equal(arrays["current"], result.current_accuracy)
    plain_values, plain_arrays = tracked["vred", result.seed]
    assert "current/mean" not in plain_values
    assert "current" not in plain_arrays
    table = comparison.to_pandas()
    last = table[(table.label == ENTRY) & (table.seed == result.seed) & (table["round"] == 4)]
    np.testing.assert_array_equal(last.current, result.current_accuracy)


def test_the_advice_names_the_average_unless_there_is_one():
    swinging = [evenfed.Client(train=(torch.ones(1, 1), torch.full((1, 1), y))) for y in (1.0, -1.0, 0.3)]
    model = nn.Linear(1, 1, bias=False)
    options = {"loss": "mse", "rounds": 30, "lr": 0.45}
    with pytest.warns(UserWarning, match="or deploy the mean of the rounds' models, average=0.9"):
        advised = evenfed.train(model, swinging, "afl[lr_lambda=3]", **options)
    assert "average=0.9" in advised.history.advice("afl")
    judged = [evenfed.Client(train=client.train, test=client.train) for client in swinging]
    with pytest.warns(UserWarning, match="a smaller lr, or server_lr below 1$"):
        averaged = evenfed.train(model, judged, "afl[lr_lambda=3]", average=0.9, **options)
    assert "average" not in averaged.history.advice("afl")


def test_weighing_at_the_average_has_no_effect_where_losses_have_none(clients):
    with pytest.warns(UserWarning, match="weigh_at has no effect: fedavg does not weigh clients by their losses"):
        result = evenfed.train(nn.Linear(3, 2), clients, "fedavg", rounds=1, average=0.9, weigh_at="average")
    np.testing.assert_allclose(result.records[0].weights, result.shares)
