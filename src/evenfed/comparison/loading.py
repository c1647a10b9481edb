"""Results that were saved, or made with `out=` or by the command line, come back from their folders."""

import copy
import dataclasses
import itertools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from .. import algorithms
from ..core.algorithm import Algorithm, Memory, Plan, Round
from ..core.errors import InputError, check_whole
from ..core.naming import StoredFunction, restored
from ..settings import Settings
from ..simulate.state import State
from .analysis.entry_order import read_order
from .federations import comparison_in
from .fingerprints import frozen_hash, layers_of, structure_hash
from .result import Comparison, Result
from .runs import FLOOR_NAMES
from .storage.conflicts import folder_named
from .storage.folder import RunFolder
from .storage.header import Header, Table
from .storage.pack import unpacked
from .storage.restoring import state_in


def load(
    path: str | Path,
    model: nn.Module | None = None,
    last_rounds: int | None = None,
) -> Result | Comparison:
    """A result or a comparison from its folder: saved, made with `out=`, by `evenfed compare`, or packed.

    `model`: a module like the one trained; it gets the trained parameters and becomes `result.model`. Without it a
    result has all but `model`. `last_rounds`: average late figures over so many rounds instead of the run's own number.
    One run is a Result, several are a Comparison. A run's own folder may hold an unfinished run, simulated or of
    Flower's: the result is of its rounds so far, with a warning.
    """
    if last_rounds is not None:
        check_whole("last_rounds", last_rounds, 1)
    model = copy.deepcopy(model)  # one for all results, whatever becomes of the user's own
    root = comparison_in(folder_named(path))
    if not root.is_dir():
        raise InputError(f"there is no folder {root}; give one that `save`, `out=` or `evenfed compare` has written")
    if RunFolder(root).header() is not None:
        return _result(RunFolder(root), model, last_rounds)
    with unpacked(root) as place:
        folders = _finished(root, RunFolder.all_in(place))
        results = [_result(folder, model, last_rounds) for folder in folders]
    kept: Path | None = root
    if place != root:  # a temporary folder, which is gone
        kept = None
        results = [dataclasses.replace(result, folder=None) for result in results]
    order = read_order(root)
    if len(results) == 1 and order is None:
        return results[0]
    return _comparison(results, order or ["fedavg"], kept)


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
    floor = []
    for label in FLOOR_NAMES:
        floor += by_label.pop(label, [])
    with_runs = {label: runs for label, runs in by_label.items() if runs}
    return Comparison(with_runs, floor, root)


def _result(folder: RunFolder, model: nn.Module | None, window: int | None) -> Result:
    header = folder.header()
    assert header is not None
    history = folder.history()
    if not header.finished:
        rounds = len(history.records)
        warnings.warn(
            f"{folder.path} is not finished: it has {rounds} of {header.rounds} rounds", RuntimeWarning, stacklevel=3
        )
    settings = _settings(header.train)
    algorithm = _algorithm(header)
    state = state_in(folder, header, algorithm, settings)
    if model is not None:
        if state is None:
            raise InputError(
                f"{folder.path} holds rounds but no parameters for `model`, as packed results do; leave model out"
            )
        _check_kind(model, state, folder)
        _warn_of_other_layers(model, header)
        if header.frozen not in (None, frozen_hash(model)):
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
        module=model,
        folder=folder.path,
        window=window,
    )


def _check_kind(model: nn.Module, state: State, folder: RunFolder) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; give a torch.nn.Module like the one trained")
    parameters = state.server.deployed_params
    assert isinstance(parameters, dict)
    saved: dict[str, Tensor] = {**parameters, **state.server.buffers}
    own: dict[str, Tensor] = dict(model.named_parameters())
    own.update(model.named_buffers())
    another = f"{folder.path} was trained with another model"
    for name, tensor in saved.items():
        if name not in own:
            raise InputError(f"{another}: it has {name}, which the one given has not; give the same")
        shape = list(tensor.shape)
        own_shape = list(own[name].shape)
        if own_shape != shape:
            raise InputError(f"{another}: {name} {shape} there, {own_shape} in the one given; give the same")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in saved:
            raise InputError(
                f"{another}: the one given has {name}, which was not trained; give the same, or freeze that parameter "
                "(requires_grad_(False))"
            )


def _warn_of_other_layers(model: nn.Module, header: Header) -> None:
    """Warn of a model that prints otherwise than the trained one; many such differences change no prediction."""
    described = header.config.get("model") or {}
    structure = described.get("structure")  # of a model from Python
    if structure in (None, structure_hash(model)):
        return
    where = ""
    trained_lines = (header.layers or "").splitlines()
    given_lines = layers_of(model).splitlines()
    if trained_lines and given_lines:
        for trained, given in itertools.zip_longest(trained_lines, given_lines, fillvalue="nothing"):
            if trained != given:
                where = f": {trained.strip()} was trained, {given.strip()} is given"
                break
    warnings.warn(
        f"the trained model has other layers or options than the one given{where}; predictions may differ, although "
        "parameters have the same names and shapes",
        stacklevel=4,
    )


def _settings(train: Table) -> Settings:
    """The run's options; a function comes back as its name, a device that is not here as "auto"."""
    options: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        if field.name in train:
            options[field.name] = restored(train[field.name])
    try:
        return Settings(**options)
    except InputError:
        for name, value in list(options.items()):
            if name == "device" or isinstance(value, StoredFunction):
                del options[name]
        return Settings(**options)


def _algorithm(header: Header) -> Algorithm:
    """The algorithm by its name; one that is not known here can be read but not run."""
    name = str(header.config.get("algorithm", header.label))
    values: Mapping[str, Any] = header.config.get("hyper_parameters", {})
    try:
        return algorithms.get(name, **values)
    except InputError:
        return _unknown_algorithm(name, values)


def _unknown_algorithm(name: str, values: Mapping[str, Any]) -> Algorithm:
    def plan(self: Algorithm, round: Round, memory: Memory) -> tuple[Plan, Memory]:
        raise InputError(f"{name} is not known here, so it can be read but not run; evenfed.register its class first")

    def unchecked(self: Algorithm) -> None:
        pass

    fields = []
    for key, value in values.items():
        default = dataclasses.field(default=value)
        fields.append((key, object, default))
    kind = dataclasses.make_dataclass(
        "Unknown",
        fields,
        bases=(Algorithm,),
        namespace={"name": name, "plan": plan, "__post_init__": unchecked},
        frozen=True,
    )
    algorithm: Algorithm = kind()
    return algorithm
