"""The state of a run from its folder alone, without model, data or clients."""

import torch

from ...core.algorithm import Algorithm
from ...core.vector import Layout
from ...settings import Settings
from ...simulate import checkpoint
from ...simulate.state import State, new_server
from .folder import RunFolder
from .header import Header


def state_in(
    folder: RunFolder,
    header: Header,
    algorithm: Algorithm,
    settings: Settings,
) -> State | None:
    """The state whose model is the run's result so far, on this machine's CPU; None if the folder holds no model."""
    if not header.finished:
        by_round = folder.sound_checkpoints()
        if not by_round:
            return None
        newest = by_round[max(by_round)]
        tensors, _ = checkpoint.read(newest)
        layout = checkpoint.layout_in(newest)
        assert layout is not None  # as every version has written that leaves a run unfinished
        fresh = _fresh(header, algorithm, settings, layout, tensors["theta"], {})
        return checkpoint.load(fresh, newest)
    if not folder.model_path.exists():  # packed results have none
        return None
    kept = list(folder.checkpoints().values())
    if folder.result_path.exists():
        kept = [folder.result_path]
    buffers, _ = checkpoint.read(folder.model_path)
    layout = Layout.of(buffers)
    if kept:
        layout = checkpoint.layout_in(kept[0]) or layout
    parameters = {}
    for name in layout.names or ():
        parameters[name] = buffers.pop(name)
    theta = layout.flatten(parameters)
    fresh = _fresh(header, algorithm, settings, layout, theta, buffers)
    return folder.final(fresh) if kept else fresh


def _fresh(
    header: Header,
    algorithm: Algorithm,
    settings: Settings,
    layout: Layout,
    theta: torch.Tensor,
    buffers: dict[str, torch.Tensor],
) -> State:
    sizes = torch.tensor(header.train_sizes)
    server = new_server(
        algorithm,
        settings,
        theta,
        sizes,
        layout=layout,
        buffers=buffers,
    )
    return State(server)
