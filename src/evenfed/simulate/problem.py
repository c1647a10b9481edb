"""What is trained on what, and the tasks and questions that engines carry out; the same for every engine."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .. import losses, scores, trees
from ..clients.client import Client, Pool
from ..clients.lazy import pools
from ..clients.pooling import ClientsLike, client_list, names, only_pool, refuse_shared
from ..clients.tables import Heading
from ..core.average import ModelState as ServerModel
from ..core.choices import function_of
from ..core.errors import InputError
from ..core.server import OptimizerStates, Update
from ..core.vector import Layout
from ..local.training import LocalTraining
from ..losses import Functions, LossFunction, per_example
from ..metrics import ACCURACY, LOSS, Metric
from ..settings import Settings
from . import module_modes
from .checks import ProblemProbe, check_factory, check_parameters, checked_functions
from .target_checks import check_binary_pool, check_class_targets, check_counted, scores_classes
from .totals import class_count, client_means, label_counts

Score = LossFunction | Metric | str  # a function, a metric with its direction, or a name
LocalLoss = Callable[[Tensor], Tensor]
Model = nn.Module | Callable[[], nn.Module]  # a function draws a new one for every seed
DrawnModels = Callable[[int], Tensor]  # seed -> [D]
Updates = Iterator[tuple[int, Update]]  # each with the position of the task it belongs to


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
    client_names: Sequence[str]
    device: torch.device
    evaluated: frozenset[str] = frozenset()  # modules that stay in evaluation mode while the model trains
    padding: int | None = None  # the target symbol that only fills up sequences
    metric: Metric = ACCURACY  # what clients are judged by
    whole_client: Metric | None = None  # a score of all of a client's outputs, in place of `score`
    unseen: Pool | None = None  # examples of clients that never train
    test: Pool | None = None  # examples that belong to no client
    heading: Heading = field(default_factory=Heading)  # the columns of the clients' tables

    @classmethod
    def of(
        cls,
        model: nn.Module,
        clients: ClientsLike,
        settings: Settings,
        loss: LossFunction | str | None = None,
        score: Score | None = None,
        unseen: ClientsLike = (),
        test: Any = None,
    ) -> "Problem":
        """From clients as a user gives them; `unseen` clients and the `test` examples are held out of training."""
        settings.device_here()  # before data are read
        trained = (p.dtype for p in _module(model).parameters() if p.requires_grad)
        dtype = next(trained, torch.float32)
        heading = Heading()
        clients = client_list(clients)
        train, judged = pools(clients, dtype, heading)
        problem = cls.on(model, train, judged, names(clients), settings, loss, score)
        unseen_pool = None
        test_pool = None
        if unseen:
            unseen = client_list(unseen, "unseen")
            refuse_shared(clients, unseen)
            judged_alone = [client if client.test is None else client.with_test_only() for client in unseen]
            unseen_pool = only_pool(judged_alone, "unseen", dtype, heading)
        if test is not None:
            test_pool = only_pool([Client(test, name="all")], "test", dtype, heading)
        problem = problem.holding_out(unseen_pool, test_pool, default_loss=loss is None)
        return dataclasses.replace(problem, heading=heading)

    @classmethod
    def on(
        cls,
        model: nn.Module,
        train: Pool,
        judged: Pool | None,
        client_names: Sequence[str],
        settings: Settings,
        loss: LossFunction | str | None = None,
        score: Score | None = None,
        padding: int | None = None,
    ) -> "Problem":
        """On pooled data. Model, loss and score are tried on a few examples before anything is trained."""
        device = settings.device_here()
        model = copy.deepcopy(_module(model)).to(device)
        trained = _trained(model)
        layout = Layout.of(trained)
        dtypes = {str(parameter.dtype) for parameter in trained.values()}
        if len(dtypes) > 1:
            mixed = sorted(dtypes)
            raise InputError(f"the model mixes parameter types {mixed}; convert it to one")
        train = train.to(device)
        if judged is not None:
            judged = judged.to(device)
        loss = function_of("loss", loss, losses.NAMED)
        if isinstance(score, str):
            score = scores.named(score)
        metric = score if isinstance(score, Metric) else ACCURACY
        whole_client = metric if metric.whole_client else None
        own_score = metric.function if isinstance(score, Metric) else function_of("score", score, {})
        chosen_loss, chosen_score = checked_functions(model, train, judged, client_names, loss, own_score, whole_client)
        return cls(
            model=model,
            layout=layout,
            buffers=module_modes.buffers_of(model),
            train=train,
            judged=judged,
            loss=chosen_loss,
            score=chosen_score,
            client_names=client_names,
            device=device,
            evaluated=module_modes.evaluated_modules(model, settings.batch_norm),
            padding=padding,
            metric=_judged_by(settings.metric, metric, chosen_score or whole_client),
            whole_client=whole_client,
        )

    def holding_out(
        self,
        unseen: Pool | None,
        test: Pool | None,
        default_loss: bool,
    ) -> "Problem":
        """The same, also measured on these."""
        if unseen is not None:
            unseen = self._checked_pool(unseen, "unseen", default_loss)
        if test is not None:
            test = self._checked_pool(test, "test", default_loss)
        return dataclasses.replace(self, unseen=unseen, test=test)

    def _checked_pool(self, pool: Pool, what: str, default_loss: bool) -> Pool:
        """The pool on the device, after model, loss and score were tried on it."""
        pool = pool.to(self.device)
        probe = ProblemProbe.of(self.model, pool, what)

        def whose(client: int) -> str:
            return f"{what} examples of client {client}"

        if scores_classes(None if default_loss else self.loss, pool):
            check_class_targets(pool, whose)
            probe.check_classes(int(pool.targets.max()), f"{what} examples")
        probe.check_loss(self.loss)
        if losses.takes_logits(self.loss):
            check_binary_pool(pool, whose)
        score = self.score or self.whole_client
        scores.check_targets(score, self.loss, probe.outputs, pool.targets)
        if self.score is not None:
            probe.check_score(self.score)
        check_counted(self.score, pool, whose)
        return pool

    def first_inputs(self, count: int) -> trees.Inputs:
        """The first training examples, to try something out."""
        return trees.rows(self.train.inputs, slice(count))

    def in_training(self, model: nn.Module) -> nn.Module:
        """`model`, put into training mode, except for the layers that stay in evaluation mode."""
        return module_modes.put_in_training(model, self.evaluated)

    @cached_property
    def draws_when_evaluated(self) -> bool:
        """Whether the model takes random numbers from torch in evaluation mode too."""
        pool = self.train if len(self.train.targets) else self.judged
        return pool is not None and module_modes.draws_when_evaluated(self.model, trees.rows(pool.inputs, slice(2)))

    @cached_property
    def unused(self) -> Tensor | None:
        """[D] the entries of the model that the loss does not depend on, which no optimiser moves; None: all count."""
        inputs, targets = self.train.at(slice(2))
        probe = self.in_training(copy.deepcopy(self.model))
        names = module_modes.parameters_without_gradient(probe, self.loss, inputs, targets)
        parameters = self.layout.unflatten(self.theta)
        assert isinstance(parameters, dict)
        flags = {name: torch.full_like(entries, name in names).bool() for name, entries in parameters.items()}
        return self.layout.flatten(flags) if names else None

    @property
    def theta(self) -> Tensor:
        """The model's trainable parameters as one vector."""
        return theta_of(self, self.model)

    @cached_property
    def judged_classes(self) -> int | None:
        """Of the judged examples. None unless clients are judged by right answers about whole classes."""
        if self.judged is None or not scores.counts_right_answers(self.score):
            return None
        return class_count(self.train, self.judged)

    @cached_property
    def label_counts(self) -> Tensor | None:
        """[n, classes] of the judged examples; None where there are no classes, or too many numbers."""
        if self.judged is None:
            return None
        return label_counts(self.judged, self.judged_classes)

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
        shares = per_example(is_real).cpu()
        return client_means(shares, self.judged.sizes)


