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
from evenfed.comparison.storage.provenance import provenance
from evenfed.fairness import Fairness
from page import put

RESULT = Path(__file__).parent / "results" / "averaging.json"
ALGORITHMS = {"fedavg": "fedavg", "vred, beta 1.5": "vred[beta=1.5]", "semi_vred, beta 2": "semi_vred[beta=2]"}
AVERAGES = {f"average {decay}": f"average={decay}" for decay in (0.5, 0.8, 0.9, 0.95)}
LAST = {f"mean of last {k}": k for k in (2, 5, 10, 20)}
DAMPED = {  # other trainings, in which the weights swing less
    "smooth 0.2, current": "smooth=0.2",
    "smooth 0.2, average 0.8": "smooth=0.2,average=0.8",
    "weigh_at average, average 0.8": "weigh_at=average,average=0.8",
}
TRAININGS = ("current", *DAMPED)  # the others are other models of the first
WINDOWS = {10: 5, 30: 10, 100: 20}  # after so many rounds: figures are of so many last rounds
KINDS: dict[str, dict[str, Any]] = {
    "one class per client": {"partition": "shards", "shards_per_client": 1},
    "Dirichlet 0.1": {"partition": "dirichlet", "concentration": 0.1},
}
SHOWN = {  # on the page
    "one class per client": ("current", *AVERAGES, *LAST, *DAMPED),
    "Dirichlet 0.1": ("current", "average 0.5", "average 0.9", "mean of last 2", "mean of last 20", *DAMPED),
}
SPLITS = 3
SEEDS = 2
OPTIONS = {"lr": 0.1, "batch_size": 16, "local_steps": 5}

Accuracies = NDArray[np.float64]  # [rounds, clients]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class LastModels:
    """A callback that keeps the last models of every run and judges their plain means."""

    def __init__(self, clients: Sequence[evenfed.Client]) -> None:
        self.kept: dict[tuple[str, int], deque[torch.Tensor]] = {}
        self.accuracies: dict[tuple[str, int, str], list[Accuracies]] = {}  # by label, seed and mean
        self.inputs = torch.cat([client.test[0] for client in clients])
        self.targets = torch.cat([client.test[1] for client in clients])
        self.sizes = [len(client.test[1]) for client in clients]
        self.model = network()

    def round(self, progress: Progress) -> None:
        if progress.label not in ALGORITHMS.values():
            return
        run = (progress.label, progress.seed)
        kept = self.kept.setdefault(run, deque(maxlen=max(LAST.values())))
        kept.append(progress.server.theta)
        newest_first = torch.stack(list(kept)).flip(0)
        for name, k in LAST.items():
            mean = newest_first[:k].mean(0)
            judged = self.judged(progress.server.layout.unflatten(mean))
            self.accuracies.setdefault((*run, name), []).append(judged)

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
            "mean": round(each_round.mean, 3),
            "worst10": round(each_round.worst10, 3),
            "lasting10": round(Fairness.of(late.mean(0)).worst10, 3),
            "swing": round(float(late.std(0).mean()), 3),
        }
    return at


def measured(kind: str, split: int) -> Iterator[dict[str, Any]]:
    """One row for each algorithm, seed and deployed model."""
    digits = load_digits()
    inputs = torch.tensor(digits.data / 16, dtype=torch.float32)
    targets = torch.tensor(digits.target)
    clients = evenfed.federate(inputs, targets, clients=20, test=0.5, seed=split, **KINDS[kind])
    clients = [client for client in clients if client.test is not None and len(client.test[1])]
    entries = {}  # label -> algorithm and deployed model
    for name, label in ALGORITHMS.items():
        entries[label] = (name, "current")
        options = AVERAGES if label == "fedavg" else {**AVERAGES, **DAMPED}
        for model, added in options.items():
            entries[_with(label, added)] = (name, model)
    means = LastModels(clients)
    comparison = evenfed.compare(
        network, clients, list(entries), seeds=SEEDS, rounds=max(WINDOWS), noise_floor=False, callbacks=means, **OPTIONS
    )
    accuracies = {}
    oscillations = {}
    for label, (name, model) in entries.items():
        for result in comparison[label]:
            run = (name, result.seed, model)
            accuracies[run] = [record.accuracy for record in result.records]
            oscillations[run] = result.oscillation
    for (label, seed, model), rows in means.accuracies.items():
        name, _ = entries[label]
        run = (name, seed, model)
        accuracies[run] = rows
        oscillations[run] = oscillations[name, seed, "current"]
    for run, rows in accuracies.items():
        name, seed, model = run
        yield {
            "clients": kind,
            "split": split,
            "algorithm": name,
            "seed": seed,
            "deployed": model,
            "oscillation": round(oscillations[run], 3),
            "after": figures(np.array(rows)),
        }


def _with(label: str, added: str) -> str:
    """The entry with more options."""
    if label.endswith("]"):
        return f"{label[:-1]},{added}]"
    return f"{label}[{added}]"


def tables(report: dict[str, Any]) -> str:
    """One per kind of split: the current model's figures, and what another one changes."""
    parts = []
    for kind, shown in SHOWN.items():
        parts.append(_table(kind, shown, [row for row in report["rows"] if row["clients"] == kind]))
    return "\n\n".join(parts)


def _table(kind: str, shown: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    columns = [("mean", after) for after in map(str, WINDOWS)]
    columns += [("worst10", after) for after in map(str, WINDOWS)]
    columns += [("lasting10", "100"), ("swing", "100")]
    heads = [kind, "deployed", "oscillation", "mean, 10", "30", "100", "worst 10 %, 10", "30", "100"]
    heads += ["lasting, 100", "swing, 100"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for algorithm in ALGORITHMS:
        own = [row for row in rows if row["algorithm"] == algorithm]
        current = [row for row in own if row["deployed"] == "current"]
        title = algorithm
        for model in shown:
            chosen = [row for row in own if row["deployed"] == model]
            if not chosen:
                continue
            cells = []
            for figure, after in columns:
                values = np.array([row["after"][after][figure] for row in chosen])
                base = np.array([row["after"][after][figure] for row in current])
                cells.append(_cell(values, base, model == "current"))
            oscillation = ""
            if model in TRAININGS:
                mean = np.mean([row["oscillation"] for row in chosen])
                oscillation = f"{mean:+.2f}"
            lines.append(f"| {title} | {model} | {oscillation} | {' | '.join(cells)} |")
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
    RESULT.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["tables"]:
        main()
    put("averaging", tables(json.loads(RESULT.read_text())))
