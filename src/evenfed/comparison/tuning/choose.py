"""Choosing among the entries of comparisons on validation data, and the experiment that confirms the choice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...core.errors import InputError
from ...core.tables import without_none
from ...data import DataSettings
from ...settings import VARIANT, Settings
from ..analysis.configuration import unaveraged, undamped
from ..analysis.entry_figures import EntryFigures
from ..analysis.entry_order import by_size
from ..analysis.findings import BASELINE, Entry, Findings
from ..analysis.noise_floor import NoiseFloor
from ..analysis.side_by_side import check, differ_in_split_only, in_common, in_expectation, pooled
from ..experiment import Experiment
from ..loss_and_score import LossAndScore
from ..variants import Variant

# options that entries set for themselves, not taken over from FedAvg's run
_SET_PER_ENTRY = ("seed", "batch_seed", "device", "engine", "smooth", "average", "weigh_at", "server_optimizer")
_CONTROLLED = ("lr", "average")  # of a chosen entry, with which FedAvg is run too


@dataclass(frozen=True)
class Margin:
    """How far below the best FedAvg's mean a candidate's may be."""

    points: float
    origin: str  # in words, for the rule


@dataclass(frozen=True)
class Choice:
    """The chosen entry of each method, and why."""

    comparisons: Sequence[Findings]  # of the same entries, one per federation
    chosen: Mapping[str, Entry]  # by method, FedAvg first
    bar: float  # the mean that a candidate must reach, in percent if it is an accuracy
    margin: Margin
    reached: Mapping[str, bool]  # whether any candidate of the method reached the bar
    is_expected: bool = False  # whether figures are expected accuracies, not measured ones
    left_out: Sequence[str] = ()  # labels of entries that are not the same everywhere, or without expected accuracies

    @property
    def findings(self) -> Findings:
        """The first comparison: labels and settings are the same in all."""
        return self.comparisons[0]

    @cached_property
    def rows(self) -> Mapping[str, EntryFigures]:
        """The figures of every entry, over all federations and seeds."""
        return _rows(self.comparisons)

    @property
    def rule(self) -> str:
        """How it was chosen, for the experiment's file and the table."""
        best = "highest"
        minus = "minus"
        unit = " %"
        points = " points"
        metric = self.findings.metric
        of = ""
        if not metric.is_share:
            unit = ""
            points = ""
            of = f" ({metric.name})"
        if not metric.higher_is_better:
            best = "lowest"
            minus = "plus"
        where = f"the last {self.findings.last_rounds} rounds on validation data"
        if len(self.comparisons) > 1:
            where += f" of {len(self.comparisons)} federations"
        figures = "Figures are averages of"
        if self.is_expected:
            figures = "Figures are expected accuracies (class shares times class recalls), averages of"
        sentences = [
            f"FedAvg: the entry with the {best} mean{of}.",
            f"Of every other method, the entry with the {best} worst 10 %{of} among those whose mean is no worse than "
            f"{self.bar:.2f}{unit}: FedAvg's {minus} {self.margin.points:.2f}{points}, {self.margin.origin}.",
            f"If none is, the one with the {best} mean, marked.",
            f"{figures} {where}.",
            "FedAvg also runs with the learning rates and averages of the others, to tell re-weighting from these.",
        ]
        if self.without_smoothing():
            sentences.append("Entries chosen with smoothed losses run once more without.")
        if self.without_averaging():
            sentences.append("Entries chosen with an average run once more without.")
        if self.left_out:
            sentences.append(f"Left out, as not comparable: {', '.join(self.left_out)}.")
        return " ".join(sentences)

    def candidates(self, method: str) -> list[Entry]:
        return _entries(self.findings, method)

    def is_admitted(self, entry: Entry) -> bool:
        """Whether its mean reaches the bar."""
        sign = self.findings.metric.sign
        mean = _mean(self.rows[entry.label])
        return bool(sign * mean >= sign * self.bar)

    def without_smoothing(self) -> list[Entry]:
        """For each chosen entry with smoothed losses, the same without: tells the damping from the re-weighting."""
        return self._twins(undamped(self.findings.configs), [BASELINE])

    def without_averaging(self) -> list[Entry]:
        """For each chosen entry that deploys an average, the same without."""
        return self._twins(unaveraged(self.findings.configs), [])

    def _twins(self, twins: Mapping[str, str], but_not_of: Sequence[str]) -> list[Entry]:
        entries = []
        for method, entry in self.chosen.items():
            twin = twins.get(entry.label)
            if twin and method not in but_not_of:
                entries.append(self.findings.named(twin))
        return entries

    def experiment(self, name: str, seeds: Sequence[int], federations: Sequence[int] = ()) -> Experiment:
        """The chosen entries on test data: whole training parts, several seeds, else as in the run that chose them."""
        header = self.findings.header
        data = {
            **header.data,
            "judge": "test",
            "validation_fraction": 0.0,
        }
        options = {}
        for key, value in header.train.items():
            if key not in _SET_PER_ENTRY:
                options[key] = value
        train = Settings.of(options)
        variants: dict[str, Variant] = {}
        for entry in self.chosen.values():
            label = BASELINE if entry.method == BASELINE else entry.label  # others are compared with it
            variants[label] = _variant(entry, train, label)
        for twin in (*self.without_smoothing(), *self.without_averaging()):
            label = twin.label
            if label == BASELINE:  # that of the chosen one
                label = f"{BASELINE}[average=none]"
            variants.setdefault(label, _variant(twin, train, label))
        for control in self._fedavg_beside():
            variants.setdefault(control.label, control)
        return Experiment(
            name=name,
            variants=tuple(variants.values()),
            seeds=tuple(seeds),
            noise_floor=True,
            federations=tuple(federations),
            data=DataSettings(**data),
            model=header.config["model"],
            train=train,
            objective=LossAndScore.of(header.config),
            selected_on="validation",
        )

    def _fedavg_beside(self) -> list[Variant]:
        """FedAvg with the learning rates and averages of the other chosen entries: tells re-weighting from these."""
        fedavg, *others = self.chosen.values()
        known = [_options(fedavg)]
        for twin in self.without_averaging():
            if twin.method == BASELINE:
                known.append(_options(twin))
        variants = []
        for entry in others:
            options = _options(entry)
            if options in known:
                continue
            known.append(options)
            table = without_none(options)
            settings = ",".join(f"{key}={value}" for key, value in table.items())
            variant = Variant.of(f"{BASELINE}[{settings}]", {"algorithm": BASELINE, **table})
            variants.append(variant)
        variants.sort(key=lambda variant: by_size(variant.label))
        return variants


