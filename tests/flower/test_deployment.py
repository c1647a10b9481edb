"""What docs/deploy.md promises, by its own commands: real processes, TLS, registered sites, and what fails."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import evenfed
from deployment import SITES, Deployment, at_site, commands
from evenfed.data import DataSettings, federate
from evenfed.flower.new import write_app
from evenfed.simulate.problem import initial_model

pytestmark = pytest.mark.slow
TASK = """
import torch
from evenfed import Client

def model():
    return torch.nn.Linear(4, 3)

def data(context):
    site = context.node_config["partition-id"]
    draw, size = torch.Generator().manual_seed(site), 10 * (site + 1)
    inputs, targets = torch.randn(size, 4, generator=draw), torch.randint(0, 3, (size,), generator=draw)
    return Client(train=(inputs, targets), name=f"ward-{site}")
"""
CLIENT = """
import time
from pathlib import Path

from evenfed.flower import client_app
from flwr.app import ArrayRecord
from faulty.task import data, model

def faulty(message, context, call_next):
    "Site 1 sends NaN in round 0 and a wrong shape in round 1; site 2 hangs in round 2."
    order = message.content["config"]["evenfed.index"], context.node_config["partition-id"]
    if order == (2, 2):
        Path(context.run_config["evenfed.out"], "hangs").touch()
        time.sleep(900)
    reply = call_next(message, context)
    arrays = reply.content["arrays"].to_torch_state_dict()
    if order == (0, 1):
        arrays["weight"][0, 0] = float("nan")
    if order == (1, 1):
        arrays["bias"] = arrays["bias"][:-1]
    reply.content["arrays"] = ArrayRecord(arrays)
    return reply

app = client_app(model, data, mods=[faulty])
"""
BROKEN = (1, 1, 2)  # the site that does not count, by round


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    made = Deployment(tmp_path_factory.mktemp("deployment"))
    try:
        made.begin()
        yield made
    finally:
        made.end()


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def test_it_trains_and_a_killed_server_goes_on_to_the_model_of_an_undisturbed_run(deployment):
    train, again = (block for block in commands() if "flwr run" in block)
    run = deployment.folder / "wards" / "runs" / "semi_vred" / "seed-0"
    first = deployment.start("first", train)
    first.reaches((run / "checkpoint-1.safetensors").exists)
    os.kill(deployment.server_app(), signal.SIGKILL)
    first.kill()
    assert not json.loads((run / "header.json").read_text())["finished"]
    told = deployment.done(again)
    header = json.loads((run / "header.json").read_text())
    assert "goes on from round 1" in told and header["finished"] and header["resumed_at"] == [0, 1]
    assert header["clients"]["names"] == [f"digits-{k}" for k in SITES]
    assert [line["index"] for line in lines(run)] == [0, 1] and not any(line["dropped"] for line in lines(run))
    undisturbed = simulated(deployment.folder / "wards" / "wards" / "task.py")
    found = load_file(run / "model.safetensors")
    for name, wanted in undisturbed.model.state_dict().items():
        assert torch.allclose(found[name], wanted, rtol=1e-5, atol=1e-7)
    assert [line["accuracy"] for line in lines(run)] == [r.accuracy.tolist() for r in undisturbed.records]


def simulated(task: Path) -> evenfed.Result:
    """What the app trains, in the simulator and in one go."""
    app: dict = {}
    exec(task.read_text(), app)
    clients = [federate(DataSettings(clients=3, concentration=1.0)).client(k) for k in SITES]
    options = {"rounds": 2, "lr": 0.1, "batch_size": 16, "seed": 0, "engine": "reference"}
    return evenfed.train(initial_model(app["model"], 0), clients, "semi_vred", **options)


def test_a_site_that_is_not_registered_is_refused(deployment):
    key, register, node = (block for block in commands() if "K=0" in block)
    deployment.done(at_site(key, 3))
    refused = deployment.start("site-3", at_site(node, 3))
    assert refused.ended() == 1 and "Failed to activate SuperNode" in refused.told()
    assert "flwr supernode register" in register  # which is all that was left out


@pytest.fixture(scope="module")
def faults(deployment) -> SimpleNamespace:
    """Three rounds in which NaN and a wrong shape arrive, and a SuperNode is killed while it trains."""
    app, out = deployment.folder / "faulty", deployment.folder / "faulty-runs"
    write_app(app)
    (app / "faulty" / "task.py").write_text(TASK)
    (app / "faulty" / "client_app.py").write_text(CLIENT)
    settings = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(settings.replace("rounds = 5\n", "rounds = 5\nevaluate_every = 0\n"))
    out.mkdir()
    options = f"algorithm='fedavg' rounds=3 batch_size=100 timeout=60.0 out='{out}'"
    config = " ".join(f"evenfed.{option}" for option in options.split(" "))
    run = deployment.start("faults", f'flwr run faulty ours --stream --run-config "{config}"')
    run.reaches((out / "hangs").exists)
    deployment.running["site-2"].kill()
    folder = out / "fedavg" / "seed-0"
    run.reaches((folder / "model.safetensors").exists)
    run.ended()
    return SimpleNamespace(lines=lines(folder), model=load_file(folder / "model.safetensors"), log=run.told())


def test_broken_replies_are_dropped_and_named(faults):
    assert [line["dropped"] for line in faults.lines[:2]] == [[1], [1]]
    assert "round 0: client 1 (ward-1) is dropped: NaN or infinity" in faults.log
    assert "round 1: client 1 (ward-1) is dropped" in faults.log


def test_a_killed_supernode_is_dropped_and_named_and_the_round_ends_with_the_rest(faults):
    last = faults.lines[2]
    assert last["dropped"] == [2] and not last["skipped"] and last["weights"][2] == 0 and min(last["weights"][:2]) > 0
    assert "round 2: client 2 (ward-2) is dropped: no reply" in faults.log


def test_the_model_is_made_of_good_replies_alone(faults):
    """A full-batch step of FedAvg is a step of gradient descent on the examples of those that count."""
    app: dict = {}
    exec(TASK, app)
    sites = [app["data"](SimpleNamespace(node_config={"partition-id": k})).train for k in SITES]
    model = initial_model(app["model"], 0)
    for broken in BROKEN:
        inputs, targets = (torch.cat([site[part] for k, site in enumerate(sites) if k != broken]) for part in (0, 1))
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    for name, wanted in model.state_dict().items():
        assert torch.allclose(faults.model[name], wanted, atol=1e-6)


def test_nothing_calls_home(faults, deployment):
    deployment.end()
    for watch in deployment.watches.values():
        assert watch.addresses() and watch.elsewhere() == set()
