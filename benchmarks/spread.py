"""What several workers gain and cost: one comparison by one process on one core, and by two workers on two.

    python benchmarks/spread.py             # a minute on two idle cores

Eight runs of a model that a CPU trains one client at a time. Processor seconds tell the price of a second worker (it
loads torch and the data again), wall seconds what is gained, if nobody else uses the cores: the load average, written
beside them, tells.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "spread.json"
ROUNDS = 30
SET = ("data.clients=20", "data.concentration=1.0", "model.hidden=[600,300]")


def command(workers: int, out: Path) -> list[str]:
    """The comparison, without tables and figures."""
    words = [sys.executable, "-m", "evenfed", "compare", "--algorithms", "fedavg,semi_vred,term", "--seeds", "2"]
    words += ["--rounds", str(ROUNDS), "--device", "cpu", "--format", "json", "--quiet", "--out", str(out)]
    for assignment in SET:
        words += ["--set", assignment]
    return [*words, "--workers", str(workers)]


def measure(workers: int, out: Path) -> dict[str, Any]:
    """So many workers with a core each."""
    cores = sorted(os.sched_getaffinity(0))[:workers]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(
        command(workers, out),
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_seconds": round(wall, 1), "processor_seconds": round(processor, 1)}


def main() -> None:
    """Measure both, compare the models' bits, and keep the figures."""
    from evenfed.comparison.storage.provenance import provenance

    with tempfile.TemporaryDirectory() as name:
        one = Path(name) / "one"
        two = Path(name) / "two"
        figures: dict[str, Any] = {"1": measure(1, one), "2": measure(2, two)}
        models = sorted(path.relative_to(one) for path in one.rglob("model.safetensors"))
        figures["runs"] = len(models)
        figures["same_bits"] = all((one / model).read_bytes() == (two / model).read_bytes() for model in models)
    figures["wall_ratio"] = round(figures["1"]["wall_seconds"] / figures["2"]["wall_seconds"], 2)
    figures["load_average"] = round(os.getloadavg()[1], 1)
    RESULTS.write_text(json.dumps({**figures, "provenance": provenance()}, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
