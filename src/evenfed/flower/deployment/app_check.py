"""`evenfed flower check`: an app's data, model and one local step of each site, in this process."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from ...core.errors import InputError, check_whole
from ...core.words import first_of
from ...simulate.problem import initial_model
from .. import wire
from ..array_layout import ArrayLayout
from ..client import SiteApp
from ..logs import quieter
from ..recording import all_metrics
from ..secagg.private import check_run
from ..server import AbsentRunError, FairServerApp, initial_arrays
from ..strategy import FairStrategy
from ..wire import Fields, Values
from .dry_run import DryRun, contexts_of, first_model, order
from .project import Project, loaded, read_project, why

RESUME = "evenfed.resume"
SITES = "evenfed.sites"
OWN_RUN: Fields = {  # writes nothing, begins anew, has no nodes with keys, and its losses are seen
    "evenfed.out": False,
    RESUME: "",
    "evenfed.track": "",
    SITES: "",
    "evenfed.private": False,
}
OTHERS = "the client app is not evenfed's: each site trained as its app says, and the loss is that of training"
MOST_SITES = 1000


@dataclass(frozen=True)
class Row:
    """What one site showed; None where it has no such number."""

    site: int
    name: str
    train: int | None
    test: int | None
    loss: float | None  # before training, of an app of evenfed's
    accuracy: float | None
    seconds: float


@dataclass
class CheckReport:
    """What a check showed."""

    own: bool = True  # evenfed's client app, whose loss is measured before training
    rows: list[Row] = field(default_factory=list)
    faults: dict[str, list[int]] = field(default_factory=dict)  # sentence -> the sites it holds for; none: the app
    notes: list[str] = field(default_factory=list)

    def fault(self, sentence: str, site: int | None = None) -> None:
        sites = self.faults.setdefault(sentence, [])
        if site is not None:
            sites.append(site)

    def sentences(self) -> list[str]:
        """One per fault, and who has it."""
        sentences = []
        for sentence, sites in self.faults.items():
            if not sites:
                sentences.append(sentence)
                continue
            several = "s" if len(sites) > 1 else ""
            numbers = list(map(str, sites))
            sentences.append(f"site{several} {first_of(numbers, 5)}: {sentence}")
        return sentences


def check_app(folder: Path, sites: int, run_config: str = "") -> CheckReport:
    """Try the app as `sites` sites would, with one local step instead of a round."""
    check_whole("--sites", sites, 1)
    if sites > MOST_SITES:
        raise InputError(f"--sites {sites}: at most {MOST_SITES} are tried")
    project = read_project(folder, run_config)
    with quieter(logging.ERROR), loaded(project) as (client, server):
        own = isinstance(client, SiteApp)
        report = CheckReport(own)
        config = project.run_config
        strategy = None
        if isinstance(server, FairServerApp):
            strategy = _strategy_of(server, config, report)
            if strategy is None:
                return report
        if own:
            config = {**config, **OWN_RUN}
        trial = AppTrial(project, client, server, config, contexts_of(sites, config), report, strategy)
        if own:
            trial.of_own_app()
        else:
            trial.of_any_app()
    return report


def _strategy_of(server: FairServerApp, config: Values, report: CheckReport) -> FairStrategy | None:
    """The strategy that the options as given ask for. What is only on the server's machine becomes a note."""
    chosen = dict(config)
    sites = chosen.get(SITES)
    if isinstance(sites, str) and sites and not Path(sites).exists():
        report.notes.append(f"sites='{sites}' is not on this machine; the run looks for it on the server")
        chosen[SITES] = ""
    try:
        try:
            return server.strategy(chosen)
        except AbsentRunError as error:
            report.notes.append(f"{error} (the run looks on the server)")
            return server.strategy({**chosen, RESUME: ""})
    except Exception as error:
        report.fault(f"the server app: {error}")
    return None


