"""The fast engine: stacks clients where that wins, else visits them with all cores."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ... import trees
from ...augment import Augmentation
from ...core.errors import InputError, first_line
from ...core.streams import Batching
from ...lazy import why_visited
from ...losses import LossFunction, per_example
from ...settings import Precision
from ..layers.dropout import Masks
from ..layers.recurrent import wherever_weights_lie
from ..modes import BatchNormLayer
from ..problem import Problem, Question, Task, Updates
from . import augmenting
from .memory import examples_at_once
from .slots import Slots
from .stacked import Stacked
from .visiting import Visiting, cores

# Measured on 2 CPU cores (benchmarks/README.md): past these, a client's own kernels beat the stacked form.
STACKED_PARAMETERS = 150_000
STACKED_RECURRENT_PARAMETERS = 16_000
STACKED_CONVOLUTION_FLOPS = 8_000_000  # forward pass of one client's batch
STACK_ELEMENTS = {"cpu": 2_000_000, "cuda": 100_000_000}  # parameters held by one stack
# Measured on an H200 (benchmarks/README.md): 16 slots of ResNet-18.
SLOT_ELEMENTS = 180_000_000

RANDOM = "the model draws random numbers of its own while training"  # other than dropout


class Parallel:
    """Chooses by model, shapes and device only, never by a timing, so that results repeat; `how` says what.

    `jobs` is the number of clients that train at once, over all runs, with their examples cut by one of `batchings`
    and some of them changed by `augments`.
    """

    def __init__(
        self,
        problem: Problem,
        jobs: int,
        precision: Precision = "fp32",
        batchings: Sequence[Batching] = (Batching(),),
        augments: Sequence[Augmentation] = (),
    ) -> None:
        on_cpu = problem.device.type == "cpu"
        size = len(problem.theta)
        _check_batches_of_one(problem, batchings)
        obstacle = why_not_stacked(problem) or augmenting.why_not_stacked(problem, augments)
        examples = examples_at_once(problem)
        fitting = max(1, examples // _width(problem, batchings))
        wins, self.reason = stacking_wins(problem, min(jobs, fitting), batchings)
        has_whole_clients = any(batching.size is None for batching in batchings)
        self.engine: Slots | Stacked | Visiting
        if obstacle is not None:
            self.reason = obstacle
            alone = obstacle == RANDOM or not on_cpu or bool(augments) or _draws_random_numbers(problem)
            workers = 1 if alone else _useful_workers(problem.model, jobs)
            self.engine = Visiting(problem, workers, as_reference=obstacle != RANDOM)
        elif not wins:
            workers = _useful_workers(problem.model, jobs)
            self.engine = Visiting(problem, workers)
        elif on_cpu or has_whole_clients:
            slots = max(8, STACK_ELEMENTS[problem.device.type] // size)
            self.engine = Stacked(problem, min(slots, fitting), rows=examples)
        else:
            slots = max(8, SLOT_ELEMENTS // size)
            self.engine = Slots(problem, min(jobs, slots, fitting), precision)
        if precision != "fp32" and on_cpu:
            self.reason += f"; in fp32: {precision} needs a GPU"
        elif precision == "bf16" and not isinstance(self.engine, Slots):
            self.reason += "; in fp32: bf16 needs batches and a model that can be stacked"

    @property
    def how(self) -> str:
        return f"parallel: {self.engine.how} ({self.reason})"

    def losses(self, questions: Sequence[Question]) -> list[Tensor]:
        return self.engine.losses(questions)

    def train(self, tasks: Sequence[Task]) -> Updates:
        return self.engine.train(tasks)

    def scores(self, questions: Sequence[Question], of: LossFunction) -> list[Tensor]:
        return self.engine.scores(questions, of)

    def shrink(self) -> bool:
        return self.engine.shrink()


_Convolution = nn.modules.conv._ConvNd


def stacking_wins(problem: Problem, jobs: int, batchings: Sequence[Batching] = (Batching(),)) -> tuple[bool, str]:
    """Whether to stack a model that can be stacked, and why."""
    size = len(problem.theta)
    if problem.device.type != "cpu":
        has_whole_clients = any(batching.size is None for batching in batchings)
        whole = ", whole clients as one batch" if has_whole_clients else ""
        return True, f"on {problem.device.type}{whole}"
    if jobs < 4:
        return False, f"only {jobs} clients train at once, or fit into memory"
    if size > STACKED_PARAMETERS:
        return False, f"{size} parameters, more than {STACKED_PARAMETERS}: memory traffic would dominate"
    is_too_slow_unrolled = size > STACKED_RECURRENT_PARAMETERS or jobs < 16
    if is_too_slow_unrolled and _has(problem.model, nn.RNNBase):
        return False, f"recurrent model of {size} parameters, {jobs} clients at once: torch's own kernels win"
    if _has(problem.model, _Convolution):
        flops = _forward_flops(problem) * _width(problem, batchings)
        if flops > STACKED_CONVOLUTION_FLOPS:
            return False, f"convolutions of {flops / 1e6:.1f} MFLOP per batch: torch's own kernels win on a CPU"
    return True, f"{size} parameters: overhead would dominate one by one"


def _useful_workers(model: nn.Module, jobs: int) -> int:
    """How many threads pay off, each with one core: torch already uses all of them for large matrix products."""
    has_small_products = _has(model, nn.RNNBase, _Convolution)
    if has_small_products and jobs >= 2 * cores():
        return cores()
    return 1


def why_not_stacked(problem: Problem) -> str | None:
    """What keeps the model's clients from being stacked; None if nothing does. What cannot be stacked is visited."""
    lazy = why_visited(problem.train) or why_visited(problem.judged)
    if lazy is not None:
        return lazy
    for name, module in problem.model.named_modules():
        if isinstance(module, BatchNormLayer) and name not in problem.evaluated:
            return f"its {type(module).__name__} '{name}' keeps statistics and mixes the examples of a batch"
    with wherever_weights_lie():
        buffer = _changing_buffer(problem)
        if buffer is not None:
            return f"it changes its buffer '{buffer}' while training"
        obstacle = _why_not_vectorised(problem)
        if obstacle not in (None, RANDOM):
            return obstacle
        sees = _examples_see_each_other(problem)
        if obstacle is None:  # a model that draws random numbers never gives the same loss twice in training
            sees = sees or _sees_examples_behind(problem)
        if sees:
            return "an example's loss depends on the other examples of its batch"
    return obstacle


