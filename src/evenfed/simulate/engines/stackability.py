"""Can clients of this model be stacked? Tried out on a few examples; whatever fails is a reason to visit them."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from ... import trees
from ...clients.lazy import why_visited
from ...core.errors import InputError, first_line
from ...core.streams import Batching
from ...losses import per_example
from ..layers.dropout import Masks
from ..layers.recurrent import wherever_weights_lie
from ..module_modes import BatchNormLayer
from ..problem import Problem
from .stacked import Stacked

_PASSED = 32  # examples that show whether a pass depends on chance
_COMPARED = 4  # examples whose losses are compared
RANDOM = "the model draws random numbers of its own while training"  # other than dropout
RANDOM_THROUGHOUT = "the model draws random numbers of its own in evaluation too"


def why_not_stacked(problem: Problem) -> str | None:
    """What keeps the model's clients from being stacked; None if nothing does. What cannot be stacked is visited."""
    lazy = why_visited(problem.train) or why_visited(problem.judged)
    if lazy is not None:
        return lazy
    norm = _batch_norm(problem)
    if norm is not None:
        return f"its {norm} keeps statistics and mixes the examples of a batch"
    try:
        with wherever_weights_lie():
            return _obstacle(problem)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a model trips over here, it may well train one client at a time
        return _reason(error)


def _obstacle(problem: Problem) -> str | None:
    buffer = _changing_buffer(problem)
    if buffer is not None:
        return f"it changes its buffer '{buffer}' while training"
    if problem.draws_when_evaluated:
        return RANDOM_THROUGHOUT
    obstacle = _why_not_vectorised(problem)
    if obstacle not in (None, RANDOM):
        return obstacle
    if _depends_on_calls(problem):
        return "it gives the same batch other outputs at every call (it counts calls, or keeps what it has seen)"
    sees = _examples_see_each_other(problem)
    if obstacle is None:  # a model that draws random numbers never gives the same loss twice in training
        sees = sees or _sees_examples_behind(problem)
    if sees:
        return "an example's loss depends on the other examples of its batch"
    return obstacle


def _why_not_vectorised(problem: Problem) -> str | None:
    """Tries to measure two models and to train two slots at once."""
    try:
        with _no_loop_over_clients():
            _train_two(problem)
            if problem.device.type == "cpu":  # on a GPU one model is measured at a time
                _measure_two(problem)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return _reason(error)
    return None


def _reason(error: Exception) -> str:
    message = str(error)
    if "randomness" in message:
        return RANDOM
    if "data-dependent" in message or ".item()" in message:
        return "its control flow depends on the data"
    return f"it cannot be vectorised: {first_line(error)}"


@contextmanager
def _no_loop_over_clients() -> Iterator[None]:
    """Where torch has no batching rule it would loop over the slots, slower than clients visited one by one."""
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


def _train_two(problem: Problem) -> None:
    thetas = problem.theta.repeat(2, 1)
    rows = torch.zeros((2, 2), dtype=torch.int64, device=problem.device)
    mask = torch.ones_like(rows).to(thetas)
    keys = torch.zeros_like(rows[0])
    engine = Stacked(problem, 2)
    problem.in_training(engine.model)
    engine.gradients(thetas, rows, mask, keys)


def _measure_two(problem: Problem) -> None:
    """Losses and scores of two models: on the same examples, and each on its own."""
    engine = Stacked(problem, 2)
    engine.model.eval()
    thetas = problem.theta.repeat(2, 1)
    measures = [problem.loss]
    if problem.score is not None:
        measures.append(problem.score)
    rows = torch.zeros((2, 2), dtype=torch.int64)
    x, y = problem.train.at(rows)
    shared_x, shared_y = problem.train.at(rows[0])
    with torch.no_grad(), engine.rewritten():
        for measure in measures:
            values = engine.values((measure,))
            vmap(values)(thetas, x, y)
            vmap(values, in_dims=(0, None, None))(thetas, shared_x, shared_y)


def _changing_buffer(problem: Problem) -> str | None:
    """The name of a buffer that a forward pass in training changes."""
    probe = _in_training(problem)
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        trees.call(probe, problem.first_inputs(2))
    for name, buffer in probe.named_buffers():
        if not torch.equal(buffer, before[name]):
            return name
    return None


def _sees_examples_behind(problem: Problem) -> bool:
    """Whether, in training, a batch's losses change with the examples behind them. It could then not be filled up."""
    probe = _in_training(problem)

    def losses(count: int) -> Tensor:
        with torch.no_grad(), Masks(_any_key(problem)):
            return _losses(problem, probe, slice(count))

    whole = losses(_COMPARED)
    return any(_differ(whole[:count], losses(count)) for count in range(1, len(whole)))


