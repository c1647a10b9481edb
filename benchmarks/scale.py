"""How time, memory and files grow with the population, with a round, and with the number of rounds.

    python benchmarks/scale.py population          # 10^4, 10^5, 10^6 clients, 100 per round; 10 minutes, at most 4 GB
    python benchmarks/scale.py options             # what a round costs with options that look at every client; a minute
    python benchmarks/scale.py draw                # CPU seconds of drawing a round's clients
    python benchmarks/scale.py round               # one round of 10,000 clients with 1 M parameters, both engines
    python benchmarks/scale.py fold                # CPU seconds of a server per update
    python benchmarks/scale.py soak                # 2,000 rounds: memory, seconds per round, open handles
    python benchmarks/scale.py table               # results/scale.json as the tables of README.md

Each figure is a process of its own with one torch thread. `--source DIR` measures the package in another folder
(`before` in the results: commit ff6df0a, measured by this script on the same machine). CPU seconds are those of the
process; other work on the machine moves them little, and wall seconds much.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import scale_page

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scale.json"
POPULATIONS = (10_000, 100_000, 1_000_000)
DRAWN = 100
PANEL = 1000
ROUNDS = 12
FEATURES, CLASSES = 8, 4
FEW_EVALUATED = 100
OPTIONS = (
    ("fedavg", None),
    ("semi_vred", None),
    ("semi_vred[smooth=0.25]", None),
    ("semi_vred", "on"),
    ("climb", None),
    ("afl", None),
    ("drfa", None),
)  # algorithm and guard
SOAK_ROUNDS = 2000
SOAK_EVERY = 100


def resident_mb() -> float:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak_mb() -> float:
    """The most that it ever was."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def examples(torch: Any, rows: int, seed: int) -> Any:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn((rows, FEATURES), generator=draw)
    return inputs, torch.randint(0, CLASSES, (rows,), generator=draw)


def made_clients(form: str, count: int, train_rows: int = 4, test_rows: int = 2) -> Any:
    """Clients of equal size: a list of objects, or a few arrays."""
    import numpy as np
    import torch

    import evenfed

    x, y = examples(torch, count * train_rows, 0)
    test_x, test_y = examples(torch, count * test_rows, 1)
    if form == "arrays":
        sizes = np.full(count, train_rows)
        return evenfed.Clients((x, y), sizes, (test_x, test_y), np.full(count, test_rows))
    trains = zip(x.split(train_rows), y.split(train_rows), strict=True)
    tests = zip(test_x.split(test_rows), test_y.split(test_rows), strict=True)
    return [evenfed.Client(train, test) for train, test in zip(trains, tests, strict=True)]


