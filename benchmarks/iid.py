"""pfl's CIFAR-10 IID benchmark: evenfed and its peers on one machine in one run, as ratios.

python benchmarks/iid.py                                    reduced size on a CPU, every peer
python benchmarks/iid.py --device cuda --data cifar10.npz   the whole task; peers run fewer rounds

Without --data, images are noise around one pattern per class, of CIFAR-10's shape: good for speed, not for accuracy.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import environments
import page
from evenfed.comparison.storage.provenance import provenance

HERE = Path(__file__).parent
SCRIPTS = HERE / "iid_cifar10"
PEERS = ("pfl", "fedjax", "flower", "blazefl")
SMALL = {"users": 100, "cohort": 10, "test-images": 500}


@dataclass(frozen=True)
class System:
    """A system, how many rounds it runs, and how many of them come before the clock starts."""

    name: str
    rounds: int
    warmup: int
    precision: str = "fp32"


ON_CPU = [
    System("evenfed", 12, 2),
    System("naive", 12, 2),
    System("pfl", 12, 2),
    System("fedjax", 12, 2),
    System("flower", 12, 2),
    System("blazefl", 12, 2),
]
ON_GPU = [
    System("evenfed", 1500, 0, "tf32"),
    System("evenfed", 1500, 0, "bf16"),
    System("pfl", 110, 10),
    System("naive", 60, 10),
]


def stand_in(path: Path, images: int) -> None:
    """Made-up images of CIFAR-10's shape."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 10, images)
    patterns = draw.normal(size=(10, 3, 32, 32))
    pixels = 128 + 30 * patterns[labels] + draw.normal(0, 30, (images, 3, 32, 32))
    np.savez(path, images=pixels.clip(0, 255).astype(np.uint8), labels=labels)


def run(system: System, data: Path, device: str, size: dict[str, int]) -> dict[str, Any]:
    """The line a system reports, or why there is none."""
    python = environments.python_of(system.name) if system.name in PEERS else Path(sys.executable)
    if isinstance(python, str):
        return {"system": system.name, "missing": python}
    command = [str(python), str(SCRIPTS / f"{system.name}_run.py"), "--data", str(data), "--device", device]
    command += ["--rounds", str(system.rounds), "--warmup", str(system.warmup), "--precision", system.precision]
    for name, value in size.items():
        command += [f"--{name}", str(value)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    lines = [line for line in finished.stdout.splitlines() if line.startswith("{")]
    if not lines:
        errors = finished.stderr.strip().splitlines() or ["no output"]
        return {"system": system.name, "missing": f"could not be run: {errors[-1]}"}
    reported: dict[str, Any] = json.loads(lines[-1])
    return reported


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown; the first row is what the others are compared with."""
    lines = ["| system | products in | rounds | seconds | rounds/s | evenfed is | test accuracy, last |"]
    lines.append("|---|---|---|---|---|---|---|")
    rate = rows[0]["rounds_per_second"]
    for row in rows:
        if "missing" in row:
            lines.append(f"| {row['system']} | {row['missing']} | | | | | |")
            continue
        task = row["task"]
        system, _, engine = row["system"].partition(", ")
        if system != "evenfed":
            system = f"{system} {row['version']}"
        if "cache" in engine:
            system += ", once more: compiled code in the cache"
        timed = task["rounds"] - task["warmup"]
        ratio = rate / row["rounds_per_second"]
        last = list(row["accuracy"].items())[-1:]
        accuracy = ""
        for done, value in last:
            accuracy = f"{100 * value:.1f} % after {done}"
        lines.append(
            f"| {system} | {task['precision']} | {timed} | {row['seconds']:.1f} | {row['rounds_per_second']:.2f} | "
            f"{ratio:.1f}x | {accuracy} |"
        )
    return "\n".join(lines)


def put_tables() -> None:
    """The tables of the committed results into README.md."""
    for device in ("cuda", "cpu"):
        path = HERE / "results" / f"iid-{device}.json"
        if path.exists():
            stored = json.loads(path.read_text())
            page.put(f"iid {device}", table(stored["rows"]))


def main() -> None:
    """Run, print, and keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--data", type=Path, help=".npz with images [N, 3, 32, 32] and labels [N]")
    parser.add_argument("--systems", nargs="*", help="only these")
    parser.add_argument("--out", type=Path, help="where the JSON goes; results/iid-<device>.json by default")
    given = parser.parse_args()
    systems = ON_GPU if given.device == "cuda" else ON_CPU
    size = {} if given.device == "cuda" else SMALL
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = given.data
        if data is None:
            data = Path(folder) / "stand-in.npz"
            images = 60_000 if given.device == "cuda" else 50 * SMALL["users"] + SMALL["test-images"]
            stand_in(data, images)
        for system in systems:
            if given.systems and system.name not in given.systems:
                continue
            row = run(system, data, given.device, size)
            rows.append(row)
            shown = row.get("missing") or f"{row['rounds_per_second']} rounds/s"
            print(f"{row['system'][:60]:60} {shown}", flush=True)
    out = given.out or HERE / "results" / f"iid-{given.device}.json"
    if not given.systems:
        written = json.dumps({"provenance": provenance(), "rows": rows}, indent=1)
        out.write_text(written + "\n")
        put_tables()


if __name__ == "__main__":
    main()
