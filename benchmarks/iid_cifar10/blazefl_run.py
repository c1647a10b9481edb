"""pfl's CIFAR-10 IID benchmark in BlazeFL: its own FedAvg, clients in two threads."""

from importlib.metadata import version

import task as iid
import torch
from blazefl.contrib.fedavg import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer
from torch import Generator, nn
from torch.utils.data import DataLoader, TensorDataset


class Models:
    """What BlazeFL calls a model selector."""

    def select_model(self, name: str) -> nn.Module:
        return iid.initial_model()


class Users:
    """What BlazeFL calls a partitioned dataset."""

    def __init__(self, data: iid.Data) -> None:
        self.datasets = [TensorDataset(*examples) for examples in data.users]

    def get_dataloader(
        self, type_: str, cid: int, batch_size: int | None = None, generator: Generator | None = None
    ) -> DataLoader:
        return DataLoader(self.datasets[cid], batch_size=batch_size, shuffle=True, generator=generator)


def main() -> None:
    """Run the rounds and report."""
    clock = iid.Clock()
    task = iid.Task.parse()
    data = iid.load(task)
    users = Users(data)
    count = len(users.datasets)
    common = {"model_selector": Models(), "model_name": "cnn", "dataset": users, "device": task.device, "seed": 0}
    server = FedAvgBaseServerHandler(
        **common,
        global_round=task.rounds,
        num_clients=count,
        sample_ratio=(task.cohort + 0.5) / count,
        batch_size=task.batch,
    )
    trainer = FedAvgThreadPoolClientTrainer(
        **common, num_clients=count, epochs=1, batch_size=task.batch, lr=task.lr, num_parallels=2
    )
    torch.set_num_threads(1)
    accuracies = {}
    while not server.if_stop():
        cohort = server.sample_clients()
        trainer.local_process(server.downlink_package(), cohort)
        for package in trainer.uplink_package():
            server.load(package)
        if server.round % task.test_every == 0:
            accuracies[server.round] = round(iid.accuracy(server.model, data.test), 4)
        clock.tick()
    iid.report("blazefl", version("blazefl"), task, count, clock, accuracies)


if __name__ == "__main__":
    main()
