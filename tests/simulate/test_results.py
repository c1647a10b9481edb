"""Results that can be printed, tabled, saved, loaded and reported."""

import copy
import functools
import json
import pickle
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import evenfed
from evenfed.comparison.analysis import diagnostics
from evenfed.comparison.progress import RoundsCounter, shown
from evenfed.comparison.storage.pack import pack
from evenfed.core.algorithm import Algorithm, Plan
from evenfed.core.naming import name_of
from evenfed.core.server import Record
from evenfed.core.sparse import SparseNumbers
from evenfed.report.document import Report
from worked_example import federation, small_model

CPU = {"device": "cpu", "lr": 0.2, "batch_size": 7}
ODD = "<script>alert('ä/ß')</script>"


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def clients():
    first, *others = federation()
    return [evenfed.Client(first.train, first.test, name=ODD), *others]


@pytest.fixture(scope="module")
def compared() -> evenfed.Comparison:
    return evenfed.compare(
        normalised, clients(), ["semi_vred[smooth=0.5]", "ditto"], seeds=2, rounds=3, participation=2, **CPU
    )


@pytest.fixture(scope="module")
def ditto(compared) -> evenfed.Result:
    return compared["ditto"][0]


def same(one: evenfed.Result, two: evenfed.Result) -> None:
    assert (one.label, one.settings, one.algorithm) == (two.label, two.settings, two.algorithm)
    assert one.client_names == two.client_names and one.engine == two.engine
    np.testing.assert_array_equal(one.shares, two.shares)
    assert torch.equal(one.server.theta, two.server.theta)
    for name, buffer in one.server.buffers.items():
        assert torch.equal(buffer, two.server.buffers[name])
    assert one.personal is two.personal is None or torch.equal(one.personal, two.personal)
    for a, b in zip(one.records, two.records, strict=True):
        for field in ("losses", "weights", "accuracy"):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))  # NaN where a client has no data
        assert (a.index, a.dropped, a.skipped, a.objective) == (b.index, b.dropped, b.skipped, b.objective)
    assert one.fairness == two.fairness and one.late_fairness == two.late_fairness


def test_a_printed_comparison_is_a_short_table(compared):
    text = str(compared)
    assert repr(compared) == text and len(text) < 1500
    for label in ("fedavg", "semi_vred[smooth=0.5]", "ditto", "fedavg, other batches"):
        assert sum(line.startswith(label) for line in text.splitlines()) == (2 if label == "fedavg" else 1)
    mean = f"{100 * compared.rows[0].late['mean'][0]:.1f}"
    assert mean in text and "3 rounds, 5 clients, 4 scored" in text  # one of them has no test data
    assert "±: the standard deviation over seeds" in text.replace("\n", " ")


def test_a_printed_result_is_two_lines_of_figures_and_its_repr_is_one(ditto):
    assert repr(ditto) == "<Result: ditto, seed 0: 3 rounds, 5 clients, 4 scored>"
    lines = str(ditto).splitlines()
    assert len(lines) == 6 and f"{100 * ditto.fairness.mean:.1f}" in lines[-2]


def test_notebooks_get_tables_whose_names_are_escaped(compared):
    result = compared["ditto"][0]
    renamed = evenfed.Result(**{**vars(result), "label": ODD})
    shown_as = renamed._repr_html_()
    assert "<script>" not in shown_as and "&lt;script&gt;" in shown_as and "<table>" in shown_as
    table = compared._repr_html_()
    assert table.count("<tr>") == 5 and "<b>" in table and "<i>fedavg, other batches</i>" in table


def test_parts_of_a_result_show_themselves_in_notebooks(compared):
    fairness = compared["ditto"][0].fairness
    shown = fairness._repr_html_()
    assert "worst 10 %" in shown and f"{fairness.worst10:.4g}" in shown
    (effect,) = compared.suppression("ditto")[:1]
    assert f"{effect.suffering_gain:+.4g}" in effect._repr_html_()


