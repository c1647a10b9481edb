"""Which model of a run to deploy: the current one, a running average, or the mean of the last k.

    python benchmarks/averaging.py               # 2 to 4 minutes of one core
    python benchmarks/averaging.py tables        # the page's tables from the committed figures

Handwritten digits over 20 clients, split in two ways. All candidates judge the same training: averages are entries of
one comparison, and means of the last k models are made by a callback. The theory: docs/theory.md, T31 to T33.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

import evenfed
from evenfed.callbacks import Progress
from evenfed.comparison.provenance import provenance
from evenfed.fairness import Fairness
from page import put

RESULT = Path(__file__).parent / "results" / "averaging.json"
ALGORITHMS = ("fedavg", "vred[beta=1.5]", "semi_vred[beta=2]")
DECAYS = (0.5, 0.8, 0.9, 0.95)
LAST = (2, 5, 10, 20)
WINDOWS = {10: 5, 30: 10, 100: 20}  # after so many rounds: figures are of so many last rounds
KINDS: dict[str, dict[str, Any]] = {
    "one class per client": {"partition": "shards", "shards_per_client": 1},
    "Dirichlet 0.1": {"partition": "dirichlet", "concentration": 0.1},
}
SPLITS = 3
SEEDS = 2
OPTIONS = {"lr": 0.1, "batch_size": 16, "local_steps": 5}
FIGURES = ("mean", "worst10", "lasting10", "swing")

Accuracies = NDArray[np.float64]  # [rounds, clients]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class LastModels:
    """A callback that keeps the last models of every run and judges their plain means."""

    def __init__(self, clients: Sequence[evenfed.Client]) -> None:
        self.kept: dict[tuple[str, int], deque[torch.Tensor]] = {}
        self.accuracies: dict[tuple[str, int, int], list[Accuracies]] = {}  # by label, seed and k
        self.inputs = torch.cat([client.test[0] for client in clients])
        self.targets = torch.cat([client.test[1] for client in clients])
        self.sizes = [len(client.test[1]) for client in clients]
        self.model = network()

    def round(self, progress: Progress) -> None:
        if progress.settings.average is not None:
            return
        run = (progress.label, progress.seed)
        kept = self.kept.setdefault(run, deque(maxlen=max(LAST)))
        kept.append(progress.server.theta)
        newest_first = torch.stack(list(kept)).flip(0)
        for k in LAST:
            mean = newest_first[:k].mean(0)
            judged = self.judged(progress.server.layout.unflatten(mean))
            self.accuracies.setdefault((*run, k), []).append(judged)

    def judged(self, params: dict[str, torch.Tensor]) -> Accuracies:
        """[n] the accuracy of each client."""
        with torch.no_grad():
            outputs = torch.func.functional_call(self.model, params, self.inputs)
        right = (outputs.argmax(1) == self.targets).double()
        return np.array([part.mean().item() for part in right.split(self.sizes)])


def figures(accuracies: Accuracies) -> dict[str, dict[str, float]]:
    """In percent, after 10, 30 and 100 rounds; `swing` is a client's deviation over rounds, averaged over clients."""
    at = {}
    for rounds, window in WINDOWS.items():
        late = 100 * accuracies[rounds - window : rounds]
        each_round = Fairness.average([Fairness.of(row) for row in late])
        at[str(rounds)] = {
            "mean": each_round.mean,
            "worst10": each_round.worst10,
            "lasting10": Fairness.of(late.mean(0)).worst10,
            "swing": float(late.std(0).mean()),
        }
    return at


