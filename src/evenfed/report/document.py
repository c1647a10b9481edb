"""All that a report says, before it takes a format: of one comparison, or of several side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..comparison.analysis import side_by_side
from ..comparison.analysis.findings import Findings, seeds_named
from ..comparison.analysis.statistics import Differences
from ..comparison.federations import in_words, title
from ..comparison.storage.folder import RunFolder
from ..comparison.storage.header import RunProvenance
from ..comparison.storage.reading import read
from . import averaged, beside_paper, entry_settings, guard_tables, held_out, over_clients, paper, restated, several
from .every_run import each_client, is_of_one_run, runs
from .inequality import groups, inequality
from .page import evidence, verdict
from .paired_tables import against_tables, controls
from .table import Table
from .tables import brief, detailed, overview, suppression

_SELECTED_ON: dict[str | None, str] = {
    "test": "Values were chosen on the TEST data, as in the paper: these accuracies are optimistic.",
    "validation": "Values were chosen on a validation split.",
}


@dataclass(frozen=True)
class Report:
    """Tables, with where they come from."""

    title: str
    facts: Sequence[str]  # what was run, and what had to be left out
    tables: Sequence[Table]
    about: Mapping[str, Any]  # the same for programs
    findings: Sequence[Findings]
    pooled: Differences | None  # in the last rounds, over all comparisons; None if more than the split differs
    papers: paper.Numbers | None = None  # its numbers on the same data, if asked for

    @classmethod
    def of(
        cls,
        folders: Sequence[Path],
        beside_paper: bool,
        min_test: int = 0,
        last_rounds: int | None = None,
    ) -> "Report":
        """From folders of comparisons, packed or not.

        Clients judged on fewer than `min_test` examples are left out. `last_rounds` is the number of rounds that late
        figures are averaged over, if not the runs' own.
        """
        comparisons = [read(folder) for folder in folders]
        return cls.of_findings(comparisons, beside_paper, min_test, last_rounds)

    @classmethod
    def of_findings(
        cls,
        findings: Sequence[Findings],
        beside_paper: bool,
        min_test: int = 0,
        last_rounds: int | None = None,
    ) -> "Report":
        """The same from what was read already."""
        comparisons = []
        for each in findings:
            judged = each.with_min_test(min_test)
            comparisons.append(judged.with_last_rounds(last_rounds))
        numbers = None
        if beside_paper:
            data_set = paper.data_set_of(comparisons[0])
            numbers = paper.numbers(data_set)
        if len(comparisons) > 1:
            return cls._of_several(comparisons, numbers)
        (alone,) = comparisons
        late = Differences(comparisons, late=True)
        name = alone.folder.resolve().name
        if RunFolder(alone.folder).header_path.exists():  # it is one run's own
            name = f"{alone.baseline.label}, {seeds_named(alone.seeds)}"
        return cls(
            title=name,
            facts=_facts(alone, alone.made),
            tables=_tables(late, beside_paper),
            about=_about(alone),
            findings=comparisons,
            pooled=late,
            papers=numbers,
        )

    @property
    def headlines(self) -> list[str]:
        """The verdict in a sentence or two; one for each set-up."""
        bases = evidence.bases(self.findings, self.pooled)
        return [judged.sentence for judged in verdict.each(bases)]

    def in_brief(self, all_by: str = "--full") -> "Report":
        """With one table: the entries at a glance, or the first of several comparisons' tables.

        `all_by`: the option that shows all.
        """
        if len(self.findings) > 1:
            return replace(self, tables=self.tables[:1])
        (findings,) = self.findings
        tables = [brief(findings, all_by)]
        if is_of_one_run(findings):
            tables.insert(0, each_client(findings))
        return replace(self, tables=tables)

    @classmethod
    def _of_several(
        cls,
        comparisons: Sequence[Findings],
        numbers: paper.Numbers | None,
    ) -> "Report":
        side_by_side.check(comparisons)
        shared = side_by_side.in_common(comparisons)
        left_out = side_by_side.not_in_common(comparisons, shared[0])
        late = Differences(shared, late=True)
        last = Differences(shared, late=False)
        tables = several.tables(late, numbers, left_out)
        tables += several.tables(last, numbers, left_out)
        tables += guard_tables.tables(comparisons)
        is_one_setup = side_by_side.differ_in_split_only(comparisons)
        if is_one_setup:
            tables += entry_settings.tables(shared[0])
        return cls(
            title=title([findings.folder for findings in comparisons]),
            facts=_facts_of_several(comparisons),
            tables=tables,
            about={"comparisons": list(map(_about, comparisons))},
            findings=comparisons,
            pooled=late if is_one_setup else None,
            papers=numbers,
        )


def _tables(late: Differences, beside_the_paper: bool) -> list[Table]:
    """Averages of the last rounds first, then the last round."""
    findings = late.findings
    last = Differences([findings], late=False)
    averages = not findings.is_of_one_round
    tables = [overview(findings, late=averages)]
    if is_of_one_run(findings):
        tables.append(each_client(findings))
    if averages:
        tables += _tables_at(late)
    tables += _tables_at(last)
    tables.append(inequality(findings, late=averages))
    tables += over_clients.tables(findings, averages)
    tables += groups(findings, averages)
    tables += averaged.tables(findings)
    tables += held_out.tables(findings)
    tables += guard_tables.tables([findings])
    if beside_the_paper:
        data_set = paper.data_set_of(findings)
        tables += beside_paper.tables(findings, data_set, last, late)
    tables += entry_settings.tables(findings)
    tables.append(runs(findings))
    return tables


def _tables_at(differences: Differences) -> list[Table]:
    findings = differences.findings
    late = differences.late
    tables = [detailed(findings, late)]
    tables += restated.beside_measured(findings, late)
    tables += restated.unpadded_figures(findings, late)
    if len(findings.everyone) > 1:  # there is more than FedAvg
        tables.append(suppression(findings, late))
        tables += against_tables(differences)
        if late:
            tables += restated.expected_differences([findings], late)
            tables += restated.unpadded_differences(findings, late)
    if findings.controls:
        tables.append(controls(differences))
    return tables


def _facts(findings: Findings, made: Sequence[RunProvenance]) -> list[str]:
    """What was run, on what and when; what it was judged on; what is missing.

    `made`: how all runs of the report were made, be they of other federations.
    """
    if findings.origin:
        return [*findings.origin.facts, *findings.left_out]
    header = findings.header
    data = header.data["name"]
    clients = len(header.clients["names"])
    machine = header.provenance.get("hardware", {})
    hardware = machine.get("cpu", "unknown hardware")
    if "cuda" in str(header.device):
        hardware = f"{findings.baseline.precision} on {machine.get('gpu')}"
    seeds = seeds_named(findings.seeds)
    rounds = f"{findings.rounds} rounds"
    if findings.is_so_far:
        rounds = f"{findings.reached} of {findings.rounds} rounds so far"
    models = _averaged_everywhere(findings)
    made_with = _made(made)
    facts = [f"{data}: {clients} clients, {rounds}, {seeds}{models}; {hardware}; {made_with}."]
    if findings.judge == "validation":
        facts.append("Judged on a validation split of the training data; the test data were not used.")
    if header.selected_on in _SELECTED_ON:
        facts.append(_SELECTED_ON[header.selected_on])
    facts += findings.left_out
    facts += findings.broken
    facts += findings.stopped
    facts += guard_tables.facts(findings)
    return facts


def _averaged_everywhere(findings: Findings) -> str:
    """Whose figures are shown, where every entry deploys the average of its models."""
    decays = set()
    for entry in findings.everyone:
        if entry.average is None:
            return ""
        decays.add(entry.average)
    ascending = sorted(decays)
    listed = ", ".join(map(str, ascending))
    return f", figures of averaged models (average={listed})"


def _facts_of_several(comparisons: Sequence[Findings]) -> list[str]:
    """Every fact once, after the names of the folders it holds for; without names if it holds for all."""
    runs: list[RunProvenance] = []
    for findings in comparisons:
        runs += findings.made
    runs.sort(key=lambda run: run.started)
    folders_of: dict[str, list[Path]] = {}
    for findings in comparisons:
        for fact in _facts(findings, runs):
            folders_of.setdefault(fact, []).append(findings.folder)
    facts = []
    for fact, folders in folders_of.items():
        if len(folders) == len(comparisons):
            facts.append(fact)
        else:
            facts.append(f"{in_words(folders)}: {fact}")
    return facts


def _made(runs: Sequence[RunProvenance]) -> str:
    commits_of: dict[str, dict[str, None]] = {}  # by version, in order
    days = []
    for run in runs:
        commit = run.commit or "unknown"
        short_commit = commit[:7]
        commits_of.setdefault(run.version, {})[short_commit] = None
        day = run.started[:10]
        days.append(day)
    parts = []
    for version, commits in commits_of.items():
        word = "commit" if len(commits) == 1 else "commits"
        parts.append(f"evenfed {version}, {word} {', '.join(commits)}")
    first = min(days)
    last = max(days)
    if first == last:
        parts.append(first)
    else:
        parts.append(f"{first} to {last}")
    return "; ".join(parts)


def _about(findings: Findings) -> dict[str, Any]:
    return {
        "folder": str(findings.folder),
        "data": findings.header.data,
        "rounds": findings.rounds,
        "last_rounds": findings.last_rounds,
        "seeds": findings.seeds,
        "min_test": findings.min_test,
        "left_out": findings.left_out,
        "broken": findings.broken,
        "stopped": findings.stopped,
    }
