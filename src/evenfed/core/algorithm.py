"""What an algorithm is: its row of the paper's Table 1, and a few hooks for what a row cannot say."""

import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .class_checks import check_fields, check_names, check_signatures
from .errors import InputError, unknown
from .scalars import unwrapped

Memory = dict[str, Tensor]
Number = Tensor | float
Mean = Callable[[Tensor], Tensor]  # of one number per client, E[g] = sum_i c_i g_i: in goes g_i, out comes E[g]


@dataclass(frozen=True)
class Round:
    """All the server may look at before the clients train (float64; n clients, m of them take part)."""

    index: int
    ids: Tensor  # [m] who takes part: drawn uniformly, holds data, reported a finite loss
    losses: Tensor  # [m] at the incoming model, over the whole training set, before training; smoothed if asked
    shares: Tensor  # [m] training-set sizes, normalised over those who take part
    population: Tensor  # [n] the same over everyone; 0 for a client without data
    local_steps: Tensor  # [n] how many steps each client would take
    lr: float
    rng: np.random.Generator

    def only(self, ids: Tensor) -> "Round":
        """The round as if only `ids` had taken part: shares are renormalised."""
        taking_part = torch.isin(self.ids, ids)
        shares = self.shares[taking_part]
        return dataclasses.replace(
            self,
            ids=self.ids[taking_part],
            losses=self.losses[taking_part],
            shares=shares / shares.sum(),
        )


@dataclass(frozen=True)
class Plan:
    """All the server decides before the clients train."""

    ids: Tensor  # [k] who trains
    weights: Tensor  # [k] of their updates, in the server step theta - sum_i w_i (theta - theta_i)
    snapshot_steps: Tensor | None = None  # [k] the local step at which each also keeps its model
    probe: Tensor | None = None  # ids that report their loss at the averaged snapshot after training
    personal: float | None = None  # strength that ties each client's own model to the global one

    @classmethod
    def uniform(cls, ids: Tensor) -> "Plan":
        """All of these clients, with equal weights that sum to 1.

        >>> Plan.uniform(torch.tensor([3, 8])).weights
        tensor([0.5000, 0.5000], dtype=torch.float64)
        """
        count = len(ids)
        weights = torch.full((count,), 1 / count, dtype=torch.float64)
        return cls(ids, weights)

    def only(self, chosen: Tensor) -> "Plan":
        """The plan of some of the clients: `chosen` [k] is true for them."""
        steps = self.snapshot_steps
        if steps is not None:
            steps = steps[chosen]
        return dataclasses.replace(self, ids=self.ids[chosen], weights=self.weights[chosen], snapshot_steps=steps)


@dataclass(frozen=True)
class PrivateInputs:
    """What one client knows in a private round."""

    loss: Tensor  # [] float64, at the incoming model; smoothed if asked
    lr: float
    clients: int  # how many in the federation hold data
    dual: float = 0.0  # the client's multiplier of a constraint, before the round
    mean_dual: float = 0.0  # its mean over all clients, which is public
    sq_norm: float = 0.0  # squared norm of the client's update; 0 until it is trained


@dataclass(frozen=True)
class PrivatePart:
    """What one client gives to a private round: step = E[weight * delta] / E[length], F = E[objective]."""

    weight: Number  # w_i / c_i
    objective: Number
    length: Number = 1.0
    dual: Number = 0.0  # the client's multiplier after the round


class WeightTerms(NamedTuple):
    """Numbers of some clients, each from what that client has by itself."""

    rows: Tensor  # [k, m]
    exponents: Tensor | None = None  # [m] a column is to be multiplied by e to this


