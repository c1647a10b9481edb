"""pfl's CIFAR-10 IID benchmark in Flower's simulation runtime (Ray backend, two actors), its own FedAvg."""

import os

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")

import logging
import sys
from functools import cache
from importlib.metadata import version

import task as iid
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app = ClientApp()


@cache
def loaded() -> tuple[iid.Task, iid.Data]:
    """The task and its data, once per process."""
    arguments = os.environ["IID_ARGUMENTS"].split()  # an actor has arguments of its own
    task = iid.Task.parse(arguments)
    return task, iid.load(task)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model for one local epoch and reply with it."""
    task, data = loaded()
    model = iid.initial_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = data.users[context.node_config["partition-id"]]
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)
    for rows in torch.randperm(len(labels)).split(task.batch):
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})}
    return Message(content=RecordDict(content), reply_to=message)


def main() -> None:
    """Run the rounds and report."""
    clock = iid.Clock()
    os.environ["IID_ARGUMENTS"] = " ".join(sys.argv[1:])
    task, data = loaded()
    count = len(data.users)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    server_app = ServerApp()
    accuracies = {}

    def after_round(done: int, arrays: ArrayRecord) -> None:
        """The strategy's central evaluation; round 0 is before training."""
        if done == 0:
            return
        if done % task.test_every == 0:
            model = iid.initial_model()
            model.load_state_dict(arrays.to_torch_state_dict())
            accuracies[done] = round(iid.accuracy(model, data.test), 4)
        clock.tick()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        fraction = (task.cohort + 0.5) / count
        strategy = FedAvg(fraction_train=fraction, fraction_evaluate=0.0, min_available_nodes=count)
        initial = ArrayRecord(iid.initial_model().state_dict())
        strategy.start(grid, initial, num_rounds=task.rounds, evaluate_fn=after_round)

    run_simulation(
        server_app,
        client_app,
        num_supernodes=count,
        backend_config={"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    iid.report("flower", version("flwr"), task, count, clock, accuracies)


if __name__ == "__main__":
    import flower_run  # so that Ray pickles the ClientApp by reference, as in a Flower project

    flower_run.main()