def test_a_client_is_shown_by_its_name_and_sizes():
    x, y = torch.randn(6, 4), torch.zeros(6)
    assert repr(evenfed.Client((x, y), (x[:2], y[:2]), name="north\n")) == r"<Client north\n: train 6, test 2>"
    assert repr(evenfed.Client(lambda: (x, y), size=6)) == "<Client without a name: train 6, test none>"
    assert repr(evenfed.Client(lambda: (x, y))) == "<Client without a name: train when drawn, test none>"
    assert repr(evenfed.Client("north/", name="n")) == "<Client n: train in a folder, test none>"


def test_a_result_without_test_data_can_be_printed():
    alone = [evenfed.Client(client.train) for client in federation()]
    result = evenfed.train(small_model(), alone, rounds=1, **CPU)
    assert "1 round, 5 clients" in str(result) and "-" in str(result)
    assert "last 1 rounds" not in str(result)


def test_entries_are_found_by_label(compared):
    assert list(compared) == ["fedavg", "semi_vred[smooth=0.5]", "ditto"] and len(compared) == 3
    assert "ditto" in compared and "vred" not in compared
    assert compared["ditto"] is compared.results["ditto"]
    with pytest.raises(evenfed.InputError, match="did you mean 'ditto'"):
        compared["dito"]


def test_a_comparison_is_a_mapping(compared):
    assert isinstance(compared, Mapping) and dict(compared) == compared.results
    assert list(compared.keys()) == list(compared) and list(compared.values()) == list(compared.results.values())
    assert [(label, len(results)) for label, results in compared.items()] == [(label, 2) for label in compared]
    assert compared.get("ditto") is compared["ditto"] and compared.get("diito") is None


def test_a_frame_has_a_row_for_every_entry_seed_round_and_client(compared, ditto):
    frame = compared.to_pandas()
    assert len(frame) == (3 + 1) * 2 * 3 * 5
    assert list(frame.columns[:7]) == ["label", "seed", "round", "client", "loss", "weight", "accuracy"]
    assert set(frame["label"]) == {*compared.results, "fedavg-other-batches"}
    one = frame[(frame.label == "ditto") & (frame.seed == 0) & (frame["round"] == 2)].set_index("client")
    np.testing.assert_array_equal(one.loss, ditto.records[1].losses)
    np.testing.assert_array_equal(one.accuracy, ditto.records[1].accuracy)
    assert one.loc[ODD, "weight"] == ditto.records[1].weights[0]
    assert ditto.to_pandas().equals(frame[(frame.label == "ditto") & (frame.seed == 0)].reset_index(drop=True))


