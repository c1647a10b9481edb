"""Images: a CNN with dropout, momentum, a cosine schedule and augmentation, over 20 clients with few classes each.

Run it: python examples/image_cnn.py (half a minute on 2 cores). The images are scikit-learn's handwritten digits.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import evenfed
from evenfed.core.streams import HashedNumbers

ALGORITHMS = ["fedavg", "semi_vred[beta=1,smooth=0.25]"]


def cnn() -> nn.Module:
    """Called once per seed, so that every seed starts from its own weights."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(8 * 4 * 4, 10),
    )


def brighter(images: torch.Tensor, draw: HashedNumbers) -> torch.Tensor:
    """Each image up to a fifth brighter or darker; `draw` is the run's own random stream."""
    factors = 0.8 + 0.4 * draw.uniform(len(images), 1, 1, 1)
    return images * factors


def main(rounds: int = 20, seeds: int = 2) -> evenfed.Comparison:
    """Compare two algorithms; both train with the same local options."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    clients = evenfed.federate(images, digits.target, "dirichlet", clients=20, concentration=0.2, test=0.3)
    comparison = evenfed.compare(
        cnn,
        clients,
        ALGORITHMS,
        seeds=seeds,
        noise_floor=False,
        rounds=rounds,
        lr=0.05,
        batch_size=16,
        optimizer={"name": "sgd", "momentum": 0.9, "weight_decay": 1e-4},
        lr_schedule="cosine",
        augment=brighter,  # for photographs: evenfed.augment.crop_and_flip(4)
    )
    print(comparison)
    return comparison


if __name__ == "__main__":
    main()
