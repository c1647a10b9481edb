"""Flower's FedAvg and QFedAvg beside evenfed's Fair, in one run of Flower's simulation, the client unmodified.

usage: python compare.py [ROUNDS]
"""

import copy
import random
import sys
import time
import tomllib
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, QFedAvg
from quickstart.client_app import app
from quickstart.task import Net, load_data, test

from evenfed.flower import Fair
from evenfed.flower.simulation import simulate

PROJECT = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text())
CONFIG = PROJECT["tool"]["flwr"]["app"]["config"]
CLIENTS = 10
LR = CONFIG["learning-rate"]
STRATEGIES = {
    "FedAvg (Flower)": lambda: FedAvg(),
    "QFedAvg (Flower), q = 0.1": lambda: QFedAvg(client_learning_rate=LR, q=0.1),
    "Fair, q-FFL, q = 0.1": lambda: Fair("qffl[q=0.1]"),
    "Fair, Semi-VRed, beta = 1, smooth = 0.25": lambda: Fair("semi_vred[beta=1,smooth=0.25]"),
}


class Configured(ClientApp):
    """The client app with the run's configuration, as `flwr run` gives it."""

    def __call__(self, message, context):
        configured = copy.copy(context)  # Flower wants its own back as it was
        configured.run_config = CONFIG
        return app(message, configured)


def accuracies(arrays):
    """Test accuracy of every client."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    return [test(net, load_data(client, CLIENTS, 64)[1])[1] for client in range(CLIENTS)]


def run(strategy, grid, rounds):
    """(accuracies at the end, seconds)."""
    torch.manual_seed(0)
    random.seed(0)
    start = ArrayRecord(Net().state_dict())
    began = time.perf_counter()
    result = strategy.start(grid, start, rounds, train_config=ConfigRecord({"lr": LR}))
    return accuracies(result.arrays), time.perf_counter() - began


def serve(grid):
    rounds = int(sys.argv[1]) if sys.argv[1:] else CONFIG["num-server-rounds"]
    print("| strategy | mean accuracy | worst client | seconds |\n|---|---|---|---|")
    for title, make in STRATEGIES.items():
        accuracy, seconds = run(make(), grid, rounds)
        mean = sum(accuracy) / len(accuracy)
        print(f"| {title} | {mean:.1%} | {min(accuracy):.1%} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    simulate(serve, Configured(), CLIENTS)
