"""`evenfed report` on a small real comparison: the same numbers in every format, the paper beside, bad input."""

import errno
import io
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from evenfed.comparison.analysis.statistics import Differences
from evenfed.comparison.storage.reading import read
from evenfed.fairness import Fairness, Suppression
from evenfed.report.charts import bars
from evenfed.report.document import Report
from evenfed.report.paper import claims, numbers
from evenfed.report.table import Cell, Column, Line, Table
from evenfed.report.tables import brief, overview, summary
from evenfed.report.terminal import pages
from reports import FLOOR, figures_in

LABELS = ["fedavg", "vred", "semi_vred"]


def accuracies(folder: Path, label: str) -> list[np.ndarray]:
    """[rounds, clients] of every seed, in %, read by hand."""
    paths = sorted((folder / label).glob("seed-*"), key=lambda p: int(p.name[5:]))
    files = [[json.loads(line) for line in (p / "rounds.jsonl").read_text().splitlines()] for p in paths]
    return [100 * np.array([line["accuracy"] for line in lines], dtype=float) for lines in files]


def detailed_by_hand(folder: Path, label: str, metric: str, late: bool) -> tuple[float, float]:
    per_seed = [
        np.mean([getattr(Fairness.of(row), metric) for row in run[-2 if late else -1 :]])
        for run in accuracies(folder, label)
    ]
    return float(np.mean(per_seed)), float(np.std(per_seed))


def test_every_format_has_the_numbers_of_rounds_jsonl(small, evenfed):
    formats = ("table", "markdown", "csv", "latex", "json")
    shown = {f: evenfed("report", small, "--full", "--format", f) for f in formats}
    assert all(done.returncode == 0 for done in shown.values()), shown["table"].stderr
    plain, tables = figures_in(shown["csv"].stdout), {t["name"]: t for t in json.loads(shown["json"].stdout)["tables"]}
    for late, when in ((True, "late"), (False, "last")):
        lines = {line["entry"]: line["figures"] for line in tables[f"detailed-{when}"]["lines"]}
        assert list(lines) == [*LABELS, FLOOR]
        for label in lines:
            for metric in ("mean", "std", "worst", "worst10", "worst20", "best10"):
                mean, spread = detailed_by_hand(small, label, metric, late)
                cell = plain[f"detailed-{when}", label, "", metric]
                assert (float(cell["value"]), float(cell["spread"])) == pytest.approx((mean, spread))
                assert lines[label][metric] == pytest.approx({"value": mean, "spread": spread})
                assert f"{mean:.2f} ± {spread:.2f}" in shown["markdown"].stdout
                assert f"{mean:.2f}$\\pm${spread:.2f}" in shown["latex"].stdout
                assert f"{mean:.1f}±{spread:.1f}" in shown["table"].stdout
    kept = small / "report"
    assert (kept / "tables.csv").read_text() == shown["csv"].stdout
    assert (kept / "tables.tex").read_text() == shown["latex"].stdout
    assert "![worst20](worst20.svg)" in (kept / "report.md").read_text()
    for name in ("mean-and-worst10", "worst20"):
        starts = {".pdf": b"%PDF", ".svg": b"<svg", ".png": b"\x89PNG"}
        assert all((kept / f"{name}{end}").read_bytes().startswith(start) for end, start in starts.items())


@pytest.mark.parametrize("text", ["nonsense", "[1]", "{}", '{"config": 3}', '{"config": {"data": {}, "train": {}}}'])
def test_what_is_no_header_is_told(text, small, evenfed, tmp_path):
    folder = shutil.copytree(small, tmp_path / "copy")
    (folder / "vred" / "seed-0" / "header.json").write_text(text)
    for command in (("report", folder), ("pack", folder, tmp_path / "kept")):
        done = evenfed(*command)
        assert done.returncode == 2 and "is not a run's header" in done.stderr


@pytest.mark.slow
def test_the_same_results_leave_the_same_files(small, evenfed, tmp_path):
    def written() -> dict[str, bytes]:
        evenfed("report", small, "--format", "csv", "--out", tmp_path / "own")
        return {p.name: p.read_bytes() for p in (tmp_path / "own").iterdir()}

    first = written()
    assert {".pdf", ".svg", ".png", ".md", ".csv", ".tex", ".json", ".html"} == {Path(name).suffix for name in first}
    pdf = tmp_path / "own" / "worst20.pdf"
    pdf.write_bytes(b"as drawn a second ago")
    assert written() == {**first, "worst20.pdf": b"as drawn a second ago"}
    pdf.with_suffix(".svg").write_text("another picture")
    assert written()["worst20.pdf"].startswith(b"%PDF")


