"""What a callback sees and may do, and what the shipped ones write: read back with the trackers' own readers."""

import dataclasses

import numpy as np
import pytest
import torch

import evenfed

CPU = {"device": "cpu", "lr": 0.1}


def clients() -> list[evenfed.Client]:
    draw = torch.Generator().manual_seed(0)
    made = []
    for size in (8, 12, 5):
        x = torch.randn(size, 4, generator=draw)
        y = torch.randint(0, 3, (size,), generator=draw)
        made.append(evenfed.Client((x, y), (x, y)))
    return made


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def test_a_run_that_is_stopped_leaves_the_others_going():
    def only_semi_vred(progress):
        if progress.label == "semi_vred" and progress.record.index == 1:
            raise StopIteration

    found = evenfed.compare(model(), clients(), ["semi_vred"], seeds=1, rounds=4, callbacks=only_semi_vred, **CPU)
    assert len(found.results["semi_vred"][0].records) == 2
    assert len(found.results["fedavg"][0].records) == 4
    assert len(found.floor[0].records) == 4


def test_what_a_callback_sees():
    seen = []
    result = evenfed.train(model(), clients(), "vred", rounds=3, evaluate_every=2, callbacks=seen.append, **CPU)
    assert [progress.round for progress in seen] == [1, 2, 3]
    last = seen[-1]
    assert (last.label, last.seed, last.record.index) == ("vred", 0, 2)
    assert seen[0].fairness is None and last.fairness == result.fairness
    assert last.model is last.model and not last.model.training
    assert torch.equal(last.model.weight, result.model.weight)
    assert not torch.equal(seen[0].model.weight, result.model.weight)
    assert last.client_names == result.client_names and last.folder is None


class Diary:
    """Not a subclass: having the methods is enough."""

    def __init__(self) -> None:
        self.entries = []

    def start(self, runs):
        self.entries.append(("start", [run.label for run in runs]))

    def round(self, progress):
        if progress.label == "fedavg" and progress.round == 1:
            progress.stop("enough")

    def end(self, progress):
        self.entries.append(("end", progress.label, progress.round))

    def close(self):
        self.entries.append(("close",))


def test_start_end_and_close_and_a_reason_to_stop():
    diary = Diary()
    found = evenfed.compare(
        model(), clients(), ["vred"], seeds=1, noise_floor=False, rounds=2, evaluate_every=0, callbacks=diary, **CPU
    )
    assert diary.entries == [("start", ["fedavg", "vred"]), ("end", "fedavg", 1), ("end", "vred", 2), ("close",)]
    stopped = found.results["fedavg"][0]
    assert stopped.stopped == "enough" and found.results["vred"][0].stopped is None
    assert stopped.accuracy is not None  # a run's last round is evaluated, also when it ends early


def test_runs_that_go_on_are_not_changed_by_one_that_stops():
    alone = evenfed.compare(model(), clients(), ["vred"], seeds=1, rounds=4, **CPU)
    together = evenfed.compare(model(), clients(), ["vred", "term"], seeds=1, rounds=4, callbacks=Diary(), **CPU)
    one, other = (found.results["vred"][0].model.weight for found in (alone, together))
    assert torch.allclose(one, other, atol=1e-6)


def test_another_error_ends_the_training_and_callbacks_are_closed():
    diary = Diary()

    def broken(progress):
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        evenfed.train(model(), clients(), rounds=2, callbacks=[diary, broken], **CPU)
    assert diary.entries[-1] == ("close",)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (3, "callbacks=3 is a int"),
        ("tensorboard", "is a str; give a function"),
        ([Diary], "Diary is a class; give an instance"),
        ([None], "is a NoneType"),
    ],
)
def test_what_is_no_callback_is_refused(given, told):
    with pytest.raises(evenfed.InputError, match=told):
        evenfed.train(model(), clients(), rounds=1, callbacks=given, **CPU)


def falling_and_rising(progress):
    """Stands in for the accuracies of a run: the best round is the third."""
    value = {1: 0.2, 2: 0.4, 3: 0.6}.get(progress.round, 0.5)
    progress._record = dataclasses.replace(progress.record, accuracy=np.array([value, value, 0.9]))


def test_early_stopping_gives_back_the_best_model():
    thetas = []
    stop = evenfed.callbacks.EarlyStopping("worst10", patience=4)
    watchers = [falling_and_rising, stop, lambda progress: thetas.append(progress.server.theta)]
    result = evenfed.train(model(), clients(), "vred", rounds=50, callbacks=watchers, **CPU)
    assert len(result.records) == 7 and "worst10 did not rise above 0.6000, of round 3" in result.stopped
    assert result.model_round == 3 and torch.equal(result.server.theta, thetas[2])
    assert (result.accuracy == result.records[2].accuracy).all()  # what is reported is the model's own

    keeps_last = evenfed.callbacks.EarlyStopping("worst10", patience=4, restore_best=False)
    last = evenfed.train(model(), clients(), "vred", rounds=50, callbacks=[falling_and_rising, keeps_last], **CPU)
    assert last.model_round is None and torch.equal(last.server.theta, thetas[-1])


