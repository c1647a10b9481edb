"""Choosing among the entries of a comparison on validation data, and the experiment that confirms the choice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import InputError
from ..data import DataSettings
from ..settings import VARIANT, Settings
from .configuration import undamped
from .experiment import Experiment
from .findings import BASELINE, Entry, Findings
from .floor import NoiseFloor
from .objective import Objective
from .plan import Variant
from .reading import read

_SET_PER_ENTRY = ("seed", "device", "engine", "smooth", "server_optimizer")  # not taken over from FedAvg's run


@dataclass(frozen=True)
class Choice:
    """The chosen entry of each method, and why."""

    findings: Findings
    chosen: Mapping[str, Entry]  # by method, FedAvg first
    bar: float  # the mean that a candidate must reach, in percent if it is an accuracy
    floor: float  # in the same unit: standard deviation of the difference of two FedAvg runs' means
    reached: Mapping[str, bool]  # whether any candidate of the method reached the bar

    @property
    def rule(self) -> str:
        """How it was chosen, for the experiment's file and the table."""
        best, least, minus, unit, points, of = "highest", "least", "minus", " %", " points", ""
        metric = self.findings.metric
        if not metric.is_share:
            unit, points, of = "", "", f" ({metric.name})"
        if not metric.higher_is_better:
            best, least, minus = "lowest", "most", "plus"
        rule = (
            f"Of each method, the entry with the {best} worst 10 %{of} among those whose mean is at {least} "
            f"{self.bar:.2f}{unit}: the best FedAvg's {minus} {self.floor:.2f}{points}, one standard deviation of the "
            f"difference of two FedAvg runs. Averages of the last {self.findings.last_rounds} rounds on validation "
            f"data. If none reaches that mean, the one with the {best} mean is taken, and marked. FedAvg also runs "
            "with the learning rates of the others, to tell re-weighting from the rate"
        )
        if self.without_smoothing():
            return f"{rule}, and entries chosen with smoothed losses run once more without."
        return f"{rule}."

    def candidates(self, method: str) -> list[Entry]:
        """All entries of one method."""
        return _entries(self.findings, method)

    def without_smoothing(self) -> list[Entry]:
        """For each chosen entry with smoothed losses, the same without: tells the damping from the re-weighting."""
        twins = undamped(self.findings.configs)
        entries = []
        for entry in self.chosen.values():
            twin = twins.get(entry.label)
            if twin and entry.method != BASELINE:
                entries.append(self.findings.named(twin))
        return entries

    def experiment(self, name: str, seeds: Sequence[int]) -> Experiment:
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
        entries = list(self.chosen.values())
        entries += self.without_smoothing()
        variants = [_variant(entry, train) for entry in entries]
        variants += self._fedavg_at_other_rates()
        return Experiment(
            name=name,
            variants=tuple(variants),
            seeds=tuple(seeds),
            noise_floor=True,
            data=DataSettings(**data),
            model=header.config["model"],
            train=train,
            objective=Objective.of(header.config),
            selected_on="validation",
        )

    def _fedavg_at_other_rates(self) -> list[Variant]:
        """FedAvg with the learning rates of the other chosen entries: tells re-weighting from the rate."""
        fedavg, *others = self.chosen.values()
        rates = set()
        for entry in others:
            rates.add(entry.config["train"]["lr"])
        rates.discard(fedavg.config["train"]["lr"])
        variants = []
        for rate in sorted(rates):
            label = f"{BASELINE}[lr={rate}]"
            table = {"algorithm": BASELINE, "lr": rate}
            variants.append(Variant.of(label, table))
        return variants


def choose(folder: Path, floor_from: Path | None = None) -> Choice:
    """Apply the rule to a comparison on validation data; the noise floor may come from one with more seeds."""
    findings = read(folder)
    if findings.judge != "validation":
        raise InputError(
            f"{folder} was judged on test data, on which nothing may be chosen; run it with [data] judge = "
            "'validation' and a validation_fraction, then choose"
        )

    judged_by = findings.metric

    def figure(entry: Entry, metric: str) -> float:
        """Of which more is better."""
        row = findings.rows[entry.label]
        value, _ = row.late[metric]
        return judged_by.sign * value

    def mean(entry: Entry) -> float:
        return judged_by.unit * figure(entry, "mean")

    def worst10_then_mean(entry: Entry) -> tuple[float, float]:
        return figure(entry, "worst10"), figure(entry, "mean")

    repetitions = findings
    if floor_from:
        repetitions = read(floor_from)
    floor = _deviation(repetitions, seeds=len(findings.seeds))
    fedavg = _entries(findings, BASELINE)
    best_mean = max(map(mean, fedavg))
    bar = best_mean - floor
    chosen = {}
    reached = {}
    for candidate in findings.entries:
        method = candidate.method
        if method in chosen:
            continue
        sound = []
        entries = _entries(findings, method)
        for entry in entries:
            if not entry.broken:
                sound.append(entry)
        if not sound:
            sound = entries
        fit = [entry for entry in sound if mean(entry) >= bar]
        reached[method] = bool(fit)
        if fit:
            chosen[method] = max(fit, key=worst10_then_mean)
        else:
            chosen[method] = max(sound, key=mean)
    return Choice(findings, chosen, judged_by.sign * bar, floor, reached)


def _deviation(findings: Findings, seeds: int) -> float:
    """Of the difference of two FedAvg runs' means, in points."""
    fedavg_only = replace(findings, repeated=findings.repeated[:1])  # without FedAvg at other learning rates
    noise_floor = NoiseFloor([fedavg_only], late=True)
    chance = noise_floor.chance("mean", seeds)
    if chance is None:
        raise InputError(
            f"{findings.folder} holds one FedAvg run only, which has no noise floor; give a comparison with "
            "noise_floor or several seeds by --floor"
        )
    return chance.deviation


def _entries(findings: Findings, method: str) -> list[Entry]:
    return [entry for entry in findings.entries if entry.method == method]


def _variant(entry: Entry, shared: Settings) -> Variant:
    """The entry again. FedAvg gets its plain label, whatever its rate: others are compared with it."""
    hyper_parameters = entry.config["hyper_parameters"]
    options = entry.config["train"]
    values = {"algorithm": entry.method, **hyper_parameters}
    for key in VARIANT:
        value = options.get(key)
        if value != getattr(shared, key):
            values[key] = value
    table = {}
    for key, value in values.items():
        if value is not None:
            table[key] = value
    label = BASELINE if entry.method == BASELINE else entry.label
    return Variant.of(label, table)