def test_without_pandas_the_error_names_what_to_install(ditto, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(evenfed.InputError, match=r"pip install 'evenfed\[pandas\]'"):
        ditto.to_pandas()


def test_a_saved_result_comes_back_with_personal_models_buffers_and_odd_names(ditto, tmp_path):
    assert ditto.save(tmp_path / "r") == tmp_path / "r"
    bare = evenfed.load(tmp_path / "r")
    same(ditto, bare)
    with pytest.raises(evenfed.InputError, match=r"model=MyModel\(\)"):
        _ = bare.model
    filled = evenfed.load(tmp_path / "r", model=normalised())
    inputs = federation()[3].test[0]
    assert torch.equal(filled.model(inputs), ditto.model(inputs))
    assert torch.equal(filled.client_model(2)(inputs), ditto.client_model(2)(inputs))
    assert torch.equal(filled.client_model(ODD)(inputs), ditto.client_model(0)(inputs))
    for unknown in (5, -1, 1.0, True, None):
        with pytest.raises(evenfed.InputError, match=r"there are 5; give a name, or a position from 0 to 4"):
            ditto.client_model(unknown)
    with pytest.raises(evenfed.InputError, match="unknown client 'nobody'; give a name, or a position from 0 to 4"):
        ditto.client_model("nobody")
    same(ditto, evenfed.load(tmp_path / "r" / "ditto" / "seed-0"))
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or (file.suffix in (".json", ".jsonl", ".safetensors", "") and file.name != "pickle")


def test_whoever_may_read_a_runs_rounds_may_read_its_model(ditto, tmp_path):
    saved = ditto.save(tmp_path / "r") / "ditto" / "seed-0"
    readable = (saved / "rounds.jsonl").stat().st_mode
    files = list(saved.glob("*.safetensors"))
    assert saved / "model.safetensors" in files
    for file in files:
        assert file.stat().st_mode == readable, file


def test_a_saved_comparison_comes_back_in_its_order(compared, tmp_path):
    compared.save(tmp_path / "c")
    back = evenfed.load(tmp_path / "c", model=normalised())
    assert list(back) == list(compared)
    for label in compared:
        for one, two in zip(compared[label], back[label], strict=True):
            same(one, two)
    for one, two in zip(compared.floor, back.floor, strict=True):
        same(one, two)
    assert [row.late for row in back.rows] == [row.late for row in compared.rows]
    back.save(tmp_path / "copy")
    same(compared["ditto"][1], evenfed.load(tmp_path / "copy")["ditto"][1])


def test_a_comparison_of_one_run_comes_back_as_one(tmp_path):
    alone = evenfed.compare(small_model, federation(), ["fedavg"], seeds=1, rounds=1, noise_floor=False, **CPU)
    alone.save(tmp_path)
    assert isinstance(evenfed.load(tmp_path), evenfed.Comparison)


def test_saving_replaces_no_other_run_and_mixes_no_data(tmp_path):
    def train(clients, algorithm="fedavg", **options):
        return evenfed.train(small_model(), clients, algorithm, **{**CPU, **options})

    train(federation(), rounds=3, out=tmp_path / "o")
    with pytest.raises(evenfed.InputError, match=r"holds another run .train.rounds: 3 there, 1 here"):
        train(federation(), rounds=1).save(tmp_path / "o")
    assert len(evenfed.load(tmp_path / "o").records) == 3
    again = train(federation(), rounds=3).save(tmp_path / "o")  # the same run: replaced
    train(federation(), "vred", rounds=3).save(again)
    assert list(evenfed.load(again)) == ["fedavg", "vred"]
    others = [federation(seed=1), federation(sizes=(5, 5, 5))]
    for clients in others:
        with pytest.raises(evenfed.InputError, match="was trained on other data"):
            train(clients, "afl", rounds=3).save(tmp_path / "o")
        with pytest.raises(evenfed.InputError, match="was trained on other data"):
            train(clients, "afl", rounds=3, out=tmp_path / "o")
    compared = evenfed.compare(small_model, federation(), ["fedavg"], seeds=1, rounds=1, noise_floor=False, **CPU)
    with pytest.raises(evenfed.InputError, match="the folder has no name"):
        compared.save("")
    kept = compared.save(tmp_path / "c")
    longer = evenfed.compare(small_model, federation(), ["fedavg"], seeds=1, rounds=2, noise_floor=False, **CPU)
    with pytest.raises(evenfed.InputError, match=r"holds another run .train.rounds: 1 there, 2 here"):
        longer.save(kept)


class Mine(evenfed.algorithms.FedAvg):
    name = "not-registered"


def steps(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


def test_code_comes_back_by_name_only(tmp_path):
    result = evenfed.train(small_model(), federation(), Mine(), rounds=2, server_optimizer=steps, **CPU)
    result.save(tmp_path)
    back = evenfed.load(tmp_path, model=small_model())
    assert back.algorithm.name == "not-registered" and "steps" in repr(back.settings.server_optimizer)
    assert torch.equal(back.server.theta, result.server.theta)
    with pytest.raises(evenfed.InputError, match="name only"):
        back.settings.server_optimizer([])


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (nn.Linear(6, 3), "another model"),
        (nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), r"0.weight \[4, 6\] there, \[5, 6\]"),
        (nn.Sequential(*normalised(), nn.Linear(3, 3)), "3.weight, which was not trained"),
        (nn.Sequential(*normalised()[:2], nn.Tanh(), nn.Linear(4, 3)), "another model"),
        ("Net", "give a torch.nn.Module"),
    ],
)
def test_another_model_is_refused(ditto, tmp_path, model, complaint):
    ditto.save(tmp_path)
    with pytest.raises(evenfed.InputError, match=complaint):
        evenfed.load(tmp_path, model=model)


