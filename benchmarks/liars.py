"""What clients that lie do to the honest ones, with and without the guard.

    python benchmarks/liars.py                         # attacks not measured yet; a minute of a core for each
    python benchmarks/liars.py "loss 10" "left out"    # those attacks, measured again
    python benchmarks/liars.py --with-guard all        # every attack again, but only on runs with the guard
    python benchmarks/liars.py tables                  # the tables of docs/guard.md from the committed figures
    python benchmarks/liars.py honest                  # how many losses of honest clients the guard would bound

Handwritten digits over 50 clients, 50 rounds. Attacks change what leaves a client, never the engine: `Lying` wraps an
engine and rewrites the losses and updates of those that lie. A claimed size is what the server starts with: a client of
size 0 is left out. Runs with the guard have two seeds on each split, those without it one.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import liars_honest
import liars_page
from evenfed.algorithms import names
from evenfed.comparison.experiment import Experiment
from evenfed.comparison.storage.provenance import provenance
from evenfed.core.errors import InputError
from evenfed.core.server import Record, Update
from evenfed.data.federation import federate
from evenfed.fairness import Fairness
from evenfed.simulate.loop import engine_for, rounds, start
from evenfed.simulate.problem import Engine, EvalRequest, Problem, Task
from evenfed.simulate.state import Run, State, divergence, new_server

RESULT = Path(__file__).parent / "results" / "liars.json"
PAGE = Path(__file__).parent.parent / "docs" / "guard.md"
CLIENTS = 50
ROUNDS = 50
EVERY = 2  # rounds between two evaluations
LAST = 10  # rounds whose evaluations are averaged
SPLITS = (0, 1)  # two splits over clients, each with another seed and another liar
GUARDS = ("off", "on")
GLITCH = 20  # the round of a single lie

Loss = Callable[[Tensor, int, torch.Generator], Tensor]  # loss, round -> what is reported
Delta = Callable[[Tensor, int, torch.Generator], Tensor | None]  # update, round -> what is sent; None: nothing
Accuracies = NDArray[np.float64]


def honest(value: Tensor, index: int, draw: torch.Generator) -> Tensor:
    return value


def always(number: float) -> Loss:
    return lambda loss, index, draw: torch.full_like(loss, number)


def once(number: float) -> Loss:
    return lambda loss, index, draw: torch.full_like(loss, number) if index == GLITCH else loss


def times(factor: float) -> Delta:
    return lambda delta, index, draw: factor * delta


def rising(value: Tensor, index: int, draw: torch.Generator) -> Tensor:
    """A tenth more each round: 117 times as much in the last."""
    return value * 1.1**index


def random_loss(loss: Tensor, index: int, draw: torch.Generator) -> Tensor:
    """Between a thousandth and a thousand, another one each round."""
    return 10 ** (6 * torch.rand(loss.shape, generator=draw, dtype=loss.dtype) - 3)


def noise(delta: Tensor, index: int, draw: torch.Generator) -> Tensor:
    """A random direction, ten times as long as the client's own update."""
    direction = torch.randn(delta.shape, generator=draw, dtype=delta.dtype)
    return 10 * delta.norm(dim=1, keepdim=True) * direction / direction.norm(dim=1, keepdim=True)


def silent(delta: Tensor, index: int, draw: torch.Generator) -> None:
    return None


@dataclass(frozen=True)
class Attack:
    """What liars do."""

    liars: int = 1
    loss: Loss = honest
    update: Delta = honest
    size: int = 1  # claimed, as a multiple of the true one


ATTACKS = {
    "none": Attack(),
    "left out": Attack(size=0),  # what the absence of the liar costs
    "loss 10": Attack(loss=always(10)),
    "loss 1e6": Attack(loss=always(1e6)),
    "loss 1e6 once": Attack(loss=once(1e6)),
    "loss -5": Attack(loss=always(-5)),
    "update x 1000": Attack(update=times(1000)),
    "update x -10": Attack(update=times(-10)),
    "claims 10x its size": Attack(size=10),
    "10 %: none": Attack(liars=5),
    "10 %: left out": Attack(liars=5, size=0),
    "10 %: no reply": Attack(liars=5, update=silent),
    "10 %: loss 1e6": Attack(liars=5, loss=always(1e6)),
    "10 %: loss 3": Attack(liars=5, loss=always(3)),  # about the highest that counts
    "10 %: update x -10": Attack(liars=5, update=times(-10)),
    "10 %: update x -1": Attack(liars=5, update=times(-1)),
    "random loss": Attack(loss=random_loss),
    "random update": Attack(update=noise),
    "slowly rising loss": Attack(loss=rising),
    "slowly rising update": Attack(update=rising),
    "loss 1e6, no reply": Attack(loss=always(1e6), update=silent),
    "loss 1e300": Attack(loss=always(1e300)),
    "update x 1e18": Attack(update=times(1e18)),
}


