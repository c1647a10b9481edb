"""Where a server app keeps its run: in a folder of its own, unless it is told one or goes on with an earlier run."""

from pathlib import Path

from ..comparison.folder import RunFolder
from ..core.errors import InputError

RUNS = Path("runs")  # below the folder in which Flower's server was started
Resume = bool | int | str | None  # whether to go on, or the id of the run to go on with


def place_of(
    out: object,
    resume: Resume,
    run_id: int,
    label: str,
    seed: int,
) -> tuple[Path | None, bool | None]:
    """The folder `out` of a run, and whether a run must be there to go on with.

    `out`: a folder, False for none, or None for runs/<run id>, which no other run has. There, `resume` True means the
    run of this label and seed that was written last, and an id that run.
    """
    is_id = resume is not None and not isinstance(resume, bool)
    if out is False:
        if resume:
            raise InputError("out=false keeps nothing to resume from; leave `resume` or `out` out")
        return None, None
    if out is not None:
        if not isinstance(out, str | Path):
            raise InputError(f"out={out!r}: give a folder, or false to keep nothing")
        if is_id:
            raise InputError(f"resume={resume} names a run below {RUNS}; leave `out` out, or give resume=true")
        return Path(out), bool(resume) if resume is not None else None
    if is_id:
        return _named(str(resume)), True
    if resume:
        return _latest(label, seed), True
    return RUNS / str(run_id), None


def _named(run_id: str) -> Path:
    path = RUNS / run_id
    if Path(run_id).name != run_id or not path.is_dir():
        raise InputError(f"resume={run_id}: there is no folder {path.resolve()}; `flwr list` shows the ids of runs")
    return path


def _latest(label: str, seed: int) -> Path:
    """Of the runs of this label and seed, the one written last."""
    written: dict[float, Path] = {}
    for path in RUNS.glob("*"):
        header = RunFolder.at(path, label, seed).header_path
        if header.exists():
            written[header.stat().st_mtime] = path
    if not written:
        raise InputError(
            f"resume: {RUNS.resolve()} holds no run of {label} with seed {seed}; leave `resume` out to begin one, or "
            "give its folder with `out`"
        )
    return written[max(written)]