def _trained(model: nn.Module) -> dict[str, Tensor]:
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if parameters and not trained:
        raise InputError(
            "none of the model's parameters requires a gradient; nothing can be trained: call requires_grad_() on "
            "those to train"
        )
    return trained


def _module(model: object) -> nn.Module:
    """The torch module to train; what is none, or cannot be trained, is refused."""
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise InputError(f"model is a {kind}; give a torch.nn.Module")
    # What torch.compile wraps: the engines trace and compile by themselves.
    unwrapped = getattr(model, "_orig_mod", model)
    check_parameters(model)
    if isinstance(unwrapped, nn.Module):
        return unwrapped
    return model


def _judged_by(name: str | None, metric: Metric, score: object) -> Metric:
    """The score if there is one, else the loss, unless the settings name one of them."""
    if score is None and name == "accuracy":
        raise InputError(
            "metric='accuracy' needs a score, and targets that are not classes have none by default; give `score`, or "
            "metric='loss'"
        )
    if score is None or name == "loss":
        return LOSS
    return metric


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
    moments: OptimizerStates | None = (
        None  # [k, ...] the state of each client's optimiser, to be given back; None: fresh
    )


class PersonalLayers(Protocol):
    """Layers that each client keeps to itself."""

    def model(self, theta: Tensor, client: int) -> Tensor:
        """[D] the model with the client's own layers."""

    def statistics(self, buffers: Mapping[str, Tensor], client: int) -> Mapping[str, Tensor]:
        """The model's buffers with the client's own."""