class Lying:
    """An engine some of whose clients lie."""

    def __init__(self, engine: Engine, attack: Attack, liars: Tensor) -> None:
        self.engine = engine
        self.attack = attack
        self.liars = liars
        self.draw = torch.Generator()
        self.begin()

    def begin(self) -> None:
        """Before round 0."""
        self.index = 0
        self.draw.manual_seed(0)

    @property
    def how(self) -> str:
        return self.engine.how

    def losses(self, questions: Sequence[EvalRequest]) -> list[Tensor]:
        answers = []
        for question, losses in zip(questions, self.engine.losses(questions), strict=True):
            lies = torch.isin(question.ids, self.liars)
            reported = losses.clone()
            reported[lies] = self.attack.loss(losses[lies], self.index, self.draw)
            answers.append(reported)
        return answers

    def train(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Update]]:
        for which, update in self.engine.train(tasks):
            yield from ((which, sent) for sent in self._sent(update))
        self.index += 1

    def _sent(self, update: Update) -> list[Update]:
        ids = torch.as_tensor(update.ids).reshape(-1)
        lies = torch.isin(ids, self.liars)
        if not bool(lies.any()):
            return [update]
        delta = self.attack.update(update.delta[lies], self.index, self.draw)
        snapshot = update.snapshot
        if delta is None and bool(lies.all()):
            return []
        if delta is None:
            snapshot = None if snapshot is None else snapshot[~lies]
            return [dataclasses.replace(update, ids=ids[~lies], delta=update.delta[~lies], snapshot=snapshot)]
        deltas = update.delta.clone()
        deltas[lies] = delta
        if snapshot is not None:
            snapshot = snapshot.clone()
            snapshot[lies] = self.attack.update(snapshot[lies], self.index, self.draw)
        return [dataclasses.replace(update, delta=deltas, snapshot=snapshot)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def experiment(split: int, seeds: Sequence[int], guard: str) -> Experiment:
    """Every algorithm at its defaults."""
    entries = {f"{name} {guard}": {"algorithm": name, "guard": guard} for name in names()}
    table = {
        "seeds": list(seeds),
        "data": {"name": "digits", "clients": CLIENTS, "concentration": 0.1, "seed": split},
        "model": {"name": "mlp", "hidden": [32]},
        "train": {"rounds": ROUNDS, "lr": 0.1, "batch_size": 16, "device": "cpu", "evaluate_every": EVERY},
        "algorithms": entries,
    }
    return Experiment.of(table, "liars")


class Outcome:
    """What becomes of one run."""

    def __init__(self, liars: Tensor) -> None:
        self.liars = liars.tolist()
        self.late: list[tuple[float, float]] = []  # the honest clients' mean and worst 10 %
        self.clipped: set[int] = set()
        self.skipped = 0
        self.ended: str | None = None

    def add(self, record: Record) -> None:
        self.clipped |= {clip.client for clip in record.clipped}
        self.skipped += record.skipped
        if record.accuracy is not None and record.index >= ROUNDS - LAST:
            self.late.append(self._fairness(record.accuracy))

    def _fairness(self, accuracy: Accuracies) -> tuple[float, float]:
        """In percent, of the honest clients."""
        judged = accuracy.copy()
        judged[self.liars] = np.nan
        figures = Fairness.of(judged)
        return 100 * figures.mean, 100 * figures.worst10

    def describe(self) -> dict[str, Any]:
        if self.ended is not None:
            return {"ended": self.ended}
        mean, worst10 = np.mean(self.late, axis=0).round(2).tolist()
        honest = self.clipped - set(self.liars)
        return {"mean": mean, "worst10": worst10, "honest_clipped": len(honest), "skipped": self.skipped}


def attacked(attack: Attack, split: int, seeds: Sequence[int], guard: str) -> dict[str, list[dict[str, Any]]]:
    """What becomes of every run, by label."""
    plan = experiment(split, seeds, guard)
    federation = federate(plan.data)
    problem, drawn = plan.problem(federation, federation.judged)
    runs, _ = plan.runs()
    runs = [run for run in runs if run.label.endswith(GUARDS)]
    with_data = np.flatnonzero(federation.train_sizes)
    liars = np.random.default_rng(split).choice(with_data, attack.liars, replace=False)
    engine = Lying(engine_for(problem, runs), attack, torch.from_numpy(liars))
    states = [lied_to(run, problem, drawn(run.settings.seed), engine) for run in runs]
    outcomes = [Outcome(engine.liars) for _ in runs]
    try:
        train(runs, states, problem, engine, outcomes)
    except InputError:  # of one run: each for itself
        for k, run in enumerate(runs):
            outcomes[k] = Outcome(engine.liars)
            try:
                train([run], [states[k]], problem, engine, [outcomes[k]])
            except InputError as error:
                outcomes[k].ended = str(error)
    found: dict[str, list[dict[str, Any]]] = {}
    for run, outcome in zip(runs, outcomes, strict=True):
        found.setdefault(run.label, []).append(outcome.describe())
    return found


def lied_to(run: Run, problem: Problem, theta: Tensor, engine: Lying) -> State:
    """Before round 0, with the sizes that clients claim."""
    sizes = problem.train.sizes.clone()
    sizes[engine.liars] *= engine.attack.size
    server = new_server(run.algorithm, run.settings, theta, sizes, problem.layout, problem.buffers)
    return dataclasses.replace(start(run, problem, lambda seed: theta), server=server)


def train(
    runs: Sequence[Run],
    states: Sequence[State],
    problem: Problem,
    engine: Lying,
    outcomes: Sequence[Outcome],
) -> None:
    """All rounds; a run that diverges has ended, though its stack goes on."""
    engine.begin()
    for new_states, records in rounds(runs, states, problem, engine):
        for state, record, outcome in zip(new_states, records, outcomes, strict=True):
            outcome.add(record)
            outcome.ended = outcome.ended or divergence(state, record)


def measured(name: str, guard: str) -> dict[str, Any]:
    """An attack on its splits."""
    outcomes: dict[str, Any] = {}
    for split in SPLITS:
        seeds = [split]
        if guard == "on" or name == "none":  # two seeds also tell how much a seed alone does
            seeds = [split, split + 2]
        for label, of_seeds in attacked(ATTACKS[name], split, seeds, guard).items():
            outcomes.setdefault(label, []).append(of_seeds)
    return outcomes


def measure(chosen: Sequence[str], guards: Sequence[str], results: dict[str, Any]) -> None:
    """Attacks one by one, each kept as soon as it is known, with where its figures come from."""
    for name in chosen:
        for guard in guards:
            began = time.process_time()
            results["attacks"].setdefault(name, {}).update(measured(name, guard))
            results["provenance"] = provenance()
            measured_at = {key: results["provenance"][key] for key in ("commit", "started")}
            results["measured"].setdefault(name, {})[guard] = measured_at
            in_order = {each: results["attacks"][each] for each in ATTACKS if each in results["attacks"]}
            results["attacks"] = in_order
            RESULT.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{name}, guard {guard}: {time.process_time() - began:.0f} s of one core", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("attacks", nargs="*", help="attacks to measure again; all; tables; honest")
    parser.add_argument("--with-guard", action="store_true", help="only runs with the guard")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"attacks": {}, "measured": {}}
    if RESULT.exists():
        results = json.loads(RESULT.read_text())
    chosen = arguments.attacks
    if not chosen:
        chosen = [name for name in ATTACKS if name not in results["attacks"]]
    if chosen == ["all"]:
        chosen = list(ATTACKS)
    if chosen == ["honest"]:
        results["honest"] = liars_honest.counts()
        RESULT.write_text(json.dumps(results, indent=1) + "\n")
    elif chosen != ["tables"]:
        measure(chosen, GUARDS[1:] if arguments.with_guard else GUARDS, results)
    page = PAGE.read_text()
    PAGE.write_text(liars_page.filled(page, results))


if __name__ == "__main__":
    main()