def choose(
    comparisons: Sequence[Findings],
    repetitions: Findings | None = None,
    margin: float | None = None,
) -> Choice:
    """Apply the rule to a comparison on validation data, or to the same one on several federations.

    `margin`: points below the best FedAvg's mean that a candidate's may be. By default it is the standard error of such
    a difference, from `repetitions` of FedAvg if given, else from the comparisons themselves.
    """
    _check(comparisons)
    every_label = [entry.label for entry in comparisons[0].entries]
    comparisons = in_common(comparisons)
    expected = _expected(comparisons)
    if expected is not None:
        comparisons = expected
    judged_by = comparisons[0].metric
    rows = _rows(comparisons)

    def mean(entry: Entry) -> float:
        """Of which more is better."""
        return judged_by.sign * _mean(rows[entry.label])

    def worst10_then_mean(entry: Entry) -> tuple[float, float]:
        value, _ = rows[entry.label].late["worst10"]
        return judged_by.sign * value, mean(entry)

    fedavg = max(_entries(comparisons[0], BASELINE), key=mean)
    allowed = _margin(comparisons, fedavg, repetitions, margin)
    bar = mean(fedavg) - allowed.points
    chosen = {BASELINE: fedavg}
    reached = {BASELINE: True}
    methods = dict.fromkeys(entry.method for entry in comparisons[0].entries)
    for method in methods:
        if method == BASELINE:
            continue
        candidates = _sound(comparisons, _entries(comparisons[0], method))
        fit = [entry for entry in candidates if mean(entry) >= bar]
        reached[method] = bool(fit)
        if fit:
            chosen[method] = max(fit, key=worst10_then_mean)
        else:
            chosen[method] = max(candidates, key=mean)
    return Choice(
        comparisons,
        chosen,
        bar=judged_by.sign * bar,
        margin=allowed,
        reached=reached,
        is_expected=expected is not None,
        left_out=tuple(label for label in every_label if label not in rows),
    )


def _expected(comparisons: Sequence[Findings]) -> list[Findings] | None:
    """With expected accuracies, which small validation sets do not blur; None unless these fit every sound entry.

    To leave out those that they do not fit may leave out the best.
    """
    expected = in_expectation(comparisons)
    if expected is None:
        return None
    shared = in_common(expected)
    for entry in _sound(comparisons, comparisons[0].entries):
        if entry.label not in shared[0].rows:
            return None
    return shared


