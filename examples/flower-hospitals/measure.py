"""The README's table and figure: ten random splits, each with its own seed, in the simulator (a few minutes).

Writes measured.json (accuracy per method, split and hospital) and hospitals.svg.
"""

import json
from pathlib import Path

import altair as alt
import numpy as np
from hospitals.task import NAMES, hospital, model

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
    """One row per hospital: mean accuracy with and without re-weighting, a line for the deviation over splits."""
    sizes = {"city": 240, "county": 120, "island": 16}
    rows = []
    for label in COLOURS:
        accuracy = np.array(scores[label])
        for site, name in enumerate(NAMES):
            mean = accuracy[:, site].mean()
            deviation = accuracy[:, site].std(ddof=1)
            rows.append(
                {
                    "method": label,
                    "hospital": f"{name} ({sizes[name]} cases)",
                    "accuracy": mean,
                    "low": mean - deviation,
                    "high": min(mean + deviation, 100),
                    "shown": f"{mean:.0f} %",
                }
            )
    order = list(dict.fromkeys(row["hospital"] for row in rows))
    colour = alt.Color(
        "method:N",
        scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
        legend=alt.Legend(title=None, orient="top"),
    )
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("hospital:N", sort=order, title=None, axis=alt.Axis(labelLimit=200, labelFontSize=12)),
        yOffset=alt.YOffset("method:N", sort=list(COLOURS)),
    )
    scale = alt.Scale(domain=[0, 100])
    bars = base.mark_bar(height=15).encode(x=alt.X("accuracy:Q", title="test accuracy, %", scale=scale), color=colour)
    spread = base.mark_rule(color="#222222", strokeWidth=1.2).encode(x="low:Q", x2="high:Q")
    numbers = base.mark_text(align="left", dx=6, baseline="middle", fontSize=12).encode(x="high:Q", text="shown:N")
    title = alt.TitleParams(
        "One model for three hospitals, the smallest calibrated differently",
        subtitle="mean over ten random splits; lines: standard deviation",
        anchor="start",
        subtitleColor="#555555",
    )
    return (bars + spread + numbers).properties(width=480, height=150, title=title).configure_view(stroke=None)


if __name__ == "__main__":
    measured = measure()
    (FOLDER / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")
    print_table(measured)
    figure(measured).save(str(FOLDER / "hospitals.svg"))
