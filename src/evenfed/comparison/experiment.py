"""From a TOML file to an experiment: which algorithms and seeds, on which federation, with which options."""

import dataclasses
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from .. import models
from ..client import Pool
from ..core.errors import InputError, unknown
from ..data import DataSettings, Federation
from ..settings import Settings
from ..simulate.loop import Run
from ..simulate.problem import Problem, initial_model, theta_of
from .configuration import repetitions
from .plan import Variant, distinct, plan_runs, seed_list, value_of, with_baseline

DEMO = Path(__file__).with_name("demo.toml")


@dataclass(frozen=True)
class Experiment:
    """What a TOML file says."""

    name: str
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    noise_floor: bool = True  # FedAvg once more with other seeds
    data: DataSettings = field(default_factory=DataSettings)
    model: Mapping[str, Any] = field(default_factory=lambda: {"name": "mlp"})
    train: Settings = field(default_factory=Settings)
    quick: Mapping[str, Any] = field(default_factory=dict)  # what a first look in minutes changes
    selected_on: Literal["validation", "test"] | None = None  # what its values were chosen on, if by `evenfed tune`

    @classmethod
    def read(cls, path: Path) -> "Experiment":
        """An experiment from a TOML file; unknown keys name the nearest valid one."""
        try:
            table = tomllib.loads(path.read_text())
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror}); give the path of an experiment's TOML file"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not valid TOML: {error}") from None
        return cls.of(table, path.stem)

    @classmethod
    def of(cls, table: Mapping[str, Any], name: str) -> "Experiment":
        """An experiment from the tables of a TOML file."""
        _known(
            table,
            ("name", "seeds", "noise_floor", "data", "model", "train", "algorithms", "quick", "selected_on"),
            "the experiment",
        )
        algorithms = _table(table, "algorithms")
        if not algorithms:
            raise InputError("the experiment names no algorithm; add a table [algorithms.fedavg] or the like")
        for label, options in algorithms.items():
            if not isinstance(options, Mapping):
                raise InputError(
                    f"algorithms.{label} = {options!r}: give a table of options, e.g. [algorithms.{label}]"
                )
        called = str(table.get("name", name))
        if not re.fullmatch(r"[\w.+\-]{1,100}", called) or called.startswith("."):
            raise InputError(f"name = '{called}' cannot name a folder; use letters, digits and any of . _ + -")
        train = _table(table, "train")
        if "seed" in train:
            raise InputError("train.seed: an experiment has `seeds` (a number or a list) at its top, not a seed")
        if table.get("selected_on") not in (None, "validation", "test"):
            raise unknown("selected_on", str(table["selected_on"]), ("validation", "test"))
        data = _table(table, "data")
        _known(data, [f.name for f in dataclasses.fields(DataSettings)], "data")
        return cls(
            name=called,
            seeds=tuple(seed_list(table.get("seeds", 3))),
            data=DataSettings(**data),
            model={"name": "mlp", **_table(table, "model")},
            train=Settings.of(train),
            noise_floor=_yes_or_no("noise_floor", table.get("noise_floor", True)),
            quick=_table(table, "quick"),
            selected_on=table.get("selected_on"),
            variants=tuple(with_baseline(distinct([v for k, t in algorithms.items() for v in Variant.grid(k, t)]))),
        )

    def changed(self, assignments: Sequence[str]) -> "Experiment":
        """With values set as on the command line: `train.lr=0.1`, `data.clients=50` or `semi_vred.beta=0.5`.

        Those of the data are set at once, as some go together only.
        """
        found, data = self, {}
        for assignment in assignments:
            place, equals, text = assignment.partition("=")
            if not equals:
                raise InputError(f"--set {assignment}: write part.key=value, e.g. semi_vred.beta=0.5 or train.lr=0.1")
            if place.strip().startswith("data."):
                data[place.strip().removeprefix("data.")] = value_of(text)
            else:
                found = found.with_value(place.strip(), value_of(text))
        _known(data, [f.name for f in dataclasses.fields(DataSettings)], "data")
        return dataclasses.replace(found, data=dataclasses.replace(found.data, **data))

    def with_value(self, place: str, value: Any) -> "Experiment":
        """With the value at `part.key` set; parts are train, data, model and the labels of the entries."""
        if place == "seeds":
            return dataclasses.replace(self, seeds=tuple(seed_list(value)))
        if place == "noise_floor":
            return dataclasses.replace(self, noise_floor=_yes_or_no(place, value))
        part, dot, key = place.rpartition(".")
        if not dot or not key:
            raise InputError(f"'{place}' is no place for a value; write part.key=value, e.g. train.lr=0.1")
        labels = [v.label for v in self.variants]
        if part == "train":
            return dataclasses.replace(self, train=Settings.of({**_fields(self.train), key: value}))
        if part == "data":
            _known([key], [f.name for f in dataclasses.fields(DataSettings)], "data")
            return dataclasses.replace(self, data=dataclasses.replace(self.data, **{key: value}))
        if part == "model":
            return dataclasses.replace(self, model={**self.model, key: value})
        if part not in labels:
            raise unknown("entry of --set", part, [*labels, "train", "data", "model"])
        changed = [v.changed(key, value) if v.label == part else v for v in self.variants]
        return dataclasses.replace(self, variants=tuple(changed))

    def in_quick_form(self) -> "Experiment":
        """As the table [quick] changes it, under a name of its own; without repetitions in another precision."""
        if not self.quick:
            raise InputError(f"experiment '{self.name}' has no table [quick]; add one, e.g. \"train.rounds\" = 10")
        changes = dict(self.quick)
        faster = changes.pop("lr_factor", 1.0)  # fewer rounds and a smaller model want longer steps
        found = dataclasses.replace(self, name=f"{self.name}-quick", model=changes.pop("model", self.model))
        again = self.repetitions()  # a CPU computes them alike
        kept = [v for v in self.variants if v.label not in again]
        variants = tuple(v.with_rate(faster * v.options["lr"]) if "lr" in v.options else v for v in kept)
        train = dataclasses.replace(self.train, lr=faster * self.train.lr)
        found = dataclasses.replace(found, variants=variants, train=train)
        for place, value in changes.items():
            found = found.with_value(place, value)
        return found

    def runs(self) -> tuple[list[Run], list[Run]]:
        """The runs, and the noise floor's."""
        return plan_runs(self.variants, self.seeds, self.train, self.noise_floor)

    def new_model(self, federation: Federation) -> nn.Module:
        """The model for this federation's examples, with fresh parameters."""
        options = {k: v for k, v in self.model.items() if k != "name"}
        return models.get(str(self.model["name"]), federation.train.inputs[:1], federation.classes, **options)

    def problem(self, federation: Federation, judged: Pool | None) -> tuple[Problem, Callable[[int], Tensor]]:
        """The model on this federation, measured on `judged`; and each seed's initial model as a vector."""

        def make() -> nn.Module:
            return self.new_model(federation)

        first = initial_model(make, self.seeds[0])
        problem = Problem.on(first, federation.train, judged, federation.names, self.train, padding=federation.padding)
        return problem, lambda seed: theta_of(problem, initial_model(make, seed))

    def repetitions(self) -> set[str]:
        """Labels of entries that are another one in another precision than the experiment's."""
        return {*repetitions({run.label: self.config(run) for run in self.runs()[0]}, self.train.precision)}

    def config(self, run: Run) -> dict[str, Any]:
        """All that decides a run's result: what a folder is checked against before it is written to again."""
        return {
            "data": dataclasses.asdict(self.data),
            "model": dict(self.model),
            "algorithm": run.algorithm.name,
            "hyper_parameters": run.algorithm.describe(),
            "train": run.settings.describe(),
        }


def _yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{name}={value!r}: give true or false")
    return value


def _known(given: Any, allowed: Sequence[str], where: str) -> None:
    for key in given:
        if key not in allowed:
            raise unknown(f"key of {where}", key, allowed)


def _table(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, Mapping):
        raise InputError(f"{key} = {found!r}: give a table, e.g. [{key}]")
    return dict(found)


def _fields(settings: Settings) -> dict[str, Any]:
    return {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
