"""Seconds per round on real nodes: Flower's FedAvg, evenfed with one to three trips, private rounds (docs/deploy.md).

    python benchmarks/flower_nodes.py                     # all rows: 10 to 12 minutes on two quiet cores
    python benchmarks/flower_nodes.py --trial --rows fedavg own-1 --rounds 2     # prints, writes nothing

A SuperLink and three SuperNodes as processes of this machine, on loopback. Each message starts a Python process at a
site, as at a real one; local work is small. FedAvg and Fair run over a client that knows nothing of evenfed (with three
trips: extended), FairStrategy over evenfed's. A round's seconds are from the end of the one before; the first is left
out, in which sites also describe themselves and make keys. Rows that are done are kept: begun again, the command goes
on with the others.
"""

import argparse
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import page
from evenfed.comparison.storage.provenance import provenance
from real_nodes import RealNodes

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "flower_nodes.json"
UNFINISHED = RESULT.with_suffix(".unfinished.json")
PAGE = ROOT / "docs" / "deploy.md"
ROWS = {  # name -> title, client app
    "fedavg": ("Flower's FedAvg", "usual"),
    "own-1": ("FairStrategy, trips=1", "own"),
    "own-2": ("FairStrategy, trips=2", "own"),
    "own-3": ("FairStrategy, trips=3", "own"),
    "private-semi_vred": ("FairStrategy, private=True, Semi-VRed", "own"),
    "private-fedavg": ("FairStrategy, private=True, FedAvg", "own"),
    "fair-1": ("Fair, trips=1", "usual"),
    "fair-2": ("Fair, trips=2", "usual"),
    "fair-3": ("Fair, trips=3", "extended"),
}
TASK = """
import torch

LR, EPOCHS, BATCH = 0.1, 2, 16

def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

def examples(site):
    draw = torch.Generator().manual_seed(site)
    return torch.randn(200, 64, generator=draw), torch.randint(0, 10, (200,), generator=draw)
"""
USUAL = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy
from nodes.task import BATCH, EPOCHS, LR, examples, model

app = ClientApp()

def load(message, context):
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, targets = examples(context.node_config["partition-id"])
    return net, inputs, targets