def test_a_model_that_prints_otherwise_is_loaded_with_a_warning_that_names_the_first_difference(ditto, tmp_path):
    ditto.save(tmp_path)
    other = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=0.5), nn.Linear(4, 3))
    line = r"\(1\): BatchNorm1d\(4, eps=1e-05, momentum=0.1, .*was trained, \(1\): .* momentum=0.5, .*is given"
    with pytest.warns(UserWarning, match=line):
        loaded = evenfed.load(tmp_path, model=other)
    inputs = federation()[0].test[0]
    assert torch.equal(loaded.model.eval()(inputs), ditto.model.eval()(inputs))
    path = tmp_path / "ditto" / "seed-0" / "header.json"
    header = json.loads(path.read_text())
    del header["layers"]  # of an older version
    path.write_text(json.dumps(header))
    with pytest.warns(UserWarning, match="than the one given; predictions may differ"):
        evenfed.load(tmp_path, model=other)


def test_what_cannot_be_loaded_is_told(tmp_path):
    with pytest.raises(evenfed.InputError, match="no folder"):
        evenfed.load(tmp_path / "nowhere")
    with pytest.raises(evenfed.InputError, match="no finished run"):
        evenfed.load(tmp_path)


def test_reports_are_the_command_lines(compared, tmp_path, capsys):
    with pytest.raises(evenfed.InputError, match="give the report a folder"):
        compared.report()
    paths = compared.report(tmp_path / "in-memory", show=False)
    assert all(path.exists() for path in paths) and not capsys.readouterr().out
    compared.save(tmp_path / "kept")
    loaded = evenfed.load(tmp_path / "kept")
    assert tmp_path / "kept" / "report" / "tables.csv" in loaded.report()
    brief = capsys.readouterr().out
    loaded.report(full=True)
    full = capsys.readouterr().out
    assert brief.count("At a glance") == 1 and "Paired difference" not in brief and "full=True" in brief
    assert "Paired difference" in full and len(full) > 3 * len(brief)
    tables = [(folder / "tables.csv").read_text() for folder in (tmp_path / "in-memory", tmp_path / "kept" / "report")]
    assert tables[0] == tables[1]


def test_a_run_alone_is_reported_and_compared_with_nothing(compared, tmp_path):
    run = compared["semi_vred[smooth=0.5]"][0]
    report = Report.of([run.save(tmp_path)], beside_paper=False)
    names = [table.name for table in report.tables]
    late = ["overview-late", "clients", "detailed-late", "expected-late"]
    assert names == [*late, "detailed-last", "expected-last", "inequality-late", "settings", "runs"]
    assert "improved" not in [column.key for column in report.tables[0].columns]
    (line,) = report.tables[0].lines
    assert line.entry == "semi_vred[smooth=0.5]"


def test_progress_is_off_without_a_terminal_and_can_be_asked_for(capsys):
    evenfed.train(small_model(), federation(), rounds=2, **CPU)
    assert capsys.readouterr().err == ""
    evenfed.train(small_model(), federation(), rounds=2, progress=True, **CPU)
    assert "round 2 of 2, 1 run" in capsys.readouterr().err
    with shown(False) as listen:
        assert not isinstance(listen, RoundsCounter)


def test_progress_in_a_notebook_is_one_line(monkeypatch, capsys):
    class Shell:
        kernel = object()

    class IPython:
        get_ipython = staticmethod(Shell)

    monkeypatch.setitem(sys.modules, "IPython", IPython)
    evenfed.train(small_model(), federation(), rounds=3, **CPU)
    written = capsys.readouterr().err
    assert written.endswith("\n") and written.count("\n") == 1 and "\rround 3 of 3" in written


