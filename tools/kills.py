"""Kill a small comparison at every point where it writes, or at random moments; resumed, it must end to the bit.

    python tools/kills.py points            # before every file that it opens, renames, removes or syncs
    python tools/kills.py random --kills 100
    python tools/kills.py points --save benchmarks/results/kills.json     # keeps the figures, beside those of `random`

Each trial is a process of its own (forked, so nothing is imported twice) which dies without any clean-up. The same call
is then made again. Rounds and models must equal an undisturbed comparison's, all runs must have gone on from the same
round, and nothing may be left over. Exits with 1 and names each trial where that does not hold.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import evenfed
from evenfed.comparison.storage.provenance import provenance
from evenfed.core.errors import DamageWarning

ENTRIES = ["vred", "ditto", "semi_vred[smooth=0.25]"]
STOPPED = "vred"  # a callback ends this one after round 2
ROUNDS = 4
UNKNOWN = "unknown"  # the commit, while trials run: asking git would be one more point to be killed at
CRASHED = 66  # the exit status of a process that died at its point
Trouble = list[str]  # what is wrong with a resumed comparison, in words


def clients() -> list[evenfed.Client]:
    """Four clients of unequal sizes."""
    draw = torch.Generator().manual_seed(0)
    federation = []
    for k in range(4):
        size = 4 + 3 * k
        inputs = torch.randn(size, 6, generator=draw) + 0.3 * k
        targets = torch.randint(0, 3, (size,), generator=draw)
        federation.append(evenfed.Client(train=(inputs, targets), test=(inputs, targets), name=f"site-{k}"))
    return federation


def stop_one(progress: Any) -> None:
    """The callback that ends one run early."""
    if progress.label == STOPPED and progress.round == 2:
        progress.stop("asked to")


def compare(out: Path) -> None:
    """The comparison that is killed."""
    evenfed.compare(
        lambda: torch.nn.Linear(6, 3),
        clients(),
        ENTRIES,
        seeds=1,
        rounds=ROUNDS,
        lr=0.1,
        batch_size=4,
        device="cpu",
        progress=False,
        callbacks=stop_one,
        out=out,
    )


class Points:
    """Counts the points at which a process writes below a folder, and dies at one of them."""

    def __init__(self, folder: Path, die_at: int | None) -> None:
        self.folder = str(folder)
        self.die_at = die_at
        self.names: list[str] = []
        sys.addaudithook(self._hear)
        self.fsync = os.fsync
        os.fsync = self._synced

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Before a file operation."""
        if event not in ("open", "os.rename", "os.remove", "os.mkdir"):
            return
        path = os.fspath(arguments[0]) if not isinstance(arguments[0], int) else ""
        if not str(path).startswith(self.folder):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        self._pass(f"{event} {str(path)[len(self.folder) + 1 :]}")

    def _synced(self, file: int) -> None:
        """Before a file is synced: a dying process leaves the last line of rounds unfinished."""
        path = os.readlink(f"/proc/self/fd/{file}")
        self._pass(f"fsync {path[len(self.folder) + 1 :]}", file if path.endswith(".jsonl") else None)
        self.fsync(file)

    def _pass(self, name: str, torn: int | None = None) -> None:
        self.names.append(name)
        if len(self.names) == self.die_at:
            if torn is not None:
                os.ftruncate(torn, max(0, os.fstat(torn).st_size - 5))
            os._exit(CRASHED)


def forked(work: Callable[[], None]) -> int:
    """Start `work` in a process of its own, which dies without clean-up at its end; the process's number."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        torch.set_num_threads(1)
        work()
        status = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(status)


def exit_code(process: int) -> int:
    """How a forked process ended; minus the signal's number if one killed it."""
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def prepare() -> None:
    """Checkpoints as often as possible; and all that a comparison loads is loaded before the first fork."""
    os.environ["EVENFED_CHECKPOINT_SECONDS"] = "0"
    os.environ.setdefault("EVENFED_COMMIT", UNKNOWN)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder))


def points_of(out: Path) -> list[str]:
    """Every point of an undisturbed comparison in `out`, by name."""
    listed = out.with_suffix(".points")

    def work() -> None:
        points = Points(out, None)
        compare(out)
        listed.write_text(json.dumps(points.names))

    code = exit_code(forked(work))
    if code != 0:
        raise SystemExit(f"the undisturbed comparison ended with {code}")
    return list(json.loads(listed.read_text()))


def killed_at(out: Path, point: int) -> int:
    """The comparison in `out`, dying at one of its points; its exit code."""

    def work() -> None:
        Points(out, point)
        compare(out)

    return exit_code(forked(work))


