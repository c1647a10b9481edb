"""Several comparisons in one report: the entries they share, and whether they differ only in the federation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.errors import InputError
from ...settings import VARIANT
from ..runs import FLOOR_NAMES
from .entry_figures import EntryFigures, Figures, mean_and_spread
from .findings import Findings

_SPLIT = "data.seed"  # comparisons that differ in this alone repeat one on other federations
_IRRELEVANT = (
    "train.device",
    "train.engine",
    "train.seed",
    "train.batch_seed",
    "train.last_rounds",  # a report averages over the same number everywhere
)
_DEFAULTS = {  # of keys that older runs do not name
    "data.judge": "test",
    "model.normalise": False,
    "train.weigh_at": "current",
}

FlatSettings = dict[str, Any]  # by place, such as `data.seed`


def check(comparisons: Sequence[Findings]) -> None:
    """Refuse comparisons that one report cannot cover."""
    folders = []
    tasks = []
    for findings in comparisons:
        data = findings.header.data["name"]
        folders.append(str(findings.folder))
        tasks.append(f"{data}, {findings.rounds} rounds")
    distinct_names = set(names_of(comparisons))
    if len(distinct_names) < len(comparisons):
        raise InputError(
            f"{', '.join(folders)}: two of them ran FedAvg on the same data in the same set-up; give comparisons that "
            "differ in data.seed (other federations) or in what is to be compared, each once"
        )
    if len(set(tasks)) > 1:
        raise InputError(
            f"{', '.join(folders)} are of {'; '.join(tasks)}; report on comparisons of the same data set and number of "
            "rounds together"
        )
    windows = [findings.last_rounds for findings in comparisons]
    if len(set(windows)) > 1:
        averaged = [f"{folder} the last {rounds}" for folder, rounds in zip(folders, windows, strict=True)]
        raise InputError(
            f"they average over different numbers of rounds ({', '.join(averaged)}); give one number for all: "
            f"`evenfed report --last-rounds {min(windows)}`"
        )


def differ_in_split_only(comparisons: Sequence[Findings]) -> bool:
    """Whether the comparisons are the same on other federations, so that they can be pooled."""
    return _places_that_differ(_settings(comparisons)) == [_SPLIT]


def names_of(comparisons: Sequence[Findings]) -> list[str]:
    """A name for each, made of the settings that differ."""
    settings = _settings(comparisons)
    places = _places_that_differ(settings)
    names = []
    for one in settings:
        values = []
        for place in places:
            value = one.get(place)
            values.append(f"{place}={value}")
        names.append(", ".join(values))
    return names


def _settings(comparisons: Sequence[Findings]) -> list[FlatSettings]:
    settings = []
    for findings in comparisons:
        named = _flat(findings.header.config)
        settings.append(_DEFAULTS | named)
    return settings


def _places_that_differ(settings: Sequence[FlatSettings]) -> list[str]:
    first, *others = settings
    differing = []
    for place in sorted(set().union(*settings).difference(_IRRELEVANT)):
        if any(other.get(place) != first.get(place) for other in others):
            differing.append(place)
    return differing


def _flat(table: Mapping[str, Any], prefix: str = "") -> FlatSettings:
    """Nested tables as one, under keys such as `data.seed`."""
    flat: FlatSettings = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            nested = _flat(value, f"{prefix}{key}.")
            flat.update(nested)
        else:
            flat[prefix + key] = value
    return flat


def in_common(comparisons: Sequence[Findings]) -> list[Findings]:
    """Only the entries that mean the same in all comparisons, in the first one's order."""
    common = []
    for label in comparisons[0].rows:
        meanings = set()
        for findings in comparisons:
            meanings.add(_meaning(findings, label))
        if len(meanings) == 1:
            common.append(label)
    return [findings.only(common) for findings in comparisons]