def scaled(factor):
    def loss(outputs, targets):
        return factor * nn.functional.cross_entropy(outputs, targets, reduction="none")

    return loss


def called(loss):
    return lambda outputs, targets: loss(outputs, targets)


def test_functions_are_named_by_what_they_do():
    assert name_of(scaled(2)) != name_of(scaled(3)) and name_of(scaled(2)) == name_of(scaled(2))
    assert name_of(lambda x: x + 1) != name_of(lambda x: x + 2)
    weighted = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0]), reduction="none")
    assert re.search(r"\{.*reduction='none', weight=float32 \[2\] #\w{8}\}$", name_of(weighted))
    assert name_of(called(weighted)) == name_of(called(weighted)) != name_of(called(nn.CrossEntropyLoss()))
    partial = functools.partial(nn.functional.cross_entropy, reduction="none")
    assert name_of(partial) == "partial(torch.nn.functional.cross_entropy, reduction='none')"


class Unprintable:
    def __repr__(self):
        raise ValueError


class WithValues(nn.Module):
    def __init__(self, **values):
        super().__init__()
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_names_never_fail_and_are_the_same_in_every_process():
    eye = torch.eye(3)
    sparse = eye.to_sparse()
    assert name_of(WithValues(adj=sparse)) == name_of(WithValues(adj=sparse.clone()))
    assert name_of(WithValues(adj=sparse)) != name_of(WithValues(adj=2 * sparse))
    assert name_of(WithValues(adj=eye.to("meta"))).endswith("adj=torch.Tensor}")
    assert name_of(WithValues(odd=Unprintable())).endswith("Unprintable}")
    assert name_of(Unprintable()).endswith("Unprintable")
    some = ["noun", "verb", "adverb", "article"]
    values = "ignored=('adverb', 'article', 'noun', 'verb'), more=[frozenset((1, 2)), (('noun', 'verb'),)]"
    assert values in name_of(WithValues(ignored=set(some), more=[frozenset([2, 1]), ({"verb", "noun"},)]))


def test_a_loss_with_a_sparse_buffer_trains():
    loss = WithValues(adj=torch.eye(3).to_sparse())
    assert len(evenfed.train(small_model(), federation(), rounds=1, loss=loss, **CPU).records) == 1


def test_the_header_of_a_saved_run_says_what_it_was(ditto, tmp_path):
    ditto.save(tmp_path)
    header = json.loads((tmp_path / "ditto" / "seed-0" / "header.json").read_text())
    assert header["finished"] and header["versions"]["evenfed"] == evenfed.__version__
    assert header["clients"]["names"][0] == ODD and header["config"]["hyper_parameters"] == {"lam": 1.0}
    assert header["seconds"] == pytest.approx(sum(record.seconds for record in ditto.records))


def test_entries_are_compared_with_fedavg_of_the_same_seed(compared):
    second = evenfed.Comparison({"fedavg": compared["fedavg"], "ditto": compared["ditto"][1:]}, [])
    wanted = evenfed.Comparison({"fedavg": compared["fedavg"][1:], "ditto": compared["ditto"][1:]}, [])
    assert second.rows[1].late == wanted.rows[1].late and second.suppression("ditto") == wanted.suppression("ditto")
    alone = evenfed.Comparison({"fedavg": compared["fedavg"][:1], "ditto": compared["ditto"]}, [])
    assert "improved" not in alone.rows[1].late and alone.rows[1].late["mean"] == compared.rows[2].late["mean"]
    with pytest.raises(evenfed.InputError, match="not trained with the seeds of ditto"):
        alone.suppression("ditto")


