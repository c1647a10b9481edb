"""All CPU benchmarks in one run, as ratios: against peers, engine against engine, one comparison against its runs.

make bench                        everything; peers get environments of their own under .venvs
python benchmarks/run.py --no-peers
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import environments
import evenfed
import page
from evenfed import models
from evenfed.comparison.storage.provenance import provenance
from evenfed.data import DataSettings, federate

HERE = Path(__file__).parent
RESULT = HERE / "results" / "cpu.json"
PAPER = ["fedavg", "qffl", "afl", "gifair", "term", "propfair", "delta_fl", "vred", "semi_vred"]


def peer(name: str, script: str, *arguments: str, repeats: int = 3) -> dict[str, Any]:
    """Median rounds/s of a peer over processes of its own, or why there is none."""
    python = Path(sys.executable) if name.startswith("evenfed") else environments.python_of(name)
    if isinstance(python, str):
        return {"peer": name, "missing": python}
    found = []
    for _ in range(repeats):
        command = [str(python), str(HERE / "peers" / script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            told = [line for line in done.stderr.splitlines() if "Error" in line] or ["no output"]
            return {"peer": name, "missing": f"could not be run: {told[-1].strip()}"}
        found.append(json.loads(lines[-1]))
    rates = [f["rounds_per_second"] for f in found]
    return {**found[-1], "peer": name, "rounds_per_second": statistics.median(rates), "all": rates}


def peers() -> list[dict[str, Any]]:
    """The shared workload in every system, slowest last."""
    return [
        peer("evenfed parallel", "evenfed_sim.py"),
        peer("evenfed reference", "evenfed_sim.py", "--engine", "reference", "--rounds", "30", "--warmup", "3"),
        peer("fedjax", "fedjax_sim.py"),
        peer("pfl", "pfl_sim.py"),
        peer("flower", "flower_sim.py", repeats=2),
    ]


def _federation(kind: str, clients: int) -> tuple[torch.nn.Module, list[evenfed.Client], int]:
    """Model, clients and batch size of one workload of the engines."""
    draw = torch.Generator().manual_seed(0)

    def labels(classes: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, classes, shape, generator=draw)

    sizes = [int(s) for s in torch.randint(16, 65, (clients,), generator=draw)]
    if kind.startswith("mlp"):
        width = int(kind.removeprefix("mlp-"))
        return (
            models.mlp(width, 10, (width,)),
            [evenfed.Client((torch.randn(n, width, generator=draw), labels(10, n))) for n in sizes],
            16,
        )
    if kind.startswith("cnn"):
        side = int(kind.removeprefix("cnn-"))
        return (
            models.cnn(3, 10, 8 if side < 32 else 16),
            [evenfed.Client((torch.randn(n, 3, side, side, generator=draw), labels(10, n))) for n in sizes],
            16,
        )
    hidden = int(kind.removeprefix("lstm-"))
    return (
        models.NextToken(80, 8, hidden),
        [evenfed.Client((labels(80, n, 20), labels(80, n, 20))) for n in sizes],
        16,
    )


WORKLOADS = ["mlp-32", "mlp-128", "mlp-512", "cnn-8", "cnn-32", "lstm-32", "lstm-128"]


def engines() -> list[dict[str, Any]]:
    """Parallel against reference on models of every kind, few and many clients: least of interleaved rounds."""
    rows = []
    for kind in WORKLOADS:
        for clients in (4, 50):
            model, federation, batch = _federation(kind, clients)
            times: dict[str, list[float]] = {"reference": [], "parallel": []}
            how = ""
            for _ in range(4):
                for engine, found in times.items():
                    result = evenfed.train(
                        model, federation, "fedavg", rounds=6, lr=0.01, batch_size=batch, engine=engine, device="cpu"
                    )
                    found += [r.seconds for r in result.records[1:]]
                how = result.engine
            reference, parallel = (1e3 * min(found) for found in times.values())  # the machine's own noise only adds
            figures = {"reference_ms": reference, "parallel_ms": parallel, "ratio": reference / parallel}
            rows.append({"workload": kind, "clients": clients, **figures, "how": how})
            print(f"{kind:9} {clients:3} clients  {rows[-1]['ratio']:6.2f}x  {how}", flush=True)
    return rows


def comparison(rounds: int = 50) -> dict[str, Any]:
    """Nine algorithms x three seeds together, against the same 27 runs one after another on the same engine."""
    clients = federate(DataSettings(clients=50, concentration=0.5)).clients()
    options: dict[str, Any] = {"rounds": rounds, "lr": 0.1, "batch_size": 7, "device": "cpu"}

    def make() -> torch.nn.Module:
        return models.mlp(64, 10, (32,))

    began = time.perf_counter()
    evenfed.compare(make, clients, PAPER, seeds=3, noise_floor=False, **options)
    together = time.perf_counter() - began
    model, began = make(), time.perf_counter()
    for name in PAPER:
        for seed in range(3):
            evenfed.train(model, clients, name, seed=seed, **options)
    alone = time.perf_counter() - began
    return {"runs": 27, "rounds": rounds, "together_s": together, "one_by_one_s": alone, "factor": alone / together}


def table(found: dict[str, Any]) -> str:
    """The Markdown that benchmarks/README.md and the README show."""
    parts, fast = [], found["peers"][0] if found.get("peers") else None
    if fast:
        parts += ["| system | rounds/s | evenfed parallel is |", "|---|---|---|"]
        for row in found["peers"]:
            if "missing" in row:
                parts.append(f"| {row['peer']} | {row['missing']} | |")
                continue
            ratio = fast["rounds_per_second"] / row["rounds_per_second"]
            version = "" if row["peer"].startswith("evenfed") else f" {row['version']}"
            parts.append(f"| {row['peer']}{version} | {row['rounds_per_second']:.1f} | {ratio:.1f}x |")
        parts.append("")
    parts += [
        "| workload | clients | reference, ms per round | parallel, ms per round | parallel is | how |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["engines"]:
        how = row["how"].removeprefix("parallel: ").split(" (")[0]
        figures = f"{row['reference_ms']:.1f} | {row['parallel_ms']:.1f} | {row['ratio']:.2f}x"
        parts.append(f"| {row['workload']} | {row['clients']} | {figures} | {how} |")
    c = found["comparison"]
    parts += [
        "",
        f"27 runs of {c['rounds']} rounds: {c['together_s']:.1f} s together, {c['one_by_one_s']:.1f} s one by one: "
        f"**{c['factor']:.1f}x**.",
    ]
    return "\n".join(parts)


def main() -> None:
    """Run, print, and keep the JSON and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peers", action="store_true", help="only evenfed against itself; writes nothing")
    given = parser.parse_args()
    found: dict[str, Any] = {"provenance": provenance(), "engines": engines(), "comparison": comparison()}
    if not given.no_peers:
        found["peers"] = peers()
    print(table(found))
    if given.no_peers:
        return
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    page.put("cpu", table(found))


if __name__ == "__main__":
    main()