def test_table_2_says_what_happens_to_the_clients_fedavg_serves_below_and_above_its_mean(small, evenfed, tmp_path):
    plain = figures_in(evenfed("report", "--no-figures", small, "--format", "csv", "--out", tmp_path / "own").stdout)
    assert (tmp_path / "own" / "tables.csv").exists()
    for label in ("vred", "semi_vred", FLOOR):
        pairs = zip(accuracies(small, label), accuracies(small, "fedavg"), strict=True)
        found = [Suppression.of(ours[-1], base[-1]) for ours, base in pairs]
        for figure, share, amount in (
            ("improved", "improved", "suffering_gain"),
            ("degraded", "degraded", "well_gain"),
        ):
            cell = plain["suppression-last", label, "", figure]
            shares = [100 * getattr(f, share) for f in found]
            assert float(cell["value"]) == pytest.approx(np.mean(shares))
            assert float(cell["spread"]) == pytest.approx(np.std(shares))
            assert float(cell["points"]) == pytest.approx(np.mean([getattr(f, amount) for f in found]))
        gain = plain["suppression-last", label, "", "mean_gain"]
        assert float(gain["value"]) == pytest.approx(np.mean([f.mean_gain for f in found]))
    assert ("suppression-last", "fedavg", "", "improved") not in plain


def test_paired_differences_are_those_of_the_tables(small, evenfed):
    plain = figures_in(evenfed("report", "--no-figures", small, "--format", "csv").stdout)
    for label in ("vred", "semi_vred", FLOOR):
        for metric in ("mean", "worst10"):
            gap = [detailed_by_hand(small, x, metric, late=True)[0] for x in (label, "fedavg")]
            cell = plain["paired-late", label, metric, "difference"]
            assert float(cell["value"]) == pytest.approx(gap[0] - gap[1])
            assert float(cell["low"]) <= float(cell["value"]) <= float(cell["high"])
            within = float(cell["low"]) <= 0 <= float(cell["high"])
            said = plain["paired-late", label, metric, "verdict"]["verdict"]
            assert (said == "no difference shown") == within


def test_better_is_said_only_where_the_interval_excludes_zero(edited):
    """Identical runs show nothing; 5 points more or less for every client show; as much up as down does not."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        for k, line in enumerate(rounds):
            at = 0.3 + 0.05 * np.arange(6) + 0.01 * (seed % 2) + 0.002 * k
            swing = 0.1 * (-1) ** seed if label == FLOOR else 0
            gain = 0.05 + 0.0001 * (seed % 2) if label == "vred" else 0
            line["accuracy"] = (at + gain + swing).tolist()

    found = read(edited(change))
    for late in (True, False):
        pairs = Differences([found], late)
        for metric in ("mean", "worst10"):
            up = pairs.between("vred", "fedavg", metric)
            assert (up.points, up.low) == pytest.approx((5.005, 5.005 - 12.706 * 0.005), rel=1e-4)
            assert up.verdict == "better"
            assert pairs.between("fedavg", "vred", metric).verdict == "worse"
            same = pairs.between("semi_vred", "fedavg", metric)
            assert (same.points, same.low, same.high) == (0, 0, 0) and same.verdict == "no difference shown"
        swings = pairs.between(FLOOR, "fedavg", "mean")
        assert swings.low < -3 < 3 < swings.high and swings.verdict == "no difference shown"


def test_the_interval_over_seeds_has_the_width_that_seeds_give(edited):
    """Clients all alike and the two seeds 2 and 6 points ahead: Student's interval with 1 degree of freedom."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        for line in rounds:
            line["accuracy"] = [0.5 + (0.02 + 0.04 * (seed == 1)) * (label == "vred")] * 6

    found = read(edited(change))
    gap = Differences([found], late=True).between("vred", "fedavg", "mean")
    reach = 12.706 * np.sqrt(np.var([2, 6], ddof=1) / 2)
    assert (gap.points, gap.low, gap.high) == pytest.approx((4, 4 - reach, 4 + reach), rel=1e-3)
    assert gap.verdict == "no difference shown"


