"""Labelled entries of a comparison: an algorithm with its hyper-parameters and its own options of a run."""

import dataclasses
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..algorithms import find, plain
from ..core.algorithm import Algorithm, build, check_declared
from ..core.choices import refuse_unknown
from ..core.class_checks import overridden
from ..core.errors import InputError
from ..core.scalars import unwrapped
from ..core.tables import changed_fields
from ..settings import VARIANT, Settings

_ENTRY = re.compile(r"\s*(?P<name>[^\[\]]+?)\s*(?:\[(?P<options>.*)\])?\s*")
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_LABEL = re.compile(r"[\w.=,+\-\[\] ]{1,120}")
_NOT_IN_VALUE = re.compile(r"[^\w.+\-]")
_FEDPROX = "fedprox"
_LR_IN_LABEL = re.compile(r"(?<=[\[,])lr=[^,\]]+")

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """One row of a comparison. The same algorithm may have several rows."""

    label: str
    algorithm: Algorithm
    options: Options = field(default_factory=dict)  # of `Settings`, for this entry only
    table: str = field(default="", repr=False, compare=False)  # of the experiment's file that it comes from

    def __post_init__(self) -> None:
        is_hidden = self.label.startswith(".")
        if is_hidden or not _LABEL.fullmatch(self.label):
            raise InputError(
                f"label '{self.label}' cannot name a folder; use letters, digits and any of . _ = , + - [ ]"
            )

    @classmethod
    def of_entry(cls, entry: Any, label: str | None = None) -> "Variant":
        """From what a user gives: a name, a class, an instance, a table of options, or a Variant.

        Without a label, an instance is labelled by what differs from the defaults.

        >>> from evenfed.algorithms import SemiVRed
        >>> [Variant.of_entry(entry).label for entry in (SemiVRed, SemiVRed(beta=0.5))]
        ['semi_vred', 'semi_vred[beta=0.5]']
        """
        if isinstance(entry, str):
            variant = cls.parse(entry)
        elif isinstance(entry, Variant):
            variant = entry
        elif isinstance(entry, Mapping):
            variant = cls.of(label, entry)
        elif isinstance(entry, Algorithm | type):
            variant = cls.of(None, {"algorithm": entry})
        else:
            raise _no_algorithm(entry)
        if label is None:
            return variant
        return dataclasses.replace(variant, label=label)

    @classmethod
    def of(cls, label: str | None, table: Options) -> "Variant":
        """From a table of options; `algorithm` names the method, or is one, if the label does not.

        >>> Variant.of("gentle", {"algorithm": "semi_vred", "beta": 0.1, "lr": 0.01})
        Variant(label='gentle', algorithm=SemiVRed(beta=0.1, safe=None), options={'lr': 0.01})
        """
        method = ParsedAlgorithm.of(label, table)
        values = unwrapped({**method.values, **table})
        values.pop("algorithm", None)
        if method.is_fedprox:
            values = _with_prox(values)
        own = [hyper_parameter.name for hyper_parameter in fields(method.algorithm)]
        name = label or method.algorithm.name
        refuse_unknown(f"option of {name}", values, [*own, *VARIANT, "algorithm"])
        hyper_parameters = {}
        options = {}
        for key, value in values.items():
            if key in VARIANT:
                options[key] = value
            else:
                hyper_parameters[key] = value
        algorithm = build(method.algorithm, hyper_parameters)
        if label is None:
            label = _label(algorithm.name, {**changed_fields(algorithm), **options})
        _check_hooks(type(algorithm))
        return cls(label, algorithm, options)

    @classmethod
    def grid(cls, label: str, table: Options, shared: Settings | None = None) -> "list[Variant]":
        """One entry, or with `grid`, a table of lists, one for every combination; the value "none" leaves a key out.

        A combination is labelled by its values. In a table with another name than its method's, what the table fixes
        comes before them, where it is not as in `shared` (the options of all entries) or the algorithm's default. If it
        fixes a table, such as an optimiser's, the name stands for all of that.

        >>> dials = {"beta": [0.5, 1], "smooth": ["none", 0.25]}
        >>> [v.label for v in Variant.grid("vred", {"lr": 0.01, "grid": dials})][:2]
        ['vred[beta=0.5]', 'vred[beta=0.5,smooth=0.25]']
        >>> [v.label for v in Variant.grid("slow", {"algorithm": "vred", "lr": 0.01, "grid": dials})][:2]
        ['vred[lr=0.01,beta=0.5]', 'vred[lr=0.01,beta=0.5,smooth=0.25]']
        """
        fixed = dict(table)
        dials = fixed.pop("grid", None)
        if dials is None:
            variant = cls.of(label, fixed)
            return [dataclasses.replace(variant, table=label)]
        written = fixed.pop("algorithm", label)
        method, in_brackets = _split(str(written))
        fixed = {**in_brackets, **fixed}
        _check_grid(label, dials, fixed)
        name, shown = _named(label, method, fixed, shared or Settings())
        variants = []
        for values in itertools.product(*dials.values()):
            point = {}
            for key, value in zip(dials, values, strict=True):
                if value != "none":
                    point[key] = value
            options = {"algorithm": method, **fixed, **point}
            variant = cls.of(_label(name, {**shown, **point}), options)
            variants.append(dataclasses.replace(variant, table=label))
        return variants

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """From the command line's form.

        >>> Variant.parse("semi_vred[beta=1,smooth=0.25]").options
        {'smooth': 0.25}
        """
        label: str | None = text.replace(" ", "")
        if not _LABEL.fullmatch(str(label)):
            label = None
        return cls.of(label, {"algorithm": text})

    def with_rate(self, lr: float) -> "Variant":
        """The same entry with another learning rate. A label that gives the rate follows.

        >>> Variant.parse("fedavg[lr=0.01]").with_rate(0.06).label
        'fedavg[lr=0.06]'
        """
        label = _LR_IN_LABEL.sub(f"lr={lr:g}", self.label)
        changed = self.changed("lr", lr)
        return dataclasses.replace(changed, label=label)

    def changed(self, key: str, value: Any) -> "Variant":
        """The same entry with one hyper-parameter or option set."""
        name, _ = _split(self.label)
        if key == "mu" and plain(name) == _FEDPROX:
            key = "prox"
        options = {"algorithm": self.algorithm, **self.options, key: value}
        changed = Variant.of(self.label, options)
        return dataclasses.replace(changed, table=self.table)