def _why_not_vectorised(problem: Problem) -> str | None:
    """Tries one stacked step of two slots."""
    thetas = problem.theta.repeat(2, 1)
    rows = torch.zeros((2, 2), dtype=torch.int64, device=problem.device)
    mask = torch.ones_like(rows).to(thetas)
    keys = torch.zeros_like(rows[0])
    engine = Stacked(problem, 2)
    problem.in_training(engine.model)
    try:
        engine.gradients(thetas, rows, mask, keys)
    except RuntimeError as error:
        message = str(error)
        if "randomness" in message:
            return RANDOM
        if "data-dependent" in message or ".item()" in message:
            return "its control flow depends on the data"
        return f"it cannot be vectorised: {first_line(error)}"
    return None


def _changing_buffer(problem: Problem) -> str | None:
    """The name of a buffer that a forward pass in training changes."""
    probe = problem.in_training(copy.deepcopy(problem.model))
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        trees.call(probe, _first(problem, 2))
    for name, buffer in probe.named_buffers():
        if not torch.equal(buffer, before[name]):
            return name
    return None


def _sees_examples_behind(problem: Problem) -> bool:
    """Whether, in training, a batch's losses change with the examples behind them. It could then not be filled up."""
    probe = problem.in_training(copy.deepcopy(problem.model))
    x, y = problem.train.at(slice(4))

    def losses(count: int) -> Tensor:
        first = slice(count)
        with torch.no_grad(), Masks(_any_key(problem)):
            outputs = trees.outputs(probe, trees.rows(x, first))
        return per_example(problem.loss(outputs, y[first]))

    whole = losses(len(y))
    return any(_differ(whole[:count], losses(count)) for count in range(1, len(y)))


def _examples_see_each_other(problem: Problem) -> bool:
    """Whether a batch gives other losses than its examples one by one. Clients could then not be measured together."""
    probe = copy.deepcopy(problem.model).eval()
    x, y = problem.train.at(slice(4))
    alone = []
    with torch.no_grad():
        together = per_example(problem.loss(trees.outputs(probe, x), y))
        for i in range(len(y)):
            one = slice(i, i + 1)
            outputs = trees.outputs(probe, trees.rows(x, one))
            loss = problem.loss(outputs, y[one])
            alone.append(per_example(loss))
    one_by_one = torch.cat(alone)
    return _differ(together, one_by_one)


def _differ(losses: Tensor, others: Tensor) -> bool:
    """By more than the rounding of another order of sums."""
    return not torch.allclose(losses, others, rtol=1e-3, atol=1e-4, equal_nan=True)


def _any_key(problem: Problem) -> Tensor:
    """For the dropout of a trial."""
    return torch.zeros((), dtype=torch.int64, device=problem.device)


def _draws_random_numbers(problem: Problem) -> bool:
    """Whether a forward pass in training moves a CPU's random state; dropout does not."""
    probe = problem.in_training(copy.deepcopy(problem.model))
    with torch.no_grad(), torch.random.fork_rng(devices=[]), Masks(_any_key(problem)):
        before = torch.get_rng_state()
        trees.call(probe, _first(problem, 2))
        return not torch.equal(before, torch.get_rng_state())


def _check_batches_of_one(problem: Problem, batchings: Sequence[Batching]) -> None:
    """A batch of one flat example has no variance: BatchNorm refuses it in training."""
    if not _has(problem.model, nn.modules.batchnorm._BatchNorm):
        return
    sizes = problem.train.sizes.numpy()
    clients: list[int] = []
    for batching in batchings:
        has_single = batching.shortest(sizes) == 1
        clients += np.flatnonzero(has_single).tolist()
    if not clients:
        return
    probe = problem.in_training(copy.deepcopy(problem.model))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            trees.call(probe, _first(problem, 1))
    except ValueError as error:
        raise InputError(
            f"client {problem.client_names[clients[0]]} has a batch of one example, on which the model cannot train "
            f"({first_line(error)}); give another batch_size, or replace BatchNorm by nn.GroupNorm"
        ) from None


def _forward_flops(problem: Problem) -> int:
    """Of one example."""
    probe = copy.deepcopy(problem.model).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        trees.call(probe, _first(problem, 1))
    return int(counter.get_total_flops())


def _width(problem: Problem, batchings: Sequence[Batching]) -> int:
    """Examples in the longest batch."""
    sizes = problem.train.sizes.numpy()
    return max(batching.width(sizes) for batching in batchings)


def _first(problem: Problem, examples: int) -> trees.Inputs:
    return trees.rows(problem.train.inputs, slice(examples))


def _has(model: nn.Module, *kinds: type) -> bool:
    return any(isinstance(module, kinds) for module in model.modules())
