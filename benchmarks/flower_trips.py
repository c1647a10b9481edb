"""Time and result of one, two and three trips per round, on Flower's simulation (docs/deploy.md).

usage: python benchmarks/flower_trips.py [ROUNDS]

The app is examples/flower-quickstart: ten clients with few digits each. FedAvg and QFedAvg are Flower's. Each run
starts from the same model; local batches are drawn anew, so results differ by chance too. Times are of the fastest
round, which other work on the machine disturbs least.
"""

import random
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, QFedAvg

import evenfed
from evenfed.flower import Fair, FairStrategy, client_app, extend
from evenfed.flower.simulation import simulate

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "flower-quickstart"))

from compare import CLIENTS, CONFIG, LR, Configured, accuracies
from quickstart.task import Net, load_data

ALGORITHM = "semi_vred[beta=1,smooth=0.25]"
ROUNDS = int(sys.argv[1]) if sys.argv[1:] else 10


def loaders(context):
    return load_data(context.node_config["partition-id"], CLIENTS, CONFIG["batch-size"])


def site(context):
    train, test = loaders(context)
    return evenfed.Client(train=train, test=test)


class Both(ClientApp):
    """The quickstart's client, extended; and evenfed's own client for messages of FairStrategy."""

    def __init__(self):
        super().__init__()
        self.extended = extend(Configured(), model=Net, data=loaders, device="cpu")
        self.own = client_app(Net, site, device="cpu")

    def __call__(self, message, context):
        configs = message.content.config_records
        is_own = any(name.startswith("evenfed.run") for config in configs.values() for name in config)
        app = self.own if is_own or message.metadata.message_type == "query.describe" else self.extended
        return app(message, context)


def own_strategy(trips):
    return FairStrategy(
        ALGORITHM,
        trips=trips,
        rounds=ROUNDS,
        lr=LR,
        optimizer={"name": "sgd", "momentum": 0.9},
        batch_size=CONFIG["batch-size"],
        local_epochs=CONFIG["local-epochs"],
    )


def counted(grid):
    """The messages sent so far, as a list that grows."""
    sent = []
    push = grid.push_messages

    def push_and_count(messages):
        messages = list(messages)
        sent.extend(message.metadata.message_type for message in messages)
        return push(messages)

    grid.push_messages = push_and_count
    return sent


def serve(grid):
    rows = [("FedAvg (Flower)", FedAvg), ("QFedAvg (Flower)", lambda: QFedAvg(client_learning_rate=LR))]
    for trips in (1, 2, 3):
        rows.append((f"Fair, trips={trips}", lambda trips=trips: Fair(ALGORITHM, trips=trips)))
    for trips in (1, 2, 3):
        rows.append((f"FairStrategy, trips={trips}", lambda trips=trips: own_strategy(trips)))
    sent = counted(grid)
    print("| strategy | messages per client and round | seconds, fastest round | mean accuracy | worst client |")
    print("|---|---|---|---|---|")
    FedAvg().start(grid, ArrayRecord(Net().state_dict()), 1, train_config=ConfigRecord({"lr": LR}))  # workers start
    for title, make in rows:
        torch.manual_seed(0)
        random.seed(0)
        sent.clear()
        start = ArrayRecord(Net().state_dict())
        ends = [time.perf_counter()]

        def note_time(number, arrays, ends=ends):
            ends.append(time.perf_counter())

        config = ConfigRecord({"lr": LR})
        result = make().start(grid, start, ROUNDS, train_config=config, evaluate_fn=note_time)
        seconds = min(end - begin for begin, end in pairwise(ends[-ROUNDS:]))
        accuracy = accuracies(result.arrays)
        mean = sum(accuracy) / CLIENTS
        messages = len([kind for kind in sent if kind != "query.describe"]) / CLIENTS / ROUNDS
        print(f"| {title} | {messages:.1f} | {seconds:.2f} | {mean:.1%} | {min(accuracy):.1%} |", flush=True)


if __name__ == "__main__":
    simulate(serve, Both(), CLIENTS)