class Watch:
    """Notes the time and memory of each round, as a callback."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.resident: list[float] = []
        self.handles: list[int] = []

    def __call__(self, progress: Any = None) -> None:
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())
        self.resident.append(resident_mb())
        self.handles.append(len(os.listdir("/proc/self/fd")))


def median_step(times: list[float]) -> float:
    import numpy as np

    return float(np.median(np.diff(times)))


def population(
    count: int,
    form: str,
    panel: int,
    algorithm: str = "semi_vred",
    guard: str | None = None,
) -> dict[str, Any]:
    """Rounds of a few clients out of many, kept in a folder."""
    import torch

    import evenfed

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = torch.nn.Linear(FEATURES, 16)
    model = torch.nn.Sequential(hidden, torch.nn.ReLU(), torch.nn.Linear(16, CLASSES))
    warm_up = made_clients("list", 10)
    evenfed.train(model, warm_up, rounds=1, device="cpu", progress=False)  # what is imported and compiled once
    began_cpu = time.process_time()
    clients = made_clients(form, count)
    made_cpu = time.process_time() - began_cpu
    options: dict[str, Any] = {"rounds": ROUNDS, "lr": 0.05, "batch_size": 4, "participation": DRAWN}
    if panel:
        options["evaluate_participation"] = panel
    if guard:
        options["guard"] = guard
    watch = Watch()
    before_mb = resident_mb()
    watch()
    with tempfile.TemporaryDirectory() as folder:
        result = evenfed.train(
            model, clients, algorithm, device="cpu", progress=False, callbacks=[watch], out=folder, **options
        )
        watch()
        lines = (result.folder / "rounds.jsonl").read_text().splitlines()
        sizes = {file.name: file.stat().st_size for file in result.folder.iterdir()}
    return {
        "clients": count,
        "form": form,
        "panel": panel,
        "algorithm": algorithm,
        "guard": guard,
        "make_cpu_s": round(made_cpu, 2),
        "setup_cpu_s": round(watch.cpu[1] - watch.cpu[0], 2),
        "round_cpu_s": round(median_step(watch.cpu[1:-1]), 4),
        "end_cpu_s": round(watch.cpu[-1] - watch.cpu[-2], 2),
        "clients_mb": round(before_mb),
        "grown_mb": round(watch.resident[-2] - watch.resident[1], 1),
        "peak_mb": round(peak_mb()),
        "line_bytes": max(map(len, lines)),
        "files": sizes,
    }


def whole_round(engine: str, count: int = 10_000, width: int = 1000, algorithm: str = "fedavg") -> dict[str, Any]:
    """One round in which everyone trains a model of a million parameters; memory above model and data."""
    import torch

    import evenfed

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(width, width, bias=False)
    data = torch.randn(count, width)
    targets = torch.arange(count) % width
    clients = [evenfed.Client((data[k : k + 1], targets[k : k + 1])) for k in range(count)]
    options = {"rounds": 1, "lr": 0.01, "device": "cpu", "progress": False, "engine": engine}
    evenfed.train(torch.nn.Linear(width, 2), clients[:1], algorithm, loss=first_output, **options)
    before = resident_mb()
    watch = Watch()
    watch()
    result = evenfed.train(model, clients, algorithm, **options)
    watch()
    return {
        "engine": result.engine,
        "clients": count,
        "parameters": width * width,
        "cpu_s": round(watch.cpu[1] - watch.cpu[0], 1),
        "wall_s": round(watch.wall[1] - watch.wall[0], 1),
        "above_mb": round(peak_mb() - before),
        "peak_mb": round(peak_mb()),
    }


def first_output(outputs: Any, targets: Any) -> Any:
    return outputs[:, 0].square()


def fold(size: int, guard: str | None, updates: int = 40) -> dict[str, Any]:
    """CPU seconds that a server needs for one update, once it has arrived."""
    import torch

    import evenfed
    from evenfed.core.fold import Fold

    torch.set_num_threads(1)
    algorithm = evenfed.algorithms.get("semi_vred")
    server = evenfed.Server.start(algorithm, torch.zeros(size), [10] * updates, lr=0.1, guard=guard)
    opened = evenfed.open_round(server, torch.linspace(1, 2, updates))
    delta = torch.randn(size)
    folded = Fold(opened)
    began = time.process_time()
    for client in range(updates):
        folded.add(evenfed.Update(client, delta))
    folded.close()
    seconds = time.process_time() - began
    return {"parameters": size, "guard": guard, "cpu_ms": round(1000 * seconds / updates, 2)}


def draw(clients: int, drawn: int, repeats: int = 10) -> dict[str, Any]:
    """CPU seconds of choosing who takes part in a round."""
    import numpy as np

    from evenfed.core import streams

    everyone = np.arange(clients)
    began = time.process_time()
    for index in range(repeats):
        streams.sample(0, index, everyone, drawn)
    seconds = (time.process_time() - began) / repeats
    return {"clients": clients, "drawn": drawn, "cpu_ms": round(1000 * seconds, 2)}


def soak(rounds: int = SOAK_ROUNDS, count: int = 5000, every: int = SOAK_EVERY) -> dict[str, Any]:
    """Many rounds in a folder with frequent checkpoints: what grows?"""
    import torch

    import evenfed

    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ["EVENFED_CHECKPOINT_SECONDS"] = "0.2"
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        evenfed.train(
            torch.nn.Linear(FEATURES, CLASSES),
            made_clients("arrays", count),
            "semi_vred[smooth=0.25]",
            rounds=rounds,
            lr=0.05,
            batch_size=2,
            participation=20,
            evaluate_participation=50,
            evaluate_every=10,
            guard="on",
            device="cpu",
            progress=False,
            callbacks=[watch],
            out=folder,
        )
    points = range(every, rounds + 1, every)
    cpu_ms = [1000 * (watch.cpu[at - 1] - watch.cpu[at - every]) / (every - 1) for at in points]
    return {
        "rounds": rounds,
        "clients": count,
        "every": every,
        "resident_mb": [round(watch.resident[at - 1], 1) for at in points],
        "cpu_ms_per_round": [round(each, 2) for each in cpu_ms],
        "handles": [watch.handles[at - 1] for at in points],
    }


MEASURES = {"population": population, "round": whole_round, "fold": fold, "draw": draw, "soak": soak}


def measured(what: str, source: str | None, *arguments: Any) -> dict[str, Any]:
    """In a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if source is not None:
        environment["PYTHONPATH"] = source
    command = [sys.executable, __file__, "measure", what, json.dumps(arguments)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(figures), flush=True)
    return figures


