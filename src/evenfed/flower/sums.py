"""Weights from sums: what a client adds to each sum, and how it finds its own weight from the results.

Every sum is a mean over the clients, E[g] = sum_i c_i g_i with public c_i (shares, or 1/m), and every weight is
w_i = c_i * weight(own loss, means). So a server that learns the means alone runs the algorithm, and no client's
loss leaves it. `a` is the algorithm, `i` what the client knows of itself, then the means in their order.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..core.algorithm import Algorithm
from ..core.errors import InputError

STEEPEST = 34.0  # the largest exponent of a tilt: e^34 times the mean's weight, within what a masked sum carries


@dataclass(frozen=True)
class Own:
    """What one client knows of itself in a round."""

    loss: float  # at the incoming model; smoothed if asked
    lr: float = 0.0
    dual: float = 0.0  # CLIMB's multiplier of this client, before the round
    mean_dual: float = 0.0  # and its mean over all clients, which is public
    clients: int = 1  # how many there are with data
    sq_norm: float = 0.0  # of the update, once trained


def _loss(a: Any, i: Own) -> float:
    return i.loss


def _zero(a: Any, i: Own, *means: float) -> float:
    return 0.0


def _local(a: Any, i: Own) -> float:
    return float(a.local_loss(torch.tensor(i.loss, dtype=torch.float64)))


def _above(a: Any, i: Own, mean: float) -> float:
    return max(i.loss - mean, 0.0)


def _beta(a: Any, s: float) -> float:
    """beta, held below `safe` times 1 / (2 s)."""
    return float(a.beta if a.safe is None or s <= 0 else min(a.beta, a.safe * (1 - 1e-12) / (2 * s)))


def _tilt(a: Any, i: Own, mean: float) -> float:
    return math.exp(min(a.alpha * (i.loss - mean), STEEPEST))


def _power(a: Any, i: Own) -> float:
    if i.loss < 0:
        raise InputError("qffl needs losses >= 0: a power of a negative loss is undefined; shift the loss")
    return float((i.loss + 1e-10) ** a.q)


def _moved_dual(a: Any, i: Own, mean: float) -> float:
    return float(min(max(i.dual + a.lr_dual * (i.loss - mean - a.epsilon) / i.clients, 0.0), 100.0))


@dataclass(frozen=True)
class Rule:
    """An algorithm in sums. `means` come one after another, each from those before it; then one sum of updates."""

    means: tuple[Callable[..., float], ...] = ()
    weight: Callable[..., float] = lambda a, i, *means: 1.0  # w_i / c_i
    uniform: Callable[[Any], bool] = lambda a: False  # c_i = 1/m instead of the share
    value: Callable[..., float] = _zero  # averaged beside the updates, for the objective
    objective: Callable[..., float] = lambda a, value, *means: value
    length: Callable[..., float] | None = None  # the step is divided by the sum of this, if given
    dual: Callable[..., float] | None = None  # the client's multiplier after the round
    personal: Callable[[Any], float | None] = lambda a: None  # strength of the tie of the client's own model


RULES: dict[str, Rule] = {
    "fedavg": Rule(value=_loss),
    "propfair": Rule(value=_local),
    "ditto": Rule(value=_loss, personal=lambda a: float(a.lam)),
    "vred": Rule(
        means=(_loss,),
        weight=lambda a, i, mean: 1 + 2 * a.beta * (i.loss - mean),
        value=lambda a, i, mean: a.beta * (i.loss - mean) ** 2,
        objective=lambda a, value, mean: mean + value,
    ),
    "semi_vred": Rule(
        means=(_loss, _above),
        weight=lambda a, i, mean, s: 1 + 2 * _beta(a, s) * (_above(a, i, mean) - s),
        value=lambda a, i, mean, s: _beta(a, s) * _above(a, i, mean) ** 2,
        objective=lambda a, value, mean, s: mean + value,
    ),
    "term": Rule(
        means=(_loss, _tilt),
        weight=lambda a, i, mean, z: _tilt(a, i, mean) / z,
        objective=lambda a, value, mean, z: mean + (math.log(z) / a.alpha if a.alpha else 0.0),
    ),
    "qffl": Rule(
        means=(_power,),
        weight=lambda a, i, z: _power(a, i) / z,
        uniform=lambda a: not a.share_weighted,
        value=lambda a, i, z: _power(a, i) * (i.loss + 1e-10) / (a.q + 1),
        length=lambda a, i, z: _power(a, i) / z * (1 + a.q * i.sq_norm / (i.lr * (i.loss + 1e-10))),
    ),
    "climb": Rule(
        means=(_loss,),
        weight=lambda a, i, mean: 1 + i.dual - i.mean_dual,
        uniform=lambda a: True,
        objective=lambda a, value, mean: mean,
        dual=_moved_dual,
    ),
}

_VECTORS = "it compares single updates with each other, which no sum of them tells"
WHY_NOT = {
    "fedmgda": _VECTORS,
    "fedfv": _VECTORS,
    "fcfl": _VECTORS,
    "gifair": "its weights are ranks: how many clients have a smaller loss than each, which no sum of losses tells",
    "delta_fl": "it trains the clients above a quantile of the losses, which no sum of them tells",
    "afl": "the server projects the vector of all losses onto the simplex, for which it must see each",
    "drfa": "the server draws clients by weights it learns from single losses",
}


def rule_of(algorithm: Algorithm) -> Rule:
    """The algorithm in sums; where its definition needs more than sums, an error that says why."""
    if algorithm.name not in RULES:
        why = WHY_NOT.get(algorithm.name, "how its weights come from sums is not written down")
        raise InputError(f"{algorithm.name} cannot run with private=True: {why}. Those that can: {', '.join(RULES)}")
    if algorithm.name == "vred" and getattr(algorithm, "safe", None) is not None:
        raise InputError(
            "vred with `safe` cannot run with private=True: its bound needs the smallest loss, which no sum of them "
            "tells. Leave `safe` out, or use semi_vred, whose bound is a sum"
        )
    return RULES[algorithm.name]