def test_a_regression_is_shown_by_its_loss():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(8, 6, generator=draw)
    y = torch.randn(8, 3, generator=draw)
    result = evenfed.train(small_model(), [evenfed.Client((x, y), (x, y))] * 2, rounds=2, loss="mse", **CPU)
    text = str(result)
    assert "test loss" in text.splitlines()[0] and f"{result.test_losses.mean():.3f}" in text
    frame = result.to_pandas()
    np.testing.assert_array_equal(frame[frame["round"] == 2].test_loss, result.test_losses)
    assert frame.accuracy.isna().all()


def test_packed_results_come_back_without_models(compared, tmp_path):
    pack(compared.save(tmp_path / "c"), tmp_path / "packed")
    back = evenfed.load(tmp_path / "packed")
    np.testing.assert_array_equal(back.to_pandas().accuracy, _in_order(back, compared).to_pandas().accuracy)
    with pytest.raises(evenfed.InputError, match="no model"):
        _ = back["ditto"][0].server
    with pytest.raises(evenfed.InputError, match="leave model out"):
        evenfed.load(tmp_path / "packed", model=normalised())
    again = evenfed.load(back.save(tmp_path / "again"))
    assert again.rows == back.rows


def _in_order(like: evenfed.Comparison, other: evenfed.Comparison) -> evenfed.Comparison:
    return evenfed.Comparison({label: other[label] for label in like}, other.floor)


def test_models_are_made_when_asked_for_and_share_a_frozen_base_until_then(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 4).requires_grad_(False), nn.Linear(4, 3))
    frozen = module[0].weight.clone()
    compared = evenfed.compare(module, federation(), ["vred"], seeds=1, rounds=1, **CPU)
    compared.save(tmp_path)
    loaded = evenfed.load(tmp_path, model=module)
    with torch.no_grad():
        module[0].weight.zero_()  # whatever becomes of the user's own
    for each in (compared, loaded):
        fedavg, vred, other_seed = each.every
        assert fedavg.module is vred.module is other_seed.module
        assert "model" not in vars(fedavg)
        assert torch.equal(fedavg.model[0].weight, frozen) and fedavg.model is fedavg.model
        trained = torch.cat([fedavg.model[1].weight.flatten(), fedavg.model[1].bias])
        assert torch.equal(trained, fedavg.server.theta) and not fedavg.model.training
        with torch.no_grad():
            fedavg.model[0].weight.zero_()
        assert torch.equal(vred.model[0].weight, frozen)
        for again in (copy.deepcopy(vred), pickle.loads(pickle.dumps(vred))):
            assert torch.equal(again.model[1].weight, vred.model[1].weight)


@dataclass(frozen=True)
class Turning(Algorithm):
    """Trains on the first client alone, and from some round on asks for steps backwards."""

    forwards: int = 2

    def plan(self, round, memory):
        first = torch.zeros(len(round.ids)).double()
        first[0] = 1.0
        return Plan(round.ids, first if round.index < self.forwards else -first), memory


class TiedAndFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.one, self.two, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.last(self.two(self.one(self.frozen(x))))


def test_a_models_state_dict_holds_frozen_and_tied_parameters_too(tmp_path):
    result = evenfed.train(TiedAndFrozen(), federation(), rounds=1, out=tmp_path, **CPU)
    file = load_file(result.folder / "model.safetensors")
    assert result.model.state_dict().keys() - file.keys() == {"frozen.weight", "frozen.bias", "two.weight"}
    torch.save(result.model.state_dict(), tmp_path / "model.pt")
    plain = TiedAndFrozen()
    plain.load_state_dict(torch.load(tmp_path / "model.pt"))
    inputs = federation()[0].test[0]
    assert torch.equal(plain(inputs), result.model(inputs))


@pytest.mark.filterwarnings("ignore:.*broke down")
def test_a_breakdown_gives_the_reason_of_the_rounds_and_what_has_an_effect():
    wild = evenfed.train(small_model(), federation(), Turning(), rounds=5, **CPU).history
    reason = "the clients that replied have no positive weight left"
    assert wild.breakdown == f"all rounds from round 3 on were skipped: {reason}"
    assert diagnostics.remedies(wild.records, wild.shares).endswith("a smaller lr, or server_lr below 1")
    assert "smooth=0.25" in diagnostics.remedies(wild.records, wild.shares)
    plain = evenfed.train(small_model(), federation(), "fedavg", rounds=30, **{**CPU, "lr": 1e10}).history
    assert plain.breakdown.startswith("the mean loss grew from")
    assert diagnostics.remedies(plain.records, plain.shares) == "a smaller lr, or server_lr below 1"