@dataclass(frozen=True)
class AppTrial:
    """An app with a context for each site, by node."""

    project: Project
    client: ClientApp
    server: ServerApp
    run_config: Values
    contexts: Mapping[int, Context]
    report: CheckReport
    strategy: FairStrategy | None = None  # as the options ask for it, before OWN_RUN replaces some

    def of_own_app(self) -> None:
        """evenfed's client app: each site's data first, then the server's model at each site."""
        facts: dict[int, Values] = {}
        for node in self.contexts:
            with self._blaming(node):
                described = self._ask(wire.DESCRIBE, node, RecordDict())  # loads its data and builds its model
                facts[node] = described.content.config_records[wire.CONFIG]
        _check_names(facts, self.report)
        self._check_private(facts)
        if self.report.faults:
            return  # what the server would say follows from them
        message = self._first(lambda sent: wire.ARRAYS in sent.content.array_records)
        if message is None:
            return
        for node in self.contexts:
            with self._blaming(node):
                row = self._one_step(node, message, facts[node])
                self._keep(row)

    def of_any_app(self) -> None:
        self.report.notes.append(OTHERS)
        message = self._first(_trains)
        if message is None:
            return
        for node in self.contexts:
            with self._blaming(node):
                row = self._whole_training(node, message)
                self._keep(row)

    def _check_private(self, facts: Mapping[int, Values]) -> None:
        strategy = self.strategy
        if strategy is None or not strategy.private or len(facts) < len(self.contexts):
            return
        with_data = sum(known["train"] > 0 for known in facts.values())
        buffers = next(iter(facts.values()))["buffers"]
        with self._blaming(None):
            check_run(strategy.settings.drawn(with_data), buffers)

    @contextmanager
    def _blaming(self, node: int | None) -> Iterator[None]:
        """What fails is this site's fault, or the app's."""
        try:
            yield
        except Exception as error:
            site = None if node is None else node - 1
            sentence = why(error, self.project)
            self.report.fault(sentence, site)

    def _keep(self, row: Row) -> None:
        """Add a row, and fault numbers that the server would refuse."""
        report = self.report
        report.rows.append(row)
        if row.loss is not None and not math.isfinite(row.loss):
            sentence = "the loss of the initial model is not finite; look for NaN or huge values in the data"
            report.fault(sentence, row.site)
        if row.accuracy is not None and not math.isfinite(row.accuracy):
            report.fault("the score after one step is not finite; lower lr, or look for NaN in the data", row.site)
        if row.train is not None and row.train < 1:
            report.fault("there are no training examples", row.site)

    def _ask(
        self,
        kind: str,
        node: int,
        content: RecordDict,
    ) -> Message:
        message = order(kind, node, content)
        return self.client(message, self.contexts[node])

    def _first(self, is_wanted: Callable[[Message], bool]) -> Message | None:
        """The server's first model, from the real server app; None where that shows a fault."""
        grid = DryRun(self.client, self.contexts, is_wanted)
        with self._blaming(None):
            try:
                message = first_model(self.server, grid, self.run_config)
            except Exception as error:
                sentence = why(error, self.project)
                raise InputError(f"the server app: {sentence}") from None
            if message is None:
                raise InputError("the server app ended without sending a model to the sites")
            if isinstance(self.client, SiteApp):
                _check_model(self.client, message)
            return message
        return None

    def _one_step(
        self,
        node: int,
        message: Message,
        facts: Values,
    ) -> Row:
        """Loss, one local step, and the score after it, by the messages of a round."""
        began = time.monotonic()
        sent = message.content.array_records[wire.ARRAYS]
        task = wire.Task.read(message)
        config = dataclasses.replace(task, local_steps=1, measure="").record()
        content = RecordDict({wire.ARRAYS: sent, wire.CONFIG: config})
        measured = self._ask(wire.LOSS, node, content)
        trained = self._ask(wire.TRAIN, node, content)
        arrays = trained.content.array_records[wire.ARRAYS]
        layout = ArrayLayout.of(sent, facts["parameters"], facts["buffers"])
        layout.read(arrays)  # refuses what the server would drop
        content = RecordDict({wire.ARRAYS: arrays, wire.CONFIG: config})
        evaluated = self._ask(wire.EVALUATE, node, content)
        return Row(
            site=node - 1,
            name=str(facts["name"]),
            train=int(facts["train"]),
            test=int(facts["test"]),
            loss=wire.number(measured, "loss"),
            accuracy=wire.number(evaluated, "accuracy"),
            seconds=time.monotonic() - began,
        )

    def _whole_training(self, node: int, message: Message) -> Row:
        began = time.monotonic()
        trained = self._ask(message.metadata.message_type, node, message.content)
        metrics = _metrics(trained)
        content = RecordDict(dict(message.content))
        for name, arrays in trained.content.array_records.items():
            content[name] = arrays
        evaluated = self._ask(wire.EVALUATE, node, content)
        scores = _metrics(evaluated)
        return Row(
            site=node - 1,
            name=str(node - 1),
            train=_count(metrics),
            test=_count(scores),
            loss=_named(metrics, "loss"),
            accuracy=_named(scores, "acc"),
            seconds=time.monotonic() - began,
        )


def _check_model(client: SiteApp, message: Message) -> None:
    task = wire.Task.read(message)
    arrays = message.content.array_records[wire.ARRAYS]
    module = initial_model(client.model, task.seed)
    for name, tensor in initial_arrays(module).items():
        if name not in arrays:
            raise InputError(f"the sites' model has {name}, the server's has not; give both the same model function")
        theirs = list(arrays[name].shape)
        ours = list(tensor.shape)
        if theirs != ours:
            raise InputError(
                f"{name} is {ours} in the sites' model and {theirs} in the server's; give both the same model function"
            )


def _trains(message: Message) -> bool:
    kind = message.metadata.message_type
    return kind.partition(".")[0] == wire.TRAIN


def _metrics(reply: Message) -> Fields:
    if reply.has_error():
        raise InputError(reply.error.reason)
    return all_metrics(reply.content)


def _count(metrics: Values) -> int | None:
    count = _named(metrics, "examples")
    return None if count is None else int(count)


def _named(metrics: Values, part: str) -> float | None:
    for name, value in metrics.items():
        if part in name and isinstance(value, int | float):
            return float(value)
    return None


def _check_names(facts: Mapping[int, Values], report: CheckReport) -> None:
    first: dict[str, int] = {}
    for node, known in facts.items():
        name = str(known["name"])
        site = node - 1
        if name in first:
            report.fault(f"it is called '{name}', as site {first[name]} is; give each site a name of its own", site)
        first.setdefault(name, site)
    untested = []
    for node, known in facts.items():
        if not known["test"]:
            untested.append(str(node - 1))
    if untested and len(untested) < len(facts):
        listed = ", ".join(untested)
        report.notes.append(f"sites without test examples, which have no accuracy: {listed}")
    elif untested:
        report.notes.append("no site has test examples: there will be no accuracies")
