"""The figures of `scale.py` as the tables of README.md."""

import json
from pathlib import Path
from typing import Any

import page


def fill(figures: Path) -> None:
    """The tables of README.md, from the file of results."""
    results = json.loads(figures.read_text())
    if "population" in results:
        page.put("population", population_table(results))
    if "round" in results:
        page.put("whole round", round_table(results))
    if "soak" in results:
        page.put("soak", soak_table(results["soak"]["figures"]))
    if "options" in results:
        page.put("options", options_table(results["options"]["figures"]))


def population_table(results: dict[str, Any]) -> str:
    head = ["clients", "", "evaluated", "make", "set up", "a round", "peak MB", "line kB", "header kB"]
    rows = [head, ["---"] * len(head)]
    for key in ("population before", "population"):
        for figures in results.get(key, {"figures": []})["figures"]:
            when = "before" if key.endswith("before") else f"now, {figures['form']}"
            rows.append(
                [
                    f"{figures['clients']:,}",
                    when,
                    f"{figures['panel']:,}" if figures["panel"] else "everyone",
                    f"{figures['make_cpu_s']:.1f} s",
                    f"{figures['setup_cpu_s']:.1f} s",
                    f"{1000 * figures['round_cpu_s']:.0f} ms",
                    f"{figures['peak_mb']:,}",
                    f"{figures['line_bytes'] / 1000:,.0f}",
                    f"{figures['files']['header.json'] / 1000:,.0f}",
                ]
            )
    return _rows(rows)


def options_table(figures: list[dict[str, Any]]) -> str:
    counts = sorted({each["clients"] for each in figures})
    rows = [["a round of", *(f"{count:,} clients" for count in counts), "ns per client"]]
    rows.append(["---"] * len(rows[0]))
    by_option: dict[str, dict[int, float]] = {}
    for each in figures:
        name = each["algorithm"] + (", guard" if each["guard"] else "")
        by_option.setdefault(name, {})[each["clients"]] = each["round_cpu_s"]
    for name, seconds in by_option.items():
        fewest, *_, most = counts
        slope = (seconds[most] - seconds[fewest]) / (most - fewest)
        cells = [f"{1000 * seconds[count]:.0f} ms" for count in counts]
        rows.append([name, *cells, f"{1e9 * slope:.0f}"])
    return _rows(rows)


def round_table(results: dict[str, Any]) -> str:
    rows = [["engine", "clients", "", "CPU seconds", "MB above model and data"], ["---"] * 5]
    for key, when in (("round before", "before"), ("round", "now")):
        for figures in results.get(key, {"figures": []})["figures"]:
            engine, _, _ = figures["engine"].partition(" (")
            count = f"{figures['clients']:,}"
            rows.append([engine, count, when, f"{figures['cpu_s']:.1f}", f"{figures['above_mb']:,}"])
    return _rows(rows)


def soak_table(figures: dict[str, Any]) -> str:
    every = figures["every"]
    rows = [["after rounds", "resident MB", "CPU ms per round", "open handles"], ["---"] * 4]
    last = len(figures["resident_mb"])
    for at in sorted({1, 2, 5, last // 2, last}):
        place = at - 1
        rows.append(
            [
                f"{at * every:,}",
                f"{figures['resident_mb'][place]:.0f}",
                f"{figures['cpu_ms_per_round'][place]:.1f}",
                str(figures["handles"][place]),
            ]
        )
    return _rows(rows)


def _rows(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
