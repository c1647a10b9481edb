"""The commands as a user types them: an experiment on Flower's simulation, and a new Flower app run by Flower."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import command
from command import PATIENCE, rounds_of, wait_for
from network import Watch

pytestmark = pytest.mark.slow
EXPERIMENT = """
seeds = [1]
noise_floor = false
[data]
clients = 4
concentration = 1.0
examples = 300
[train]
rounds = 4
lr = 0.1
batch_size = 16
participation = 3
[algorithms]
ditto = { average = 0.8, weigh_at = "average" }
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # as Ray gives each client: kernels round by the number of threads


def test_an_experiment_on_flower_is_killed_goes_on_equals_the_simulator_and_speaks_to_no_one(tmp_path, evenfed):
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    asked = ["compare", "mine.toml", "--engine", "flower"]
    killed = command.Forked(*asked, cwd=tmp_path, **ONE_THREAD)
    killed.stay_on_one_core()
    try:
        wait_for(lambda: list((tmp_path / "runs").glob("mine/ditto/seed-1/checkpoint-2*")))
    finally:
        killed.send_signal(signal.SIGKILL)
    command.ended(killed)
    watch = Watch(tmp_path / "watch")
    with command.on_one_core():
        done = command.run(*asked, cwd=tmp_path, through=watch.command, **ONE_THREAD, **watch.environment)
    assert done.returncode == 0, done.stderr
    assert "ditto" in done.stdout and "DEPRECATED" not in done.stderr and "round 4 of 4" in done.stderr
    assert watch.addresses() and watch.elsewhere() == set()
    reference = ["compare", "mine.toml", "--engine", "reference", "--out", "there"]
    assert command.ended(command.Forked(*reference, cwd=tmp_path, **ONE_THREAD)).returncode == 0
    for label in ("fedavg", "ditto"):
        run = tmp_path / "runs" / "mine" / label / "seed-1"
        for here, there in zip(rounds_of(run), rounds_of(tmp_path / "there" / "mine" / label / "seed-1"), strict=True):
            # a simulator keeps personal models as differences: their last digit may round otherwise
            for name in ("test_losses", "current_losses"):
                assert here.pop(name, []) == pytest.approx(there.pop(name, []), rel=1e-7)
            assert there.pop("recalls") and "recalls" not in here  # no message carries answers by class
            assert here == there and ("current" in here) == (label == "ditto")
        header = json.loads((run / "header.json").read_text())
        assert header["engine"].startswith("flower") and header["finished"] and header["config"]["data"]["clients"] == 4
        saved = load_file(run / "model.safetensors")
        wanted = load_file(tmp_path / "there" / "mine" / label / "seed-1" / "model.safetensors")
        assert all(torch.equal(saved[name], tensor) for name, tensor in wanted.items())
    assert header["resumed_at"][0] == 0 and 1 <= header["resumed_at"][1] < 4  # the second may have been half written
    assert not (tmp_path / "runs" / "mine" / ".personal").exists()
    told = evenfed("report", "runs/mine", "--format", "markdown")
    assert told.returncode == 0 and "Ditto" in told.stdout.title(), told.stderr


def superlink_on(port: int) -> int | None:
    """The SuperLink that a local `flwr run` leaves behind."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(w.endswith(b"flower-superlink") for w in words) and str(port).encode() in words:
            return int(process.name)
    return None


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_new_app_runs_on_flower_as_it_is_and_speaks_to_no_one(tmp_path, evenfed):
    app, watch, port, ended = tmp_path / "wards", Watch(tmp_path / "watch"), free_port(), tmp_path / "ended"
    made = evenfed("flower", "new", "wards")
    assert made.returncode == 0 and "flwr run" in made.stdout, made.stderr
    environment = {
        **os.environ,
        **watch.environment,
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    typed = 'set -a && . ./quiet.env && set +a && flwr run . --stream --run-config "evenfed.rounds=2"'
    with (tmp_path / "output.txt").open("w+") as output:
        words = watch.command("sh", "-c", f"({typed}); touch {ended}")  # strace itself ends with the SuperLink
        with command.on_one_core():
            run = subprocess.Popen(words, env=environment, cwd=app, stdout=output, stderr=output)
        try:
            wait_for(ended.exists)
        finally:
            left = superlink_on(port)
            if left is not None:
                os.kill(left, signal.SIGTERM)
            run.wait(PATIENCE)
        output.seek(0)
        told = output.read()
    folders = [*(app / "runs").glob("*/semi_vred/seed-0")]
    assert len(folders) == 1, told
    (folder,) = folders
    header, lines = json.loads((folder / "header.json").read_text()), rounds_of(folder)
    assert header["finished"] and header["clients"]["names"] == ["digits-0", "digits-1"]
    assert [line["index"] for line in lines] == [0, 1] and len(lines[1]["accuracy"]) == 2
    assert watch.addresses() and watch.elsewhere() == set()


def test_the_watch_sees_what_leaves_the_machine(tmp_path):
    watch = Watch(tmp_path / "watch")
    code = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.77', 9))"  # sends nothing
    subprocess.run(watch.command(sys.executable, "-c", code), env={**os.environ, **watch.environment}, check=True)
    assert watch.elsewhere() == {"192.0.2.77"}


def test_bad_input_is_told_without_a_traceback(evenfed, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    for words, told in (
        (("flower", "new", "full"), "not empty"),
        (("flower", "new", "7"), "begin with a letter"),
        (("flower", "new", "torch"), "installed Python package"),
        (("flower", "new", "import"), "'import' is a keyword of Python"),
        (("compare", "--engine", "flowr"), "did you mean 'flower'"),
    ):
        done = evenfed(*words)
        assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


def test_a_new_app_takes_the_options_of_the_manual_and_its_command_holds_spaces(evenfed, tmp_path):
    made = evenfed("flower", "new", "two wards")
    assert "cd 'two wards' && " in made.stdout
    options = "evenfed.guard='off' evenfed.average=0.9 evenfed.weigh_at='average' evenfed.trips=2"
    done = evenfed("flower", "check", "two wards", "--run-config", options)
    assert done.returncode == 0, done.stderr
    private = evenfed("flower", "check", "two wards", "--sites", "3", "--run-config", "evenfed.private=true")
    assert private.returncode == 0, private.stderr


def test_without_flower_the_command_says_what_to_install(tmp_path):
    """In a Python that has everything but flwr."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name.split('.')[0] == 'flwr' else find(name, *a)\n"
    )
    done = command.run("compare", "--engine", "flower", "--rounds", 1, cwd=tmp_path, PYTHONPATH=str(hidden))
    assert done.returncode == 2 and "pip install 'evenfed[flower]'" in done.stderr and "Traceback" not in done.stderr


def test_the_python_interface_refuses_the_engine_that_is_not_its_own():
    import evenfed as package
    from worked_example import federation

    with pytest.raises(package.InputError, match="evenfed compare"):
        package.train(torch.nn.Linear(6, 3), federation(), rounds=1, engine="flower")
