"""Choosing among the entries of comparisons on validation data, and the experiment that confirms the choice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...core.errors import InputError
from ...core.tables import without_none
from ...data import DataSettings
from ...settings import VARIANT, Settings
from ..analysis.configuration import unaveraged, undamped
from ..analysis.entry_figures import EntryFigures
from ..analysis.entry_order import by_size
from ..analysis.findings import BASELINE, Entry, Findings
from ..analysis.side_by_side import check, differ_in_split_only, in_common, in_expectation, pooled
from ..experiment import Experiment
from ..loss_and_score import LossAndScore
from ..variants import Variant
from .margin import Margin, check_repetitions, margin_of

# options that entries set for themselves, not taken over from FedAvg's run
_SET_PER_ENTRY = ("seed", "batch_seed", "device", "engine", "smooth", "average", "weigh_at", "server_optimizer")
_CONTROLLED = ("lr", "average")  # of a chosen entry, with which FedAvg is run too


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
    broken: Sequence[str] = ()  # labels of entries that broke down on a federation
    without_choice: Sequence[str] = ()  # methods of which every entry broke down or was left out

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
        if self.broken:
            sentences.append(f"Excluded, as training broke down: {', '.join(self.broken)}.")
        if self.left_out:
            sentences.append(f"Left out, as not comparable: {', '.join(self.left_out)}.")
        if self.without_choice:
            sentences.append(f"No entry is left to choose of {', '.join(self.without_choice)}.")
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
    repetitions: Sequence[Findings] = (),
    margin: float | None = None,
) -> Choice:
    """Apply the rule to a comparison on validation data, or to the same one on several federations.

    `margin`: points below the best FedAvg's mean that a candidate's may be. By default it is the standard error of such
    a difference, from `repetitions` of FedAvg (the same set-up on one federation or several) if given, else from the
    comparisons themselves.
    """
    _check(comparisons)
    _check(repetitions)
    check_repetitions(comparisons, repetitions)
    every_entry = _by_label(comparisons)
    broken = _broken(comparisons)
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

    sound = [entry for entry in comparisons[0].entries if entry.label not in broken]
    fedavgs = [entry for entry in sound if entry.method == BASELINE]
    if not fedavgs:
        raise InputError(
            f"{comparisons[0].folder}: no FedAvg is left that did not break down; run it with a smaller lr"
        )
    fedavg = max(fedavgs, key=mean)
    allowed = margin_of(comparisons, fedavg, sound, repetitions, expected is not None, margin)
    bar = mean(fedavg) - allowed.points
    chosen = {BASELINE: fedavg}
    reached = {BASELINE: True}
    methods = dict.fromkeys(entry.method for entry in every_entry.values())
    for method in methods:
        candidates = [entry for entry in sound if entry.method == method]
        if method == BASELINE or not candidates:
            continue
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
        left_out=tuple(label for label in every_entry if label not in rows and label not in broken),
        broken=tuple(broken),
        without_choice=tuple(method for method in methods if method not in chosen),
    )


def _by_label(comparisons: Sequence[Findings]) -> dict[str, Entry]:
    """Every entry of any comparison, those that broke down and have no figures last."""
    by_label: dict[str, Entry] = {}
    for findings in comparisons:
        for entry in findings.entries:
            by_label.setdefault(entry.label, entry)
    for findings in comparisons:
        for entry in findings.lost:
            by_label.setdefault(entry.label, entry)
    return by_label


def _broken(comparisons: Sequence[Findings]) -> list[str]:
    """The labels of entries that broke down on a federation."""
    labels: dict[str, None] = {}
    for findings in comparisons:
        for entry in (*findings.entries, *findings.lost):
            if entry.broken:
                labels[entry.label] = None
    return list(labels)


def _expected(comparisons: Sequence[Findings]) -> list[Findings] | None:
    """With expected accuracies, which small validation sets do not blur; None unless these fit every sound entry.

    To leave out those that they do not fit may leave out the best.
    """
    expected = in_expectation(comparisons)
    if expected is None:
        return None
    shared = in_common(expected)
    broken = _broken(comparisons)
    for entry in comparisons[0].entries:
        if entry.label not in broken and entry.label not in shared[0].rows:
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
