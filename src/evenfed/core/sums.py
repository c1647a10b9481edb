"""Private rounds: an algorithm's method `private`, carried out one masked sum at a time.

`private` calls `mean` several times, and each mean needs a sum over all clients. The client does not block in that
call. Instead the server asks once per sum and sends the means known so far. The client runs `private` again with these
means up to the first unknown one; the value passed to `mean` there is its contribution to that sum.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .algorithm import Algorithm, Mean, PrivateInputs, PrivatePart
from .errors import InputError

DEFINING = {"objective", "plan", "rescale", "local_loss", "coefficients"}


def number_of_means(algorithm: Algorithm) -> int:
    """How many sums come before the updates; an algorithm that cannot run from sums is refused with its reason."""
    for cls in type(algorithm).__mro__:
        defined = vars(cls).keys()
        if "private" in defined:
            break
        if DEFINING & defined:  # an inherited `private` is another algorithm's
            raise InputError(f"{algorithm.name} cannot run with private=True: {algorithm.not_private}")
    terms = []

    def mean(term: Tensor) -> Tensor:
        terms.append(term)
        return term

    lone_client = PrivateInputs(
        loss=torch.ones((), dtype=torch.float64),
        lr=1.0,
        clients=1,
    )
    algorithm.private(lone_client, mean)
    return len(terms)


def next_term(algorithm: Algorithm, own: PrivateInputs, means: Sequence[float]) -> float:
    """What a client adds to the sum that follows `means`."""
    try:
        algorithm.private(own, _known(means))
    except _UnknownMeanError as unknown:
        return unknown.term
    raise InputError(f"{algorithm.name}: `private` asks for {len(means)} means here and for more elsewhere")


def part(algorithm: Algorithm, own: PrivateInputs, means: Sequence[float]) -> PrivatePart:
    """What a client gives to the sum of updates, from all means."""
    try:
        return algorithm.private(own, _known(means))
    except _UnknownMeanError:
        raise InputError(f"{algorithm.name}: `private` asks for more than {len(means)} means") from None


def parts(
    algorithm: Algorithm,
    clients: Sequence[PrivateInputs],
    coefficients: Sequence[float],
) -> list[PrivatePart]:
    """Every client's part, the sums taken in the clear: what a private run carries out behind masks."""
    means: list[float] = []
    for _ in range(number_of_means(algorithm)):
        mean = 0.0
        for own, coefficient in zip(clients, coefficients, strict=True):
            term = next_term(algorithm, own, means)
            mean += coefficient * term
        means.append(mean)
    return [part(algorithm, own, means) for own in clients]


class _UnknownMeanError(Exception):
    """`private` has come to a mean that is not known yet."""

    def __init__(self, term: Tensor) -> None:
        super().__init__()
        self.term = float(term)


def _known(means: Sequence[float]) -> Mean:
    """Gives the means in their order, and stops `private` after the last."""
    rest = iter(means)

    def mean(term: Tensor) -> Tensor:
        for value in rest:
            return torch.tensor(value, dtype=torch.float64)
        raise _UnknownMeanError(term)

    return mean