@dataclass(frozen=True)
class ParsedAlgorithm:
    """The algorithm that an entry names, and the values that come with the name."""

    algorithm: type[Algorithm]
    values: Options = field(default_factory=dict)
    is_fedprox: bool = False  # FedAvg, whose `prox` FedProx calls mu

    @classmethod
    def of(cls, label: str | None, table: Options) -> "ParsedAlgorithm":
        """From the table's `algorithm`: a name with or without options in brackets, a class, or an instance."""
        named = "" if label is None else _split(label)[0]
        algorithm = table.get("algorithm", named)
        if algorithm == "":
            keys = ", ".join(map(str, table)) or "none"
            raise InputError(
                f"an entry has no key 'algorithm' (its keys: {keys}); add it, e.g. "
                "{'algorithm': 'semi_vred', 'smooth': 0.25}"
            )
        if isinstance(algorithm, Algorithm):
            values = {each.name: getattr(algorithm, each.name) for each in fields(algorithm)}
            return cls(type(algorithm), values, plain(named) == _FEDPROX)
        if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
            check_declared(algorithm)
            return cls(algorithm)
        if not isinstance(algorithm, str):
            raise _no_algorithm(algorithm)
        name, values = _split(algorithm)
        if plain(name) == _FEDPROX:
            return cls(find("fedavg"), values, is_fedprox=True)
        return cls(find(name), values)


def parse_list(text: str, known: Sequence[Variant] = ()) -> list[Variant]:
    """Entries separated by commas outside brackets: names of algorithms, or what `known` entries are called.

    The name of a table of an experiment's file stands for all its entries, a label for one.

    >>> [v.label for v in parse_list("fedavg, vred[beta=0.5,smooth=0.25]")]
    ['fedavg', 'vred[beta=0.5,smooth=0.25]']
    >>> known = Variant.grid("vred", {"grid": {"beta": [0.5, 1.0]}})
    >>> [v.label for v in parse_list("vred,term", known)]
    ['vred[beta=0.5]', 'vred[beta=1.0]', 'term']
    """
    by_name = _by_table_and_label(known)
    variants = []
    for part in _COMMA_OUTSIDE_BRACKETS.split(text):
        entry = part.strip()
        if not entry:
            continue
        names = [name for name in by_name if is_same_name(name, entry)]
        if entry in by_name:
            names = [entry]
        if len(names) == 1:
            variants += by_name[names[0]]
        else:
            variants.append(Variant.parse(entry))
    return distinct(variants)


