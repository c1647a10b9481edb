"""Time FedAvg rounds of the shared workload in evenfed; it also measures every client's loss in each round."""

import argparse
import time

import torch
import work
from torch import nn

import evenfed


def main() -> None:
    """Run the rounds and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="parallel", choices=["parallel", "reference"])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--warmup", type=int, default=30)  # past the tracing of the step
    given = parser.parse_args()
    model = nn.Sequential(nn.Linear(work.FEATURES, work.HIDDEN), nn.ReLU(), nn.Linear(work.HIDDEN, work.CLASSES))
    for parameter, value in zip(model.parameters(), work.initial_parameters(), strict=True):
        parameter.data = torch.from_numpy(value)
    ends: list[float] = []
    result = evenfed.train(
        model,
        [evenfed.Client(pair) for pair in work.load_clients()],
        "fedavg",
        engine=given.engine,
        device="cpu",
        rounds=given.warmup + given.rounds,
        lr=work.LEARNING_RATE,
        batch_size=work.BATCH,
        callbacks=[lambda _: ends.append(time.perf_counter())],
    )
    parameters = [parameter.detach().numpy() for parameter in result.model.parameters()]
    work.report(f"evenfed {given.engine}", evenfed.__version__, ends, given.warmup, parameters)


if __name__ == "__main__":
    main()
