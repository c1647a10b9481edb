"""How often a report finds a difference where there is none, and how often it finds one that is there.

    python benchmarks/coverage_of_intervals.py   # one minute; writes results/coverage_of_intervals.json and its table

Comparisons are drawn from a model of what runs on CIFAR-10 do:

* a federation is 50 clients with class shares from Dirichlet(0.05); a client's accuracy is its shares times the run's
  ten class recalls;
* a seed moves each recall by 1.0 points and all of them by 0.5, another order of batches by 1.8 and 0.25.

So two FedAvg runs differ in the mean by 0.45 points (standard deviation) from the same initial model and by 0.83 from
another, in the worst 10 % by 1.6 and 2.0. Committed runs (results/cifar10 and cifar10-again, last 20 rounds): in the
mean 0.44 (three pairs) and 0.82 (six differences), in the worst 10 % 2.4 (1.6 over 60 rounds) and 0.9.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evenfed.comparison.analysis.intervals import over_federations, over_seeds, student
from evenfed.comparison.storage.provenance import provenance
from evenfed.fairness import mean_of_first
from page import put

HERE = Path(__file__).parent
RESULT = HERE / "results" / "coverage_of_intervals.json"
METRICS = ("mean", "worst10")
CLIENTS = 50
CLASSES = 10
CONCENTRATION = 0.05
SEED_NOISE = (1.0, 0.5)  # of each recall about their mean, and of all together; points
BATCH_NOISE = (1.8, 0.25)
REACTION = 1.0  # how far an entry's effect on a recall differs between federations

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Design:
    """A comparison of one entry with FedAvg."""

    federations: int
    seeds: int
    wildness: float = 1.0  # how many times FedAvg's noise of batches the entry has
    wild_on: int | None = None  # the only federation on which it has that; None: on all
    reacts: bool = False  # whether what the entry does differs between federations
    gain: float = 0.0  # points that the entry adds for every client
    rule: str = "seeds"  # what the interval is over: "seeds", "federations"; or the "former" rule


@dataclass(frozen=True)
class Outcome:
    """How often each metric's interval excluded zero, in percent."""

    design: Design
    found: dict[str, float]


def designs() -> Iterator[Design]:
    """Those of the table."""
    for gain in (0.0, 0.5):
        yield Design(1, 3, gain=gain, rule="former")
        for seeds in (2, 3, 5):
            yield Design(1, seeds, gain=gain)
        for seeds in (2, 3):
            yield Design(2, seeds, gain=gain)
        for federations in (3, 5, 10):
            yield Design(federations, 1, gain=gain, reacts=True, rule="federations")
        yield Design(10, 2, gain=gain, reacts=True, rule="federations")
    for seeds in (2, 3, 5):
        for wildness in (2.0, 3.0, 5.0, 7.0):
            yield Design(1, seeds, wildness=wildness)
    for seeds in (2, 3, 5):
        yield Design(2, seeds, wildness=5.0, wild_on=0)
    yield Design(10, 1, wildness=2.0, reacts=True, rule="federations")


def measured(design: Design, comparisons: int, seed: int = 0) -> Outcome:
    """Draw so many comparisons and judge each by the rule."""
    draw = np.random.default_rng(seed)
    drawn = [_comparison(design, draw) for _ in range(comparisons)]
    found = {}
    for metric in METRICS:
        gaps = [comparison.gaps(metric) for comparison in drawn]
        centre = 0.0
        if design.gain == 0:  # a wilder entry moves worst 10 %, and so does what differs between federations
            centre = float(np.mean([np.mean(gap) for gap in gaps]))
        if design.wildness == 1 and not design.reacts:
            centre = 0.0  # the entry is FedAvg, but for its gain
        excluded = 0
        for comparison, gap in zip(drawn, gaps, strict=True):
            excluded += _excludes(comparison, [each - centre for each in gap], metric, design)
        found[metric] = round(100 * excluded / comparisons, 1)
    return Outcome(design, found)


@dataclass(frozen=True)
class Comparison:
    """Accuracies of clients [seeds, clients] on each federation."""

    entry: Sequence[Array]
    fedavg: Sequence[Array]
    other_seeds: Sequence[Array]

    def gaps(self, metric: str) -> list[Array]:
        return _gaps(self.entry, self.fedavg, metric)


def _comparison(design: Design, draw: np.random.Generator) -> Comparison:
    runs: dict[str, list[Array]] = {"entry": [], "fedavg": [], "other_seeds": []}
    for federation in range(design.federations):
        shares = draw.dirichlet(np.full(CLASSES, CONCENTRATION), size=CLIENTS)
        recalls = draw.uniform(25, 75, size=CLASSES)
        reaction = np.zeros(CLASSES)
        if design.reacts:
            reaction = _noise(draw, 1, (REACTION, 0.0))[0]
        of_seeds = recalls + _noise(draw, design.seeds, SEED_NOISE)
        starts = {"entry": of_seeds + reaction + design.gain, "fedavg": of_seeds}
        if design.rule == "former":
            starts["other_seeds"] = recalls + _noise(draw, design.seeds, SEED_NOISE)
        for name, start in starts.items():
            is_wild = name == "entry" and design.wild_on in (None, federation)
            size = design.wildness if is_wild else 1.0
            batches = size * _noise(draw, design.seeds, BATCH_NOISE)
            runs[name].append((start + batches) @ shares.T)
    return Comparison(**runs)


