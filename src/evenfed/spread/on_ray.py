"""Workers on a Ray cluster: one task each. A task that dies with its node is handed out again, to any other node."""

import importlib.util
import logging
import os
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError, first_line
from .dispatcher import WorkerSlot
from .options import SpreadOptions
from .remote_call import JobResult, perform


def ray_places(spread: SpreadOptions) -> list[WorkerSlot]:
    """As many workers as asked for; else one per GPU of the cluster, or per node where there is none."""
    ray = _connected(spread.cluster or "auto")
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = int(sum(resources.get("GPU", 0) for resources in nodes))
    workers = spread.workers or gpus or len(nodes)
    cpus = [int(resources.get("CPU", 0)) for resources in nodes]
    most = max(1, min(cpus))  # more than every node has may never start
    share = max(1, sum(cpus) // workers)
    options = {
        "num_cpus": 1 if gpus else min(most, share),
        "num_gpus": 1 if gpus else 0,
        "max_retries": 0,  # this process learns of a loss and hands out the task again
    }
    places: list[WorkerSlot] = []
    for number in range(1, workers + 1):
        places.append(RaySlot(f"worker {number} on Ray", ray, options))
    return places


def _connected(address: str) -> Any:
    """The module, connected to the cluster; to the one that the caller has connected to, if so."""
    if importlib.util.find_spec("ray") is None:
        raise InputError("cluster: Ray is not installed; pip install 'evenfed[flower]' adds it")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else a warning at every start
    import ray

    if ray.is_initialized():
        return ray
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(
            f"cluster='{address}': no Ray cluster answers ({first_line(error)}); start one with `ray start --head` and "
            "`ray start --address=HOST:6379` on the other machines, or give its address"
        ) from None
    return ray


@dataclass(frozen=True)
class RaySlot:
    """A Ray task for every task."""

    name: str
    ray: Any
    options: dict[str, Any]

    def start(self, package: bytes) -> "RayJob":
        task = self.ray.remote(**self.options)(perform)
        return RayJob(self.ray, task.remote(package))


@dataclass(frozen=True)
class RayJob:
    ray: Any
    task: Any

    def outcome(self) -> JobResult | None:
        ended, _ = self.ray.wait([self.task], timeout=0)
        if not ended:
            return None
        errors = self.ray.exceptions
        try:
            outcome = self.ray.get(self.task)
        except errors.TaskCancelledError:
            return JobResult("stopped")
        except errors.RayTaskError as error:  # evenfed is missing there, for instance
            return JobResult("failed", first_line(error.cause))
        except errors.RayError as error:
            return JobResult("lost", f"Ray says {type(error).__name__}")
        assert isinstance(outcome, JobResult)
        return outcome

    def stop(self) -> None:
        self.ray.cancel(self.task)

    def kill(self) -> None:
        self.ray.cancel(self.task, force=True)
