"""The state of a run, on disk: tensors as safetensors, the rest as JSON in the same file, renamed into place.

Batches and participation are functions of (seed, round, client), so the round's number is all there is
to say about random streams.
"""

import dataclasses
import errno
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..core.errors import DamageError, InputError
from ..core.files import plain_file, replacing
from ..core.guard import ReportedNumbers
from ..core.server import OptimizerStates, PastUpdates, Server
from ..core.vector import Layout
from .local_norms import LocalNorms
from .state import State

Tensors = dict[str, Tensor]  # by name
FORMAT = 1  # of checkpoints; a file without a number is older


def save(state: State, path: Path, texts: Mapping[str, str] = MappingProxyType({})) -> None:
    """All of `state` that `load` cannot rebuild from the run's configuration, and `texts`."""
    server = state.server
    tensors = {"theta": server.theta}
    _add(tensors, "memory", server.memory)
    _add(tensors, "buffers", server.buffers)
    for name, tensor in (("smoothed", server.smoothed), ("personal", state.personal), ("owns", state.owns)):
        if tensor is not None:
            tensors[name] = tensor
    for prefix, part in (("heard", server.heard), ("moments", state.moments), ("past", server.past)):
        if part is not None:
            _add(tensors, prefix, vars(part))
    if server.average is not None:
        _add(tensors, "average", server.average.stored())
    if state.norms is not None:
        _add(tensors, "norms", state.norms.stored())
    for name, note in state.notes.items():
        tensors[f"notes.{name}"] = note.clone()  # may be a tensor of the state, which safetensors refuses to see twice
    optimizer = _add_optimizer(tensors, server)
    layout = [server.layout.names, server.layout.shapes]
    metadata = {
        **texts,
        "format": str(FORMAT),
        "index": str(server.index),
        "optimizer": json.dumps(optimizer),
        "layout": json.dumps(layout),
    }
    _write(path, _on_host(tensors), metadata)


def load(fresh: State, path: Path) -> State:
    """`fresh` (a run before round 0) brought to where `path` left it."""
    tensors, metadata = read(path)
    device = fresh.server.theta.device
    past = _part(tensors, "past")
    heard = _part(tensors, "heard")
    stored = json.loads(metadata["optimizer"])
    server = dataclasses.replace(
        fresh.server,
        index=int(metadata["index"]),
        theta=tensors["theta"].to(device),
        memory=_part(tensors, "memory"),
        buffers=_part(tensors, "buffers", device),
        smoothed=tensors.get("smoothed"),
        optimizer_state=_optimizer_state(tensors, stored),
        past=PastUpdates(**past) if past else None,
        heard=ReportedNumbers(**heard) if heard else fresh.server.heard,
        oversized=(),  # recorded in the first round
    )
    if server.average is not None:
        stored_average = _part(tensors, "average", device)
        average = server.average.restored(stored_average, server.current, server.index)
        server = dataclasses.replace(server, average=average)
    personal = tensors.get("personal")
    notes = _part(tensors, "notes", device)
    kept = _part(tensors, "moments", device)
    moments = OptimizerStates(**kept) if kept else None
    norms = LocalNorms.restored(_part(tensors, "norms", device))
    if personal is None:
        return State(server, notes=notes, moments=moments, norms=norms)
    personal = personal.to(device)
    owns = tensors.get("owns")
    if owns is None:  # an older version did not say
        differs = personal != fresh.server.theta  # where all of them start
        owns = differs.any(1)
    return State(server, personal, notes=notes, owns=owns.to(device), moments=moments)


