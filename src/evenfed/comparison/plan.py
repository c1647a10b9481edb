"""Labelled entries of a comparison: an algorithm with its hyper-parameters and its own options of a run."""

import dataclasses
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..algorithms import find
from ..core.algorithm import Algorithm, build
from ..core.errors import InputError, unknown
from ..settings import VARIANT, Settings
from ..simulate.loop import Run

_FORM = re.compile(r"\s*(?P<name>[^\[\]]+?)\s*(?:\[(?P<options>.*)\])?\s*")
_LABEL = re.compile(r"[\w.=,+\-\[\] ]{1,120}")


@dataclass(frozen=True)
class Variant:
    """What stands in one row of a comparison; the same algorithm may stand in several."""

    label: str
    algorithm: Algorithm
    options: Mapping[str, Any] = field(default_factory=dict)  # of `Settings`, for this entry only

    def __post_init__(self) -> None:
        if not _LABEL.fullmatch(self.label) or self.label.startswith("."):
            raise InputError(
                f"label '{self.label}' cannot name a folder; use letters, digits and any of . _ = , + - [ ]"
            )

    @classmethod
    def of(cls, label: str, table: Mapping[str, Any]) -> "Variant":
        """From a table of options; `algorithm` names the method if the label does not.

        >>> Variant.of("gentle", {"algorithm": "semi_vred", "beta": 0.1, "lr": 0.01})
        Variant(label='gentle', algorithm=SemiVRed(beta=0.1, safe=None), options={'lr': 0.01})
        """
        given = dict(table)
        method = find(str(given.pop("algorithm", _split(label)[0])))
        own = {k: v for k, v in given.items() if k in VARIANT}
        hyper = {k: v for k, v in given.items() if k not in VARIANT}
        allowed = [spec.name for spec in fields(method)]
        for key in hyper:
            if key not in allowed:
                raise unknown(f"option of {label}", key, [*allowed, *VARIANT, "algorithm"])
        return cls(label, build(method, hyper), own)

    @classmethod
    def grid(cls, label: str, table: Mapping[str, Any]) -> "list[Variant]":
        """One entry, or with `grid`, a table of lists, every combination of their values; "none" leaves one out.

        >>> dials = {"beta": [0.5, 1], "smooth": ["none", 0.25]}
        >>> [v.label for v in Variant.grid("vred", {"lr": 0.01, "grid": dials})][:3]
        ['vred[beta=0.5]', 'vred[beta=0.5,smooth=0.25]', 'vred[beta=1]']
        """
        fixed = {k: v for k, v in table.items() if k != "grid"}
        if "grid" not in table:
            return [cls.of(label, fixed)]
        dials = table["grid"]
        if not isinstance(dials, Mapping) or not all(isinstance(v, list) and v for v in dials.values()) or not dials:
            raise InputError(f"{label}: grid = {dials!r}; give a table of lists, e.g. grid = {{ beta = [0.5, 1.0] }}")
        if any(isinstance(value, (list, dict)) for values in dials.values() for value in values):
            raise InputError(
                f"{label}: grid = {dials!r}; give lists of plain values, e.g. grid = {{ beta = [0.5, 1.0] }}"
            )
        for key in dials:
            if key in fixed or key == "algorithm":
                raise InputError(
                    f"{label}: grid over '{key}', which is set beside it too or cannot vary; leave one out"
                )
        method, found = str(fixed.pop("algorithm", label)), []
        for values in itertools.product(*dials.values()):
            chosen = {k: v for k, v in zip(dials, values, strict=True) if v != "none"}
            named = ",".join(f"{k}={v}" for k, v in chosen.items())
            found.append(cls.of(f"{method}[{named}]" if named else method, {"algorithm": method, **fixed, **chosen}))
        return found

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """From the command line's form.

        >>> Variant.parse("semi_vred[beta=1,smooth=0.25]").options
        {'smooth': 0.25}
        """
        name, options = _split(text)
        return cls.of(text.replace(" ", ""), {"algorithm": name, **options})

    def with_rate(self, lr: float) -> "Variant":
        """The same entry with another learning rate, which a label that tells the rate tells too.

        >>> Variant.parse("fedavg[lr=0.01]").with_rate(0.06).label
        'fedavg[lr=0.06]'
        """
        label = re.sub(r"(?<=[\[,])lr=[^,\]]+", f"lr={lr:g}", self.label)
        return dataclasses.replace(self.changed("lr", lr), label=label)

    def changed(self, key: str, value: Any) -> "Variant":
        """The same entry with one hyper-parameter or option set."""
        table = {"algorithm": self.algorithm.name, **self.algorithm.describe(), **self.options, key: value}
        return Variant.of(self.label, table)