def _noise(draw: np.random.Generator, runs: int, size: tuple[float, float]) -> Array:
    """[runs, classes] recalls about their mean, and all of them together."""
    own, common = size
    of_classes = own * draw.normal(size=(runs, CLASSES))
    of_classes -= of_classes.mean(axis=1, keepdims=True)
    return of_classes + common * draw.normal(size=(runs, 1))


def _gaps(runs: Sequence[Array], others: Sequence[Array], metric: str) -> list[Array]:
    gaps = []
    for run, other in zip(runs, others, strict=True):
        gaps.append(_figures(run, metric) - _figures(other, metric))
    return gaps


def _figures(accuracies: Array, metric: str) -> Array:
    """[...] of accuracies [..., clients]."""
    if metric == "mean":
        return accuracies.mean(axis=-1)
    worst_first = np.sort(accuracies, axis=-1)
    return mean_of_first(worst_first, 0.1)


def _excludes(comparison: Comparison, gaps: Sequence[Array], metric: str, design: Design) -> bool:
    if design.rule == "former":
        return _former(comparison, metric)
    interval = over_federations(gaps) if design.rule == "federations" else over_seeds(gaps)
    return not interval.low <= 0 <= interval.high


def _former(comparison: Comparison, metric: str, draws: int = 100) -> bool:
    """The rule before: an interval over clients and seeds, and a gap larger than that of FedAvg with other seeds."""
    (entry,), (fedavg,), (again,) = comparison.entry, comparison.fedavg, comparison.other_seeds
    gaps = _figures(entry, metric) - _figures(fedavg, metric)
    seeds = len(gaps)
    drawn = np.random.default_rng(0).integers(CLIENTS, size=(draws, CLIENTS))
    redrawn = _figures(entry[:, drawn], metric) - _figures(fedavg[:, drawn], metric)
    redrawn = redrawn.mean(axis=0)
    from_clients = redrawn.var() * CLIENTS / (CLIENTS - 1)
    from_seeds = gaps.var(ddof=1) / seeds
    variance = from_clients + from_seeds
    freedom = variance**2 / (from_clients**2 / (CLIENTS - 1) + from_seeds**2 / (seeds - 1))
    reach = student(float(freedom)) * np.sqrt(variance)
    repeated = np.concatenate([_figures(fedavg, metric), _figures(again, metric)])
    floor = student(len(repeated) - 1) * np.sqrt(2 * repeated.var(ddof=1) / seeds)
    return bool(abs(gaps.mean()) > max(reach, floor))


def table(outcomes: Sequence[Outcome]) -> str:
    """As Markdown: designs down, false findings and findings across."""
    gains = {}
    for outcome in outcomes:
        if outcome.design.gain:
            gains[_row(outcome.design)] = outcome.found
    lines = [
        "| interval over | federations x seeds | entry | false: mean | worst 10 % | found: mean | worst 10 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        design = outcome.design
        if design.gain:
            continue
        rule = "former rule" if design.rule == "former" else design.rule
        cells = [rule, f"{design.federations} x {design.seeds}", _entry(design)]
        gained = gains.get(_row(design), {})
        for found in (outcome.found, gained):
            for metric in METRICS:
                cells.append(f"{found[metric]:.1f} %" if metric in found else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _row(design: Design) -> tuple[object, ...]:
    values = asdict(design)
    del values["gain"]
    return tuple(values.values())


def _entry(design: Design) -> str:
    words = []
    if design.wildness > 1:
        where = "" if design.wild_on is None else " on one federation"
        words.append(f"{design.wildness:g} x the noise{where}")
    if design.reacts:
        words.append("differs by federation")
    return ", ".join(words) or "as FedAvg"


def kept_outcomes() -> list[Outcome]:
    """Those of the committed file."""
    outcomes = []
    for each in json.loads(RESULT.read_text())["outcomes"]:
        found = each.pop("found")
        outcomes.append(Outcome(Design(**each), found))
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=2000, help="drawn for each line of the table")
    options = parser.parse_args()
    outcomes = [measured(design, options.comparisons) for design in designs()]
    kept = {
        **provenance(),
        "comparisons": options.comparisons,
        "outcomes": [{**asdict(outcome.design), "found": outcome.found} for outcome in outcomes],
    }
    RESULT.write_text(json.dumps(kept, indent=1) + "\n")
    put("coverage", table(outcomes))


if __name__ == "__main__":
    main()