def _meaning(findings: Findings, label: str) -> str | None:
    """The method and where its settings differ from FedAvg's in the same comparison; None without such an entry."""
    if label not in findings.rows:
        return None
    entry = findings.named(label)
    options = entry.config["train"]
    shared = findings.baseline.config["train"]
    own = []
    for key in VARIANT:
        value = options.get(key)
        if value != shared.get(key):
            own.append((key, value))
    hyper_parameters = entry.config["hyper_parameters"]
    return repr((entry.method, hyper_parameters, own))


def not_in_common(comparisons: Sequence[Findings], shared: Findings) -> str:
    """What to say of the entries that are not in common."""
    labels: dict[str, None] = {}
    lost: dict[str, None] = {}
    for findings in comparisons:
        labels.update(dict.fromkeys(findings.rows))
        for entry in findings.lost:
            lost[entry.label] = None
    others = []
    for label in labels:
        if label not in shared.rows and label not in lost:
            others.append(label)
    sentences = []
    if lost:
        names = ", ".join(lost)
        sentences.append(f"Left out, as training broke down: {names}.")
    if others:
        names = ", ".join(others)
        sentences.append(f"Left out, as not the same in all of them: {names}.")
    return " ".join(sentences)


def describe(comparisons: Sequence[Findings]) -> dict[str, Any]:
    """As `Findings.describe`, with means over the federations; and each federation by itself."""
    shared = in_common(comparisons)
    first = shared[0]
    floor = None
    repetition = first.paired_floor or first.floor_of_seeds
    if repetition is not None:
        row = pooled([findings.rows[repetition.label] for findings in shared])
        floor = replace(row, label=FLOOR_NAMES[repetition.label]).describe()
    rows = []
    for entry in first.planned:
        row = pooled([findings.rows[entry.label] for findings in shared])
        rows.append(row.describe())
    federations = []
    for findings in comparisons:
        federations.append({"folder": str(findings.folder), **findings.describe()})
    joint: dict[str, Any] = {"rows": rows, "noise_floor": floor, "last_rounds": first.last_rounds}
    joint["seeds"] = len(first.seeds)
    for key in ("broke_down", "stopped", "advice"):
        every: dict[str, None] = {}  # each once, in order
        for federation in federations:
            every.update(dict.fromkeys(federation[key]))
        joint[key] = list(every)
    return {**joint, "federations": federations}


def pooled(rows: Sequence[EntryFigures]) -> EntryFigures:
    """One row for all federations: means over them, the time of all; each has a fit of its own."""

    def mean(name: str) -> float:
        return mean_and_spread([getattr(row, name) for row in rows])[0]  # of those that have one

    return replace(
        rows[0],
        last=_pooled_figures([row.last for row in rows]),
        late=_pooled_figures([row.late for row in rows]),
        negative_rounds=mean("negative_rounds"),
        oscillation=mean("oscillation"),
        moved=mean("moved"),
        training_loss=mean("training_loss"),
        skipped_rounds=mean("skipped_rounds"),
        seconds=sum(row.seconds for row in rows),
        fit=None,
    )


def _pooled_figures(by_federation: Sequence[Figures]) -> Figures:
    """The mean over federations; the spread is that over seeds and that between federations together."""
    pooled = {}
    for name in by_federation[0]:
        if not all(name in figures for figures in by_federation):
            continue  # expected figures, which older runs do not have
        pairs = np.array([figures[name] for figures in by_federation])
        means, spreads = pairs.T
        over_seeds = np.mean(np.square(spreads))
        over_federations = np.var(means)
        mean = float(np.mean(means))
        spread = float(np.sqrt(over_seeds + over_federations))
        pooled[name] = (mean, spread)
    return pooled


def in_expectation(comparisons: Sequence[Findings]) -> list[Findings] | None:
    """The same with expected accuracies; None unless these fit on every federation."""
    expected = []
    for findings in comparisons:
        fitting = findings.expected
        if fitting is None:
            return None
        expected.append(fitting)
    return expected
