"""The README's table and figure: ten random splits, each with its own seed, in the simulator (a few minutes).

Writes measured.json (accuracy per method, split and hospital) and hospitals.svg.
"""

import json
from pathlib import Path

import numpy as np
import vl_convert
from hospitals.task import NAMES, TRAIN, hospital, model

import evenfed
from evenfed.simulate.problem import initial_model

FOLDER = Path(__file__).parent
SPLITS = 10
OPTIONS = {"rounds": 20, "local_epochs": 5, "lr": 0.2, "batch_size": 16, "evaluate_every": 0}
METHODS = {
    "FedAvg": "fedavg",
    "Semi-VRed, beta = 5": evenfed.algorithms.SemiVRed(beta=5),
    "Ditto (one model per site)": "ditto",
}
COLOURS = {"FedAvg": "#8c8c8c", "Semi-VRed, beta = 5": "#c4361d"}


def accuracies(algorithm, sites, split):
    """Test accuracy in percent of each hospital in `sites`, trained together."""
    clients = [hospital(site, split) for site in sites]
    result = evenfed.train(initial_model(model, split), clients, algorithm, seed=split, **OPTIONS)
    return (100 * result.accuracy).tolist()


def measure():
    """Accuracy [splits][hospitals] per method."""
    together = range(len(NAMES))
    scores = {}
    for label, algorithm in METHODS.items():
        scores[label] = [accuracies(algorithm, together, split) for split in range(SPLITS)]
    scores["each trains alone"] = []
    for split in range(SPLITS):
        alone = [accuracies("fedavg", [site], split)[0] for site in together]
        scores["each trains alone"].append(alone)
    return scores


def print_table(scores):
    print("| |", " | ".join(NAMES), "| mean |\n|---|---|---|---|---|")
    for label, values in scores.items():
        accuracy = np.array(values)
        means = accuracy.mean(axis=0)
        deviations = accuracy.std(axis=0, ddof=1)
        cells = [f"{m:.1f} ± {d:.1f}" for m, d in zip(means, deviations, strict=True)]
        print(f"| {label} |", " | ".join(cells), f"| {accuracy.mean():.1f} |")
    gain = np.array(scores["Semi-VRed, beta = 5"])[:, 2] - np.array(scores["FedAvg"])[:, 2]
    print(f"\nisland, Semi-VRed minus FedAvg: {gain.min():.0f} to {gain.max():.0f}, median {np.median(gain):.0f}")


def figure(scores):
    """One row per hospital, in Vega-Lite: mean accuracy per method, and a line for the deviation over splits."""
    rows = []
    for label in COLOURS:
        accuracy = np.array(scores[label])
        for site, name in enumerate(NAMES):
            mean = accuracy[:, site].mean()
            deviation = accuracy[:, site].std(ddof=1)
            row = {
                "method": label,
                "hospital": f"{name} ({TRAIN[site]} cases)",
                "accuracy": mean,
                "low": mean - deviation,
                "high": min(mean + deviation, 100),
                "shown": f"{mean:.0f} %",
            }
            rows.append(row)
    x = {"field": "accuracy", "type": "quantitative", "title": "test accuracy, %", "scale": {"domain": [0, 100]}}
    colour = {
        "field": "method",
        "type": "nominal",
        "scale": {"domain": list(COLOURS), "range": list(COLOURS.values())},
        "legend": {"title": None, "orient": "top"},
    }
    bars = {"mark": {"type": "bar", "height": 15}, "encoding": {"x": x, "color": colour}}
    spread = {
        "mark": {"type": "rule", "color": "#222222", "strokeWidth": 1.2},
        "encoding": {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}},
    }
    numbers = {
        "mark": {"type": "text", "align": "left", "dx": 6, "baseline": "middle", "fontSize": 12},
        "encoding": {"x": {"field": "high", "type": "quantitative"}, "text": {"field": "shown"}},
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": {
            "text": "One model for three hospitals, the smallest calibrated differently",
            "subtitle": "mean over ten random splits; lines: standard deviation",
            "subtitleColor": "#555555",
            "anchor": "start",
        },
        "width": 480,
        "height": 150,
        "background": "white",
        "config": {"view": {"stroke": None}},
        "data": {"values": rows},
        "encoding": {
            "y": {
                "field": "hospital",
                "type": "nominal",
                "sort": None,
                "title": None,
                "axis": {"labelLimit": 200, "labelFontSize": 12, "minExtent": 135},
            },
            "yOffset": {"field": "method", "type": "nominal", "sort": list(COLOURS)},
        },
        "layer": [bars, spread, numbers],
    }


if __name__ == "__main__":
    measured = measure()
    (FOLDER / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")
    print_table(measured)
    (FOLDER / "hospitals.svg").write_text(vl_convert.vegalite_to_svg(figure(measured)))
