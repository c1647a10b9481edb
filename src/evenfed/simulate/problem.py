"""What is trained on what, and the tasks and questions that engines carry out; the same for every engine."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..client import Client, Pool, names, pools
from ..core.errors import InputError, first_line
from ..core.server import Server, Update
from ..core.vector import Layout
from ..local.training import LocalTraining
from ..settings import Settings
from .layers.recurrent import wherever_weights_lie

LossFunction = Callable[[Tensor, Tensor], Tensor]
LocalLoss = Callable[[Tensor], Tensor]
Model = nn.Module | Callable[[], nn.Module]  # a function draws a new one for every seed
DrawnModels = Callable[[int], Tensor]  # seed -> [D]
Updates = Iterator[tuple[int, Update]]  # each with the position of the task it belongs to


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Per-example (and per-position) cross entropy of class scores [b, classes, ...]."""
    return F.cross_entropy(outputs, targets, reduction="none")


def top1(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the target has the highest score, else 0. Scores that are not finite are wrong."""
    highest, predicted = outputs.max(1)
    hit = predicted == targets
    correct = hit & highest.isfinite()
    return correct.to(outputs.dtype)


def per_example(values: Tensor) -> Tensor:
    """[b, ...] -> [b]: an example's value is the mean over its positions."""
    if values.ndim == 1:
        return values
    return values.flatten(1).mean(1)


def client_means(values: Tensor, sizes: Tensor) -> Tensor:
    """[n] the mean of each client's values, which lie client after client."""
    clients = torch.arange(len(sizes))
    owners = clients.repeat_interleave(sizes).to(values.device)
    totals = values.new_zeros(len(sizes)).index_add_(0, owners, values)
    return (totals / sizes.to(totals)).cpu()


def slope(function: LocalLoss, at: Tensor) -> Tensor:
    """The derivative of `function`, entry by entry."""
    at = at.detach().requires_grad_()
    with torch.enable_grad():
        total = function(at).sum()
        (derivative,) = torch.autograd.grad(total, at)
    return derivative


@dataclass(frozen=True)
class Problem:
    """A model, its loss and everybody's data, on one device."""

    model: nn.Module
    layout: Layout
    buffers: dict[str, Tensor]
    train: Pool
    judged: Pool | None  # what accuracy is measured on: test or validation examples
    loss: LossFunction
    score: LossFunction | None
    client_names: list[str]
    device: torch.device
    padding: int | None = None  # the target symbol that only fills up sequences

    @classmethod
    def of(
        cls,
        model: nn.Module,
        clients: Sequence[Client],
        settings: Settings,
        loss: LossFunction | None = None,
        score: LossFunction | None = None,
    ) -> "Problem":
        """From clients as a user gives them."""
        trained = (p.dtype for p in _module(model).parameters() if p.requires_grad)
        dtype = next(trained, torch.float32)
        train, judged = pools(clients, dtype)
        return cls.on(model, train, judged, names(clients), settings, loss, score)

    @classmethod
    def on(
        cls,
        model: nn.Module,
        train: Pool,
        judged: Pool | None,
        client_names: list[str],
        settings: Settings,
        loss: LossFunction | None = None,
        score: LossFunction | None = None,
        padding: int | None = None,
    ) -> "Problem":
        """On pooled data. One small forward pass checks it before anything is trained."""
        device = settings.torch_device()
        model = copy.deepcopy(_module(model))
        model = model.to(device)
        trained = _trained(model)
        layout = Layout.of(trained)
        dtypes = {str(parameter.dtype) for parameter in trained.values()}
        if len(dtypes) > 1:
            mixed = sorted(dtypes)
            raise InputError(f"the model mixes parameter types {mixed}; convert it to one")
        if loss is None:
            _check_class_targets(train)
            if judged is not None:
                _check_class_targets(judged)
        buffers = {}
        for name, buffer in model.named_buffers():
            buffers[name] = buffer.detach().clone()
        if score is None:
            score = _default_score(train, judged)
        if judged is not None:
            judged = judged.to(device)
        problem = cls(
            model=model,
            layout=layout,
            buffers=buffers,
            train=train.to(device),
            judged=judged,
            loss=loss or cross_entropy,
            score=score,
            client_names=client_names,
            device=device,
            padding=padding,
        )
        problem._check_forward(default_loss=loss is None)
        return problem

    @property
    def theta(self) -> Tensor:
        """The model's trainable parameters as one vector."""
        return theta_of(self, self.model)

    def batch_loss(self, outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Mean loss of a batch's real examples: `mask` is 0 for those that only fill it up."""
        losses = per_example(self.loss(outputs, targets))
        total = (losses * mask).sum()
        return total / mask.sum().clamp(min=1)

    def unpadded_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The score where the target is not padding, else 0."""
        assert self.score is not None
        assert self.padding is not None
        scores = self.score(outputs, targets)
        is_real = targets.ne(self.padding)
        return scores * is_real

    def real_positions(self) -> Tensor:
        """[n] the share of each client's test positions that are not padding."""
        assert self.judged is not None and self.padding is not None
        is_real = self.judged.targets.ne(self.padding).double()
        return client_means(per_example(is_real).cpu(), self.judged.sizes)

    def _check_forward(self, default_loss: bool) -> None:
        """One small batch through a copy of the model, in evaluation mode so that no buffer changes."""
        pool = _pool_with_examples(self.train, self.judged)
        x = pool.inputs[:2]
        y = pool.targets[:2]
        if len(x) == 0:
            return
        try:
            with torch.no_grad(), wherever_weights_lie():
                model = copy.deepcopy(self.model)
                outputs = model.eval()(x)
                if default_loss:
                    self._check_classes(outputs)
                losses = self.loss(outputs, y)
        except (RuntimeError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
            raise InputError(
                f"the model or loss fails on a batch of inputs {list(x.shape)} ({x.dtype}) and targets {list(y.shape)} "
                f"({y.dtype}): {first_line(error)}; give data of the shape and type your model takes"
            ) from None
        shape = type(losses).__name__
        if isinstance(losses, Tensor):
            if losses.shape[:1] == x.shape[:1]:
                return
            shape = str(list(losses.shape))
        raise InputError(
            f"loss gave {shape} for {len(x)} examples; it must return one loss per example (reduction='none')"
        )

    def _check_classes(self, outputs: Tensor) -> None:
        classes = 0
        if outputs.ndim > 1:
            classes = outputs.shape[1]
        highest = -1
        for pool in (self.train, self.judged):
            if pool is not None and len(pool.targets):
                largest = int(pool.targets.max())
                highest = max(highest, largest)
        if highest >= classes:
            raise InputError(
                f"targets go up to {highest} but the model scores {classes} classes; keep them in 0 .. {classes - 1}"
            )


def _trained(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that are trained, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _module(model: object) -> nn.Module:
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise InputError(f"model is a {kind}; give a torch.nn.Module")
    # What torch.compile wraps: the engines trace and compile by themselves.
    unwrapped = getattr(model, "_orig_mod", model)
    if isinstance(unwrapped, nn.Module):
        return unwrapped
    return model


def _pool_with_examples(train: Pool, judged: Pool | None) -> Pool:
    """The training data, or the test data of a site that has nothing else."""
    if len(train.targets) == 0 and judged is not None:
        return judged
    return train


def _default_score(train: Pool, judged: Pool | None) -> LossFunction | None:
    """Accuracy where targets are classes."""
    pool = _pool_with_examples(train, judged)
    if pool.targets.is_floating_point():
        return None
    return top1


def _check_class_targets(pool: Pool) -> None:
    if len(pool.targets) == 0:
        return
    dtype = pool.targets.dtype
    if dtype != torch.int64:
        kind = str(dtype).removeprefix("torch.")
        raise InputError(
            f"targets are {kind}; cross entropy takes whole class numbers (int64): "
            "convert them, or give `loss` for another kind of target"
        )
    lowest = int(pool.targets.min())
    if lowest < 0:
        raise InputError(f"targets go down to {lowest}; class numbers start at 0")


@dataclass(frozen=True)
class Task:
    """What one run asks of its clients in one round: plain data, no algorithm's name."""

    index: int  # the round
    seed: int
    theta: Tensor  # [D] the incoming model
    ids: Tensor  # [k] who trains
    local: LocalTraining
    starts: Tensor | None = None  # [k, D] where each starts, if not at theta (personal models)
    snapshot_steps: Tensor | None = None  # [k]
    local_loss: LocalLoss | None = None  # None: the loss itself
    buffers: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Question:
    """A model to measure on clients' data: `models` [D] for all of them, or [n, D] with one for each client."""

    models: Tensor
    ids: Tensor
    buffers: Mapping[str, Tensor]

    def model_of(self, client: int) -> Tensor:
        """[D] the model that is measured on this client's data."""
        if self.models.ndim == 1:
            return self.models
        return self.models[client]


class Engine(Protocol):
    """All that differs between simulators."""

    @property
    def how(self) -> str:
        """How clients are trained, and why so: recorded with the run."""

    def losses(self, questions: Sequence[Question]) -> list[Tensor]:
        """Mean training losses [len(ids)] (float64) of each question's clients."""

    def train(self, tasks: Sequence[Task]) -> Updates:
        """The updates of all tasks, in a repeatable order."""

    def scores(self, questions: Sequence[Question], of: LossFunction) -> list[Tensor]:
        """Mean of `of` over the test data [len(ids)] (float64), NaN for clients without any."""

    def shrink(self) -> bool:
        """Train fewer clients at once from now on, for lack of device memory. False if that is not possible."""


def initial_model(model: Model, seed: int) -> nn.Module:
    """The module itself, or a new one drawn with this seed."""
    if isinstance(model, nn.Module):
        return model
    if not callable(model):
        kind = type(model).__name__
        raise InputError(f"model is a {kind}; give a torch.nn.Module or a function that makes one")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = model()
    if not isinstance(made, nn.Module):
        kind = type(made).__name__
        raise InputError(f"model() gave a {kind}; it must make a torch.nn.Module")
    return made


def drawn_by(problem: Problem, model: Model) -> DrawnModels | None:
    """Initial models by seed, as the problem's vectors; None for a given module, which is the same for every seed."""
    if isinstance(model, nn.Module):
        return None

    def draw(seed: int) -> Tensor:
        drawn = initial_model(model, seed)
        return theta_of(problem, drawn)

    return draw


def theta_of(problem: Problem, model: nn.Module) -> Tensor:
    """This module's parameters as the problem's vector."""
    parameters = dict(model.named_parameters())
    layout = problem.layout
    trained = {name: parameters[name] for name in layout.names or ()}
    theta = layout.flatten(trained)
    return theta.to(problem.device)


def loaded(model: nn.Module, server: Server, theta: Tensor) -> nn.Module:
    """A copy of `model` with these parameters and the server's buffers, in evaluation mode."""
    loaded = copy.deepcopy(model).eval()
    parameters = server.layout.unflatten(theta)
    assert isinstance(parameters, dict)
    loaded.load_state_dict({**parameters, **server.buffers}, strict=False)
    return loaded