def origin(source: str | None) -> dict[str, Any]:
    """Of figures that are about to be measured."""
    from evenfed.comparison.storage.provenance import commit_of, provenance

    made = provenance()
    tree = HERE.parent if source is None else Path(source).resolve().parent
    commit = commit_of(tree, except_in=["benchmarks/results", "benchmarks/README.md"])  # of the last measurement
    made["commit"] = commit
    if source is not None:
        made["command"] = made["command"].replace(source, f"<checkout of {commit}>/src")
    return made


def keep(key: str, made: dict[str, Any], figures: Any) -> None:
    """In the file of results, with where they are from."""
    everything = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    everything[key] = {**made, "figures": figures}
    RESULTS.write_text(json.dumps(everything, indent=1) + "\n")


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*MEASURES, "options", "table", "measure"])
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--source", help="the folder that holds another version of the package")
    parser.add_argument("--clients", type=int, nargs="+", default=POPULATIONS)
    options = parser.parse_args()
    if options.command == "measure":
        what, arguments = options.arguments
        print(json.dumps(MEASURES[what](*json.loads(arguments))))
        return
    if options.command == "table":
        scale_page.fill(RESULTS)
        return
    suffix = "" if options.source is None else " before"
    source = options.source
    made = origin(source)
    figures: Any
    if options.command == "population":
        kinds = [("list", 0), ("arrays", 0), ("arrays", PANEL)] if source is None else [("list", 0)]
        figures = []
        for count in options.clients:
            for form, panel in kinds:
                figures.append(measured("population", source, count, form, panel))
    elif options.command == "options":
        figures = []
        for count in (min(POPULATIONS), max(POPULATIONS)):
            for algorithm, guard in OPTIONS:
                figures.append(measured("population", source, count, "arrays", FEW_EVALUATED, algorithm, guard))
    elif options.command == "draw":
        figures = [measured("draw", source, clients, drawn) for clients, drawn in ((10**6, 100), (10**7, 1000))]
    elif options.command == "round":
        figures = [measured("round", source, engine) for engine in ("reference", "parallel")]
    elif options.command == "fold":
        sizes = (1_000_000, 10_000_000)
        figures = [measured("fold", source, size, guard) for size in sizes for guard in (None, "on")]
    else:
        figures = measured("soak", source)
    keep(options.command + suffix, made, figures)
    scale_page.fill(RESULTS)


if __name__ == "__main__":
    main()