def hyper(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    reason: str = "",
    fedavg: Any = None,
    danger: str = "",
    grid: Sequence[Any] = (),
) -> Any:
    """A hyper-parameter: default, allowed range with its reason, FedAvg's value, danger bound, grid of `tune`."""
    metadata = {
        "help": help,
        "above": above,
        "least": least,
        "most": most,
        "reason": reason,
        "fedavg": fedavg,
        "danger": danger,
        "grid": tuple(grid),
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Algorithm:
    """Subclass, give `objective`, and every engine can run it; see CONTRIBUTING.md.

    The weights are the gradient of `objective` in the losses: theta - sum_i w_i delta_i then descends it.
    """

    name: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    needs: ClassVar[Literal["weights", "norms", "gram"]] = "weights"  # what must be known of the updates
    uses_losses: ClassVar[bool] = True  # whether `plan` or `mix` looks at the losses (so smoothing acts)
    sums_to_one: ClassVar[bool] = True  # whether the weights do under full participation
    any_sum: ClassVar[bool] = False  # whether a step is also defined for weights that sum to zero or less
    needs_path: ClassVar[bool] = False  # whether `mix` looks at the clients' lr and local steps; `rescale` does at lr
    least_loss: ClassVar[float] = -math.inf  # below it the weights are not defined
    mixture: ClassVar[str | None] = None  # the entry of memory that spreads all weight over the clients
    not_private: ClassVar[str] = "its method `private`, which finds a client's weight from means, is not written"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            return
        package, _, module = cls.__module__.rpartition(".")
        is_built_in = package == "evenfed.algorithms"
        cls.name = module if is_built_in else cls.__name__.lower()

    def __new__(cls, *args: Any, **kwargs: Any) -> "Algorithm":
        check_declared(cls)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for spec in dataclasses.fields(self):
            hint = hints[spec.name]
            value = _checked(self, spec, hint)
            object.__setattr__(self, spec.name, value)

    def objective(self, losses: Tensor, shares: Tensor) -> Tensor:
        """F(f_1 .. f_n), differentiable in `losses`; the mean loss unless overridden."""
        return shares @ losses

    def init(self, population: Tensor) -> Memory:
        """What the server remembers between rounds, at the start; `population` [n] are everyone's shares."""
        return {}

    def plan(self, round: Round, memory: Memory) -> tuple[Plan, Memory]:
        """Who trains with which weight; by default everyone, with the gradient of `objective`."""
        weights = gradient(self, round.losses, round.shares)
        return Plan(round.ids, weights, personal=self.personal()), memory

    def terms(
        self,
        ids: Tensor,
        losses: Tensor,
        sizes: Tensor,
        memory: Memory,
    ) -> WeightTerms | None:
        """For clients `ids` [m]: k numbers each, of which the weights are one combination, the same for all clients.

        Where losses come with the updates, k sums of updates then serve instead of every single one. None, the
        default: weights need all losses first.
        """
        return None

    def personal(self) -> float | None:
        """Strength of the tie between each client's own model and the global one; None: clients have no own model."""
        return None

    def local_loss(self, loss: Tensor) -> Tensor:
        """The loss a client descends, from its batch's mean loss; elementwise, so it serves a stack too."""
        return loss

    def rescale(self, round: Round, plan: Plan, sq_norms: Tensor) -> float:
        """Factor on the planned step, from the squared norms [k] of the updates (needs = "norms")."""
        raise NotImplementedError

    def remembers(self) -> int:
        """For how many rounds `mix` also wants the updates of clients that are not drawn again."""
        return 0

    def mix(
        self,
        round: Round,
        plan: Plan,
        gram: Tensor,
        ages: Tensor,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        """Final weights [k] from the inner products [k, k] of the updates (needs = "gram").

        With `remembers`, rows of past rounds' updates follow the planned ones; `ages` [k] is 0 for this
        round's and counts the rounds since for the others.
        """
        raise NotImplementedError

    def learn(
        self,
        round: Round,
        plan: Plan,
        probe_losses: Tensor,
        memory: Memory,
    ) -> Memory:
        """New memory from the losses [len(plan.probe)] at the snapshot, for plans that asked for them."""
        return memory

    def coefficients(self, shares: Tensor) -> Tensor:
        """The public c_i [m] of the means in `private`; the shares unless overridden."""
        return shares

    def private(self, own: PrivateInputs, mean: Mean) -> PrivatePart:
        """One client's weight from its own numbers and from means over all clients: what a private round needs.

        Every call of `mean` is one masked sum. Call it equally often for every client, and on nothing but numbers
        derived from `own` and earlier means. `evenfed.testing` compares the result with `plan`.
        """
        raise InputError(f"{self.name} cannot run with private=True: {self.not_private}")

    def describe(self) -> dict[str, Any]:
        """Hyper-parameters by name: what a result's header records and `get` takes back."""
        return dataclasses.asdict(self)


def gradient(algorithm: Algorithm, losses: Tensor, shares: Tensor) -> Tensor:
    """dF/df_i [m] in float64: the weights that the chain rule gives an objective.

    >>> from evenfed.algorithms import VRed
    >>> f, p = torch.tensor([2.0, 1.0, 0.5]).double(), torch.tensor([0.1, 0.3, 0.6]).double()
    >>> gradient(VRed(beta=0.2), f, p)
    tensor([0.1480, 0.3240, 0.5280], dtype=torch.float64)
    """
    with torch.enable_grad():
        at = losses.detach().double().requires_grad_()
        value = algorithm.objective(at, shares.double())
        check_objective(algorithm, value)
        slope = None
        if isinstance(value, Tensor) and value.requires_grad:
            (slope,) = torch.autograd.grad(value, at, allow_unused=True)
    if slope is None:
        raise InputError(
            f"{algorithm.name}: objective(losses, shares) gave {_shown(value)}, which does not depend on `losses` in "
            f"a way that torch can follow; compute it from `losses` with torch, without float(), .item() or .detach()"
        )
    return slope


def check_objective(algorithm: Algorithm, value: Any) -> None:
    """Refuse an objective that is no single number."""
    count = value.numel() if isinstance(value, Tensor) else np.size(value)
    holds_numbers = isinstance(value, Tensor | np.ndarray | numbers.Real)
    if not holds_numbers or count != 1:
        raise InputError(
            f"{algorithm.name}: objective(losses, shares) gave {_shown(value)}; return one number, a tensor without "
            f"dimensions, e.g. `shares @ losses`"
        )


def _shown(value: Any) -> str:
    """A value in an error: a tensor by its shape."""
    if isinstance(value, Tensor) and value.ndim:
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, Tensor):
        return f"tensor({value.item():g})"
    return repr(value)


def check_declared(cls: type[Algorithm]) -> None:
    """Refuse a class that would not train what it seems to say."""
    check_fields(cls, Algorithm)
    check_names(cls, Algorithm)
    check_signatures(cls, Algorithm)


def build(cls: type[Algorithm], options: Mapping[str, Any]) -> Algorithm:
    """An instance of `cls`; an unknown hyper-parameter names the nearest one."""
    check_declared(cls)
    allowed = [f.name for f in dataclasses.fields(cls)]
    for key in options:
        if key not in allowed:
            raise unknown(f"hyper-parameter of {cls.name}", key, allowed)
    return cls(**options)


def _checked(algorithm: Algorithm, spec: "dataclasses.Field[Any]", hint: Any) -> Any:
    """The field's value, converted int -> float where declared, or an error with the bound and its reason."""
    value = unwrapped(getattr(algorithm, spec.name))
    where = f"{algorithm.name}: {spec.name}"
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            listed = ", ".join(map(repr, choices))
            raise InputError(f"{where}={value!r} is not one of {listed}")
        return value
    is_union = isinstance(hint, types.UnionType)
    kinds = typing.get_args(hint) if is_union else (hint,)
    if value is None and type(None) in kinds:
        return value
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and float in kinds:
        value = float(value)
    _check_type(value, kinds, where)
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}={value} is not finite; give a number")
    _check_bounds(value, spec.metadata, where)
    return value


def _check_type(value: Any, kinds: tuple[Any, ...], where: str) -> None:
    classes = tuple(kind for kind in kinds if isinstance(kind, type))
    if not classes:
        return
    unwanted_bool = isinstance(value, bool) and bool not in classes  # Python counts True as an int
    if isinstance(value, classes) and not unwanted_bool:
        return
    names = []
    for kind in classes:
        is_none = kind is type(None)
        names.append("nothing" if is_none else kind.__name__)
    wanted = " or ".join(names)
    received = type(value).__name__
    raise InputError(f"{where}={value!r} is a {received}; give a value of type {wanted}")


def _check_bounds(value: Any, meta: Mapping[str, Any], where: str) -> None:
    above = meta.get("above")
    least = meta.get("least")
    most = meta.get("most")
    broken = None
    if above is not None and not value > above:
        broken = f"above {above}"
    elif least is not None and not value >= least:
        broken = f"at least {least}"
    elif most is not None and not value <= most:
        broken = f"at most {most}"
    if broken:
        reason = meta["reason"]
        raise InputError(f"{where}={value} is out of range; it must be {broken}: {reason}")
