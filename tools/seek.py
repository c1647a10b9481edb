"""Seek bad input that is neither answered rightly nor refused in words: the properties of tests/properties, many times.

    python tools/seek.py --cases 10000                  # an hour or so; stopped, the same command goes on
    python tools/seek.py --cases 2000 --only loaders    # properties whose name contains this
    python tools/seek.py --again                        # all properties once more

Each property runs in a process of its own with a bound on its memory, so a crash, a hang or a greedy allocation is a
find like any other. Figures and finds are kept in benchmarks/results/seek.json. Exits with 1 if there was a find.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenfed.comparison.storage.provenance import provenance

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "seek.json"
PROPERTIES = "tests/properties"
FINDS = "test_finds"  # no property: what was found before
MEMORY = 16 << 30  # bytes of addresses; torch alone takes 3
PATIENCE = 900  # seconds for one property


def names() -> list[str]:
    """All properties, as pytest calls them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", PROPERTIES]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if "::" in line and FINDS not in line]


def bound() -> None:
    """In the new process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def tried(name: str, cases: int, seed: int) -> dict[str, Any]:
    """One property: how many cases it was tried with, and what was found."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        environment = {**os.environ, "EVENFED_CASES": str(cases), "EVENFED_COUNTS": str(counts)}
        command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", "no:cacheprovider"]
        command += [f"--hypothesis-seed={seed}", "--tb=short", "-s", name]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                preexec_fn=bound,
                check=False,
            )
            code, said = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            code, said = -1, f"not over after {PATIENCE} s\n{late.stdout or ''}"
        outcome = json.loads(counts.read_text()) if counts.exists() else {"cases": 0, "finds": {}}
    if code != 0:
        outcome["finds"][f"exit code {code}"] = 1
    if outcome["finds"]:
        print(said)
    return {**outcome, "seconds": round(time.monotonic() - began)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="in all")
    parser.add_argument("--only", default="", help="properties whose name contains this")
    parser.add_argument("--again", action="store_true", help="also those that have been tried")
    parser.add_argument("--seed", type=int, default=1, help="of the cases")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a JSON file that keeps the figures")
    options = parser.parse_args(arguments)
    everything = names()
    each = -(-options.cases // len(everything))
    kept = json.loads(options.results.read_text()) if options.results.exists() else {"properties": {}}
    found = 0
    for name in everything:
        done = kept["properties"].get(name, {})
        is_done = done.get("cases", 0) >= each and not done.get("finds")
        if options.only not in name or (is_done and not options.again):
            continue
        outcome = tried(name, each, options.seed)
        kept["properties"][name] = outcome
        found += len(outcome["finds"])
        print(f"{name}: {outcome['cases']} cases, {len(outcome['finds'])} finds, {outcome['seconds']} s", flush=True)
        total = sum(each_of["cases"] for each_of in kept["properties"].values())
        kept |= {"cases": total, **provenance()}
        options.results.write_text(json.dumps(kept, indent=1) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