def measured(kind: str, split: int) -> Iterator[dict[str, Any]]:
    """One row for each algorithm, seed and deployed model."""
    digits = load_digits()
    inputs = torch.tensor(digits.data / 16, dtype=torch.float32)
    targets = torch.tensor(digits.target)
    clients = evenfed.federate(inputs, targets, clients=20, test=0.5, seed=split, **KINDS[kind])
    clients = [client for client in clients if client.test is not None and len(client.test[1])]
    deployed = {label: (label, "current") for label in ALGORITHMS}
    for label in ALGORITHMS:
        for decay in DECAYS:
            deployed[_with_average(label, decay)] = (label, f"average {decay}")
    means = LastModels(clients)
    comparison = evenfed.compare(
        network,
        clients,
        list(deployed),
        seeds=SEEDS,
        rounds=max(WINDOWS),
        noise_floor=False,
        callbacks=means,
        **OPTIONS,
    )
    accuracies = {}
    oscillations = {}
    for label, (algorithm, model) in deployed.items():
        for result in comparison[label]:
            accuracies[algorithm, result.seed, model] = [record.accuracy for record in result.records]
            oscillations[algorithm, result.seed] = result.oscillation
    for (algorithm, seed, k), rows in means.accuracies.items():
        accuracies[algorithm, seed, f"mean of last {k}"] = rows
    for (algorithm, seed, model), rows in accuracies.items():
        yield {
            "clients": kind,
            "split": split,
            "algorithm": algorithm,
            "seed": seed,
            "deployed": model,
            "oscillation": oscillations[algorithm, seed],
            "after": figures(np.array(rows)),
        }


def _with_average(label: str, decay: float) -> str:
    name, _, options = label.partition("[")
    inside = [option for option in (options.rstrip("]"), f"average={decay}") if option]
    return f"{name}[{','.join(inside)}]"


def models() -> list[str]:
    """What can be deployed, in the order of the tables."""
    averages = [f"average {decay}" for decay in DECAYS]
    means = [f"mean of last {k}" for k in LAST]
    return ["current", *averages, *means]


def tables(report: dict[str, Any]) -> str:
    """One per kind of split: the current model's figures, and what another one changes."""
    parts = []
    for kind in KINDS:
        parts.append(_table(kind, [row for row in report["rows"] if row["clients"] == kind]))
    return "\n\n".join(parts)


def _table(kind: str, rows: Sequence[dict[str, Any]]) -> str:
    columns = [
        ("mean", "10"),
        ("mean", "30"),
        ("mean", "100"),
        ("worst10", "10"),
        ("worst10", "30"),
        ("worst10", "100"),
    ]
    columns += [("lasting10", "100"), ("swing", "100")]
    lines = [
        f"| {kind} | | mean, after 10 | 30 | 100 | worst 10 %, after 10 | 30 | 100 | lasting, 100 | swing, 100 |",
        "|---" * 10 + "|",
    ]
    for algorithm in ALGORITHMS:
        own = [row for row in rows if row["algorithm"] == algorithm]
        current = [row for row in own if row["deployed"] == "current"]
        oscillation = np.mean([row["oscillation"] for row in current])
        title = f"{algorithm}, oscillation {oscillation:+.2f}"
        for model in models():
            chosen = [row for row in own if row["deployed"] == model]
            cells = []
            for figure, after in columns:
                values = np.array([row["after"][after][figure] for row in chosen])
                base = np.array([row["after"][after][figure] for row in current])
                cells.append(_cell(values, base, model == "current"))
            lines.append(f"| {title} | {model} | {' | '.join(cells)} |")
            title = ""
    return "\n".join(lines)


def _cell(values: Accuracies, base: Accuracies, is_base: bool) -> str:
    """The figure, or its paired difference from the current model's, with the standard error over splits and seeds."""
    if is_base:
        return f"{values.mean():.1f}"
    differences = values - base
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    return f"{differences.mean():+.1f} ± {error:.1f}"


def main() -> None:
    began = time.perf_counter()
    rows = []
    for kind in KINDS:
        for split in range(SPLITS):
            rows += measured(kind, split)
            print(f"{kind}, split {split}: {time.perf_counter() - began:.0f} s", flush=True)
    setting = {"options": OPTIONS, "windows": {str(after): window for after, window in WINDOWS.items()}}
    report = {**provenance(), **setting, "seconds": round(time.perf_counter() - began), "rows": rows}
    RESULT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["tables"]:
        main()
    put("averaging", tables(json.loads(RESULT.read_text())))
