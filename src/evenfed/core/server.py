"""What the server holds between rounds, what clients send it, and what it records of a round."""

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from . import streams
from .algorithm import Algorithm, Memory
from .average import Average, ModelState
from .errors import InputError, check_choice
from .guard import Clip, Guard, GuardChoice, ReportedNumbers, bounded
from .sparse import StoredNumbers, Vector, written_out
from .vector import Layout, Parameters

WeighAt = Literal["current", "average"]
OptimizerFactory = Callable[[list[Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class OptimizerStates:
    """The state of clients' optimisers (momentum, say): what their steps so far have left."""

    values: Tensor  # [..., M, D] one vector of the model's size per moment
    taken: Tensor  # [...] steps so far, in float64


@dataclass(frozen=True)
class Update:
    """What came back from one client, or from a stack of them (leading axis c).

    `ids`: the client, or a tensor of them. `delta`: the model that the client received minus the one it trained, flat
    or by parameter name. `buffers`: by name, such as BatchNorm's statistics after training. The rest is for engines.
    """

    ids: int | Tensor
    delta: Parameters  # incoming model minus trained model; [D] or [c, D] flat, or by parameter name
    snapshot: Tensor | None = None  # the same at the planned snapshot step
    buffers: Mapping[str, Tensor] | None = None  # e.g. BatchNorm's statistics after training, [c, ...]
    moments: OptimizerStates | None = None  # the state of the clients' optimisers, where they keep it
    columns: Tensor | None = None  # the delta's columns in [D], if it leaves out what cannot change


@dataclass(frozen=True)
class Record:
    """One round, as results keep it; arrays have one entry per client.

    Of a large federation, numbers are kept of those clients alone that have one (`kept`), and written out when read.
    """

    index: int
    losses: NDArray[np.float64]  # at the incoming model, or at the average; NaN for clients that did not take part
    weights: NDArray[np.float64]  # as applied; 0 for clients that did not train
    objective: float
    negative_weights: int
    dropped: tuple[int, ...] = ()  # clients left out for a missing or non-finite loss or update
    skipped: bool = False  # nothing usable came back: the model did not move
    reason: str | None = None  # why a round was skipped
    caused_by: tuple[int, ...] = ()  # clients for whose missing or unusable update it was skipped
    refused: tuple[str, ...] = ()  # nodes that were not let in since the last round, each with the reason
    clipped: tuple[Clip, ...] = ()  # whose numbers the guard has bounded
    seconds: float = float("nan")
    accuracy: NDArray[np.float64] | None = None  # or another score, on test data
    test_losses: NDArray[np.float64] | None = None  # of the model that the round deploys, on test data
    current: NDArray[np.float64] | None = None  # accuracy of the model after the round, where its average is deployed
    current_losses: NDArray[np.float64] | None = None  # its test losses, likewise
    unseen: NDArray[np.float64] | None = None  # scores of clients that never train
    unseen_losses: NDArray[np.float64] | None = None
    global_accuracy: float | None = None  # or another score, on a test set that belongs to no client
    global_loss: float | None = None
    recalls: NDArray[np.float64] | None = None  # [classes] right answers / all, over all clients' test examples
    unpadded: NDArray[np.float64] | None = None  # accuracy over the positions of sequences that are not padding
    scores: Mapping[str, float] | None = None  # of a private round: mean and deviation of accuracies known to no one
    central: Mapping[str, float] | None = None  # what a server's own evaluation of the deployed model gave

    def kept(self, field: str) -> "Vector | StoredNumbers | None":
        """A field that has one entry per client, in the form it is kept in."""
        kept: Vector | StoredNumbers | None = vars(self)[field]
        return kept

    def known(self, field: str) -> Vector:
        """The numbers of a field that are known, in the order of the clients; of few clients, without all the others.

        >>> record = Record(0, np.array([0.5, np.nan]), np.array([1.0, 0.0]), 0.5, 0)
        >>> record.known("losses"), record.known("accuracy")
        (array([0.5]), array([], dtype=float64))
        """
        kept = self.kept(field)
        if kept is None:
            return np.empty(0)
        values = kept if isinstance(kept, np.ndarray) else kept.values
        known: Vector = values[~np.isnan(values)]
        return known

    def but(self, **changes: Any) -> "Record":
        """The same with other values of some fields. Unlike `dataclasses.replace`, it writes nothing out."""
        changed = copy.copy(self)
        for name, value in changes.items():
            object.__setattr__(changed, name, value)
        return changed

    @property
    def of_current(self) -> "Record | None":
        """The round as judged by the model that clients train on; None if that one is deployed, or was not judged."""
        if self.kept("current") is None and self.kept("current_losses") is None:
            return None
        fields: dict[str, Any] = dict.fromkeys(_OF_DEPLOYED)
        fields["accuracy"] = self.kept("current")
        fields["test_losses"] = self.kept("current_losses")
        return self.but(**fields)


_OF_DEPLOYED = (
    "current",
    "current_losses",
    "unseen",
    "unseen_losses",
    "global_accuracy",
    "global_loss",
    "recalls",
    "unpadded",
    "scores",
    "central",
)  # what a round says of the deployed model alone

PER_CLIENT = ("losses", "weights", "accuracy", "test_losses", "current", "current_losses", "unpadded")
written_out(PER_CLIENT, Record)


@dataclass(frozen=True)
class PastUpdates:
    """Updates of earlier rounds, one row per client, for algorithms that remember them."""

    ids: Tensor  # [k]
    deltas: Tensor  # [k, D]
    ages: Tensor  # [k] rounds since


class ClientSizes:
    """What all rounds need to know of the clients' sizes [n], computed once."""

    def __init__(self, sizes: Tensor) -> None:
        self.sizes = sizes

    @cached_property
    def eligible(self) -> NDArray[np.int64]:
        """The clients with data."""
        return torch.nonzero(self.sizes).flatten().numpy()

    @cached_property
    def shares(self) -> Tensor:
        """[n] of all examples, in float64."""
        sizes = self.sizes.double()
        return sizes / sizes.sum()


@dataclass(frozen=True)
class Server:
    """Everything the server holds between rounds. State in, state out: rounds return a new one."""

    algorithm: Algorithm
    layout: Layout
    theta: Tensor  # [D]
    sizes: Tensor  # [n]
    local_steps: Tensor  # [n]
    memory: Memory
    lr: float
    seed: int = 0
    index: int = 0
    server_lr: float = 1.0
    smooth: float | None = None
    smoothed: Tensor | None = None  # [n] NaN until a client has taken part
    average: Average | None = None  # of the models so far: what is deployed
    weigh_at: WeighAt = "current"  # the model whose losses give the weights
    lr_schedule: Callable[[int], float] | None = None  # round -> factor of lr
    optimizer: OptimizerFactory | None = None
    optimizer_state: dict[str, Any] | None = None
    past: PastUpdates | None = None
    buffers: dict[str, Tensor] = field(default_factory=dict)
    guard: Guard | None = None  # what bounds each client's influence
    heard: ReportedNumbers | None = None  # what clients last reported, which the guard compares with
    oversized: tuple[Clip, ...] = ()  # clients whose sizes the guard has bounded since the last round
    known: ClientSizes | None = None  # of an earlier round

    @classmethod
    def start(
        cls,
        algorithm: Algorithm,
        params: Parameters,
        sizes: Sequence[int] | Tensor,
        *,
        lr: float,
        local_steps: Sequence[int] | Tensor | None = None,
        seed: int = 0,
        server_lr: float = 1.0,
        smooth: float | None = None,
        average: float | None = None,
        weigh_at: WeighAt = "current",
        lr_schedule: Callable[[int], float] | None = None,
        optimizer: OptimizerFactory | None = None,
        buffers: Mapping[str, Tensor] | None = None,
        guard: GuardChoice = None,
    ) -> "Server":
        """Before round 0: `params` is a tensor or a dict by name, `sizes` [n] are training-set sizes."""
        if not isinstance(algorithm, Algorithm):
            raise InputError(
                f"algorithm={algorithm!r} is a {type(algorithm).__name__}; give an Algorithm, e.g. "
                "evenfed.algorithms.get('semi_vred')"
            )
        claimed = torch.as_tensor(sizes, dtype=torch.int64)
        _check_sizes(claimed)
        clients = len(claimed)
        if smooth is not None and not 0 < smooth <= 1:
            raise InputError(f"smooth={smooth} is out of range; it must be above 0 and at most 1 (1 is no smoothing)")
        check_weigh_at(weigh_at, average)
        bounds = Guard.of(guard)
        counts, oversized = bounded(bounds, claimed)
        steps = counts > 0
        if local_steps is not None:
            steps = torch.as_tensor(local_steps)
        smoothed = None
        if smooth is not None:
            smoothed = torch.full((clients,), torch.nan).double()
        layout = Layout.of(params)
        shares = counts.double() / counts.sum()
        return cls(
            algorithm=algorithm,
            layout=layout,
            theta=layout.flatten(params),
            sizes=counts,
            local_steps=steps.to(torch.int64),
            memory=algorithm.init(shares),
            lr=lr,
            seed=seed,
            server_lr=server_lr,
            smooth=smooth,
            smoothed=smoothed,
            average=None if average is None else Average(average),
            weigh_at=weigh_at,
            lr_schedule=lr_schedule,
            optimizer=optimizer,
            buffers=dict(buffers or {}),
            guard=bounds,
            heard=None if bounds is None else ReportedNumbers.nothing(clients),
            oversized=oversized,
        )

    def with_sizes(self, sizes: Tensor) -> "Server":
        """The same over clients of these `sizes` [n or more]: some may be new, others have other data than before.

        A new client's memory is what it would have had at the start. Where that is its part of a mixture, the others'
        parts shrink to make room.
        """
        missing = len(sizes) - len(self.sizes)
        sizes, oversized = bounded(self.guard, sizes)
        before = pad(self.sizes, (0, missing))
        is_new = (sizes > 0) & (before <= 0)
        fresh = self.algorithm.init(sizes.double() / sizes.sum())
        memory = dict(self.memory)
        for name, values in fresh.items():
            if values.shape != sizes.shape:
                continue  # not of clients
            kept = pad(memory[name], (0, missing))
            if math.isclose(float(values.sum()), 1.0):
                kept = kept * (1 - float(values[is_new].sum()))
            memory[name] = torch.where(is_new, values, kept)
        smoothed = self.smoothed
        if smoothed is not None:
            smoothed = pad(smoothed, (0, missing), value=math.nan)
        steps = pad(self.local_steps, (0, missing), value=1)
        heard = self.heard
        if heard is not None:
            heard = heard.with_more(missing)
        new_clips = tuple(clip for clip in oversized if is_new[clip.client])
        return dataclasses.replace(
            self,
            sizes=sizes,
            local_steps=steps,
            memory=memory,
            smoothed=smoothed,
            heard=heard,
            oversized=new_clips,
        )

    @property
    def params(self) -> Tensor | dict[str, Tensor]:
        """The current model, which clients train, in the structure it was given in."""
        return self.layout.unflatten(self.theta)

    @property
    def current(self) -> ModelState:
        return ModelState(self.theta, self.buffers)

    @property
    def deployed(self) -> ModelState:
        """The model that serves clients: the average if the run keeps one and a round is over, else the current one."""
        if self.average is None:
            return self.current
        return self.average.model or self.current

    @property
    def deployed_params(self) -> Tensor | dict[str, Tensor]:
        """The same in the structure the model was given in."""
        return self.layout.unflatten(self.deployed.theta)

    @property
    def weighed(self) -> ModelState:
        """The model at which clients measure the losses that give their weights."""
        return self.deployed if self.weigh_at == "average" else self.current

    @property
    def weighed_params(self) -> Tensor | dict[str, Tensor]:
        """The same in the structure the model was given in."""
        return self.layout.unflatten(self.weighed.theta)

    @property
    def round_lr(self) -> float:
        """The clients' learning rate in this round."""
        if self.lr_schedule is None:
            return self.lr
        return self.lr * self.lr_schedule(self.index)

    def shares_of(self, ids: Tensor) -> Tensor:
        """[k] the sizes of these clients (ids, or True for each), divided by their sum (float64)."""
        sizes = self.sizes[ids].double()
        return sizes / sizes.sum()

    @property
    def clients_with_data(self) -> int:
        """How many clients can be drawn."""
        return len(self.everyone.eligible)

    def draw(self, count: int) -> Tensor:
        """Ids of this round's participants: `count` clients with data, uniformly, from the run's own seed."""
        drawn = streams.sample(self.seed, self.index, self.everyone.eligible, count)
        return torch.from_numpy(drawn)

    @property
    def everyone(self) -> ClientSizes:
        """What is known of the clients' sizes; servers of later rounds share it."""
        if self.known is None or self.known.sizes is not self.sizes:
            object.__setattr__(self, "known", ClientSizes(self.sizes))
        assert self.known is not None
        return self.known


def _check_sizes(sizes: Tensor) -> None:
    if len(sizes) == 0 or int(sizes.max()) == 0:
        shown = sizes[:5].tolist()
        raise InputError(f"sizes={shown}: no client has training data; give at least one that has")
    if int(sizes.min()) < 0:
        raise InputError("sizes holds a negative number; a client's size counts its training examples")


def check_weigh_at(choice: object, average: float | None) -> None:
    """Refuse what is no such model, and an average that is not kept."""
    check_choice("weigh_at", choice, get_args(WeighAt))
    if choice == "average" and average is None:
        raise InputError("weigh_at='average' needs an average; give one, such as average=0.9, or weigh_at='current'")
