"""What a server app does beside its strategy: where it keeps runs, whom it tells, and what it is wrapped in."""

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping

import evenfed
from evenfed.callbacks import Callback, EarlyStopping
from evenfed.comparison.storage.folder import RunFolder
from evenfed.flower import client_app, server_app
from local_grid import OPTIONS, LocalGrid, on_flower, simulated, sites
from worked_example import federation, small_model

pytestmark = pytest.mark.slow
USUAL = {**OPTIONS, "ordered": True, "timeout": 1, "rounds": 2, "algorithm": "semi_vred"}


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """`serve(run_id, config, **arguments of server_app)` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    held = sites(federation())
    clients = client_app(small_model, lambda context: held[context.node_config["partition-id"]], device="cpu")

    def run(run_id=1, config=None, **given):
        options = {f"evenfed.{name}": value for name, value in (config or {}).items()}
        app = server_app(small_model, **{**USUAL, **given})
        app(LocalGrid(clients, 5), Context(run_id, 1, {}, RecordDict(), options))
        return RunFolder.at(tmp_path / "runs" / str(run_id), "semi_vred", 0)

    return run


def leave_after_one_round(progress):
    raise RuntimeError("the machine is gone")


def test_every_run_has_a_folder_of_its_own_and_resume_goes_on_with_the_newest_or_a_named_one(serve, tmp_path):
    assert serve(11).finished
    for run_id in (33, 44):
        with pytest.raises(RuntimeError):
            serve(run_id, listen=leave_after_one_round)
    serve(55, {"resume": True})
    assert RunFolder.at(tmp_path / "runs" / "44", "semi_vred", 0).finished
    serve(66, {"resume": 33})
    assert RunFolder.at(tmp_path / "runs" / "33", "semi_vred", 0).finished
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"11", "33", "44"}
    serve(77, {"out": False})
    assert not (tmp_path / "runs" / "77").exists()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"resume": True}, "holds no run of semi_vred with seed 0"),
        ({"resume": 12}, "there is no folder .*12"),
        ({"resume": "../x"}, "there is no folder"),
        ({"resume": 12, "out": "there"}, "names a run below runs"),
        ({"resume": True, "out": False}, "keeps nothing to resume from"),
        ({"resume": True, "out": "there"}, "holds no run to resume"),
        ({"out": 3}, "out=3: give a folder"),
        ({"track": "tensorbord"}, "did you mean 'tensorboard'"),
    ],
)
def test_wrong_places_are_told(serve, config, told):
    with pytest.raises(evenfed.InputError, match=told):
        serve(1, config)


class Listener(Callback):
    def __init__(self):
        self.heard = []

    def start(self, runs):
        self.heard.append(("start", runs[0].round, runs[0].client_names[0]))

    def round(self, progress):
        worst = progress.fairness.worst
        self.heard.append(("round", progress.round, worst, progress.model))

    def end(self, progress):
        self.heard.append(("end", progress.round))

    def close(self):
        self.heard.append(("close",))


def test_callbacks_hear_what_they_hear_in_the_simulator_and_central_metrics_are_recorded(serve):
    numbers = []

    def evaluate_fn(number, arrays):
        numbers.append(number)
        return {"norm": float(np.linalg.norm(arrays["0.bias"].numpy()))}

    listener = Listener()
    folder = serve(listen=listener, evaluate_fn=evaluate_fn, track="tensorboard")
    assert [what[0] for what in listener.heard] == ["start", "round", "round", "end", "close"]
    assert listener.heard[0] == ("start", 0, "site-0")
    wanted = simulated("semi_vred", rounds=2)
    assert listener.heard[2][2] == wanted.fairness.worst
    model = listener.heard[2][3]
    assert all(torch.equal(model.state_dict()[name], value) for name, value in wanted.model.state_dict().items())
    assert numbers == [0, 1, 2]
    norm = float(wanted.model.state_dict()["0.bias"].norm())
    assert folder.history().records[-1].central["norm"] == pytest.approx(norm)
    assert list((folder.path / "tensorboard").iterdir())
    with pytest.raises(evenfed.InputError, match="evaluate_fn returned a float"):
        serve(2, evaluate_fn=lambda number, arrays: 0.5)


def test_a_callback_ends_a_run_and_early_stopping_puts_back_the_best_model(serve, tmp_path):
    folder = serve(1, {"rounds": 5}, listen=lambda progress: progress.stop("seen enough"))
    assert folder.header().stopped == "seen enough" and len(folder.history().records) == 1
    options = {"lr": 0.3, "rounds": 8}
    stopping = EarlyStopping("mean", patience=2)
    with pytest.raises(evenfed.InputError, match="clients of ditto keep their own"):
        serve(3, {"algorithm": "ditto"}, listen=stopping)
    wanted = simulated("semi_vred", callbacks=[stopping], **options)
    found = serve(2, options, listen=stopping)
    loaded = evenfed.load(found.path, model=small_model())
    assert wanted.model_round is not None and loaded.model_round == wanted.model_round
    assert loaded.stopped == wanted.stopped
    for name, value in wanted.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value)


def test_flowers_privacy_wrappers_go_around_the_strategy(serve):
    def wrap(strategy):
        return DifferentialPrivacyServerSideAdaptiveClipping(strategy, 0.0, 4, initial_clipping_norm=1e6)

    folder = serve(wrap=wrap)
    plain, _, _ = on_flower("semi_vred", rounds=2)
    found = evenfed.load(folder.path)
    assert torch.allclose(found.server.theta, plain.server.theta, atol=1e-5)
    assert "DifferentialPrivacy" in found.header.config["privacy"]["wrapper"]
    with pytest.raises(evenfed.InputError, match="wrap\\(strategy\\) returned a int"):
        serve(2, wrap=lambda strategy: 3)