@pytest.mark.parametrize("keep", [np.asarray, lambda numbers: SparseNumbers.of(numbers, numbers[-1])])
def test_clients_that_dropped_out_do_not_make_fedavg_a_method_that_reweighs(keep):
    shares = np.array([0.2, 0.3, 0.5, 0.0])
    losses = np.array([1.0, 2.0, 3.0, np.nan])

    def told(weights, dropped):
        record = Record(0, losses, np.zeros(4), 1.0, 0, dropped=dropped)
        record = record.but(losses=keep(losses), weights=keep(np.array(weights)))
        return diagnostics.remedies([record], shares)

    assert told([0.4, 0.6, 0.0, 0.0], dropped=(2,)) == "a smaller lr, or server_lr below 1"
    assert told([0.2, 0.3, 0.5, 0.0], dropped=()) == "a smaller lr, or server_lr below 1"
    assert "smooth=0.25" in told([0.3, 0.7, 0.0, 0.0], dropped=(2,))
    assert "smooth=0.25" in told([0.4, 0.6, 0.0, 0.0], dropped=())


@pytest.mark.parametrize(("algorithm", "is_told"), [("semi_vred", True), ("fedavg", False)])
def test_losses_that_start_large_are_named_as_a_cause(algorithm, is_told):
    """Of numbers to predict that are not scaled: beta is in 1/units of the loss. FedAvg has no such strength."""
    draw = torch.Generator().manual_seed(0)
    clients = []
    for k in range(3):
        x = torch.randn(8, 2, generator=draw) + k
        clients.append(evenfed.Client((x, 1e3 * x[:, 0])))
    with pytest.warns(UserWarning, match="broke down") as warned:
        evenfed.train(nn.Linear(2, 1), clients, algorithm, loss="mse", rounds=15, **{**CPU, "lr": 1.0})
    advice = str(warned[-1].message)
    assert ("scale the targets to a standard deviation of 1" in advice) == is_told, advice


def test_a_run_that_loses_what_it_had_learned_broke_down():
    def told(*losses: float) -> str | None:
        records = [Record(k, np.full(2, loss), np.ones(2), 1.0, 0) for k, loss in enumerate(losses)]
        return diagnostics.breakdown(records)

    relapsed = told(2.3, *[0.4] * 10, *[2.2] * 10)
    assert relapsed == "the mean loss fell from 2.3 to 0.4 and rose again to 2.2"
    assert told(2.3, *[0.4] * 10, *[1.0] * 10) is None  # less than half of it
    assert told(2.3, *[0.4, 2.2] * 10) is None  # a swing
    assert told(2.3, *[0.3, 2.4] * 20) is None  # a wider one
    assert told(2.3, 2.3, 2.2, 2.2, 2.0, 1.6, 1.1) is None  # a short run, still falling
    assert told(-1.0, -1.001, -1.0, -0.999, -1.0) is None  # a loss below zero
    assert told(2.3, *[1.5] * 10, *[2.2] * 10) is None  # little was learned


def test_a_breakdown_names_each_reason_once():
    record = Record(0, np.ones(2), np.ones(2), 1.0, 0)
    lost = replace(record, skipped=True)
    late = [replace(lost, reason=reason) for reason in ("one", "two", "one")]
    early = replace(lost, reason="before")
    assert diagnostics.breakdown([early, record, *late]) == "all rounds from round 3 on were skipped: one, then two"
    assert diagnostics.breakdown([record, lost]) == "all rounds from round 2 on were skipped"  # of an older version
    assert diagnostics.breakdown([early, record]) is None