@app.train()
def train(message, context):
    net, inputs, targets = load(message, context)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    total = 0.0
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(targets)).split(BATCH):
            optimizer.zero_grad()
            loss = cross_entropy(net(inputs[rows]), targets[rows])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
    metrics = MetricRecord({"train_loss": total / EPOCHS / len(targets), "num-examples": len(targets)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    net, inputs, targets = load(message, context)
    with torch.no_grad():
        outputs = net(inputs)
    right = (outputs.argmax(1) == targets).float().mean().item()
    figures = {"eval_loss": cross_entropy(outputs, targets).item(), "eval_acc": right, "num-examples": len(targets)}
    return Message(RecordDict({"metrics": MetricRecord(figures)}), reply_to=message)
"""
EXTENDED = """
import evenfed.flower
from nodes.task import examples, model
from nodes.usual import app as usual

app = evenfed.flower.extend(usual, model=model, data=lambda context: examples(context.node_config["partition-id"]))
"""
OWN = """
from evenfed import Client
from evenfed.flower import client_app
from nodes.task import examples, model

def data(context):
    held = examples(context.node_config["partition-id"])
    return Client(train=held, test=held)

app = client_app(model, data, device="cpu")
"""
SERVER = """
import json, time
from pathlib import Path
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from evenfed.flower import Fair, FairStrategy
from evenfed.flower.server import initial_arrays
from evenfed.simulate.problem import initial_model
from nodes.task import BATCH, EPOCHS, LR, model

app = ServerApp()

def strategy_of(row, sites):
    kind, _, which = row.partition("-")
    all_of_them = dict(min_available_nodes=sites, min_train_nodes=sites, min_evaluate_nodes=sites)
    if kind == "fedavg":
        return FedAvg(**all_of_them)
    if kind == "fair":
        trips = int(which)
        options = dict(all_of_them, trips=trips)
        if trips == 1:
            options |= dict(fraction_evaluate=0.0, min_evaluate_nodes=0)
        return Fair("semi_vred", **options)
    options = dict(lr=LR, local_epochs=EPOCHS, batch_size=BATCH, timeout=300.0)
    if kind == "private":
        return FairStrategy(which, private=True, **options)
    if which == "1":
        options["fraction_evaluate"] = 0.0
    return FairStrategy("semi_vred", trips=int(which), **options)

@app.main()
def main(grid, context):
    config = context.run_config
    ends, counts, sent = [], [], 0
    push = grid.push_messages

    def counted(messages):
        nonlocal sent
        held = list(messages)
        sent += len(held)
        return push(held)

    def ended(number, arrays):
        if number:
            ends.append(time.time())
            counts.append(sent)

    grid.push_messages = counted
    strategy = strategy_of(config["row"], config["sites"])
    strategy.start(grid, initial_arrays(initial_model(model, 0)), config["rounds"], evaluate_fn=ended)
    Path(config["told"]).write_text(json.dumps(dict(ends=ends, messages=counts)))
"""
PROJECT = """
[project]
name = "nodes"
version = "0.1.0"
description = "Rounds on real nodes, timed"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "evenfed"

[tool.flwr.app.components]
serverapp = "nodes.server_app:app"
clientapp = "nodes.CLIENT:app"

[tool.flwr.app.config]
row = ""
rounds = 0
sites = 0
told = ""
"""


def write_app(folder: Path, client: str) -> None:
    """With the client `usual`, `extended` or `own`."""
    package = folder / "nodes"
    package.mkdir(parents=True)
    texts = {"__init__": "", "task": TASK, "usual": USUAL, "extended": EXTENDED, "own": OWN, "server_app": SERVER}
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    (folder / "pyproject.toml").write_text(PROJECT.replace("CLIENT", client))


def timed(row: str, nodes: RealNodes, rounds: int, seconds: float) -> dict[str, Any]:
    """One row; raises where it does not end well in so many seconds."""
    app = nodes.folder / ROWS[row][1]
    told = nodes.folder / f"{row}.json"
    config = f"row='{row}' rounds={rounds} sites={nodes.sites} told='{told}'"
    began = time.monotonic()
    try:
        log = nodes.run(app, config, seconds)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{row} took longer than {seconds:.0f} s") from None
    if not told.exists():
        raise RuntimeError(f"{row} failed:\n{log[-3000:]}")
    noted = json.loads(told.read_text())
    lengths = [after - before for before, after in itertools.pairwise(noted["ends"])]
    messages = (noted["messages"][-1] - noted["messages"][0]) / len(lengths) / nodes.sites
    return {
        "title": ROWS[row][0],
        "messages": messages,
        "seconds": lengths,
        "whole": time.monotonic() - began,
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    """In the order of ROWS."""
    lines = ["| strategy | messages per site and round | seconds per round | x FedAvg |", "|---|---|---|---|"]
    fedavg = rows.get("fedavg")
    for name in ROWS:
        if name not in rows:
            continue
        row = rows[name]
        seconds = statistics.median(row["seconds"])
        times = "" if fedavg is None else f"{seconds / statistics.median(fedavg['seconds']):.2f}"
        lines.append(f"| {row['title']} | {row['messages']:.0f} | {seconds:.1f} | {times} |")
    return "\n".join(lines)


def beginning(sites: int, rounds: int, anew: bool) -> dict[str, Any]:
    """What an earlier call of the same kind has left, or nothing yet."""
    about = provenance()
    about["versions"]["flwr"] = version("flwr")
    new = {"sites": sites, "rounds": rounds, **about, "rows": {}}
    if anew or not UNFINISHED.exists():
        return new
    left: dict[str, Any] = json.loads(UNFINISHED.read_text())
    same = all(left[key] == new[key] for key in ("sites", "rounds", "versions"))
    commits = {str(noted["commit"]).removesuffix("-dirty") for noted in (left, new)}  # its table changes the tree
    return left if same and len(commits) == 1 else new


def measure(noted: dict[str, Any], wanted: list[str], minutes: float, trial: bool) -> None:
    """The rows that are missing, as long as there is time; each is written down when it is done."""
    deadline = time.monotonic() + 60 * minutes
    missing = [row for row in wanted if row not in noted["rows"]]
    while missing and time.monotonic() < deadline:
        with tempfile.TemporaryDirectory(prefix="evenfed-nodes-", ignore_cleanup_errors=True) as place:
            folder = Path(place)
            for client in ("usual", "extended", "own"):
                write_app(folder / client, client)
            with RealNodes(folder, noted["sites"]) as nodes:
                while missing and time.monotonic() < deadline:
                    row = missing.pop(0)
                    left = deadline - time.monotonic()
                    try:
                        noted["rows"][row] = timed(row, nodes, noted["rounds"], left)
                    except RuntimeError as error:
                        print(error, file=sys.stderr, flush=True)
                        break  # with new processes
                    print(row, json.dumps(noted["rows"][row]), flush=True)
                    if not trial:
                        UNFINISHED.write_text(json.dumps(noted, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--minutes", type=float, default=11.5, help="a row that is not done by then is given up")
    parser.add_argument("--anew", action="store_true", help="forget the rows of an earlier call")
    parser.add_argument("--trial", action="store_true", help="print only")
    given = parser.parse_args()
    if given.rounds < 2 or given.sites < 3:
        parser.error("at least 2 rounds, of which the first is left out, and 3 sites, which private rounds need")
    signal.signal(signal.SIGTERM, lambda *received: sys.exit(1))  # so that the processes end with this one
    noted = beginning(given.sites, given.rounds, given.anew or given.trial)
    measure(noted, given.rows, given.minutes, given.trial)
    print(table(noted["rows"]))
    if given.trial or not noted["rows"]:
        return
    RESULT.write_text(json.dumps(noted, indent=1) + "\n")
    page.put("nodes", table(noted["rows"]), PAGE)
    if noted["rows"].keys() == ROWS.keys():
        UNFINISHED.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