@dataclass(frozen=True)
class EvalRequest:
    """A model to measure on clients' data: `models` [D] for all of them, or [n, D] with one for each client."""

    models: Tensor
    ids: Tensor
    buffers: Mapping[str, Tensor]
    own: PersonalLayers | None = None

    def model_of(self, client: int) -> Tensor:
        """[D] the model that is measured on this client's data."""
        model = self.models
        if model.ndim == 2:
            model = model[client]
        if self.own is None:
            return model
        return self.own.model(model, client)

    def buffers_of(self, client: int) -> Mapping[str, Tensor]:
        """The buffers that go with it."""
        if self.own is None:
            return self.buffers
        return self.own.statistics(self.buffers, client)


@dataclass(frozen=True)
class EvalResult:
    """What a question's models score, in float64, on the CPU."""

    means: Tensor  # [functions, len(ids)] over each client's rows, NaN for clients without any
    by_class: Tensor | None = None  # [classes] totals of the last function over all rows of each class


class Engine(Protocol):
    """All that differs between simulators."""

    problem: Problem

    @property
    def how(self) -> str:
        """How clients are trained, and why so: recorded with the run."""

    def losses(self, questions: Sequence[EvalRequest]) -> list[Tensor]:
        """Mean training losses [len(ids)] (float64) of each question's clients."""
        of = (self.problem.loss,)
        answers = self.scores(questions, self.problem.train, of)
        return [answer.means[0] for answer in answers]

    def train(self, tasks: Sequence[Task]) -> Updates:
        """The updates of all tasks, in a repeatable order."""

    def scores(
        self,
        questions: Sequence[EvalRequest],
        pool: Pool,
        of: Functions,
        classes: int | None = None,
    ) -> list[EvalResult]:
        """Means over clients' rows of `pool`; totals by class if the number of classes is given."""

    def shrink(self) -> bool:
        """Train fewer clients at once from now on, for lack of device memory. False if that is not possible."""


def initial_model(model: Model, seed: int) -> nn.Module:
    """The module itself, or a new one drawn with this seed."""
    if isinstance(model, nn.Module):
        return model
    if not callable(model):
        kind = type(model).__name__
        raise InputError(f"model is a {kind}; give a torch.nn.Module or a function that makes one")
    check_factory(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = model()
    if not isinstance(made, nn.Module):
        kind = type(made).__name__
        raise InputError(f"model() gave a {kind}; it must make a torch.nn.Module")
    return _module(made)


def theta_of(problem: Problem, model: nn.Module) -> Tensor:
    """This module's parameters as the problem's vector."""
    parameters = dict(model.named_parameters())
    layout = problem.layout
    trained = {name: parameters[name] for name in layout.names or ()}
    theta = layout.flatten(trained)
    return theta.to(problem.device)


def loaded(module: nn.Module, layout: Layout, model: ServerModel) -> nn.Module:
    """A copy of `module` with the parameters and buffers of `model`, in evaluation mode."""
    loaded = copy.deepcopy(module).eval()
    parameters = layout.unflatten(model.theta)
    assert isinstance(parameters, dict)
    loaded.load_state_dict({**parameters, **model.buffers}, strict=False)
    return loaded
