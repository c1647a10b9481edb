"""FedAvg and Semi-VRed on Flower's simulation: each hospital's test accuracy at the end.

usage: python simulate.py [ROUNDS]
"""

import sys
import tomllib
from pathlib import Path

from hospitals.client_app import app
from hospitals.task import NAMES, model

from evenfed.flower import FairStrategy
from evenfed.flower.server import initial_arrays
from evenfed.flower.simulation import simulate
from evenfed.simulate.problem import initial_model

project = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]["evenfed"]
options = {key: value for key, value in project.items() if key not in ("algorithm", "out")}

if sys.argv[1:]:
    options["rounds"] = int(sys.argv[1])


def serve(grid):
    print(f"{'':20}" + "".join(f"{name:>8}" for name in NAMES))
    for algorithm in ("fedavg", project["algorithm"]):
        strategy = FairStrategy(algorithm, evaluate_every=0, **options)
        strategy.start(grid, initial_arrays(initial_model(model, options["seed"])))
        print(f"{algorithm:20}" + "".join(f"{a:8.0%}" for a in strategy.records[-1].accuracy))


simulate(serve, app, clients=3)