def read(path: Path) -> tuple[Tensors, dict[str, str]]:
    """All tensors of a file by name, and its texts."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(plain_file(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {}
            for name in file.keys():  # noqa: SIM118  (not a dict)
                tensors[name] = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise DamageError(
            f"{path} cannot be read as a checkpoint ({error}); remove it to start that run again"
        ) from None
    _check(path, tensors, metadata)
    return tensors, metadata


def texts_in(path: Path) -> dict[str, str]:
    """The texts of a checkpoint."""
    _, metadata = read(path)
    return metadata


def notes_in(path: Path) -> Tensors:
    """What callbacks and strategies have kept in a checkpoint, by name."""
    tensors, _ = read(path)
    return _part(tensors, "notes")


def layout_in(path: Path) -> Layout | None:
    """How the parameters lie in the vectors of a checkpoint; None if an older version wrote it."""
    _, metadata = read(path)
    if "layout" not in metadata:
        return None
    names, shapes = json.loads(metadata["layout"])
    sizes = tuple(torch.Size(shape) for shape in shapes)
    if names is None:
        return Layout(None, sizes)
    return Layout(tuple(names), sizes)


def load_model(fresh: State, path: Path) -> State:
    """`fresh` with the model that `model_file` wrote: all that is left of a run without a checkpoint."""
    tensors, _ = read(path)
    server = fresh.server
    device = server.theta.device
    names = server.layout.names or ()
    parameters = {name: tensors.pop(name) for name in names}
    theta = server.layout.flatten(parameters).to(device)
    buffers = {name: tensor.to(device) for name, tensor in tensors.items()}
    loaded = dataclasses.replace(server, theta=theta, buffers=buffers, average=None)
    return State(loaded)


def model_file(server: Server, path: Path) -> None:
    """The trained model alone, by parameter name: `model.load_state_dict(safetensors.torch.load_file(path))`."""
    parameters = server.deployed_params
    assert isinstance(parameters, dict)
    tensors = _on_host({**parameters, **server.deployed.buffers})
    copies = {}
    for name, tensor in tensors.items():
        copies[name] = tensor.clone()  # parameters are views of one vector, which safetensors refuses
    _write(path, copies, {})


def _write(path: Path, tensors: Tensors, texts: Mapping[str, str]) -> None:
    """A safetensors file with its checksum, on disk when this returns."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    metadata = dict(texts)  # none in a model's file, whose bytes are the same each time: several have no order
    metadata["sha256"] = _checksum(tensors, metadata)
    with replacing(path) as unfinished:
        with unfinished.open("xb") as empty:
            mode = os.fstat(empty.fileno()).st_mode
        try:
            save_file(tensors, unfinished, metadata)
        except SafetensorError as error:  # a full disk, for instance
            raise OSError(errno.EIO, str(error), str(path)) from None
        unfinished.chmod(
            stat.S_IMODE(mode)
        )  # who may read the run's other files; safetensors writes for its owner alone


def _checksum(tensors: Tensors, texts: Mapping[str, str]) -> str:
    """Of all tensors and texts but the checksum itself."""
    digest = hashlib.sha256()
    for name, text in sorted(texts.items()):
        if name != "sha256":
            assignment = f"{name}={text};"
            digest.update(assignment.encode())
    for name, tensor in sorted(tensors.items()):
        shape = list(tensor.shape)
        heading = f"{name}:{tensor.dtype}{shape};"
        digest.update(heading.encode())
        content = tensor.contiguous().reshape(-1).view(torch.uint8)
        digest.update(content.numpy().data)
    return digest.hexdigest()


def _check(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Refuse a file of a newer format, or one that is not what was written."""
    number = metadata.get("format", "0")
    if number.isdigit() and int(number) > FORMAT:
        raise InputError(
            f"{path} has format {number}, of a newer version of evenfed; this one reads formats up to {FORMAT}: upgrade"
        )
    expected = metadata.get("sha256")
    if expected is not None and expected != _checksum(tensors, metadata):
        raise DamageError(
            f"{path} is damaged: its checksum is not that of what was written; remove it to start that run again"
        )


def _on_host(tensors: Tensors) -> Tensors:
    """Copies from which a file can be written; a GPU makes them without delaying its other work."""
    copies = {}
    for name, tensor in tensors.items():
        contiguous = tensor.detach().contiguous()
        copies[name] = contiguous.to("cpu", non_blocking=True)
    if any(tensor.is_cuda for tensor in tensors.values()):
        torch.cuda.current_stream().synchronize()
    return copies


def _add(tensors: Tensors, prefix: str, part: Mapping[str, Tensor]) -> None:
    for name, tensor in part.items():
        tensors[f"{prefix}.{name}"] = tensor


def _add_optimizer(tensors: Tensors, server: Server) -> dict[str, Any]:
    """The tensors of the server's optimiser among the others; the rest of its state."""
    state = server.optimizer_state
    if state is None:
        return {}
    numbers = {}
    for position, values in state["state"].items():
        for name, value in values.items():
            key = f"{position}.{name}"
            if isinstance(value, Tensor):
                tensors[f"optimizer.{key}"] = value
            else:
                numbers[key] = value
    return {"groups": state["param_groups"], "numbers": numbers}


def _part(tensors: Tensors, prefix: str, device: torch.device | None = None) -> Tensors:
    """What `_add` stored under `prefix`."""
    part = {}
    for key, tensor in tensors.items():
        first, _, name = key.partition(".")
        if first == prefix and name:
            part[name] = tensor.to(device)
    return part


def _optimizer_state(tensors: Tensors, stored: dict[str, Any]) -> dict[str, Any] | None:
    if not stored:
        return None
    entries: dict[str, Any] = {**_part(tensors, "optimizer"), **stored["numbers"]}
    state: dict[int, dict[str, Any]] = {}
    for key, value in entries.items():
        position, _, name = key.partition(".")
        values = state.setdefault(int(position), {})
        values[name] = value
    return {"state": state, "param_groups": stored["groups"]}
