"""The numbers of the README: ten random splits, each with its own seed, in the simulator (some minutes)."""

import numpy as np
from hospitals.task import NAMES, hospital, model

import evenfed
from evenfed.simulate.problem import initial_model

SPLITS = 10
OPTIONS = {"rounds": 20, "local_epochs": 5, "lr": 0.2, "batch_size": 16, "evaluate_every": 0}
SEMI_VRED = evenfed.algorithms.SemiVRed(beta=5)


def accuracies(algorithm, sites, split):
    clients = [hospital(site, split) for site in sites]
    run = evenfed.train(initial_model(model, split), clients, algorithm, seed=split, **OPTIONS)
    return 100 * run.records[-1].accuracy


def table():
    alone = [[accuracies("fedavg", [site], split)[0] for site in range(3)] for split in range(SPLITS)]
    found = {"each alone": np.array(alone)}
    for label, algorithm in (("fedavg", "fedavg"), ("semi_vred, beta 5", SEMI_VRED), ("ditto", "ditto")):
        found[label] = np.array([accuracies(algorithm, range(3), split) for split in range(SPLITS)])
    return found


if __name__ == "__main__":
    found = table()
    print("| |", " | ".join(NAMES), "| mean |\n|---|---|---|---|---|")
    for label, scores in found.items():
        cells = [f"{m:.1f} ± {s:.1f}" for m, s in zip(scores.mean(0), scores.std(0, ddof=1), strict=True)]
        print(f"| {label} |", " | ".join(cells), f"| {scores.mean():.1f} |")
    gain = (found["semi_vred, beta 5"] - found["fedavg"])[:, 2]
    print(
        f"\nisland, Semi-VRed minus FedAvg: least {gain.min():.0f}, median {np.median(gain):.0f}, most {gain.max():.0f}"
    )
