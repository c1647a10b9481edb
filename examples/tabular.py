"""Tabular data: a table with a column that says which clinic a row comes from, and one logit per row.

Run it: python examples/tabular.py (a few seconds; needs pandas). The table is scikit-learn's breast-cancer data. The
clinics are made up: each sees tumours of one size, so that some clinics hardly see a malignant one.
"""

import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer

import evenfed

CLINICS = ["screening", "village", "town", "city", "university"]
ALGORITHMS = ["fedavg", "semi_vred[beta=1,smooth=0.25]"]


def table() -> pd.DataFrame:
    """One row per patient: measurements, whether the tumour is malignant, and the clinic."""
    data = load_breast_cancer(as_frame=True)
    features = data.data
    frame = (features - features.mean()) / features.std()
    frame["malignant"] = 1 - data.target
    frame["clinic"] = pd.qcut(features["mean radius"], len(CLINICS), labels=CLINICS).astype(str)
    return frame


def main(rounds: int = 30) -> evenfed.Comparison:
    """Compare two algorithms on five clinics."""
    clients = evenfed.federate(table(), "malignant", owners="clinic", test=0.5)
    model = torch.nn.Linear(30, 1)
    comparison = evenfed.compare(
        model,
        clients,
        ALGORITHMS,
        seeds=1,
        noise_floor=False,
        loss="binary",
        rounds=rounds,
        lr=0.1,
        batch_size=16,
    )
    for label, (result,) in comparison.results.items():
        scores = zip(result.client_names, result.accuracy, strict=True)
        shown = ", ".join(f"{name} {accuracy:.0%}" for name, accuracy in scores)
        print(f"{label}: {shown}")
    return comparison


if __name__ == "__main__":
    main()