def parse_list(text: str, known: Mapping[str, Variant] | None = None) -> list[Variant]:
    """Entries separated by commas outside brackets; a label of `known` is that entry.

    >>> [v.label for v in parse_list("fedavg, vred[beta=0.5,smooth=0.25]")]
    ['fedavg', 'vred[beta=0.5,smooth=0.25]']
    """
    parts = [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]
    return distinct([known[part] if known and part in known else Variant.parse(part) for part in parts])


def distinct(variants: Sequence[Variant]) -> list[Variant]:
    """The entries, checked to be at least one and to have labels of their own."""
    if not variants:
        raise InputError("no algorithm was given; name at least one, e.g. fedavg,semi_vred")
    labels = [v.label for v in variants]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"'{label}' stands twice in the comparison; give each entry a label of its own")
    return list(variants)


def value_of(text: str) -> Any:
    """A value as TOML writes it; a bare word is a string.

    >>> value_of("0.5"), value_of("true"), value_of("huber")
    (0.5, True, 'huber')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None if text.lower() == "none" else text.strip()


def _split(text: str) -> tuple[str, dict[str, Any]]:
    found = _FORM.fullmatch(text)
    if not found:
        raise InputError(f"'{text}' is not an entry; write a name, or name[option=value,option=value]")
    options = {}
    for part in filter(None, (found["options"] or "").split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"'{part}' in '{text}' has no value; write option=value")
        options[key.strip()] = value_of(value)
    return found["name"], options


FLOOR_LABEL = "fedavg-other-seeds"


def plan_runs(
    variants: Sequence[Variant], seeds: Sequence[int], shared: Settings, noise_floor: bool
) -> tuple[list[Run], list[Run]]:
    """The runs of a comparison, and FedAvg's with other seeds."""

    def run(variant: Variant, label: str, seed: int) -> Run:
        return Run(label, variant.algorithm, dataclasses.replace(shared, seed=seed, **variant.options))

    runs = [run(variant, variant.label, seed) for variant in variants for seed in seeds]
    fedavg = next(v for v in variants if v.label == "fedavg")
    away = 1000
    while {seed + away for seed in seeds} & set(seeds):
        away += 1000
    floor = [run(fedavg, FLOOR_LABEL, seed + away) for seed in seeds] if noise_floor else []
    return runs, floor


def with_baseline(variants: Sequence[Variant]) -> list[Variant]:
    """FedAvg first, added where it is missing: every comparison is against it."""
    checked = distinct(variants)
    baseline = [v for v in checked if v.label == "fedavg"]
    if baseline and baseline[0].algorithm.name != "fedavg":
        raise InputError(f"the label 'fedavg' stands for {baseline[0].algorithm.name}; give that entry another label")
    return (baseline or [Variant.parse("fedavg")]) + [v for v in checked if v.label != "fedavg"]


def seed_list(seeds: int | Sequence[int]) -> list[int]:
    """3 -> [0, 1, 2]; a list stays as it is."""
    found: Any = list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
    ok = isinstance(found, Sequence) and all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in found)
    if not ok or len(found) == 0 or len(set(found)) != len(found):
        raise InputError(
            f"seeds={seeds!r}: give a number of seeds, at least 1, or a list such as [0] of distinct whole numbers"
        )
    return list(found)
