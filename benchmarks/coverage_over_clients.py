"""How often an audit's interval over clients holds the true difference, by the number of clients.

    python benchmarks/coverage_over_clients.py   # half a minute; writes results/coverage_over_clients.json

Clients are drawn from one large population: the baseline serves a client with accuracy Beta(6, 3), the other algorithm
gives it 4 points more and 5 points of noise, and lifts those below 60 % by a fifth of what they lack. The intervals are
those of `evenfed audit` (report/over_clients.py): 95 %, clients drawn anew.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evenfed.comparison.storage.provenance import provenance
from evenfed.report.over_clients import _gaps, _resampled

RESULT = Path(__file__).parent / "results" / "coverage_over_clients.json"
SIZES = (10, 20, 50, 100, 200)
METRICS = ("mean", "worst10", "std")
REPETITIONS = 1000
POPULATION = 1_000_000


def population(draw: np.random.Generator, clients: int) -> NDArray[np.float64]:
    """[2, clients] accuracies: of the other algorithm, and of the baseline."""
    baseline = draw.beta(6, 3, clients)
    lack = np.maximum(0.6 - baseline, 0)
    other = baseline + 0.04 + 0.2 * lack + draw.normal(0, 0.05, clients)
    return np.stack([other.clip(0, 1), baseline])


def coverage(clients: int, repetitions: int = REPETITIONS) -> dict[str, float]:
    """In percent, by metric."""
    draw = np.random.default_rng(0)
    everyone = population(draw, POPULATION)
    held = dict.fromkeys(METRICS, 0)
    truth = {metric: float(_gaps(everyone[:, None], metric, True)[0]) for metric in METRICS}
    for _ in range(repetitions):
        pair = population(draw, clients)
        for metric in METRICS:
            low, high = np.quantile(_resampled(pair, metric, True), [0.025, 0.975])
            held[metric] += bool(low <= truth[metric] <= high)
    return {metric: round(100 * count / repetitions, 1) for metric, count in held.items()}


def main() -> None:
    found = {}
    for clients in SIZES:
        found[str(clients)] = coverage(clients)
        print(f"{clients} clients: {found[str(clients)]}")
    RESULT.write_text(json.dumps({**provenance(), "repetitions": REPETITIONS, "coverage": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