def test_turns_at_being_last_are_told_from_being_served_badly_for_long(edited, evenfed):
    """VRed's clients take turns at 0 %, FedAvg's are at 40 % always: worse in a round, better over rounds."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        for k, line in enumerate(rounds):
            turns = np.roll([0.0, 0.9, 0.0, 0.9, 0.0, 0.9], k).tolist()
            line["accuracy"] = turns if label == "vred" else [0.4] * 6

    plain = figures_in(evenfed("report", "--no-figures", edited(change), "--format", "csv").stdout)
    worst, lasting = (plain["overview-late", "vred", "", m] for m in ("worst10", "lasting10"))
    assert float(worst["value"]) == pytest.approx(0) and float(lasting["value"]) == pytest.approx(45)
    gaps = {m: float(plain["paired-late", "vred", m, "difference"]["value"]) for m in ("worst10", "lasting10")}
    assert gaps == {"worst10": pytest.approx(-40), "lasting10": pytest.approx(5)}


@pytest.mark.slow
def test_one_seed_has_no_spread_and_nothing_is_judged_from_it(edited, evenfed):
    folder = edited(lambda label, seed, header, rounds: header["config"]["data"].update(name="cifar10"))
    for path in [*folder.glob("*/seed-1"), folder / FLOOR]:
        shutil.rmtree(path)
    plain = figures_in(evenfed("report", "--no-figures", folder, "--paper", "--format", "csv").stdout)
    assert {c["verdict"] for key, c in plain.items() if key[3] == "verdict"} == {"not judged"}
    assert plain["detailed-last", "vred", "", "mean"]["spread"] == ""
    shown = evenfed("report", "--no-figures", "--full", folder, "--paper").stdout
    assert "one seed, so no spread" in shown and "no difference is judged" in shown and "chance alone" not in shown


def test_accuracy_and_differences_without_padding_stand_in_tables_of_their_own(edited, evenfed):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        for line in rounds:
            line["unpadded"] = [0.5 * value for value in line["accuracy"]]

    plain = figures_in(evenfed("report", "--no-figures", edited(change), "--format", "csv").stdout)
    for metric in ("mean", "worst10"):
        whole, half = (
            float(plain[t, "vred", "", metric]["value"]) for t in ("detailed-last", "unpadded-detailed-last")
        )
        assert half == pytest.approx(whole / 2)
        gap, half_gap = (
            float(plain[t, "vred", metric, "difference"]["value"]) for t in ("paired-late", "unpadded-paired-late")
        )
        assert gap and half_gap == pytest.approx(gap / 2)


def test_numbers_in_files_are_the_same_on_every_processor():
    rounded_otherwise = np.nextafter(26.53, 27)
    assert Cell(26.53) == Cell(rounded_otherwise) and Cell(0.1 + 0.2).numbers()["value"] == 0.3
    assert Cell(26.53, low=-1e-15).numbers()["low"] == 0 and Cell(1 / 3).value == 0.3333333333
    spread = 0.000230344449259  # of numbers near one: its last digits are the noise of theirs
    assert Cell(0.984092331617, spread=spread) == Cell(0.984092331617, spread=spread + 2e-15)


def test_large_numbers_have_few_digits_and_percentages_all():
    assert Cell(14135.428, spread=603.917).text(3) == "14135±604"
    assert Cell(12.3456, low=-6.5, high=1500.25, signed=True).text(3) == "+12 [-6, +1500]"
    assert Cell(3.72831279e18, spread=1.5e12).text(3) == "3.728e+18±1.500e+12"
    assert Cell(3.4751, spread=1.0912).text(3) == "3.475±1.091"
    assert [Cell(100.0, spread=12.345).text(digits) for digits in (1, 2)] == ["100.0±12.3", "100.00±12.35"]
    assert Cell(2_500_000.0, digits=0).text(3) == "2500000"  # a count
    assert Cell(float("inf")).text(3) == "inf"


def test_fedavg_alone_has_its_detailed_table(edited, evenfed):
    folder = edited(lambda label, seed, header, rounds: header["config"]["data"].update(name="cifar10"))
    for label in ("vred", "semi_vred", FLOOR):
        shutil.rmtree(folder / label)
    shown = json.loads(evenfed("report", "--no-figures", folder, "--paper", "--format", "json").stdout)
    names = [table["name"] for table in shown["tables"]]
    at_each = ["detailed-late", "expected-late", "detailed-last", "expected-last"]
    assert names == ["overview-late", *at_each, "inequality-late", "paper-brief", "paper", "settings", "runs"]


def test_latex_is_balanced_and_escaped(small, evenfed):
    text = evenfed("report", "--no-figures", small, "--format", "latex").stdout
    for name in ("table", "tabular"):
        assert text.count(f"\\begin{{{name}}}") == text.count(f"\\end{{{name}}}") == 15
    for table in text.split(r"\begin{tabular}")[1:]:
        body = [line for line in table.splitlines() if line.endswith(r"\\")]
        widths = {len(re.findall(r"(?<!\\)&", line)) for line in body}
        assert len(widths) == 1 and min(widths) >= 1, table
    assert r"semi\_vred" in text and not re.search(r"(?<!\\)[_#]", text.replace("\\_", ""))
    assert not re.search(r"(?<!\\)%", text.removeprefix("%")) and r"\textbf{" in text
    assert text.count("{") == text.count("}") and text.count("$") % 2 == 0
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == 15


@pytest.mark.slow
def test_with_paper_its_numbers_stand_beside_ours(edited, evenfed):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        header["config"]["data"]["name"] = "cifar10"
        gain = {"semi_vred": 0.1, "vred": -0.1}.get(label, 0)  # Semi-VRed clearly first, VRed clearly last
        for line in rounds:
            line["accuracy"] = [0.4 + gain * (1 + 0.001 * seed) + 0.01 * (seed % 2)] * 6

    folder = edited(change)
    shown = evenfed("report", "--no-figures", "--full", folder, "--paper")
    assert shown.returncode == 0, shown.stderr
    assert "43.45±0.60" in shown.stdout and "Ours next to the paper's on CIFAR-10" in shown.stdout
    assert "4 rounds here, 200 in the paper" in shown.stdout and "beta 0.2 (paper 0.5)" in shown.stdout
    plain = figures_in(evenfed("report", "--no-figures", folder, "--paper", "--format", "csv").stdout)
    ours, theirs = (plain["paper", "fedavg", part, "mean"] for part in ("ours", "paper"))
    assert float(theirs["value"]) == 43.45 and float(theirs["spread"]) == 0.6
    distance = (float(ours["value"]) - 43.45) / np.hypot(float(ours["spread"]), 0.6)
    assert float(plain["paper", "fedavg", "in spreads", "mean"]["value"]) == pytest.approx(distance)
    said = {k[1]: c["verdict"] for k, c in plain.items() if k[0] == "claims-last" and k[3] == "verdict"}
    assert said["Semi-VRed best, worst 10 %"] == said["Semi-VRed > FedAvg, mean"] == "holds"
    assert said["VRed > FedAvg, worst 10 %"] == "fails"
    assert not any("TERM" in claim for claim in said)  # not run here
    assert "Semi-VRed best, best 10 %" in said
    for run in folder.glob("*/seed-1"):
        shutil.rmtree(run)
    plain = figures_in(evenfed("report", "--no-figures", folder, "--paper", "--format", "csv").stdout)
    assert plain["paper", "fedavg", "in spreads", "mean"]["value"] == ""  # one seed has no spread


@pytest.mark.slow
def test_a_claim_needs_a_gap_in_every_seed_and_fedavg_stands_beside_at_other_rates(edited, evenfed):
    """semi_vred becomes FedAvg with another learning rate; VRed gains with one seed and loses with the other."""

    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        header["config"]["data"]["name"] = "cifar10"
        if label == "semi_vred":
            header["config"].update(algorithm="fedavg", hyper_parameters={})
            header["config"]["train"]["lr"] = 0.02
        for line in rounds:
            line["accuracy"] = [0.4 + 0.01 * (label == "vred") * (1 - 1.5 * (seed % 2)) + 0.05 * (seed % 2)] * 6

    folder = edited(change)
    plain = figures_in(evenfed("report", "--no-figures", folder, "--paper", "--format", "csv").stdout)
    assert plain["claims-last", "VRed > FedAvg, mean", "", "verdict"]["verdict"] == "within the noise"
    assert float(plain["paper", "semi_vred", "paper", "mean"]["value"]) == 43.45
    told = " ".join(evenfed("report", "--no-figures", "--full", folder, "--paper").stdout.split())
    assert "Of 12 figures" in told and "semi_vred: lr" not in told  # FedAvg's row of the paper counts once


def test_claims_are_those_of_the_papers_table():
    cinic = {str(c): c for c in claims(numbers("CINIC-10"))}
    assert "FedAvg > Semi-VRed, mean" in cinic and "Semi-VRed best, worst 10 %" in cinic
    assert "q-FFL best, mean" in cinic and not any(c.endswith("best, best 10 %") for c in cinic)  # five share 100.0
    words = [str(c) for c in claims(numbers("StackOverflow"))]
    assert not any("AFL" in w.split() for w in words) and "VRed > Semi-VRed, worst 10 %" in words
    assert not any("best, mean" in w for w in words)  # VRed and Semi-VRed are equal there
    gap = next(c for c in claims(numbers("CIFAR-100")) if str(c) == "AFL best, std")
    assert gap.gap == pytest.approx(5.42 - 4.91) and gap.spread == pytest.approx(np.hypot(0.37, 0.65))


@pytest.mark.parametrize(
    ("name", "told"), [("cifar100", "80-20"), ("cinic10", "not plausible"), ("stackoverflow", "typo")]
)
def test_errors_of_the_paper_are_footnoted(edited, evenfed, name, told):
    folder = edited(lambda label, seed, header, rounds: header["config"]["data"].update(name=name))
    shown = evenfed("report", "--no-figures", folder, "--paper", "--format", "markdown")
    assert told in shown.stdout and ("Table 2" in shown.stdout) == (name == "cifar100")


def test_what_is_unfinished_or_missing_is_left_out_and_named(edited, evenfed):
    folder = edited(
        lambda label, seed, header, rounds: header.update(finished=(label, seed) not in {("vred", 1), ("semi_vred", 0)})
    )
    shutil.rmtree(folder / "semi_vred" / "seed-1")
    shown = evenfed("report", "--no-figures", "--full", folder)
    assert "vred: seed 1 left out, not finished" in shown.stdout
    assert "vred: seed 0 alone, those in common with fedavg" in shown.stdout
    assert "semi_vred: seed 0 left out, not finished" in shown.stdout
    table = json.loads(evenfed("report", "--no-figures", folder, "--format", "json").stdout)
    assert {line["entry"] for line in table["tables"][0]["lines"]} == {"fedavg", "vred", FLOOR}
    assert len(table["left_out"]) == 3
    vred = next(line for line in table["tables"][0]["lines"] if line["entry"] == "vred")
    alone = [Fairness.of(row).mean for row in accuracies(folder, "vred")[0][-2:]]
    assert vred["figures"]["mean"] == pytest.approx({"value": np.mean(alone)})


def test_an_entry_on_other_clients_is_not_compared(edited):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred":
            header["config"]["data"]["seed"] = 9

    found = read(edited(change))
    assert [e.label for e in found.entries] == ["fedavg", "semi_vred"]
    assert found.left_out == ("vred: left out, run on other data than fedavg",)


def test_narrow_pages_hold_every_table(small, evenfed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", evenfed("report", "--no-figures", "--full", small).stdout)
    assert max(map(len, shown.splitlines())) <= 80 and "no difference shown" in shown


def test_every_block_of_a_wide_table_fits(monkeypatch):
    columns = [Column(f"c{k}", f"c{k}") for k in range(7)]
    cells = [Cell(100.0 + k, low=-99999.0, high=99999.0, signed=True) for k in range(7)]
    table = Table("wide", "Wide", columns, [Line("vred", cells)], digits=2)
    page = Console(file=io.StringIO(), width=80)
    page.print(pages([table], page))
    lines = page.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.startswith("vred")]
    assert [len(row.split()) for row in rows] == [7, 7, 7, 4]  # two columns of three words each
    assert all(f"+{100 + k} [" in " ".join(rows) for k in range(7))


def test_one_specification_has_our_spreads_and_the_papers_numbers(small):
    found = read(small)
    rows = bars.chart(found, "mean-and-worst10", ("mean", "worst10"), numbers("CIFAR-10")).rows
    last = [row for row in rows if row["algorithm"] == "semi_vred" and row["when"] == "last round"]
    worst = [row for row in last if row["metric"] == "worst 10 %"]
    values = [row["value"] for row in worst if "seed" in row]
    by_hand = detailed_by_hand(small, "semi_vred", "worst10", late=False)
    assert (np.mean(values), np.std(values)) == pytest.approx(by_hand, abs=1e-3)
    assert [row["paper"] for row in worst if "paper" in row] == [27.08]


def test_bad_input_is_told_in_three_parts(small, edited, evenfed, tmp_path):
    (tmp_path / "empty").mkdir()
    begun = edited(lambda label, seed, header, rounds: header.update(finished=False))
    for arguments, told in (
        ([tmp_path / "nowhere"], "there is no folder"),
        ([tmp_path / "empty"], "holds no finished run"),
        ([small / "vred"], "holds no finished run"),
        ([begun], "rerun the command that began them to finish; `evenfed watch "),
        (
            [small, "--paper"],
            "ran on digits, and the paper has numbers for cifar10, cifar100, cinic10, stackoverflow only",
        ),
        ([small, "--out", small / "vred" / "seed-0" / "header.json"], "choose another --out"),
    ):
        done = evenfed("report", "--full", *arguments)
        assert done.returncode == 2 and told in " ".join(done.stderr.split()), done.stderr
        assert "Traceback" not in done.stderr and done.stdout == ""
    assert not (tmp_path / "empty" / "report").exists()


def test_a_full_disk_is_said_and_leaves_no_half_file(small, evenfed, tmp_path, monkeypatch):
    shutil.copytree(small, tmp_path / "runs" / "demo")
    left = {path for path in (tmp_path / "runs").rglob("*") if path.is_file()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # which names no file

    monkeypatch.setattr(os, "fsync", full)
    compare = "compare --algorithms fedavg,vred,semi_vred --rounds 4 --seeds 2 --set data.clients=6"
    compare += " --set noise_floor=seeds --set train.last_rounds=2"
    for command in (compare, "report runs/demo --out new", "pack runs/demo packed", "new mine.toml"):
        done = evenfed(*command.split())
        assert done.returncode in (1, 2) and "Traceback" not in done.stderr
        assert "No space left on device" in done.stderr and len(done.stderr.splitlines()) == 1
    for place in ("runs", "new", "packed"):
        assert {path for path in (tmp_path / place).rglob("*") if path.is_file()} <= left
    assert not (tmp_path / "mine.toml").exists()
    monkeypatch.undo()


def test_the_settings_of_every_entry_are_listed(edited, evenfed):
    def change(label: str, seed: int, header: dict, rounds: list) -> None:
        if label == "vred":
            header["config"]["train"].update(lr=0.05, smooth=0.5)

    cells = figures_in(evenfed("report", "--no-figures", edited(change), "--format", "csv").stdout)
    settings = {key[1]: row["verdict"] for key, row in cells.items() if key[0] == "settings"}
    assert settings["fedavg"] == "lr=0.1"
    assert settings["vred"] == "beta=0.2, lr=0.05, smooth=0.5"
    assert settings["semi_vred"] == "beta=0.2, lr=0.1"


def test_the_terminal_prints_the_verdict_under_the_first_table(small, edited, evenfed, tmp_path):
    folder = edited(lambda label, seed, header, rounds: None)
    shown = evenfed("report", folder, "--no-figures", "--last-rounds", "1000")
    text = " ".join(shown.stdout.split())
    table, _, notes = text.partition(" worst-served clients better than FedAvg")
    assert "At a glance" in table and "Improved: percent" in notes
    assert "best in bold" not in text and "**" not in text  # piped: there is no bold
    assert "the runs have only 4 rounds" in shown.stderr and (folder / "report-last-4").is_dir()
    as_json = evenfed("report", folder, "--no-figures", "--format", "json").stdout
    assert json.loads(as_json) and "worst-served clients" not in as_json
    rows = [{"client": k, "algorithm": name, "acc": 0.1 * k} for k in range(9) for name in ("fedavg", "x")]
    (tmp_path / "t.json").write_text(json.dumps(rows))
    assert "One seed cannot separate" in evenfed("audit", "t.json", "--no-figures").stdout


def test_all_tables_have_every_column_of_the_first(small):
    (findings,) = Report.of([small], beside_paper=False).findings
    columns = {column.key for column in brief(findings).columns}
    assert columns <= {column.key for column in summary(findings)[0].columns}
    assert columns <= {column.key for column in overview(findings, late=True).columns} | {"best10"}
