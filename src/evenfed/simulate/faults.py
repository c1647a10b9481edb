"""An error of the model, the loss or the score on some client's data: it names the client and the example.

The first examples were tried before round 1. What fails later lies in the data of one client, which is searched for
only once something has failed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from .. import trees
from ..clients.client import Pool
from ..core.errors import InputError, first_line
from ..losses import Functions
from ..losses import values as values_of
from .layers.recurrent import wherever_weights_lie
from .module_modes import private_copy
from .problem import Problem

_ROWS_AT_ONCE = 1024
_UNSEEN = "unseen"  # clients that do not train
_CENTRAL = "central"  # the common test set
_OF_A_GPU = "device-side assert"  # after it, a GPU carries out nothing any more


@contextmanager
def naming_clients(problem: Problem) -> Iterator[None]:
    """Errors that come from one client's data name it; all others pass as they are."""
    try:
        yield
    except (InputError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if _OF_A_GPU in str(error):
            raise InputError(
                "a GPU met an index out of range, so some input or target is beyond what the model takes; run once "
                "with device='cpu', which names the client"
            ) from error
        fault = first_fault(problem)
        if fault is None:
            raise
        raise InputError(fault) from error


def first_fault(problem: Problem) -> str | None:
    """The first client on whose examples the model fails, the example if there is one, and the error."""
    model = private_copy(problem.model).eval()
    trained: Functions = (problem.loss,)
    scored = trained
    if problem.score is not None:
        scored = (problem.loss, problem.score)
    pools = [
        ("train", problem.train, trained),
        ("test", problem.judged, scored),
        (_UNSEEN, problem.unseen, scored),
        (_CENTRAL, problem.test, scored),
    ]
    for kind, pool, functions in pools:
        if pool is None:
            continue
        for client in pool.with_rows:
            fault = _fault_of(model, functions, pool, client)
            if fault is not None:
                where, error = fault
                whose = _whose(problem, kind, client)
                cure = _cure(model, error)
                return f"{whose}: the model fails{where} ({type(error).__name__}: {first_line(error)}); {cure}"
    return None


def _whose(problem: Problem, kind: str, client: int) -> str:
    if kind == _CENTRAL:
        return "test"
    if kind == _UNSEEN:
        return f"unseen client {client}"
    return f"client {problem.client_names[client]}, {kind}"


def _fault_of(model: nn.Module, functions: Functions, pool: Pool, client: int) -> tuple[str, Exception] | None:
    """Where among a client's examples the first error comes up, and the error."""
    inputs, targets = pool.of(client)

    def error_in(start: int, end: int) -> Exception | None:
        part = slice(start, end)
        try:
            with torch.no_grad(), wherever_weights_lie():
                outputs = trees.outputs(model, trees.rows(inputs, part))
                values_of(functions, outputs, targets[part])
        except InputError:
            raise
        except Exception as error:
            return error
        return None

    for start in range(0, len(targets), _ROWS_AT_ONCE):
        end = min(start + _ROWS_AT_ONCE, len(targets))
        error = error_in(start, end)
        if error is not None:
            example = _failing_example(start, end, error_in)
            where = "" if example is None else f" on example {example}"
            return where, error
    return None


def _failing_example(
    start: int,
    end: int,
    error_in: Callable[[int, int], Exception | None],
) -> int | None:
    """By halving; None if a batch fails and neither half does."""
    while end - start > 1:
        middle = (start + end) // 2
        if error_in(start, middle) is not None:
            end = middle
        elif error_in(middle, end) is not None:
            start = middle
        else:
            return None
    return start


def _cure(model: nn.Module, error: Exception) -> str:
    sizes = []
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            sizes.append(module.num_embeddings)
    if isinstance(error, IndexError) and sizes:
        entries = min(sizes)
        return f"the smallest nn.Embedding has {entries} entries, so its inputs must lie in 0 .. {entries - 1}"
    return "correct or drop the example, or mend the model or the loss"
