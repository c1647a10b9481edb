"""The fast engine: stacks clients where that wins, else visits them with all cores."""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ...core.errors import InputError, first_line
from ...core.server import Update
from ...settings import Precision
from ..layers.recurrent import wherever_weights_lie
from ..problem import LossFunction, Problem, Question, Task, per_example
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


class Parallel:
    """Chooses by model, shapes and device only, never by a timing, so that results repeat; `how` says what.

    `jobs` is the number of clients that train at once, over all runs. `stack` overrides the rule.
    """

    def __init__(self, problem: Problem, jobs: int, stack: bool | None = None, precision: Precision = "fp32") -> None:
        random = check_stackable(problem)
        wins, self.reason = stacking_wins(problem, jobs)
        if random:
            wins, self.reason, stack = False, "the model draws random numbers while training", None
        self.engine: Slots | Stacked | Visiting
        if not (wins if stack is None else stack):
            workers = 1 if random or problem.device.type != "cpu" else _useful_workers(problem.model, jobs)
            self.engine = Visiting(problem, workers)
        elif problem.device.type == "cpu" or problem.batch_size is None:
            held = STACK_ELEMENTS["cpu" if problem.device.type == "cpu" else "cuda"]
            self.engine = Stacked(problem, max(8, held // len(problem.theta)))
        else:
            slots = min(jobs, max(8, SLOT_ELEMENTS // len(problem.theta)))
            self.engine = Slots(problem, slots, precision)
        if precision != "fp32" and problem.device.type == "cpu":
            self.reason += f"; in fp32: {precision} needs a GPU"
        elif precision == "bf16" and not isinstance(self.engine, Slots):
            self.reason += "; in fp32: bf16 needs batches and a model that draws no random numbers"

    @property
    def how(self) -> str:
        return f"parallel: {self.engine.how} ({self.reason})"

    def losses(self, questions: Sequence[Question]) -> list[Tensor]:
        return self.engine.losses(questions)

    def train(self, orders: Sequence[Task]) -> Iterator[tuple[int, Update]]:
        return self.engine.train(orders)

    def shrink(self) -> bool:
        return self.engine.shrink()

    def scores(self, questions: Sequence[Question], of: LossFunction) -> list[Tensor]:
        return self.engine.scores(questions, of)


_Convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def stacking_wins(problem: Problem, jobs: int) -> tuple[bool, str]:
    """Whether to stack, and why."""
    size = len(problem.theta)
    if problem.device.type != "cpu":
        whole = ", whole clients as one batch" if problem.batch_size is None else ""
        return True, f"on {problem.device.type}{whole}"
    if jobs < 4:
        return False, f"only {jobs} clients train at once"
    if size > STACKED_PARAMETERS:
        return False, f"{size} parameters, more than {STACKED_PARAMETERS}: memory traffic would dominate"
    if _has(problem.model, nn.RNNBase) and (size > STACKED_RECURRENT_PARAMETERS or jobs < 16):
        return False, f"recurrent model of {size} parameters, {jobs} clients at once: torch's own kernels win"
    if _has(problem.model, _Convolution):
        flops = _forward_flops(problem)
        if flops > STACKED_CONVOLUTION_FLOPS:
            return False, f"convolutions of {flops / 1e6:.1f} MFLOP a batch: torch's own kernels win on a CPU"
    return True, f"{size} parameters: overhead would dominate one by one"


def _useful_workers(model: nn.Module, jobs: int) -> int:
    """How many threads pay off, each with one core: torch already uses all of them for large matrix products."""
    return cores() if _has(model, nn.RNNBase, _Convolution) and jobs >= 2 * cores() else 1


def check_stackable(problem: Problem) -> bool:
    """Refuses what cannot be stacked, with what to do; returns whether the model draws random numbers."""
    instead = "or use engine='reference', which takes any torch module"
    for name, module in problem.model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"the model's {type(module).__name__} '{name}' mixes the examples of a batch and keeps statistics "
                f"of its own, which the parallel engine cannot stack: replace it by nn.GroupNorm, {instead}"
            )
    with wherever_weights_lie():
        _check_buffers(problem, instead)
        random = _check_vectorised(problem, instead)
        _check_padding(problem, instead, training=not random)
    return random


def _check_vectorised(problem: Problem, instead: str) -> bool:
    """One stacked step of two slots; returns whether the model draws random numbers."""
    rows = torch.zeros((2, 2), dtype=torch.int64, device=problem.device)
    engine = Stacked(problem, 2)
    engine.model.train()
    try:
        engine.gradients(problem.theta.repeat(2, 1), rows, torch.ones_like(rows).to(problem.theta))
    except RuntimeError as error:
        told = str(error)
        if "randomness" in told:
            return True
        branches = "data-dependent" in told or ".item()" in told
        why = "its control flow depends on the data" if branches else first_line(error)
        raise InputError(
            f"the model cannot be stacked over clients: {why}. Rewrite it with tensor operations "
            f"(torch.where instead of `if`), {instead}"
        ) from None
    return False


def _check_buffers(problem: Problem, instead: str) -> None:
    probe = copy.deepcopy(problem.model).train()
    before = {name: value.clone() for name, value in probe.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        probe(problem.train.inputs[:2])
    moved = [name for name, value in probe.named_buffers() if not torch.equal(value, before[name])]
    if moved:
        raise InputError(
            f"the model changes its buffer '{moved[0]}' while training, which the parallel engine cannot stack: "
            f"make it a parameter or drop it, {instead}"
        )


def _check_padding(problem: Problem, instead: str, training: bool) -> None:
    """Examples of a batch must not see each other, or short batches could not be padded.

    Looked at as in training, but for models that draw random numbers there and never give the same twice.
    """
    probe = copy.deepcopy(problem.model).train(training)
    x, y = problem.train.inputs[:4], problem.train.targets[:4]
    with torch.no_grad():
        together = per_example(problem.loss(probe(x), y))
        alone = torch.cat([per_example(problem.loss(probe(x[i : i + 1]), y[i : i + 1])) for i in range(len(x))])
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise InputError(
            "an example's loss depends on the other examples of its batch, which the parallel engine cannot stack "
            f"exactly: use layers and a loss that treat examples one by one, {instead}"
        )


def _forward_flops(problem: Problem) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copy.deepcopy(problem.model).eval()(problem.train.inputs[:1])
    return int(counter.get_total_flops()) * problem.batch_width


def _has(model: nn.Module, *kinds: type | tuple[type, ...]) -> bool:
    return any(isinstance(module, kinds) for module in model.modules())
