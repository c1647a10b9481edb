"""The fast engine: stacks clients where that wins, else visits them with all cores."""

import copy
from collections.abc import Sequence
from itertools import islice

import torch
from torch import nn

from ... import trees
from ...augment import Augmentation
from ...clients.client import Pool
from ...clients.lazy import why_visited
from ...core.errors import InputError, first_line
from ...core.streams import Batching
from ...losses import Functions
from ...settings import Precision
from ..problem import Engine, EvalRequest, EvalResult, Problem, Task, Updates
from . import augmenting
from .memory import examples_at_once
from .reference import Reference
from .slots import Slots
from .stackability import RANDOM, draws_random_numbers, why_not_stacked
from .stacked import Stacked
from .vectorised import Vectorised
from .visiting import Visiting, cores

# Measured on 2 CPU cores (benchmarks/README.md): past these, a client's own kernels beat the stacked form.
FEWEST_STACKED = 4  # clients
STACKED_PARAMETERS = 150_000
STACKED_RECURRENT_PARAMETERS = 16_000
STACKED_CONVOLUTION_FLOPS = 8_000_000  # forward pass of one client's batch
STACK_ELEMENTS = {"cpu": 2_000_000, "cuda": 100_000_000}  # parameters held by one stack
# Measured on an H200 (benchmarks/README.md): 16 slots of ResNet-18.
SLOT_ELEMENTS = 180_000_000


class Parallel(Engine):
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
        self.problem = problem
        on_cpu = problem.device.type == "cpu"
        size = len(problem.theta)
        obstacle = why_not_stacked(problem) or augmenting.why_not_stacked(problem, augments)
        examples = examples_at_once(problem)
        width = max(1, _width(problem, batchings))
        fitting = max(1, examples // width)
        wins, self.reason = stacking_wins(problem, jobs, batchings)
        if wins and on_cpu and fitting < FEWEST_STACKED:
            wins = False
            self.reason = f"memory holds the activations of {fitting} clients at once"
        self.engine: Slots | Stacked | Visiting
        if obstacle is not None:
            self.reason = obstacle
            is_random = draws_random_numbers(problem) or problem.draws_when_evaluated
            alone = obstacle == RANDOM or not on_cpu or bool(augments) or is_random
            workers = 1 if alone else _useful_workers(problem.model, jobs)
            self.engine = Visiting(problem, workers, as_reference=obstacle != RANDOM)
        elif not wins:
            workers = _useful_workers(problem.model, jobs)
            self.engine = Visiting(problem, workers)
        elif on_cpu or _have_whole_clients(batchings):
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

    def scores(
        self,
        questions: Sequence[EvalRequest],
        pool: Pool,
        of: Functions,
        classes: int | None = None,
    ) -> list[EvalResult]:
        is_held_out = pool is not self.problem.train
        if is_held_out and why_visited(pool) is not None:  # read one by one, in whatever way the others are trained
            return Reference(self.problem).scores(questions, pool, of, classes)
        try:
            return self.engine.scores(questions, pool, of, classes)
        except Exception as error:
            self._visit(error)
        return self.engine.scores(questions, pool, of, classes)

    def train(self, tasks: Sequence[Task]) -> Updates:
        updates = self.engine.train(tasks)
        try:
            first = list(islice(updates, 1))
        except Exception as error:  # nothing was handed out: the round's training can begin again
            self._visit(error)
            first = []
            updates = self.engine.train(tasks)
        yield from first
        yield from updates

    def _visit(self, error: Exception) -> None:
        """Clients are visited from now on; what is no fault of stacking them is raised again."""
        is_stacked = isinstance(self.engine, Vectorised)
        if not is_stacked or isinstance(error, (InputError, torch.OutOfMemoryError)):
            raise error
        self.reason = f"it cannot be vectorised: {first_line(error)}"
        self.engine = Visiting(self.problem, 1, as_reference=True)

    def shrink(self) -> bool:
        return self.engine.shrink()


_Convolution = nn.modules.conv._ConvNd


def stacking_wins(
    problem: Problem,
    jobs: int,
    batchings: Sequence[Batching] = (Batching(),),
) -> tuple[bool, str]:
    """Whether to stack a model that can be stacked, and why."""
    size = len(problem.theta)
    if problem.device.type != "cpu":
        whole = ", whole clients as one batch" if _have_whole_clients(batchings) else ""
        return True, f"on {problem.device.type}{whole}"
    if jobs < FEWEST_STACKED:
        return False, f"only {jobs} clients train at once"
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


def _have_whole_clients(batchings: Sequence[Batching]) -> bool:
    """Whether a batch may be all of a client's examples."""
    return any(batching.size is None for batching in batchings)


def _useful_workers(model: nn.Module, jobs: int) -> int:
    """How many threads pay off, each with one core: torch already uses all of them for large matrix products."""
    has_small_products = _has(model, nn.RNNBase, _Convolution)
    if has_small_products and jobs >= 2 * cores():
        return cores()
    return 1


def _forward_flops(problem: Problem) -> int:
    from torch.utils.flop_counter import FlopCounterMode  # brings Triton along: a second that most runs can spare

    probe = copy.deepcopy(problem.model).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        trees.call(probe, problem.first_inputs(1))
    return int(counter.get_total_flops())


def _width(problem: Problem, batchings: Sequence[Batching]) -> int:
    sizes = problem.train.sizes.numpy()
    return max(batching.width(sizes) for batching in batchings)


def _has(model: nn.Module, *kinds: type) -> bool:
    return any(isinstance(module, kinds) for module in model.modules())
