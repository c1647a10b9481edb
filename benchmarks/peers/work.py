"""The one federated workload that every peer script runs: its data, start, constants and report line."""

import argparse
import json
from functools import cache

import numpy as np
from sklearn.datasets import load_digits

CLIENTS, SAMPLES = 50, 35
FEATURES, HIDDEN, CLASSES = 64, 32, 10
BATCH, LEARNING_RATE = 7, 0.1
WORKERS = 2  # processes that train clients, where a peer can use several


@cache
def load_clients() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the (features, labels) arrays of each client, loaded once per process."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))[: CLIENTS * SAMPLES]
    features = (x[order] / 16.0).astype(np.float32)
    return list(zip(np.split(features, CLIENTS), np.split(y[order].astype(np.int64), CLIENTS), strict=True))


def initial_parameters() -> list[np.ndarray]:
    """Return the same starting point for all: each layer's weight (outputs x inputs) and bias."""
    rng = np.random.default_rng(1)
    parameters = []
    for inputs, outputs in ((FEATURES, HIDDEN), (HIDDEN, CLASSES)):
        bound = inputs**-0.5
        parameters.append(rng.uniform(-bound, bound, (outputs, inputs)).astype(np.float32))
        parameters.append(rng.uniform(-bound, bound, outputs).astype(np.float32))
    return parameters


def accuracy(parameters: list[np.ndarray]) -> float:
    """Return the share of all clients' samples that a model, given as `initial_parameters`, gets right."""
    w1, b1, w2, b2 = parameters
    x, y = (np.concatenate(arrays) for arrays in zip(*load_clients(), strict=True))
    return float(np.mean((np.maximum(x @ w1.T + b1, 0) @ w2.T + b2).argmax(axis=1) == y))


def parse_rounds(rounds: int = 100, warmup: int = 5) -> tuple[int, int]:
    """Return the numbers of timed and of warm-up rounds from the command line, with these defaults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=rounds, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=warmup, help="untimed rounds before them, at least 1")
    args = parser.parse_args()
    if args.rounds < 1 or args.warmup < 1:
        parser.error("--rounds and --warmup must be at least 1")
    return args.rounds, args.warmup


def report(peer: str, version: str, ends: list[float], warmup: int, parameters: list[np.ndarray]) -> None:
    """Print the result as one JSON line, given when each round ended and the final model."""
    rounds, seconds = len(ends) - warmup, ends[-1] - ends[warmup - 1]
    result = {
        "peer": peer,
        "version": version,
        "rounds": rounds,
        "seconds": round(seconds, 4),
        "rounds_per_second": round(rounds / seconds, 3),
        "accuracy": round(accuracy(parameters), 4),
    }
    print(json.dumps(result), flush=True)