def killed_after(out: Path, seconds: float) -> int:
    """The comparison in `out`, killed after so many seconds; its exit code."""
    process = forked(lambda: compare(out))
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    return exit_code(process)


def trouble(wanted: Path, out: Path) -> Trouble:
    """Make the same call again; what differs from the undisturbed comparison then, and what is left over."""

    def resume() -> None:
        warnings.simplefilter("error", DamageWarning)  # a kill damages nothing
        compare(out)

    code = exit_code(forked(resume))
    if code != 0:
        return [f"resuming ended with {code}"]
    wrong = []
    starts = {}
    for header in sorted(wanted.glob("*/seed-*/header.json")):
        run = header.parent.relative_to(wanted)
        if lines_of(wanted / run) != lines_of(out / run):
            wrong.append(f"{run}: other rounds")
        model = (wanted / run / "model.safetensors").read_bytes()
        if model != (out / run / "model.safetensors").read_bytes():
            wrong.append(f"{run}: another model")
        if len(list((out / run).glob("checkpoint-*"))) != 1:
            wrong.append(f"{run}: not one checkpoint")
        resumed_at = json.loads((out / run / "header.json").read_text())["resumed_at"]
        if run.parts[0] != STOPPED:
            trained_from = [at for at in resumed_at if at < ROUNDS]
            starts[str(run)] = trained_from[-1]
    if len(set(starts.values())) > 1:
        wrong.append(f"runs went on from different rounds: {starts}")
    leftovers = sorted(str(path.relative_to(out)) for path in out.rglob("*.new"))
    if leftovers:
        wrong.append(f"left over: {', '.join(leftovers)}")
    return wrong


def lines_of(run: Path) -> list[dict[str, Any]]:
    """The rounds of a run, without what a clock says."""
    rounds = []
    for line in (run / "rounds.jsonl").read_text().splitlines():
        data = json.loads(line)
        del data["seconds"]
        rounds.append(data)
    return rounds


def try_points(folder: Path, chosen: Callable[[str], bool] = lambda name: True) -> tuple[int, Trouble]:
    """Die at every point whose name is `chosen`: how many there were, and what went wrong at which."""
    names = points_of(folder / "wanted")
    tried = 0
    wrong = []
    for point, name in enumerate(names, start=1):
        if not chosen(name):
            continue
        out = folder / f"point-{point}"
        code = killed_at(out, point)
        if code not in (CRASHED, 0):
            wrong.append(f"point {point} ({name}): ended with {code}")
            continue
        tried += 1
        for sentence in trouble(folder / "wanted", out):
            wrong.append(f"point {point} ({name}): {sentence}")
    return tried, wrong


def try_moments(folder: Path, kills: int, seed: int) -> tuple[int, Trouble]:
    """Kill at random moments, up to three times in one comparison, until there were `kills`."""
    began = time.monotonic()
    points_of(folder / "wanted")
    lasts = time.monotonic() - began
    draw = random.Random(seed)
    done = 0
    trial = 0
    wrong = []
    while done < kills:
        trial += 1
        out = folder / f"trial-{trial}"
        moments = []
        for _ in range(draw.randint(1, 3)):
            moments.append(draw.uniform(0, lasts))
            if killed_after(out, moments[-1]) == -signal.SIGKILL:
                done += 1
        for sentence in trouble(folder / "wanted", out):
            wrong.append(f"trial {trial}, killed after {moments} s: {sentence}")
    return done, wrong


def save(path: Path, what: str, figures: dict[str, Any]) -> None:
    """Keep the figures of one kind of trial in a file, beside those of the other kind."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    if os.environ.get("EVENFED_COMMIT") == UNKNOWN:
        del os.environ["EVENFED_COMMIT"]  # the trials are over: the source tree is asked
    kept[what] = {**figures, **provenance()}
    path.write_text(json.dumps(kept, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["points", "random"])
    parser.add_argument("--kills", type=int, default=100, help="how many, at random moments")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--only", default="", help="points whose name contains this")
    parser.add_argument("--save", type=Path, default=None, help="a JSON file that keeps the figures")
    options = parser.parse_args(arguments)
    prepare()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "points":
            tried, wrong = try_points(Path(folder), lambda name: options.only in name)
        else:
            tried, wrong = try_moments(Path(folder), options.kills, options.seed)
    for sentence in wrong:
        print(sentence)
    print(f"{tried} kills, {len(wrong)} complaints")
    if options.save is not None:
        seconds = round(time.monotonic() - began)
        save(options.save, options.what, {"kills": tried, "complaints": wrong, "seconds": seconds})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
