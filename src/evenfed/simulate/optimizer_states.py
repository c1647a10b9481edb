"""The clients' optimiser states between rounds, and checks that memory holds what a run keeps per client."""

import os

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.server import OptimizerStates, Server, Update
from ..settings import Settings

SHARE_OF_MEMORY = 0.5  # that states may take, with the copy that a round writes to


def initial(settings: Settings, server: Server) -> OptimizerStates | None:
    """The states [n, ...] before round 0; None where nothing is kept. Refused where memory would not hold them."""
    optimizer = settings.local(0).optimizer
    if not optimizer.keep or optimizer.moments == 0:
        return None
    theta = server.theta
    clients = len(server.sizes)
    numbers = clients * optimizer.moments * len(theta)
    with_copy = 2 * numbers
    _check_fits(
        with_copy * theta.element_size(),
        theta.device,
        f"optimizer {optimizer.name} with keep=true: the states of {clients} clients ({optimizer.moments} x "
        f"{len(theta)} numbers each) and a round's copy of them take",
        "leave keep out, or use a smaller model or fewer clients",
    )
    return optimizer.fresh(theta.expand(clients, -1))


def check_room(settings: Settings, server: Server) -> None:
    """Refuse what memory would not hold of algorithms that need every update at once, or a model per client."""
    algorithm = server.algorithm
    clients = len(server.sizes)
    vectors = 0
    reason = ""
    advice = ""
    if algorithm.needs == "gram":
        vectors = 2 * settings.drawn(server.clients_with_data)  # and a copy of those that arrived
        reason = f"needs the updates of all {vectors // 2} clients of a round at once"
        advice = "lower participation, use a smaller model, or an algorithm whose updates are folded one by one"
    if algorithm.personal() is not None:
        vectors = 3 * clients  # with the copy that a round writes to, and the models that serve
        reason = f"keeps a model for each of {clients} clients"
        advice = "use a smaller model or fewer clients"
    needed = vectors * server.theta.nbytes
    _check_fits(needed, server.theta.device, f"{algorithm.name} {reason}, with copies", advice)


def _check_fits(needed: int, device: torch.device, what: str, advice: str) -> None:
    """Refuse what needs too many bytes."""
    available = memory_of(device)
    if needed > SHARE_OF_MEMORY * available:
        raise InputError(
            f"{what} {needed / 1e9:.3g} GB, more than half of the {available / 1e9:.3g} GB of {device.type} memory; "
            f"{advice}"
        )


def memory_of(device: torch.device) -> int:
    """All memory of a device, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def copy(moments: OptimizerStates | None) -> OptimizerStates | None:
    """A copy that a round may write to."""
    if moments is None:
        return None
    return OptimizerStates(moments.values.clone(), moments.taken.clone())


def select(moments: OptimizerStates | None, ids: Tensor) -> OptimizerStates | None:
    """The states of some clients, in their order."""
    if moments is None:
        return None
    return OptimizerStates(moments.values[ids], moments.taken[ids])


def write(table: OptimizerStates, update: Update) -> None:
    """Write the states after training into the table; one that is not finite is discarded."""
    left = update.moments
    assert left is not None
    ids = update.ids
    usable = left.values.isfinite().flatten(1).all(1)
    values = table.values[ids]
    taken = table.taken[ids]
    table.values[ids] = torch.where(usable[:, None, None], left.values, values)
    table.taken[ids] = torch.where(usable, left.taken, taken)
