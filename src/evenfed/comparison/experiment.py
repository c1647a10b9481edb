"""From a TOML file to an experiment: which algorithms and seeds, on which federation, with which options."""

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from .. import models, trees
from ..callbacks.registry import Chosen, by_name, chosen, deciding
from ..clients.client import Pool
from ..core.choices import extended
from ..core.errors import InputError, check_choice, unknown
from ..core.files import plain_file
from ..data import DataSettings, Federation
from ..experiments import located, named_after
from ..settings import VARIANT, Settings
from ..simulate.initial_models import InitialModels
from ..simulate.problem import Problem, initial_model
from ..simulate.state import Run
from . import toml_keys
from .analysis.configuration import config_of, repetitions
from .federations import folder_name
from .loss_and_score import KEYS, LossAndScore
from .runs import NoiseFloorChoice, are_seeds, check_noise_floor, plan_runs, seed_list
from .variants import Variant, value_of, with_baseline

DEMO = Path("@demo")
_NAME = re.compile(r"[\w.+\-]{1,100}")

TomlTable = Mapping[str, Any]


def _default_model() -> TomlTable:
    return {"name": "mlp"}


@dataclass(frozen=True)
class Experiment:
    """The contents of a TOML file."""

    name: str
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    federations: tuple[int, ...] = ()  # values of data.seed: the same comparison on several splits
    noise_floor: NoiseFloorChoice = True  # FedAvg once more: "batches", "seeds", "both"; True: as `runs` decides
    data: DataSettings = field(default_factory=DataSettings)
    model: TomlTable = field(default_factory=_default_model)
    train: Settings = field(default_factory=Settings)
    objective: LossAndScore = field(default_factory=LossAndScore)  # `loss` and `score` of [train]
    quick: TomlTable = field(default_factory=dict)  # what a first look in minutes changes
    track: Chosen = field(default_factory=dict)  # callbacks: options by name
    tune: TomlTable = field(default_factory=dict)  # options of a search, and its grid
    selected_on: Literal["validation", "test"] | None = None  # what its values were chosen on, if by `evenfed tune`
    modules: tuple[str, ...] = ()  # folders in which a model of one's own is looked for

    @classmethod
    def read(cls, path: Path) -> "Experiment":
        """An experiment from a TOML file, or `@name` of the package's; unknown keys name the nearest valid one."""
        path = located(path)
        if path.is_dir():
            raise InputError(f"{path} is a folder; give the path of an experiment's TOML file")
        try:
            table = tomllib.loads(plain_file(path, or_pipe=True).read_text())
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror}); give the path of an experiment's TOML file"
            ) from None
        except UnicodeDecodeError:
            raise InputError(f"{path} is not UTF-8 text; give an experiment's TOML file") from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is not valid TOML: {error}") from None
        folder = path.resolve().parent
        for key in ("data", "quick"):
            if isinstance(table.get(key), dict):
                table[key] = _rooted(table[key], folder)
        experiment = cls.of(table, named_after(path))
        modules = [folder, Path.cwd()]
        modules += [folder / Path(name).expanduser() for name in experiment.modules]
        return dataclasses.replace(experiment, modules=tuple(map(str, modules)))

    @classmethod
    def of(cls, table: TomlTable, name: str) -> "Experiment":
        """An experiment from the tables of a TOML file."""
        toml_keys.check_top(table)
        algorithms = _table(table, "algorithms")
        if not algorithms:
            raise InputError("the experiment names no algorithm; add a table [algorithms.fedavg] or the like")
        for label, options in algorithms.items():
            if not isinstance(options, Mapping):
                raise InputError(
                    f"algorithms.{label} = {options!r}: give a table of options, e.g. [algorithms.{label}]"
                )
        own_name = str(table.get("name", name))
        is_hidden = own_name.startswith(".")
        if is_hidden or not _NAME.fullmatch(own_name):
            raise InputError(f"name = '{own_name}' cannot name a folder; use letters, digits and any of . _ + -")
        train = _table(table, "train")
        toml_keys.check_train(train)
        objective = LossAndScore.of(train)
        for key in KEYS:
            train.pop(key, None)
        selected_on = table.get("selected_on")
        if selected_on is not None:
            check_choice("selected_on", selected_on, ("validation", "test"))
        data = _table(table, "data")
        toml_keys.check("data", data)
        tune = _table(table, "tune")
        toml_keys.check("tune", tune)
        shared = Settings.of(train)
        variants: list[Variant] = []
        for label, options in algorithms.items():
            variants += Variant.grid(label, options, shared)
        seeds = seed_list(table.get("seeds", 3))
        noise_floor = table.get("noise_floor", True)
        return cls(
            name=own_name,
            seeds=tuple(seeds),
            federations=_federations(table.get("federations", []), data),
            data=DataSettings(**data),
            model={**_default_model(), **_table(table, "model")},
            train=shared,
            objective=objective,
            noise_floor=check_noise_floor(noise_floor),
            quick=_table(table, "quick"),
            selected_on=selected_on,
            track=chosen(table.get("track", {})),
            tune=tune,
            modules=_modules(table),
            variants=tuple(with_baseline(variants)),
        )

    @property
    def members(self) -> "list[Experiment]":
        """One experiment for each federation, in a folder of its own; without any, the experiment itself."""
        if not self.federations:
            return [self]
        members = []
        for seed in self.federations:
            member = dataclasses.replace(
                self,
                name=f"{self.name}/{folder_name(seed)}",
                federations=(),
                data=self.data.changed({"seed": seed}),
            )
            members.append(member)
        return members

    def changed(self, assignments: Sequence[str]) -> "Experiment":
        """With values set as on the command line: `train.lr=0.1`, `data.clients=50` or `semi_vred.beta=0.5`.

        Values of the data are set together, because some are only valid together. A path is relative to the working
        folder; in a file it is relative to that file.
        """
        experiment = self
        data = {}
        for assignment in assignments:
            left, equals, text = assignment.partition("=")
            place = left.strip()
            if not equals:
                raise InputError(f"--set {assignment}: write part.key=value, e.g. semi_vred.beta=0.5 or train.lr=0.1")
            value = value_of(text)
            if place.startswith("data."):
                key = place.removeprefix("data.")
                data[key] = value
            else:
                experiment = experiment.with_value(place, value)
        toml_keys.check("data", data)
        changed_data = experiment.data.changed(_rooted(data, Path.cwd()))
        return dataclasses.replace(experiment, data=changed_data)

    def with_value(self, place: str, value: Any) -> "Experiment":
        """With the value at `part.key` set; parts are train, data, model and the labels of the entries."""
        if place == "seeds":
            seeds = tuple(seed_list(value))
            return dataclasses.replace(self, seeds=seeds)
        if place == "federations":
            return dataclasses.replace(self, federations=_federations(value, {}))
        if place == "noise_floor":
            return dataclasses.replace(self, noise_floor=check_noise_floor(value))
        part, dot, key = place.rpartition(".")
        if not dot or not key:
            meant = toml_keys.place_of(place)
            advice = "write part.key=value, e.g. train.lr=0.1"
            if meant is not None:
                advice = f"write {meant}={value}"
            raise InputError(f"'{place}' is no place for a value; {advice}")
        if part.startswith("train."):  # an option of an option: train.optimizer.momentum
            name = part.removeprefix("train.")
            current = getattr(self.train, name, None)
            return self.with_value(f"train.{name}", extended(current, key, value))
        if part == "train" and key in KEYS:
            objective = dataclasses.replace(self.objective, **{key: value})
            return dataclasses.replace(self, objective=objective)
        if part == "train":
            toml_keys.check_train({key: value})
            options = {**vars(self.train), key: value}
            train = Settings.of(options)
            return dataclasses.replace(self, train=train)
        if part == "data":
            toml_keys.check("data", [key])
            data = self.data.changed({key: value})
            return dataclasses.replace(self, data=data)
        if part == "model":
            model = {**self.model, key: value}
            return dataclasses.replace(self, model=model)
        return self._with_option(part, key, value)

    def _with_option(self, label: str, key: str, value: Any) -> "Experiment":
        labels = [variant.label for variant in self.variants]
        entry, _, option = label.rpartition(".")
        if label not in labels and entry in labels and option in VARIANT:  # an option of an entry's option
            (variant,) = [variant for variant in self.variants if variant.label == entry]
            shared = getattr(self.train, option)
            current = variant.options.get(option, shared)
            return self._with_option(entry, option, extended(current, key, value))
        if label not in labels:
            parts = [*labels, "train", "data", "model"]
            raise unknown("entry of --set", label, parts)
        variants = []
        for variant in self.variants:
            if variant.label == label:
                variant = variant.changed(key, value)
            variants.append(variant)
        return dataclasses.replace(self, variants=tuple(variants))

    def in_quick_form(self) -> "Experiment":
        """As the table [quick] changes it, under its own name; without entries that repeat one in another precision."""
        if not self.quick:
            raise InputError(f"experiment '{self.name}' has no table [quick]; add one, e.g. \"train.rounds\" = 10")
        changes = dict(self.quick)
        faster = changes.pop("lr_factor", 1.0)  # fewer rounds and a smaller model want longer steps
        repeated = self.repetitions()  # the same as the originals on a CPU
        variants = []
        for variant in self.variants:
            if variant.label in repeated:
                continue
            if "lr" in variant.options:
                rate = variant.options["lr"]
                variant = variant.with_rate(faster * rate)
            variants.append(variant)
        train = dataclasses.replace(self.train, lr=faster * self.train.lr)
        experiment = dataclasses.replace(
            self,
            name=f"{self.name}-quick",
            model=changes.pop("model", self.model),
            variants=tuple(variants),
            train=train,
        )
        for place, value in changes.items():
            experiment = experiment.with_value(place, value)
        return experiment

    def runs(self) -> tuple[list[Run], list[Run]]:
        """The runs, and the noise floor's."""
        return plan_runs(
            self.variants,
            self.seeds,
            self.train,
            self.noise_floor,
        )

    def new_model(self, federation: Federation) -> nn.Module:
        """The model for this federation's examples, with fresh parameters."""
        options = dict(self.model)
        name = str(options.pop("name"))
        models.importable_from(self.modules)
        example = trees.rows(federation.train.inputs, slice(1))
        assert isinstance(example, Tensor)  # data sets have one input
        return models.get(name, example, self.objective.outputs(federation), **options)

    def check_model(self) -> None:
        """Refuse a model that is not there, or an option that it does not have."""
        options = dict(self.model)
        name = str(options.pop("name"))
        models.importable_from(self.modules)
        models.check(name, options)

    def functions(self) -> dict[str, Any]:
        """The loss and the score, where the file names them."""
        models.importable_from(self.modules)
        return self.objective.functions

    def problem(
        self,
        federation: Federation,
        judged: Pool | None,
    ) -> tuple[Problem, InitialModels]:
        """The model on this federation, measured on `judged`; and each seed's initial model."""

        def make() -> nn.Module:
            return self.new_model(federation)

        first_seed = self.seeds[0]
        problem = Problem.on(
            initial_model(make, first_seed),
            federation.train,
            judged,
            federation.names,
            self.train,
            padding=federation.padding,
            **self.functions(),
        )
        has_default_loss = self.objective.loss is None
        problem = problem.holding_out(federation.unseen, None, has_default_loss)
        return problem, InitialModels(problem, make)

    def repetitions(self) -> set[str]:
        """Labels of entries that repeat another one in a precision other than the experiment's."""
        runs, _ = self.runs()
        configs = {run.label: self.config(run) for run in runs}
        repeated = repetitions(configs, self.train.precision)
        return set(repeated)

    def config(self, run: Run) -> dict[str, Any]:
        """All that decides a run's result. A folder is checked against it before it is written to again."""
        return {
            **config_of(run, self.data.describe(), dict(self.model)),
            **self.objective.describe(),
            **deciding(by_name(self.track)),
        }


def _rooted(table: TomlTable, folder: Path) -> dict[str, Any]:
    """The table with the path of the data in full."""
    rooted = dict(table)
    for key in ("path", "data.path"):
        path = rooted.get(key)
        if isinstance(path, str):
            rooted[key] = str(folder / Path(path).expanduser())
    return rooted


def _modules(table: TomlTable) -> tuple[str, ...]:
    folders = table.get("modules", [])
    is_list = isinstance(folders, list)
    if not is_list or not all(isinstance(folder, str) for folder in folders):
        raise InputError(f"modules = {folders!r}: give a list of folders with your own modules")
    return tuple(folders)


def _federations(seeds: Any, data: TomlTable) -> tuple[int, ...]:
    if seeds == []:
        return ()
    if "seed" in data:
        raise InputError("federations and data.seed: give one of them; federations are values of data.seed")
    if not isinstance(seeds, list) or not are_seeds(seeds):
        raise InputError(f"federations = {seeds!r}: give a list of different values of data.seed, such as [0, 1, 2]")
    return tuple(seeds)


def _table(table: TomlTable, key: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise InputError(f"{key} = {value!r}: give a table, e.g. [{key}]")
    return dict(value)
