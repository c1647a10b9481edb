"""All that a report says, before it takes a format: of one comparison, or of several beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..comparison.findings import Findings, seeds_named
from ..comparison.header import Made
from ..comparison.reading import read
from ..comparison.statistics import Pairs
from . import paper, several
from .against import controls, differences
from .tables import Table, detailed, overview, runs, suppression


@dataclass(frozen=True)
class Report:
    """Tables, with where they come from."""

    title: str
    facts: tuple[str, ...]  # what was run, and what had to be left out
    tables: tuple[Table, ...]
    about: Mapping[str, Any]  # the same for programs
    findings: tuple[Findings, ...]
    papers: paper.Numbers | None = None  # its numbers on the same data, where asked for

    @classmethod
    def of(cls, folders: Sequence[Path], beside_paper: bool, min_test: int = 0) -> "Report":
        """From folders of comparisons, packed or not; clients judged on fewer than `min_test` examples left out."""
        found = tuple(read(folder).with_min_test(min_test) for folder in folders)
        papers = paper.numbers(paper.data_set_of(found[0])) if beside_paper else None
        tables = _tables(found[0], beside_paper) if len(found) == 1 else several.tables(found, papers)
        title = ", ".join(f.folder.resolve().name for f in found)
        about = [_about(f) for f in found]
        told = dict(about[0]) if len(found) == 1 else {"comparisons": about}
        facts = tuple(f"{f.folder.name}, {x}" if len(found) > 1 else x for f in found for x in _facts(f))
        return cls(title, facts, tuple(tables), told, found, papers)


def _tables(findings: Findings, beside_paper: bool) -> list[Table]:
    """Averages of the last rounds first, then the last round."""
    late, last = Pairs(findings, late=True), Pairs(findings, late=False)
    tables = [overview(findings, late=True), *(table for pairs in (late, last) for table in _at(findings, pairs))]
    if beside_paper:
        tables += paper.tables(findings, paper.data_set_of(findings), last, late)
    return [*tables, runs(findings)]


def _at(findings: Findings, pairs: Pairs) -> list[Table]:
    found = [detailed(findings, pairs.late)]
    if plain := findings.unpadded:
        table = detailed(plain, pairs.late)
        found.append(replace(table, name=f"unpadded-{table.name}", title=f"{table.title}, without padding positions"))
    if len(findings.everyone) > 1:  # something stands beside FedAvg
        found.append(suppression(findings, pairs.late))
        found += differences([pairs])
    return [*found, controls([pairs])] if findings.controls else found


def _facts(found: Findings) -> list[str]:
    header, config = found.header, found.header["config"]
    clients = len(header["clients"]["names"])
    run = f"{config['data']['name']}: {clients} clients, {found.rounds} rounds, {seeds_named(found.seeds)}"
    on_gpu = "cuda" in str(header.get("device"))
    how = f"{found.baseline.precision} on {header['hardware']['gpu']}" if on_gpu else header["hardware"]["cpu"]
    told = [f"{run}; {how}; {_made(found.made)}."]
    if found.judge == "validation":
        told.append("Judged on a validation split of the training data; the test data were not looked at.")
    chosen = header.get("selected_on")
    if chosen == "test":
        told.append("Values were chosen on the TEST data, as in the paper: these accuracies are optimistic.")
    elif chosen == "validation":
        told.append("Values were chosen on a validation split.")
    return [*told, *found.left_out, *found.broken]


def _made(runs: Sequence[Made]) -> str:
    """Every source the runs were made from, and the days."""
    sources = dict.fromkeys(f"evenfed {m.version}, commit {(m.commit or 'unknown')[:7]}" for m in runs)
    days = sorted({m.started[:10] for m in runs})
    return f"{'; '.join(sources)}; {days[0] if len(days) == 1 else f'{days[0]} to {days[-1]}'}"


def _about(found: Findings) -> dict[str, Any]:
    return {
        "folder": str(found.folder),
        "data": found.header["config"]["data"],
        "rounds": found.rounds,
        "average_over_rounds": found.last_rounds,
        "seeds": found.seeds,
        "min_test": found.min_test,
        "left_out": found.left_out,
        "broken": found.broken,
    }
