"""Where work is spread to, as users write it: devices of this machine, or a cluster."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.errors import InputError, check_whole, nearest, unknown

ALL_GPUS = "cuda:all"
SLURM = "slurm"
MOST_WORKERS = 10_000
SLURM_JOBS = 8  # at most, unless `workers` says how many
_CLUSTERS = ("auto", SLURM)
_GPU = re.compile(r"cuda:(\d+)")
_SLURM_OPTIONS = {
    "partition": str,
    "account": str,
    "time": int,  # minutes
    "gpus": int,
    "cpus": int,
    "memory": int,  # GB
    "executor": str,  # slurm, or local: processes here
}


@dataclass(frozen=True)
class SpreadOptions:
    """One worker per device of this machine; or workers on a cluster, on devices that the cluster gives them."""

    devices: tuple[str, ...] = ()
    workers: int | None = None  # on a cluster; None: as many as it has room for
    cluster: str | None = None  # "auto" or the address of a Ray cluster, or "slurm"
    slurm: Mapping[str, str | int] = field(default_factory=dict)


def spread_of(device: str | None, workers: int | None, cluster: str | None) -> tuple[SpreadOptions | None, str | None]:
    """Where to, and the device that a run's own options name. None: nothing is to be spread.

    >>> spread_of("cpu", 2, None)
    (SpreadOptions(devices=('cpu', 'cpu'), workers=None, cluster=None, slurm={}), 'cpu')
    """
    if workers is not None:
        workers = check_whole("workers", workers, 1)
        if workers > MOST_WORKERS:
            raise InputError(f"workers={workers}: give at most {MOST_WORKERS}; more than there are runs have no work")
    names_several = isinstance(device, str) and (device == ALL_GPUS or "," in device)
    if cluster is not None:
        if names_several:
            raise InputError(
                f"device='{device}' and cluster='{cluster}': give one of them; a cluster hands out its GPUs"
            )
        return _on_cluster(cluster, workers), device
    if names_several:
        assert device is not None
        if workers is not None:
            raise InputError(f"device='{device}' has one worker per GPU; leave out workers={workers}")
        return SpreadOptions(gpus(device, torch.cuda.device_count())), "cuda"
    if workers is None or workers == 1:
        return None, device
    return SpreadOptions((device or "auto",) * workers), device


def gpus(written: str, count: int) -> tuple[str, ...]:
    """The GPUs that "cuda:all" or a list such as "cuda:0,cuda:2" names, where there are `count`.

    >>> gpus("cuda:all", 3)
    ('cuda:0', 'cuda:1', 'cuda:2')
    """
    if count == 0:
        raise InputError(
            f"device='{written}': this torch ({torch.__version__}) sees no GPU; use cpu, with workers=2, say"
        )
    known = [f"cuda:{number}" for number in range(count)]
    if written == ALL_GPUS:
        return tuple(known)
    names = [name.strip() for name in written.split(",")]
    for name in names:
        match = _GPU.fullmatch(name)
        if match is None or int(match[1]) >= count:
            listed = ", ".join(known)
            raise InputError(
                f"device='{written}': '{name}' is not a GPU of this machine; give {ALL_GPUS} or some of {listed}"
            )
    if len(set(names)) < len(names):
        raise InputError(f"device='{written}' names a GPU twice; name each once")
    return tuple(names)


def visible_gpu(device: str) -> str:
    """What CUDA_VISIBLE_DEVICES must be for a process that is to see this GPU alone."""
    match = _GPU.fullmatch(device)
    number = int(match[1]) if match else 0
    already = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = already.split(",") if already else []
    if number < len(names):
        return names[number]
    return str(number)


def _on_cluster(cluster: Any, workers: int | None) -> SpreadOptions:
    if not isinstance(cluster, str) or not cluster.strip():
        raise InputError(f"cluster={cluster!r}: give auto or the address of a Ray cluster, or {SLURM}")
    name, _, written = cluster.partition(":")
    is_address = written.isdigit() or "//" in written
    if name not in _CLUSTERS and not is_address and nearest(name, _CLUSTERS):
        raise unknown("cluster", name, [*_CLUSTERS, "HOST:PORT of a Ray cluster"])
    if name != SLURM:
        return SpreadOptions(workers=workers, cluster=cluster)
    return SpreadOptions(workers=workers, cluster=SLURM, slurm=_slurm_options(written))


def _slurm_options(written: str) -> dict[str, str | int]:
    """From `partition=gpu,time=60`."""
    options: dict[str, str | int] = {}
    for assignment in filter(None, written.split(",")):
        key, equals, value = assignment.partition("=")
        if key not in _SLURM_OPTIONS:
            raise unknown("option of slurm", key, _SLURM_OPTIONS)
        kind = _SLURM_OPTIONS[key]
        is_whole = kind is int
        if not equals or not value or (is_whole and not value.isdigit()):
            wanted = "a whole number" if is_whole else "a name"
            raise InputError(f"cluster='{SLURM}:{written}': {key} is {wanted}, such as {SLURM}:partition=gpu,time=60")
        options[key] = kind(value)
    executor = options.get("executor", SLURM)
    if executor not in (SLURM, "local"):
        raise unknown("executor of slurm", str(executor), (SLURM, "local"))
    return options
