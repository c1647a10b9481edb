"""Regression: the diabetes data that ship with scikit-learn, one client per age group, judged by the squared error.

Run it: python examples/regression.py (seconds)
"""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

import evenfed

GROUPS = 6  # of equal size, by age
AGE = 0  # the column
ROUNDS = 40


def clients() -> list[evenfed.Client]:
    """The patients of one age group at a time; every fourth is held back for testing."""
    patients, progression = load_diabetes(return_X_y=True)
    inputs = torch.tensor(patients, dtype=torch.float32) * 20  # their standard deviation becomes about 1
    targets = torch.tensor((progression - progression.mean()) / progression.std(), dtype=torch.float32)
    by_age = inputs[:, AGE].argsort(stable=True)
    federation = []
    for number, rows in enumerate(by_age.tensor_split(GROUPS), start=1):
        x = inputs[rows]
        y = targets[rows]
        is_test = torch.arange(len(rows)) % 4 == 0
        client = evenfed.Client(
            train=(x[~is_test], y[~is_test]),
            test=(x[is_test], y[is_test]),
            name=f"age group {number}",
        )
        federation.append(client)
    return federation


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))


def main(rounds: int = ROUNDS) -> evenfed.Comparison:
    """There is no score, so clients are judged by their test loss: less is better, and the worst 10 % are highest."""
    comparison = evenfed.compare(
        model,
        clients(),
        ["fedavg", "semi_vred"],
        loss="mse",
        seeds=2,
        rounds=rounds,
        lr=0.05,
        batch_size=16,
    )
    print(f"{'':20} {'mean':>7} {'std':>7} {'worst':>7}   (test loss, average of the last rounds)")
    for row in comparison.rows:
        mean, _ = row.late["mean"]
        std, _ = row.late["std"]
        worst, _ = row.late["worst"]
        print(f"{row.label:20} {mean:7.3f} {std:7.3f} {worst:7.3f}")
    return comparison


if __name__ == "__main__":
    main()