def _by_table_and_label(variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    """What each name stands for; where a table and an entry have the same name, it is the table's."""
    by_name: dict[str, list[Variant]] = {}
    for variant in variants:
        by_name.setdefault(variant.table or variant.label, []).append(variant)
    tables = list(by_name)
    for variant in variants:
        if not any(is_same_name(table, variant.label) for table in tables):
            by_name[variant.label] = [variant]
    return by_name


def is_same_name(label: str, written: str) -> bool:
    """Whether a name without options in brackets is the label in another spelling."""
    if "[" in label or "[" in written:
        return label == written
    return plain(label) == plain(written)


def distinct(variants: Sequence[Variant]) -> list[Variant]:
    """The entries, after checking that there is at least one and that no label occurs twice."""
    if not variants:
        raise InputError("no algorithm was given; name at least one, e.g. fedavg,semi_vred")
    labels = set()
    for variant in variants:
        if variant.label in labels:
            raise InputError(f"'{variant.label}' occurs twice in the comparison; give each entry a label of its own")
        labels.add(variant.label)
    return list(variants)


def with_baseline(variants: Sequence[Variant]) -> list[Variant]:
    """FedAvg first, added if missing: every comparison is against it. In any spelling its label is fedavg."""
    labelled = []
    for variant in variants:
        is_fedavg = variant.algorithm.name == "fedavg"
        if is_fedavg and is_same_name(variant.label, "fedavg"):
            variant = dataclasses.replace(variant, label="fedavg")
        labelled.append(variant)
    by_label = {variant.label: variant for variant in distinct(labelled)}
    baseline = by_label.pop("fedavg", None) or Variant.parse("fedavg")
    if baseline.algorithm.name != "fedavg":
        raise InputError(f"the label 'fedavg' stands for {baseline.algorithm.name}; give that entry another label")
    return [baseline, *by_label.values()]


def value_of(text: str) -> Any:
    """A value in TOML's notation; a bare word is a string.

    >>> value_of("0.5"), value_of("true"), value_of("huber")
    (0.5, True, 'huber')
    """
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        if text.lower() == "none":
            return None
        return text.strip()
    return table["value"]


def _check_hooks(cls: type[Algorithm]) -> None:
    """Refuse a class that changes nothing: whatever its name says, it would train FedAvg."""
    if not set(overridden(cls, Algorithm)) - {"describe"}:
        raise InputError(
            f"{cls.__name__} gives neither `objective` nor another method of Algorithm, so it trains FedAvg; write one "
            "(see docs/own-algorithm.md), or name fedavg"
        )


def _check_grid(label: str, dials: Any, fixed: Options) -> None:
    """Refuse a grid that is not a table of lists of plain values, or that repeats a fixed key."""
    grid = f"{label}: grid = {dials!r}"
    example = "e.g. grid = { beta = [0.5, 1.0] }"
    if not isinstance(dials, Mapping) or not dials:
        raise InputError(f"{grid}; give a table of lists, {example}")
    for key, values in dials.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{grid}; give a table of lists, {example}")
        for value in values:
            if isinstance(value, (list, dict)):
                raise InputError(f"{grid}; give lists of plain values, {example}")
        if key in fixed or key == "algorithm":
            raise InputError(f"{label}: grid over '{key}', which is set beside it too or cannot vary; leave one out")


def _named(
    label: str,
    method: str,
    fixed: Options,
    shared: Settings,
) -> tuple[str, Options]:
    """What labels of a grid begin with: a name, and what its table fixes."""
    if is_same_name(label, method):
        return method, {}
    unusual = _unusual(method, fixed, shared)
    has_table = any(isinstance(value, Mapping) for value in unusual.values())
    if has_table:  # such as an optimiser's: too long to show
        return label, {}
    return method, unusual


def _unusual(method: str, fixed: Options, shared: Settings) -> dict[str, Any]:
    """Options that are not those of all entries, and hyper-parameters that are not at their defaults."""
    algorithm = ParsedAlgorithm.of(None, {"algorithm": method}).algorithm
    defaults = {each.name: each.default for each in fields(algorithm)}
    unusual = {}
    for key, value in fixed.items():
        usual = defaults.get(key)
        if key in VARIANT:
            usual = getattr(shared, key)
        if value != usual:
            unusual[key] = value
    return unusual


def _label(method: str, options: Options) -> str:
    """The form that `_split` reads."""
    if not options:
        return method
    assignments = []
    for key, value in options.items():
        assignments.append(f"{key}={_shown(value)}")
    bracketed = ",".join(assignments)
    return f"{method}[{bracketed}]"


def _shown(value: Any) -> str:
    """A value in a label: what cannot name a folder is left out."""
    if isinstance(value, Mapping):
        value = value.get("name", "own")
    elif callable(value):
        value = getattr(value, "__name__", "own")
    return _NOT_IN_VALUE.sub("", str(value))


def _with_prox(values: Options) -> dict[str, Any]:
    """FedProx's mu as the option `prox`."""
    renamed = dict(values)
    if "mu" in renamed and "prox" in renamed:
        raise InputError(f"fedprox: mu={renamed['mu']} and prox={renamed['prox']} are the same option; give one")
    if "mu" in renamed:
        renamed["prox"] = renamed.pop("mu")
    if "prox" not in renamed:
        raise InputError("fedprox needs its mu, the pull towards the incoming model; write e.g. fedprox[mu=0.1]")
    return renamed


def _no_algorithm(algorithm: Any) -> InputError:
    kind = type(algorithm).__name__
    if isinstance(algorithm, type):
        kind = f"class {algorithm.__name__}, which is no Algorithm"
    return InputError(f"algorithm is a {kind}; give a name, a class or an instance of an Algorithm")


def _split(text: str) -> tuple[str, dict[str, Any]]:
    """The name of an entry, and the options in its brackets."""
    match = _ENTRY.fullmatch(text)
    if not match:
        raise InputError(f"'{text}' is not an entry; write a name, or name[option=value,option=value]")
    bracketed = match["options"] or ""
    options = {}
    for part in bracketed.split(","):
        if not part:
            continue
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"'{part}' in '{text}' has no value; write option=value")
        name = key.strip()
        options[name] = value_of(value)
    return match["name"], options
