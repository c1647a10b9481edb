"""Peak memory of a federation whose data are ten times what is held: in memory, mapped, and loaded when drawn.

    python benchmarks/lazy_memory.py             # 2 GB in a temporary folder, two minutes, at most 6 GB of memory

Each figure is a process of its own: one round of FedAvg over 100 clients of 20 MB each with a linear model.
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

import numpy as np

RESULTS = Path(__file__).parent / "results" / "lazy_memory.json"
CLIENTS, ROWS, WIDTH = 100, 5000, 1000
HELD_MB = 200
FORMS = ("nothing", "mapped", "function", "memory")


def measure(form: str, folder: Path) -> dict[str, Any]:
    """One round in this process."""
    import torch

    import evenfed

    targets = np.arange(ROWS) % 2

    def client(k: int) -> evenfed.Client:
        file = folder / f"{k}.npy"
        if form == "mapped":
            return evenfed.Client((np.load(file, mmap_mode="r"), targets))
        if form == "function":
            return evenfed.Client(lambda: (np.load(file), targets), size=ROWS)
        rows = 2 if form == "nothing" else ROWS
        return evenfed.Client((np.load(file)[:rows].copy(), targets[:rows]))

    clients = [client(k) for k in range(CLIENTS)]
    began = time.perf_counter()
    result = evenfed.train(torch.nn.Linear(WIDTH, 2), clients, "fedavg", rounds=1, lr=0.01, batch_size=500)
    seconds = time.perf_counter() - began
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_mb": round(peak_kb / 1e3), "seconds": round(seconds, 1), "engine": result.engine}


def main() -> None:
    """Write the data, measure each form in a process of its own, and keep the figures."""
    from evenfed.comparison.storage.provenance import provenance

    figures = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for k in range(CLIENTS):
            draw = np.random.default_rng(k)
            np.save(folder / f"{k}.npy", draw.standard_normal((ROWS, WIDTH), np.float32))
        environment = {**os.environ, "EVENFED_HELD_MB": str(HELD_MB)}
        for form in FORMS:
            command = [sys.executable, __file__, form, name]
            done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            figures[form] = json.loads(done.stdout)
            print(form, figures[form])
    data_mb = CLIENTS * ROWS * WIDTH * 4 / 1e6
    report = {"data_mb": data_mb, "held_mb": HELD_MB, **provenance(), "forms": figures}
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
    else:
        main()
