"""Where a run stands, on disk: tensors as safetensors, the rest as JSON in the same file, renamed into place.

Batches and participation are functions of (seed, round, client), so the round's number is all there is
to say about random streams.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.server import Past, Server
from .loop import State


def save(state: State, path: Path) -> None:
    """All of `state` that `load` cannot make anew from the run's configuration."""
    from safetensors.torch import save_file

    server = state.server
    tensors: dict[str, Tensor] = {"theta": server.theta}
    tensors |= {f"memory.{k}": v for k, v in server.memory.items()}
    tensors |= {f"buffers.{k}": v for k, v in server.buffers.items()}
    if server.smoothed is not None:
        tensors["smoothed"] = server.smoothed
    if state.personal is not None:
        tensors["personal"] = state.personal
    if server.past is not None:
        tensors |= {f"past.{f.name}": getattr(server.past, f.name) for f in dataclasses.fields(Past)}
    optimizer: dict[str, Any] = {}
    if server.optimizer_state is not None:
        optimizer = {"groups": server.optimizer_state["param_groups"], "numbers": {}}
        for position, values in server.optimizer_state["state"].items():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{position}.{name}"] = value
                else:
                    optimizer["numbers"][f"{position}.{name}"] = value
    metadata = {"index": str(server.index), "optimizer": json.dumps(optimizer)}
    beside = path.with_name(path.name + ".new")
    save_file(_on_host(tensors), beside, metadata)
    with beside.open("rb") as written:
        os.fsync(written.fileno())
    beside.replace(path)


def _on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies a file can be written from; a GPU makes them without holding up what else it does."""
    copies = {k: v.detach().contiguous().to("cpu", non_blocking=True) for k, v in tensors.items()}
    if any(v.is_cuda for v in tensors.values()):
        torch.cuda.current_stream().synchronize()
    return copies


def load(fresh: State, path: Path) -> State:
    """`fresh` (a run before round 0) brought to where `path` left it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} cannot be read as a checkpoint ({error}); remove it to start that run again"
        ) from None
    before = fresh.server
    past = {f.name: tensors.get(f"past.{f.name}") for f in dataclasses.fields(Past)}
    server = dataclasses.replace(
        before,
        index=int(metadata["index"]),
        theta=tensors["theta"].to(before.theta.device),
        memory=_part(tensors, "memory"),
        buffers=_part(tensors, "buffers", before.theta.device),
        smoothed=tensors.get("smoothed"),
        optimizer_state=_optimizer(tensors, json.loads(metadata["optimizer"])),
        past=None if past["ids"] is None else Past(**past),  # type: ignore[arg-type]
    )
    personal = tensors.get("personal")
    return State(server, None if personal is None else personal.to(before.theta.device))


def model_file(server: Server, path: Path) -> None:
    """The trained model alone, by parameter name: `model.load_state_dict(safetensors.torch.load_file(path))`."""
    from safetensors.torch import save_file

    params = server.params
    assert isinstance(params, dict)
    copies = _on_host({**params, **server.buffers})
    save_file({k: v.clone() for k, v in copies.items()}, path)  # parameters are views of one vector


def _part(tensors: dict[str, Tensor], prefix: str, device: torch.device | None = None) -> dict[str, Tensor]:
    start = prefix + "."
    return {k.removeprefix(start): v.to(device) for k, v in tensors.items() if k.startswith(start)}


def _optimizer(tensors: dict[str, Tensor], kept: dict[str, Any]) -> dict[str, Any] | None:
    if not kept:
        return None
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*_part(tensors, "optimizer").items(), *kept["numbers"].items()]:
        position, _, name = key.partition(".")
        state.setdefault(int(position), {})[name] = value
    return {"state": state, "param_groups": kept["groups"]}
