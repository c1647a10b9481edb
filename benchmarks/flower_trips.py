"""Cost and result of one, two and three trips per round (docs/deploy.md).

usage: python benchmarks/flower_trips.py [ROUNDS]

The app is examples/flower-quickstart: ten clients with few digits each, on a grid inside this process, over which real
messages travel as bytes. Time is processor time of server and clients together, without the start of processes that
every message costs on real nodes. Batches are drawn from partition and round, so that results can be compared.
"""

import logging
import random
import sys
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, QFedAvg

import evenfed
from evenfed.flower import Fair, FairStrategy, client_app, extend

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "flower-quickstart"))

from compare import CLIENTS, CONFIG, LR, Configured, accuracies
from quickstart.task import Net, load_data

from local_grid import LocalGrid

ALGORITHM = "semi_vred[beta=1,smooth=0.25]"
ROUNDS = int(sys.argv[1]) if sys.argv[1:] else 10


class Seeded(Configured):
    """The quickstart's client, with random numbers of its own for each round."""

    def __call__(self, message, context):
        number = message.content["config"]["server-round"]
        torch.manual_seed(1000 * number + context.node_config["partition-id"])
        return super().__call__(message, context)


def loaders(context):
    return load_data(context.node_config["partition-id"], CLIENTS, CONFIG["batch-size"])


def site(context):
    train, test = loaders(context)
    return evenfed.Client(train=train, test=test)


def extended() -> ClientApp:
    return extend(Seeded(), model=Net, data=loaders, device="cpu")


def own() -> ClientApp:
    return client_app(Net, site, device="cpu")


def fair(trips: int) -> Fair:
    return Fair(ALGORITHM, trips=trips)


def own_strategy(trips: int) -> FairStrategy:
    return FairStrategy(
        ALGORITHM,
        trips=trips,
        lr=LR,
        optimizer={"name": "sgd", "momentum": 0.9},
        batch_size=CONFIG["batch-size"],
        local_epochs=CONFIG["local-epochs"],
        ordered=True,
    )


def row(title, strategy, app, rounds):
    """One line of the table."""
    torch.manual_seed(0)
    random.seed(0)
    grid = LocalGrid(app, CLIENTS)
    start = ArrayRecord(Net().state_dict())
    began = time.process_time()
    result = strategy.start(grid, start, rounds, train_config=ConfigRecord({"lr": LR}))
    seconds = (time.process_time() - began) / rounds
    messages = [kind for kind, _ in grid.log if kind != "query.describe"]
    per_client = len(messages) / CLIENTS / rounds
    accuracy = accuracies(result.arrays)
    mean = sum(accuracy) / CLIENTS
    return f"| {title} | {per_client:.1f} | {seconds:.2f} | {mean:.1%} | {min(accuracy):.1%} |"


def main():
    logging.getLogger("flwr").setLevel(logging.ERROR)
    row("warming up", fair(1), extended(), 1)
    print("| strategy | messages per client and round | processor seconds per round | mean accuracy | worst client |")
    print("|---|---|---|---|---|")
    print(row("Flower's FedAvg", FedAvg(), Seeded(), ROUNDS))
    print(row("Flower's QFedAvg, q = 0.1", QFedAvg(client_learning_rate=LR, q=0.1), Seeded(), ROUNDS))
    for trips in (1, 2, 3):
        print(row(f"Fair, trips={trips}", fair(trips), extended(), ROUNDS), flush=True)
    for trips in (1, 2, 3):
        print(row(f"FairStrategy, trips={trips}", own_strategy(trips), own(), ROUNDS), flush=True)


if __name__ == "__main__":
    main()