def _depends_on_calls(problem: Problem) -> bool:
    """Whether a second pass over the same examples, in evaluation mode, gives other losses."""
    probe = copy.deepcopy(problem.model).eval()
    losses = []
    devices = [problem.device] if problem.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        for _ in range(2):
            torch.manual_seed(0)  # random numbers of the model's own are no obstacle here
            losses.append(_losses(problem, probe, slice(_COMPARED)))
    return _differ(*losses)


def _examples_see_each_other(problem: Problem) -> bool:
    """Whether a batch gives other losses than its examples one by one. Clients could then not be measured together."""
    probe = copy.deepcopy(problem.model).eval()
    with torch.no_grad():
        together = _losses(problem, probe, slice(_COMPARED))
        one_by_one = [_losses(problem, probe, slice(i, i + 1)) for i in range(len(together))]
    return _differ(together, torch.cat(one_by_one))


def _losses(problem: Problem, model: nn.Module, rows: slice) -> Tensor:
    """Of these training examples, one number each."""
    inputs, targets = problem.train.at(rows)
    return per_example(problem.loss(trees.outputs(model, inputs), targets))


def _differ(losses: Tensor, others: Tensor) -> bool:
    """By more than the rounding of another order of sums."""
    return not torch.allclose(losses, others, rtol=1e-3, atol=1e-4, equal_nan=True)


def _in_training(problem: Problem) -> nn.Module:
    """A copy of the model to try something out with."""
    return problem.in_training(copy.deepcopy(problem.model))


def _any_key(problem: Problem) -> Tensor:
    """For the dropout of a trial."""
    return torch.zeros((), dtype=torch.int64, device=problem.device)


def draws_random_numbers(problem: Problem) -> bool:
    """Whether a forward pass in training moves a CPU's random state; dropout does not."""
    probe = _in_training(problem)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), Masks(_any_key(problem)):
        before = torch.get_rng_state()
        trees.call(probe, problem.first_inputs(2))
        return not torch.equal(before, torch.get_rng_state())


def depends_on_chance(problem: Problem) -> bool:
    """Whether two passes in training differ: by dropout, or by random numbers of the model's own."""
    if draws_random_numbers(problem):
        return True
    losses = []
    for key in (0, 1):
        probe = _in_training(problem)
        masks = Masks(_any_key(problem) + key)
        with torch.no_grad(), torch.random.fork_rng(devices=[]), masks, wherever_weights_lie():
            losses.append(_losses(problem, probe, slice(_PASSED)))
    return not torch.equal(*losses)


def check_training(problem: Problem, batchings: Sequence[Batching]) -> None:
    """Refuses a model that fails in training mode: on a small batch, or on one example where a client has such one."""
    if len(problem.train.targets) == 0:
        return
    rows = torch.tensor([0, -1], device=problem.device)
    error = _training_error(problem, trees.rows(problem.train.inputs, rows))
    if error is not None:
        shapes = trees.shapes(problem.train.inputs)
        raise InputError(
            f"the model works in evaluation mode but fails in training mode on a batch of inputs {shapes}: "
            f"{type(error).__name__}: {first_line(error)}; mend its forward pass, or put the layer at fault in "
            "evaluation mode"
        ) from error
    if _batch_norm(problem) is None:
        return
    remedy = _remedy_of_singles(problem, batchings)
    if remedy is None:
        return
    error = _training_error(problem, problem.first_inputs(1))
    if error is not None:
        raise InputError(f"{remedy} (on one example the model cannot train: {first_line(error)})") from None


def _training_error(problem: Problem, inputs: trees.Inputs) -> Exception | None:
    probe = _in_training(problem)
    masks = Masks(_any_key(problem))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), masks, wherever_weights_lie():
            trees.call(probe, inputs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return error
    return None


def _remedy_of_singles(problem: Problem, batchings: Sequence[Batching]) -> str | None:
    """Who has a batch of one example, and what helps; a client of one example has no other batch."""
    sizes = problem.train.sizes.numpy()
    without = "replace BatchNorm by nn.GroupNorm, or set batch_norm='frozen'"
    alone = np.flatnonzero(sizes == 1)
    if len(alone):
        name = problem.client_names[int(alone[0])]
        among = ""
        if len(alone) > 1:
            among = f", one of {len(alone)} such clients,"
        return f"client {name}{among} has one example, so its batch has one; leave it out, {without}"
    for batching in batchings:
        singles = np.flatnonzero(batching.shortest(sizes) == 1)
        if len(singles) == 0:
            continue
        name = problem.client_names[int(singles[0])]
        other = "give another batch_size or drop_last=True"
        if batching.size == 1:
            other = "give a larger batch_size"
        return f"client {name} has a batch of one example; {other}, {without}"
    return None


def _batch_norm(problem: Problem) -> str | None:
    for name, module in problem.model.named_modules():
        if isinstance(module, BatchNormLayer) and name not in problem.evaluated:
            return f"{type(module).__name__} '{name}'"
    return None
