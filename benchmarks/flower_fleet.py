"""Seconds and memory per round of a Flower server with 1,000 and 10,000 nodes: evenfed and Flower's FedAvg.

    python benchmarks/flower_fleet.py            # all of it, in one to two minutes

Nodes are a grid inside the process (tests/fleet_grid.py): each answers at once, so the server alone is measured. Each
figure is of a process of its own, in processor seconds. Everyone is drawn in every round, but for the last system: the
heaviest there is. A delay per request is added to that, as a server that waits for each would see it. `one by one` is
how evenfed pushed its tasks before: one request per node.
"""

import json
import logging
import multiprocessing
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path

from flwr.serverapp.strategy import FedAvg

import page
from evenfed.comparison.storage.provenance import provenance
from evenfed.flower import Fair, FairStrategy, messaging

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fleet_grid import FleetGrid

HERE = Path(__file__).parent
MANUAL = HERE.parent / "docs" / "flower.md"
NODES = (1_000, 10_000)
PARAMETERS = 10_000
LATENCY = 0.01  # seconds per request
SYSTEMS = {
    "Flower's FedAvg": "fedavg",
    "Fair, trips=1": "fair",
    "FairStrategy, trips=3": "own",
    "FairStrategy, trips=1": "own once",
    "FairStrategy, 100 of a fleet": "fleet",
}


def serve(system: str, nodes: int) -> dict[str, float]:
    """Rounds of one system in this process."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rounds = 2 if nodes <= NODES[0] else 1
    grid = FleetGrid(nodes, PARAMETERS)
    if system == "one by one":
        messaging.PUSHED_AT_ONCE = 1
        messaging.AT_ONCE = 4
    common = {"lr": 0.1, "rounds": rounds, "guard": "off"}
    strategies = {
        "fedavg": lambda: FedAvg(fraction_evaluate=0.0, min_available_nodes=nodes),
        "fair": lambda: Fair("semi_vred", trips=1, measured_before=True, fraction_evaluate=0.0, guard="off"),
        "own": lambda: FairStrategy("semi_vred", fraction_evaluate=0.0, **common),
        "own once": lambda: FairStrategy("semi_vred", trips=1, fraction_evaluate=0.0, **common),
        "one by one": lambda: FairStrategy("semi_vred", fraction_evaluate=0.0, **common),
        "fleet": lambda: FairStrategy(
            "semi_vred", min_available=100, participation=100, oversample=1.3, fraction_evaluate=0.0, **common
        ),
    }
    strategy = strategies[system]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    strategy.start(grid, grid.start(), rounds)
    seconds = (time.process_time() - began) / rounds
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "nodes": nodes,
        "seconds": seconds,
        "mib": (after - before) / 1024,
        "requests": grid.requests / rounds,
    }


def one(system: str, nodes: int) -> dict[str, float]:
    """The same in a process of its own."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply(serve, (system, nodes))
    print(system, found, flush=True)
    return found


def main() -> None:
    at_once = {title: [one(system, nodes) for nodes in NODES] for title, system in SYSTEMS.items()}
    before = {nodes: one("one by one", nodes) for nodes in NODES[:1]}
    about = provenance()
    about["versions"]["flwr"] = version("flwr")
    late = {"one by one": before[NODES[0]], **{title: rows[0] for title, rows in at_once.items()}}
    written = {
        "parameters": PARAMETERS,
        "latency": LATENCY,
        **about,
        "systems": at_once,
        "one_by_one": late["one by one"],
    }
    path = HERE / "results" / "flower_fleet.json"
    path.write_text(json.dumps(written, indent=1) + "\n")
    tables = table(at_once) + "\n\n" + late_table(late)
    for each in (page.PAGE, MANUAL):
        page.put("flower fleet", tables, each)


def table(at_once: dict[str, list[dict[str, float]]]) -> str:
    """Beside FedAvg on the same grid."""
    lines = ["| server | nodes | s per round | x FedAvg | memory above its start, MiB | x FedAvg |"]
    lines.append("|---|---|---|---|---|---|")
    baseline = at_once["Flower's FedAvg"]
    for title, rows in at_once.items():
        for row, fedavg in zip(rows, baseline, strict=True):
            times = row["seconds"] / fedavg["seconds"]
            memory = row["mib"] / fedavg["mib"]
            lines.append(
                f"| {title} | {row['nodes']:,} | {row['seconds']:.2f} | {times:.2f} | {row['mib']:.0f} | {memory:.2f} |"
            )
    return "\n".join(lines)


def late_table(late: dict[str, dict[str, float]]) -> str:
    """With a delay per request."""
    lines = [
        f"| server, {NODES[0]:,} nodes | requests per round | s per round, {LATENCY * 1000:.0f} ms each |",
        "|---|---|---|",
    ]
    for title, row in late.items():
        name = "FairStrategy, trips=3, one request per node" if title == "one by one" else title
        seconds = row["seconds"] + LATENCY * row["requests"]
        lines.append(f"| {name} | {row['requests']:.0f} | {seconds:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
