"""What the weights of each algorithm do to five clients: docs/pictures/weights.svg.

python docs/pictures/weights.py makes the picture anew; a test compares it with what the algorithms say.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenfed.algorithms import get
from evenfed.core.algorithm import Algorithm, Plan, Round

PICTURE = Path(__file__).with_suffix(".svg")
NAMES = ["A", "B", "C", "D", "E"]
LOSSES = torch.tensor([0.3, 0.7, 1.0, 1.6, 2.6], dtype=torch.float64)
SHARES = torch.tensor([0.35, 0.25, 0.20, 0.12, 0.08], dtype=torch.float64)
UPDATES = torch.tensor(
    [[1.0, 0.0, 0.2], [0.9, 0.3, 0.0], [0.6, 0.8, 0.1], [0.0, 1.1, 0.5], [-0.8, 0.6, 1.2]], dtype=torch.float64
)  # A and B pull one way, E against them: what methods on updates look at
ROUNDS = 10  # after which methods with memory are shown; losses and updates stay as they are
ENTRIES: list[tuple[str, dict[str, float]]] = [
    ("fedavg", {}),
    ("semi_vred", {"beta": 0.5}),
    ("vred", {"beta": 0.5}),
    ("vred", {"beta": 1.5}),  # past its beta_max
    ("term", {"alpha": 1.0}),
    ("qffl", {"q": 1.0}),
    ("propfair", {}),
    ("gifair", {}),
    ("delta_fl", {"alpha": 0.3}),
    ("afl", {}),
    ("drfa", {}),
    ("fcfl", {}),
    ("climb", {}),
    ("fedmgda", {}),
    ("fedfv", {}),
    ("ditto", {}),
]
STEPS = torch.full((5,), 10)


def weights(algorithm: Algorithm) -> torch.Tensor:
    """Of the five clients' updates, divided by their sum; of the last of `ROUNDS` rounds."""
    memory = algorithm.init(SHARES)
    total = torch.zeros(5, dtype=torch.float64)
    for index in range(ROUNDS):
        total, memory = one_round(algorithm, memory, index)
    return total / total.sum()


def one_round(algorithm: Algorithm, memory: dict[str, torch.Tensor], index: int) -> tuple[torch.Tensor, Any]:
    """The weights of the round, and what the server remembers after it."""
    ids = torch.arange(5)
    rng = np.random.default_rng(index)
    now = Round(index, ids, LOSSES, SHARES, SHARES, STEPS, lr=0.1, rng=rng)
    if algorithm.name == "drfa":  # clients are drawn: shown is how often on average
        plan = Plan(ids, memory["lambda"], probe=ids)
        return memory["lambda"], algorithm.learn(now, plan, LOSSES, memory)
    plan, memory = algorithm.plan(now, memory)
    planned = torch.zeros(5, dtype=torch.float64)
    planned[plan.ids] = plan.weights
    if algorithm.needs == "gram":
        planned, memory = algorithm.mix(now, plan, UPDATES @ UPDATES.T, torch.zeros(5), memory)
    at = LOSSES.clone().requires_grad_()
    (slope,) = torch.autograd.grad(algorithm.local_loss(at).sum(), at)  # PropFair changes the loss a client descends
    return planned * slope, memory


def label(name: str, hyper_parameters: dict[str, float]) -> str:
    values = ", ".join(f"{key} = {value:g}" for key, value in hyper_parameters.items())
    return f"{name}, {values}" if values else name


def rows() -> list[dict[str, Any]]:
    """One row per algorithm and client."""
    table = []
    for name, hyper_parameters in ENTRIES:
        shown = weights(get(name, **hyper_parameters))
        for client, weight, share in zip(NAMES, shown.tolist(), SHARES.tolist(), strict=True):
            percent = round(100 * weight, 6)  # the same on every processor
            row = {"algorithm": label(name, hyper_parameters), "client": client, "weight": percent}
            table.append({**row, "share": 100 * share, "below zero": weight < 0})
    return table


def spec() -> dict[str, Any]:
    """The picture in Vega-Lite: bars are weights, ticks FedAvg's."""
    client = {"field": "client", "type": "nominal", "axis": {"title": None, "labelAngle": 0, "ticks": False}}
    colour = {
        "field": "below zero",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": [False, True], "range": ["#2f6db5", "#c4361d"]},
    }
    bars = {
        "mark": {"type": "bar", "width": {"band": 0.7}},
        "encoding": {"y": {"field": "weight", "type": "quantitative", "title": None}, "color": colour},
    }
    ticks = {
        "mark": {"type": "tick", "color": "#222222", "thickness": 2, "width": 18, "opacity": 1},
        "encoding": {"y": {"field": "share", "type": "quantitative"}},
    }
    order = [label(name, values) for name, values in ENTRIES]
    losses = ", ".join(f"{name} {loss:g}" for name, loss in zip(NAMES, LOSSES.tolist(), strict=True))
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": {
            "text": "Weight of five clients' updates, percent",
            "subtitle": [
                f"losses: {losses}; sizes fall from A (35 % of all examples) to E (8 %)",
                "black lines: FedAvg; red: negative",
            ],
            "anchor": "start",
            "subtitleColor": "#555555",
        },
        "data": {"values": rows()},
        "facet": {
            "field": "algorithm",
            "type": "nominal",
            "sort": order,
            "title": None,
            "header": {"labelFontSize": 12, "labelAnchor": "start", "labelFontWeight": "bold"},
        },
        "columns": 4,
        "spec": {"width": 140, "height": 95, "encoding": {"x": client}, "layer": [bars, ticks]},
        "resolve": {"axis": {"x": "independent"}},
        "config": {"axis": {"gridColor": "#e4e4e4"}, "view": {"stroke": None}, "font": "sans-serif"},
        "background": "white",
    }


def drawn() -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(spec()))


if __name__ == "__main__":
    PICTURE.write_text(drawn())
    for row in rows():
        print(f"{row['algorithm']:24} {row['client']} {row['weight']:7.2f}")