def test_early_stopping_gives_back_the_clients_own_layers(tmp_path):
    torch.manual_seed(0)
    normed = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    norms = []
    stop = evenfed.callbacks.EarlyStopping("worst10", patience=2)
    watchers = [falling_and_rising, stop, lambda progress: norms.append(progress.state.norms)]
    options = {**CPU, "batch_size": 20, "rounds": 50, "batch_norm": "local", "out": tmp_path}
    result = evenfed.train(normed, clients(), "fedavg", callbacks=watchers, **options)
    loaded = evenfed.load(tmp_path, model=normed)
    assert result.model_round == 3 and len(norms) == 5
    for each in (result, loaded):
        for k in range(len(clients())):
            own = each.client_model(k)[1]
            assert torch.equal(own.running_mean, norms[2].buffers["1.running_mean"][k])
            assert torch.equal(torch.cat([own.weight, own.bias]), norms[2].parameters[k])
            assert not torch.equal(own.running_mean, each.model[1].running_mean)


def test_early_stopping_knows_that_a_spread_should_fall():
    stop = evenfed.callbacks.EarlyStopping("std", patience=2)
    result = evenfed.train(model(), clients(), "vred", rounds=50, callbacks=[falling_and_rising, stop], **CPU)
    assert len(result.records) == 5 and result.model_round == 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"metric": "worst11"}, "did you mean 'worst1"),
        ({"patience": 0}, "patience=0"),
        ({"min_delta": -1}, "min_delta=-1"),
        ({"restore_best": 1}, "restore_best=1"),
    ],
)
def test_early_stopping_refuses(options, told):
    with pytest.raises(evenfed.InputError, match=told):
        evenfed.callbacks.EarlyStopping(**options)


def test_early_stopping_needs_something_to_judge_by():
    stop = evenfed.callbacks.EarlyStopping()
    untested = [evenfed.Client(client.train) for client in clients()]
    with pytest.raises(evenfed.InputError, match="needs clients with test data"):
        evenfed.train(model(), untested, rounds=1, callbacks=stop, **CPU)
    with pytest.raises(evenfed.InputError, match="evaluate_every=1, not 0"):
        evenfed.train(model(), clients(), rounds=1, evaluate_every=0, callbacks=stop, **CPU)


@pytest.mark.parametrize("every", [1, 3])
def test_a_run_that_stopped_early_stays_so_if_it_is_given_more_rounds(tmp_path, every):
    def train(rounds, out=None):
        watchers = [falling_and_rising, evenfed.callbacks.EarlyStopping("worst10", patience=3)]
        options = {**CPU, "rounds": rounds, "evaluate_every": every}
        return evenfed.train(model(), clients(), "fedavg", callbacks=watchers, out=out, **options)

    direct = train(30)
    for rounds in (2, 4, 10, 30):
        extended = train(rounds, tmp_path)
    assert len(direct.records) == len(extended.records) == 6
    assert (direct.stopped, direct.model_round) == (extended.stopped, extended.model_round)
    assert torch.equal(direct.model.weight, extended.model.weight)
    assert extended.header.rounds == 30 and len(evenfed.load(tmp_path).records) == 6


@pytest.mark.filterwarnings("ignore:.*broke down")
def test_a_diverged_run_and_one_that_a_function_stopped_stay_so_too(tmp_path):
    x = torch.ones(6, 4)
    numbers = [evenfed.Client((x, x[:, 0]), (x, x[:, 0])) for _ in range(3)]
    steep = {"loss": "mse", "lr": 1e12, "device": "cpu", "out": tmp_path / "diverged"}
    start = torch.nn.Linear(4, 1)
    first = evenfed.train(start, numbers, "fedavg", rounds=20, **steep)
    longer = evenfed.train(start, numbers, "fedavg", rounds=25, **steep)
    assert len(first.records) == len(longer.records) < 20

    def stop(progress):
        if progress.round == 2:
            progress.stop()

    short = [
        evenfed.train(model(), clients(), rounds=rounds, callbacks=callbacks, out=tmp_path / "short", **CPU)
        for rounds, callbacks in [(5, stop), (5, ()), (8, ())]
    ]
    assert [len(result.records) for result in short] == [2, 2, 2]
