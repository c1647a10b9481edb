"""Workers as SLURM jobs, by submitit: one job each. A job at its time limit is queued again and resumes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import InputError, first_line
from .dispatcher import WorkerSlot
from .options import SLURM, SpreadOptions
from .remote_call import JobResult, perform

_NAMES = {
    "partition": "slurm_partition",
    "account": "slurm_account",
    "time": "timeout_min",
    "gpus": "gpus_per_node",
    "cpus": "cpus_per_task",
    "memory": "mem_gb",
}  # as submitit has them

_RULE = "----------------------"  # before and after a trace in its errors


def slurm_places(spread: SpreadOptions, workers: int, folder: Path) -> list[WorkerSlot]:
    """So many jobs; their files lie in `folder`."""
    try:
        import submitit
    except ImportError:
        raise InputError("cluster='slurm' needs submitit; pip install 'evenfed[slurm]' adds it") from None
    options = dict(spread.slurm)
    kind = str(options.pop("executor", SLURM))
    try:
        executor = submitit.AutoExecutor(folder=folder.resolve(), cluster=kind)
        named = {_NAMES[key]: value for key, value in options.items()}
        executor.update_parameters(name="evenfed", nodes=1, tasks_per_node=1, **named)
    except RuntimeError as error:
        raise InputError(
            f"cluster='slurm': {first_line(error)}; run this where sbatch is, or try it here with slurm:executor=local"
        ) from None
    return [SlurmSlot(f"job {number + 1}", executor) for number in range(workers)]


class _Requeued:
    """The task as submitit takes it: stopped by its time limit or by another user's job, it is queued again."""

    def __call__(self, package: bytes) -> JobResult:
        return perform(package)

    def checkpoint(self, package: bytes) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, package)


@dataclass(frozen=True)
class SlurmSlot:
    name: str
    executor: Any

    def start(self, package: bytes) -> "SlurmJob":
        return SlurmJob(self.executor.submit(_Requeued(), package))


@dataclass(frozen=True)
class SlurmJob:
    job: Any

    def outcome(self) -> JobResult | None:
        if not self.job.done():
            return None
        from submitit.core.utils import FailedJobError, UncompletedJobError

        try:
            outcome = self.job.result()
        except FailedJobError as error:  # evenfed is missing there, for instance
            trace = str(error).split(_RULE)[1]
            return JobResult("failed", trace.strip().splitlines()[-1], trace=trace)
        except UncompletedJobError:
            return JobResult("lost", f"it left no result (state {self.job.state})")
        assert isinstance(outcome, JobResult)
        return outcome

    def stop(self) -> None:
        self.job.cancel()

    def kill(self) -> None:
        self.job.cancel()