def _check(comparisons: Sequence[Findings]) -> None:
    """Refuse test data, and comparisons that are not the same on other federations."""
    for findings in comparisons:
        if findings.judge != "validation":
            raise InputError(
                f"{findings.folder} was judged on test data, on which nothing may be chosen; run it with [data] judge "
                "= 'validation' and a validation_fraction, then choose"
            )
    if len(comparisons) > 1:
        check(comparisons)
        if not differ_in_split_only(comparisons):
            folders = ", ".join(str(findings.folder) for findings in comparisons)
            raise InputError(
                f"{folders} differ in more than data.seed; choose from the same comparison on several federations"
            )


def _margin(
    comparisons: Sequence[Findings],
    fedavg: Entry,
    repetitions: Findings | None,
    points: float | None,
) -> Margin:
    """As given, or the standard error of the difference of two means."""
    if points is not None:
        return Margin(points, "as asked for")
    if repetitions is None:
        error = _standard_error(comparisons, fedavg)
        if error is not None:
            return Margin(error, "the standard error of such a difference, typical of the entries judged")
    first = comparisons[0]
    repeated = [repetitions] if repetitions is not None else comparisons
    same_rate = [replace(findings, repeated=findings.repeated[:1]) for findings in repeated]
    chance = NoiseFloor(same_rate, late=True).chance("mean", len(first.seeds))
    if chance is None:
        raise InputError(
            f"{repeated[0].folder} holds one FedAvg run only, which has no noise floor; give several seeds or "
            "federations, a margin (--margin), or a comparison with more FedAvg runs (--floor)"
        )
    return Margin(chance.deviation, "one standard deviation of the difference of two FedAvg figures")


def _standard_error(comparisons: Sequence[Findings], fedavg: Entry) -> float | None:
    """Of the difference in the mean between an entry and FedAvg; None if there is one run of each only.

    The median over entries, so that those that behave wildly do not widen it.
    """
    variances = []
    runs = 0
    for entry in comparisons[0].entries:
        if entry.label == fedavg.label:
            continue
        gaps = _gaps(comparisons, entry.label, fedavg.label)
        if len(gaps) > 1:
            variances.append(np.var(gaps, ddof=1))
            runs = len(gaps)
    if not variances:
        return None
    freedom = runs - 1
    median_of_chi_squared = (1 - 2 / (9 * freedom)) ** 3  # over its degrees of freedom (Wilson and Hilferty)
    typical = float(np.median(variances)) / median_of_chi_squared
    return float(np.sqrt(typical / runs))


def _gaps(comparisons: Sequence[Findings], one: str, other: str) -> list[float]:
    """Differences in the mean, one per federation and seed."""
    gaps = []
    for findings in comparisons:
        runs = findings.named(one).runs
        rivals = findings.named(other).runs
        for seed, run in runs.items():
            own = run.late_fairness
            rival = rivals[seed].late_fairness if seed in rivals else None
            if own is not None and rival is not None:
                gaps.append(findings.metric.unit * (own.mean - rival.mean))
    return gaps


def _rows(comparisons: Sequence[Findings]) -> dict[str, EntryFigures]:
    rows = {}
    for label in comparisons[0].rows:
        rows[label] = pooled([findings.rows[label] for findings in comparisons])
    return rows


def _mean(row: EntryFigures) -> float:
    """As shown: an accuracy in percent."""
    mean, _ = row.late["mean"]
    return row.metric.unit * mean


def _entries(findings: Findings, method: str) -> list[Entry]:
    return [entry for entry in findings.entries if entry.method == method]


def _sound(comparisons: Sequence[Findings], entries: Sequence[Entry]) -> list[Entry]:
    """Those that broke down nowhere; all if none is left."""
    sound = []
    for entry in entries:
        broken = any(findings.named(entry.label).broken for findings in comparisons)
        if not broken:
            sound.append(entry)
    return sound or list(entries)


def _options(entry: Entry) -> dict[str, Any]:
    settings = entry.config["train"]
    return {key: settings.get(key) for key in _CONTROLLED}


def _variant(entry: Entry, shared: Settings, label: str) -> Variant:
    """The entry again, under this label."""
    hyper_parameters = entry.config["hyper_parameters"]
    options = entry.config["train"]
    values = {"algorithm": entry.method, **hyper_parameters}
    for key in VARIANT:
        value = options.get(key, getattr(shared, key))
        if value != getattr(shared, key):
            values[key] = value
    return Variant.of(label, without_none(values))
