"""Accuracies expected from clients' class shares and the model's recalls: free of the noise of small test sets."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...fairness import Fairness, Vector

LabelCounts = NDArray[np.int64]  # [n, classes] of the examples each client is judged on
MOST_UNEXPLAINED = 0.2  # of the spread between clients; with more, clients differ in more than their labels


def expected_accuracies(label_counts: LabelCounts, recalls: Vector) -> Vector:
    """[n] each client's class shares times the model's recalls [classes]; NaN for a client without examples.

    >>> expected_accuracies(np.array([[10, 0], [5, 5]]), np.array([0.9, 0.5])).round(3).tolist()
    [0.9, 0.7]
    """
    right = label_counts @ np.nan_to_num(recalls)  # a class without examples has no recall and counts for nobody
    sizes = label_counts.sum(axis=1)
    with np.errstate(invalid="ignore"):
        accuracies: Vector = right / sizes
    return accuracies


@dataclass(frozen=True)
class SpreadParts:
    """The sum over clients of n_i (accuracy_i - mean)^2 in one evaluation, and two parts of it."""

    total: float
    unexplained: float  # sum of n_i (accuracy_i - expected_i)^2
    noise: float  # what this is on average if each answer is right with the probability of its class's recall

    @classmethod
    def of(cls, accuracies: Vector, label_counts: LabelCounts, recalls: Vector) -> "SpreadParts":
        """Clients whose accuracy is unknown (NaN) do not count."""
        known = ~np.isnan(accuracies)
        counts = label_counts[known]
        own = accuracies[known]
        expected = expected_accuracies(counts, recalls)
        sizes = counts.sum(axis=1)
        mean = np.average(own, weights=sizes)
        recall = np.nan_to_num(recalls)
        variances = counts @ (recall * (1 - recall))  # of the number of right answers
        return cls(
            total=float(sizes @ (own - mean) ** 2),
            unexplained=float(sizes @ (own - expected) ** 2),
            noise=float(np.sum(variances / sizes)),
        )


@dataclass(frozen=True)
class Fit:
    """How much of the spread between clients' accuracies two causes explain, as shares of 1."""

    classes: float  # their class shares: the R2 of accuracies against expected ones, weighted by test sizes
    noise: float  # the binomial noise of their test sets

    @classmethod
    def of(cls, spreads: Iterable[SpreadParts]) -> "Fit | None":
        """Over several evaluations or runs; None if clients do not differ in any."""
        total = 0.0
        unexplained = 0.0
        noise = 0.0
        for spread in spreads:
            total += spread.total
            unexplained += spread.unexplained
            noise += spread.noise
        if not total > 0:
            return None
        return cls(1 - unexplained / total, noise / total)

    @property
    def rest(self) -> float:
        """What neither explains; about 0 where clients differ in labels alone, and by chance below it."""
        return 1 - self.classes - self.noise

    @property
    def is_good(self) -> bool:
        """Whether expected figures may replace the measured ones."""
        return self.rest <= MOST_UNEXPLAINED

    def describe(self) -> dict[str, Any]:
        return {"classes": self.classes, "noise": self.noise, "is_good": self.is_good}


@dataclass(frozen=True)
class Expected:
    """A run's expected accuracies, what they add up to, and how well they fit the measured ones."""

    accuracy: Vector  # [n] of the run's model; NaN for a client without test data
    fairness: Fairness
    late_fairness: Fairness  # averaged over the last rounds
    fit: Fit | None  # in the last rounds; None if all clients have the same accuracy
