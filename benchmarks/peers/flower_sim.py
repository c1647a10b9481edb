"""Time FedAvg rounds of the shared workload in Flower's simulation runtime (Ray backend, two actors)."""

import os

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")

import logging
import time
from importlib.metadata import version

import torch
import work
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

client_app = ClientApp()


def new_model() -> nn.Module:
    """Return an MLP with PyTorch's own initialization."""
    return nn.Sequential(nn.Linear(work.FEATURES, work.HIDDEN), nn.ReLU(), nn.Linear(work.HIDDEN, work.CLASSES))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model for one local epoch and reply with it."""
    model = new_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    features, labels = map(torch.from_numpy, work.load_clients()[context.node_config["partition-id"]])
    optimizer = torch.optim.SGD(model.parameters(), lr=work.LEARNING_RATE)
    for x, y in zip(features.split(work.BATCH), labels.split(work.BATCH), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})}
    return Message(content=RecordDict(content), reply_to=message)


def main() -> None:
    """Run the rounds and report."""
    rounds, warmup = work.parse_rounds(rounds=20, warmup=1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    server_app, ends = ServerApp(), []
    final: list[ArrayRecord] = []

    def note_end(server_round: int, arrays: ArrayRecord) -> None:
        """Note when a round ended, as the strategy's central evaluation hook (round 0 is before training)."""
        if server_round > 0:
            ends.append(time.perf_counter())

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        model = new_model()
        for parameter, value in zip(model.parameters(), work.initial_parameters(), strict=True):
            parameter.data = torch.from_numpy(value)
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=work.CLIENTS)
        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=warmup + rounds, evaluate_fn=note_end)
        final.append(result.arrays)

    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.CLIENTS,
        backend_config={"init_args": {"num_cpus": work.WORKERS}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    work.report("flower", version("flwr"), ends, warmup, final[0].to_numpy_ndarrays())


if __name__ == "__main__":
    import flower_sim  # so that Ray pickles the ClientApp by reference, as in a Flower project: 20% faster

    flower_sim.main()
