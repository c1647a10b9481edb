"""All that a report says, before it takes a format."""

from dataclasses import dataclass, replace
from pathlib import Path

from . import paper
from .findings import Findings, read
from .statistics import Pairs
from .tables import Table, detailed, paired, suppression


@dataclass(frozen=True)
class Report:
    """Tables of one comparison, with where they come from."""

    findings: Findings
    tables: tuple[Table, ...]
    papers: paper.Numbers | None = None  # its numbers on the same data, where asked for

    @classmethod
    def of(cls, folder: Path, beside_paper: bool) -> "Report":
        """From a comparison's folder: averages of the last rounds first, then the last round."""
        findings = read(folder)
        data_set = paper.data_set_of(findings) if beside_paper else None
        late, last = Pairs(findings, late=True), Pairs(findings, late=False)
        tables = [table for pairs in (late, last) for table in _tables(findings, pairs)]
        if data_set is None:
            return cls(findings, tuple(tables))
        return cls(findings, (*tables, *paper.tables(findings, data_set, last, late)), paper.numbers(data_set))

    @property
    def facts(self) -> list[str]:
        """What was run, in a line, and what had to be left out."""
        found, header = self.findings, self.findings.header
        clients, seeds = len(header["clients"]["names"]), ", ".join(map(str, found.seeds))
        run = f"{header['config']['data']['name']}: {clients} clients, {found.rounds} rounds, seeds {seeds}"
        made = f"evenfed {header['versions']['evenfed']}, commit {header['commit'] or 'unknown'}"
        chosen = header.get("selected_on")
        on_test = ["Values were chosen on the TEST data, as in the paper: these accuracies are optimistic."]
        return [f"{run}; {made}, {header['started']}.", *(on_test if chosen == "test" else []), *found.left_out]


def _tables(findings: Findings, pairs: Pairs) -> list[Table]:
    found = [detailed(findings, pairs.late)]
    if plain := findings.unpadded:
        table = detailed(plain, pairs.late)
        found.append(replace(table, name=f"unpadded-{table.name}", title=f"{table.title}, without padding positions"))
    if len(findings.everyone) == 1:  # nothing stands beside FedAvg
        return found
    return [*found, suppression(findings, pairs.late), paired(findings, pairs)]
