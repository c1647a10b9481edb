"""Write one file per client, from the digits that come with scikit-learn: six hands, each darker than the last."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

CLIENTS = ["anna", "ben", "chloe", "david", "emma", "felix"]
TEST = 40  # the last images of each client


def main() -> None:
    """Fill the folder `clients` in the folder of this file."""
    folder = Path(__file__).parent / "clients"
    folder.mkdir(exist_ok=True)
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    parts = np.array_split(np.arange(len(images)), len(CLIENTS))
    for darkness, (name, rows) in enumerate(zip(CLIENTS, parts, strict=True)):
        x = images[rows] ** (1 + darkness / 2)
        y = digits.target[rows]
        np.savez(folder / f"{name}.npz", x=x[:-TEST], y=y[:-TEST], x_test=x[-TEST:], y_test=y[-TEST:])
    print(f"{len(CLIENTS)} files in {folder}")


if __name__ == "__main__":
    main()
