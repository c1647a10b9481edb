"""Results that were saved, or made with `out=` or by the command line, come back from their folders."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import algorithms
from ..core.algorithm import Algorithm, Memory, Plan, Round
from ..core.errors import InputError
from ..core.naming import Stored, restored
from ..core.vector import Layout
from ..settings import Settings
from ..simulate import checkpoint
from ..simulate.beginning import new_server
from ..simulate.loop import State
from ..simulate.problem import loaded
from .folder import RunFolder, read_order
from .header import Header, Table
from .identity import frozen_hash
from .pack import PACKED, unpacked
from .plan import FLOOR_LABEL
from .result import Comparison, Result


def load(path: str | Path, model: nn.Module | None = None) -> Result | Comparison:
    """A result or a comparison from its folder: saved, made with `out=`, by `evenfed compare`, or packed.

    `model`: a module like the one trained; it gets the trained parameters and becomes `result.model`. Without it a
    result has all but `model`. One run is a Result, several are a Comparison.
    """
    root = Path(path)
    if not root.is_dir():
        raise InputError(f"there is no folder {root}; give one that `save`, `out=` or `evenfed compare` has written")
    if RunFolder(root).header() is not None:
        return _result(RunFolder(root), model)
    with unpacked(root) as place:
        is_packed = (root / PACKED).exists()
        folders = _finished(root, RunFolder.all_in(place))
        results = [_result(folder, model, is_packed) for folder in folders]
    order = read_order(root)
    if len(results) == 1 and order is None:
        return results[0]
    return _comparison(results, order or ["fedavg"], None if is_packed else root)


def _finished(root: Path, folders: Sequence[RunFolder]) -> list[RunFolder]:
    finished = []
    for folder in folders:
        if folder.finished:
            finished.append(folder)
        else:
            warnings.warn(f"{folder.path} is not finished and left out; resume it with the same call", stacklevel=3)
    if not finished:
        raise InputError(f"{root} holds no finished run; give a folder that `save`, `out=` or `evenfed compare` wrote")
    return finished


def _comparison(results: Sequence[Result], order: Sequence[str], root: Path | None) -> Comparison:
    by_label: dict[str, list[Result]] = {label: [] for label in order}
    for result in sorted(results, key=lambda result: result.seed):
        by_label.setdefault(result.label, []).append(result)
    floor = by_label.pop(FLOOR_LABEL, [])
    with_runs = {label: runs for label, runs in by_label.items() if runs}
    return Comparison(with_runs, floor, root)


def _result(folder: RunFolder, model: nn.Module | None, is_packed: bool = False) -> Result:
    header = folder.header()
    assert header is not None
    if not header.finished:
        rounds = len(folder.history().records)
        raise InputError(f"{folder.path} has {rounds} of {header.rounds} rounds; finish it first with the same call")
    history = folder.history()
    settings = _settings(header.train)
    algorithm = _algorithm(header)
    state = None
    if not is_packed:
        state = _state(folder, header, algorithm, settings)
    module = None
    if model is not None:
        if state is None:
            raise InputError(f"{folder.path} is packed: it holds no parameters for `model`; leave model out")
        module = _filled(model, state, folder)
        if header.frozen not in (None, frozen_hash(module)):
            raise InputError(
                f"{folder.path} was trained with other frozen parameters than those of the model given; they are not "
                "saved: give the same pretrained ones"
            )
    return Result(
        label=header.label or folder.label,
        algorithm=algorithm,
        settings=settings,
        records=list(history.records),
        client_names=list(header.clients["names"]),
        shares=np.asarray(history.shares),
        header=header,
        state=state,
        module=module,
        folder=None if is_packed else folder.path,
    )


def _state(folder: RunFolder, header: Header, algorithm: Algorithm, settings: Settings) -> State:
    """Where the run ended, on this machine's CPU."""
    kept = [folder.result_path] if folder.result_path.exists() else list(folder.checkpoints().values())
    layout = checkpoint.layout_in(kept[0]) if kept else None
    tensors, _ = checkpoint.read(folder.model_path)
    if layout is None:
        layout = Layout.of(tensors)
    names = layout.names or ()
    parameters = {name: tensors[name] for name in names}
    theta = layout.flatten(parameters)
    buffers = {name: tensor for name, tensor in tensors.items() if name not in parameters}
    sizes = torch.tensor(header.train_sizes)
    server = new_server(algorithm, settings, theta, sizes, layout=layout, buffers=buffers)
    fresh = State(server)
    return folder.final(fresh) if kept else fresh


def _filled(model: nn.Module, state: State, folder: RunFolder) -> nn.Module:
    """A copy of the module with the run's parameters; one of another kind is refused."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; give a torch.nn.Module like the one trained")
    server = state.server
    saved: dict[str, Tensor] = {**_parameters(state), **server.buffers}
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in saved.items():
        if name not in own or own[name].shape != tensor.shape:
            there = f"{name} {list(tensor.shape)}"
            here = f"{name} {list(own[name].shape)}" if name in own else f"no {name}"
            raise InputError(f"{folder.path} was trained with another model: it has {there}, the one given {here}")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in saved:
            raise InputError(
                f"{folder.path} was trained with another model: the one given has {name}, which was not trained; give "
                "the same, or freeze that parameter (requires_grad_(False))"
            )
    return loaded(model, server, server.theta)


def _parameters(state: State) -> dict[str, Tensor]:
    parameters = state.server.params
    assert isinstance(parameters, dict)
    return parameters


def _settings(train: Table) -> Settings:
    """The run's options; a function comes back as its name, a device that is not here as "auto"."""
    options: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        if field.name in train:
            options[field.name] = restored(train[field.name])
    try:
        return Settings(**options)
    except InputError:
        without = {name: value for name, value in options.items() if not _depends_on_here(name, value)}
        return Settings(**without)


def _depends_on_here(name: str, value: Any) -> bool:
    return name == "device" or isinstance(value, Stored)


def _algorithm(header: Header) -> Algorithm:
    """The algorithm by its name; one that is not known here can be read but not run."""
    name = str(header.config["algorithm"])
    values: Mapping[str, Any] = header.config["hyper_parameters"]
    try:
        return algorithms.get(name, **values)
    except InputError:
        return _unknown_algorithm(name, values)


def _unknown_algorithm(name: str, values: Mapping[str, Any]) -> Algorithm:
    def plan(self: Algorithm, round: Round, memory: Memory) -> tuple[Plan, Memory]:
        raise InputError(f"{name} is not known here, so it can be read but not run; evenfed.register its class first")

    def unchecked(self: Algorithm) -> None:
        pass

    fields = [(key, object, dataclasses.field(default=value)) for key, value in values.items()]
    namespace = {"name": name, "plan": plan, "__post_init__": unchecked}
    kind = dataclasses.make_dataclass("Unknown", fields, bases=(Algorithm,), namespace=namespace, frozen=True)
    algorithm: Algorithm = kind()
    return algorithm
