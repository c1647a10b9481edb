"""Seconds per round on real nodes: one, two and three trips, private rounds, and Flower's own FedAvg (docs/deploy.md).

usage: python benchmarks/flower_nodes.py [ROUNDS] [ROW ...]

A SuperLink and three SuperNodes as processes of this machine, on loopback; the hospitals of examples/flower-hospitals.
Flower's FedAvg runs over the same client app and gives it the same work. Each message starts a Python process at a
site. A row is the median over the rounds after the first, which also waits for the sites to describe themselves.
"""

import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "flower-hospitals"
BIN = Path(sys.executable).parent
SITES = 3
PORT = int(os.environ.get("PORT", "8300"))
OPTIONS = 'local_epochs=5, lr=0.2, batch_size=16, seed=0, timeout=300.0, algorithm="semi_vred[beta=5]"'
ROWS = {
    "FedAvg": "Flower's FedAvg",
    "trips=1": "FairStrategy, trips=1, scored every round",
    "trips=2": "FairStrategy, trips=2",
    "trips=3": "FairStrategy, trips=3",
    "private": "FairStrategy, private, Semi-VRed",
    "private-fedavg": "FairStrategy, private, FedAvg",
}
SERVER = f"""
import json, time
from pathlib import Path
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from evenfed.flower import FairStrategy
from evenfed.flower.server import initial_arrays
from evenfed.flower.wire import Task
from evenfed.simulate.problem import initial_model
from hospitals.task import model

OPTIONS = dict({OPTIONS})
OF_ROW = {{
    "trips=1": dict(trips=1, evaluate_every=1), "trips=2": dict(trips=2), "trips=3": dict(trips=3),
    "private": dict(private=True), "private-fedavg": dict(private=True, algorithm="fedavg"),
}}
app = ServerApp()

@app.main()
def main(grid, context):
    row, rounds = context.run_config["row"], context.run_config["rounds"]
    ends, start = [], initial_arrays(initial_model(model, 0))

    def ended(number, arrays):
        if number:
            ends.append(time.time())

    if row == "FedAvg":
        task = Task.of("nodes", 0, FairStrategy(**OPTIONS).settings, FairStrategy(**OPTIONS).algorithm).record()
        strategy = FedAvg(min_available_nodes=3, min_train_nodes=3, min_evaluate_nodes=3)
        strategy.start(grid, start, rounds, train_config=task, evaluate_config=task, evaluate_fn=ended)
    else:
        FairStrategy(**{{**OPTIONS, **OF_ROW[row]}}).start(grid, start, rounds, evaluate_fn=ended)
    Path(context.run_config["ends"]).write_text(json.dumps(ends))
"""


def write_app(folder: Path) -> None:
    """The hospitals' app, with a server that runs any row."""
    shutil.copytree(EXAMPLE / "hospitals", folder / "hospitals")
    (folder / "hospitals" / "server_app.py").write_text(SERVER)
    project = (EXAMPLE / "pyproject.toml").read_text()
    before, _, _ = project.partition("[tool.flwr.app.config")
    (folder / "pyproject.toml").write_text(f'{before}[tool.flwr.app.config]\nrow = ""\nrounds = 3\nends = ""\n')


def environment(folder: Path) -> dict[str, str]:
    values = {**os.environ, "FLWR_HOME": str(folder / "flower"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    for line in (EXAMPLE / "quiet.env").read_text().splitlines():
        name, _, value = line.partition("=")
        values[name] = value
    return values


def start(folder: Path, values: dict[str, str], stack: ExitStack) -> None:
    """The server and the sites; they end with the stack."""

    def process(name: str, *command: str) -> None:
        log = stack.enter_context((folder / f"{name}.log").open("w"))
        started = subprocess.Popen(command, env=values, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        stack.callback(started.wait)
        stack.callback(started.terminate)

    (folder / "flower").mkdir()
    address = f"127.0.0.1:{PORT}"
    config = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    (folder / "flower" / "config.toml").write_text(config)
    on_loopback = ("--insecure", "--host", "127.0.0.1")
    quiet = "--disable-runtime-dependency-installation"
    process("server", "flower-superlink", *on_loopback, quiet, "--port", str(PORT))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://{address}/health", timeout=2)
            break
        except OSError:
            time.sleep(0.5)
    for site in range(SITES):
        place = ("--superlink", address, "--port", str(PORT + 1 + site))
        number = f"partition-id={site} num-partitions={SITES}"
        process(f"site-{site}", "flower-supernode", *on_loopback, *place, "--node-config", number)
    time.sleep(10)


def seconds_per_round(row: str, rounds: int, folder: Path, values: dict[str, str]) -> float:
    ends = folder / f"{row}.json"
    config = f"row='{row}' rounds={rounds} ends='{ends}'"
    command = ["flwr", "run", str(folder), "here", "--stream", "--run-config", config]
    with (folder / f"{row}.log").open("w") as log:
        subprocess.run(command, env=values, stdout=log, stderr=subprocess.STDOUT, timeout=1800)
    times = json.loads(ends.read_text())
    return statistics.median(b - a for a, b in itertools.pairwise(times))


def main() -> None:
    rounds = int(sys.argv[1]) if sys.argv[1:] else 4
    signal.signal(signal.SIGTERM, lambda *given: sys.exit(1))  # so that the processes end with this one
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())
        folder = Path(place)
        write_app(folder)
        values = environment(folder)
        start(folder, values, stack)
        print("| strategy | seconds per round |\n|---|---|")
        for row in sys.argv[2:] or ROWS:
            print(f"| {ROWS[row]} | {seconds_per_round(row, rounds, folder, values):.0f} |", flush=True)


if __name__ == "__main__":
    main()
