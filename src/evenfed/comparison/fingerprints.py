"""What identifies a run from Python, where model, data and loss are objects: hashes and names for the run's header."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import trees
from ..clients.client import Pool
from ..core.naming import RecordedName, is_known_by_class_only, name_of
from ..simulate.initial_models import InitialModels
from ..simulate.module_modes import kept_in_evaluation
from ..simulate.problem import Problem
from ..simulate.state import Run
from .analysis.configuration import config_of
from .storage.client_table import client_table
from .storage.header import Header, Table, as_rows

OWN_DATA = "own data"
_LARGE = 2**28  # bytes; of a larger tensor evenly spaced rows are hashed


def headers(
    runs: list[Run],
    problem: Problem,
    drawn: InitialModels | None,
    callbacks: Mapping[str, Any],
) -> dict[str, Header]:
    """The header of each run, by its name.

    `drawn`: the model it starts from, if that is not the problem's. `callbacks`: those that decide its result, with
    their options.
    """
    clients = clients_of(problem)
    data = _data(problem)
    model = _model(problem)
    judged_classes = as_rows(problem.label_counts)
    by_name = {}
    starts: dict[int, tuple[str, str | None, str]] = {}
    for run in runs:
        seed = run.settings.seed
        if seed not in starts:
            theta = problem.theta
            module = problem.model
            if drawn is not None:
                theta = drawn(seed)
                module = drawn.problem(seed).model
            starts[seed] = (_hash([theta]), frozen_hash(module), layers_of(module))
        initial, frozen, layers = starts[seed]
        by_name[run.name] = Header(
            label=run.label,
            seed=seed,
            config={**config_of(run, data, model), **callbacks},
            clients=clients,
            device=str(problem.device),
            initial=initial,
            frozen=frozen,
            layers=layers,
            metric=problem.metric.recorded,
            judged_classes=judged_classes,
        )
    return by_name


def structure_hash(model: nn.Module) -> str:
    """Of the layers and their options, as the model shows them."""
    return _text_hash(layers_of(model))


def layers_of(model: nn.Module) -> str:
    """The model as `print` shows it; "" if that has an address, which changes from process to process."""
    shown = repr(model)
    return "" if " at 0x" in shown else shown


def frozen_hash(model: nn.Module) -> str | None:
    """A hash of the parameters that are not trained, which no checkpoint holds; None if there are none."""
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    return _hash(frozen) if frozen else None


def warn_of_hidden_values(problem: Problem) -> None:
    """Warn of a loss or a score of which a folder knows only the class."""
    for name in ("loss", "score"):
        function = getattr(problem, name)
        if is_known_by_class_only(function):
            warnings.warn(
                f"{name} is an object that shows nothing of its values, so a folder knows only its class, "
                f"{name_of(function)}: a change of its values will not be noticed; give it a __repr__, or use a "
                "function",
                stacklevel=4,
            )


def clients_of(problem: Problem) -> Table:
    """Who holds how much, in the form of `Federation.describe`."""
    sizes = problem.train.sizes
    judged = torch.zeros_like(sizes)
    if problem.judged is not None:
        judged = problem.judged.sizes
    return client_table(problem.client_names, sizes.numpy(), judged.numpy())


def _data(problem: Problem) -> dict[str, Any]:
    names = "\0".join(problem.client_names)
    data = {
        "name": OWN_DATA,
        "clients": len(problem.client_names),
        "names": _text_hash(names),
        "train": _pool(problem.train),
        "test": None if problem.judged is None else _pool(problem.judged),
    }
    if problem.unseen is not None:
        data["unseen"] = _pool(problem.unseen)
    if problem.test is not None:
        data["global_test"] = _pool(problem.test)
    return data


def _pool(pool: Pool) -> str:
    """The number of examples, and a hash of them and of who holds which."""
    tensors = [pool.sizes, pool.targets, *trees.leaves(pool.inputs)]
    examples = int(pool.sizes.sum())
    return f"{examples} examples, {_hash(tensors)}"


def _model(problem: Problem) -> dict[str, Any]:
    model = problem.model
    parts = []
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        shape = list(tensor.shape)
        parts.append(f"{name} {shape} {tensor.dtype} {tensor.requires_grad}")
    parameters = "\n".join(parts)
    return {
        "name": name_of(type(model)),
        "parameters": f"{len(problem.theta)} trained, {_text_hash(parameters)}",
        "structure": structure_hash(model),
        "kept_in_evaluation": kept_in_evaluation(model),
        "loss": RecordedName.of(problem.loss),
        "score": None if problem.score is None else RecordedName.of(problem.score),
    }


def _hash(tensors: Sequence[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        shape = list(tensor.shape)
        digest.update(f"{shape} {tensor.dtype}".encode())
        step = 1 + tensor.nbytes // _LARGE
        rows = tensor.detach()[::step].contiguous().cpu()
        if rows.numel():
            content = rows.flatten().view(torch.uint8)
            digest.update(content.numpy().data)
    return digest.hexdigest()


def _text_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
