"""`evenfed flower check`: an app's data, model and one local step of each site, in this process."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from ..core.errors import InputError, check_whole
from ..simulate.problem import initial_model
from . import wire
from .client import SiteApp
from .project import Project, loaded, read_project, told
from .rehearsal import Rehearsal, contexts_of, first_model, order
from .server import initial_arrays

# a run that writes nothing, begins anew, and whose losses are seen
OWN_RUN = {"evenfed.out": False, "evenfed.resume": "", "evenfed.track": "", "evenfed.private": False}
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
class Report:
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
            listed = ", ".join(str(site) for site in sites[:5])
            more = f" and {len(sites) - 5} more" if len(sites) > 5 else ""
            sentences.append(f"site{several} {listed}{more}: {sentence}")
        return sentences


def check_app(folder: Path, sites: int, run_config: str = "") -> Report:
    """Try the app as `sites` sites would, with one local step instead of a round."""
    check_whole("--sites", sites, 1)
    if sites > MOST_SITES:
        raise InputError(f"--sites {sites}: at most {MOST_SITES} are tried")
    project = read_project(folder, run_config)
    report = Report()
    with _quietly(), loaded(project) as (client, server):
        report.own = isinstance(client, SiteApp)
        if isinstance(client, SiteApp):
            _check_own(project, client, server, sites, report)
        else:
            _check_others(project, client, server, sites, report)
    return report


def _check_own(project: Project, client: SiteApp, server: ServerApp, sites: int, report: Report) -> None:
    """evenfed's client app: each site's data first, then the server's model at each site."""
    run_config = {**project.run_config, **OWN_RUN}
    contexts = contexts_of(sites, run_config)
    facts: dict[int, wire.Values] = {}
    for node, context in contexts.items():
        site = node - 1
        try:
            facts[node] = _facts(client, node, context)
        except Exception as error:
            report.fault(told(error, project), site)
    _check_names(facts, report)
    if report.faults:
        return  # what the server would say follows from them
    message = _sent(project, client, server, contexts, run_config, report, _has_model)
    if message is None:
        return
    try:
        _check_model(client, message)
    except Exception as error:
        report.fault(told(error, project))
        return
    for node, context in contexts.items():
        site = node - 1
        try:
            row = _one_step(client, node, context, message, facts[node])
        except Exception as error:
            report.fault(told(error, project), site)
        else:
            report.rows.append(row)
            _check_row(row, report)


def _check_others(project: Project, client: ClientApp, server: ServerApp, sites: int, report: Report) -> None:
    """Any other client app: the server's first train message, to each site."""
    report.notes.append(OTHERS)
    contexts = contexts_of(sites, project.run_config)
    message = _sent(project, client, server, contexts, project.run_config, report, _trains)
    if message is None:
        return
    for node, context in contexts.items():
        site = node - 1
        try:
            row = _whole_training(client, node, context, message)
        except Exception as error:
            report.fault(told(error, project), site)
        else:
            report.rows.append(row)
            _check_row(row, report)


def _sent(
    project: Project,
    client: ClientApp,
    server: ServerApp,
    contexts: Mapping[int, Context],
    run_config: Mapping[str, Any],
    report: Report,
    is_wanted: Callable[[Message], bool],
) -> Message | None:
    """The server's first model, from the real server app."""
    grid = Rehearsal(client, contexts, is_wanted)
    try:
        message = first_model(server, grid, run_config)
    except Exception as error:
        report.fault(f"the server app: {told(error, project)}")
        return None
    if message is None:
        report.fault("the server app ended without sending a model to the sites")
    return message


def _check_model(client: SiteApp, message: Message) -> None:
    """The server's model must be the sites'."""
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


def _has_model(message: Message) -> bool:
    return wire.ARRAYS in message.content.array_records


def _trains(message: Message) -> bool:
    kind = message.metadata.message_type
    return kind.partition(".")[0] == wire.TRAIN


def _facts(client: SiteApp, node: int, context: Context) -> wire.Values:
    """What the site says of itself: loads its data and builds its model."""
    reply = client(order(wire.DESCRIBE, node, RecordDict()), context)
    return reply.content.config_records[wire.CONFIG]


def _one_step(
    client: SiteApp,
    node: int,
    context: Context,
    message: Message,
    facts: wire.Values,
) -> Row:
    """Loss, one local step, and the score after it, by the messages of a round."""
    began = time.monotonic()
    task = wire.Task.read(message)
    shape = wire.Shape.of(message.content.array_records[wire.ARRAYS], facts["parameters"], facts["buffers"])
    config = dataclasses.replace(task, local_steps=1, measure="").record()
    content = RecordDict({wire.ARRAYS: message.content.array_records[wire.ARRAYS], wire.CONFIG: config})
    measured = client(order(wire.LOSS, node, content), context)
    trained = client(order(wire.TRAIN, node, content), context)
    arrays = trained.content.array_records[wire.ARRAYS]
    shape.read(arrays)  # refuses what the server would drop
    judged = RecordDict({wire.ARRAYS: arrays, wire.CONFIG: config})
    evaluated = client(order(wire.EVALUATE, node, judged), context)
    return Row(
        site=node - 1,
        name=str(facts["name"]),
        train=int(facts["train"]),
        test=int(facts["test"]),
        loss=wire.number(measured, "loss"),
        accuracy=wire.number(evaluated, "accuracy"),
        seconds=time.monotonic() - began,
    )


def _whole_training(client: ClientApp, node: int, context: Context, message: Message) -> Row:
    """Training and evaluation as the app does them."""
    began = time.monotonic()
    trained = client(order(message.metadata.message_type, node, message.content), context)
    metrics = _metrics(trained)
    content = RecordDict(dict(message.content))
    for name, arrays in trained.content.array_records.items():
        content[name] = arrays
    evaluated = client(order(wire.EVALUATE, node, content), context)
    scores = _metrics(evaluated)
    train = _named(metrics, "examples")
    test = _named(scores, "examples")
    return Row(
        site=node - 1,
        name=str(node - 1),
        train=None if train is None else int(train),
        test=None if test is None else int(test),
        loss=_named(metrics, "loss"),
        accuracy=_named(scores, "acc"),
        seconds=time.monotonic() - began,
    )


def _metrics(reply: Message) -> dict[str, Any]:
    if reply.has_error():
        raise InputError(reply.error.reason)
    metrics: dict[str, Any] = {}
    for record in reply.content.metric_records.values():
        metrics.update(record)
    return metrics


def _named(metrics: Mapping[str, Any], part: str) -> float | None:
    """The first number whose name holds this part."""
    for name, value in metrics.items():
        if part in name and isinstance(value, int | float):
            return float(value)
    return None


def _check_row(row: Row, report: Report) -> None:
    """Numbers that the server would refuse."""
    if row.loss is not None and not math.isfinite(row.loss):
        report.fault("the loss of the initial model is not finite; look for NaN or huge values in the data", row.site)
    if row.accuracy is not None and not math.isfinite(row.accuracy):
        report.fault("the score after one step is not finite; lower lr, or look for NaN in the data", row.site)
    if row.train is not None and row.train < 1:
        report.fault("there are no training examples", row.site)


def _check_names(facts: Mapping[int, wire.Values], report: Report) -> None:
    first: dict[str, int] = {}
    for node, known in facts.items():
        name = str(known["name"])
        site = node - 1
        if name in first:
            report.fault(f"it is called '{name}', as site {first[name]} is; give each site a name of its own", site)
        first.setdefault(name, site)
    untested = [node - 1 for node, known in facts.items() if not known["test"]]
    if untested and len(untested) < len(facts):
        listed = ", ".join(str(site) for site in untested)
        report.notes.append(f"sites without test examples, which have no accuracy: {listed}")
    elif untested:
        report.notes.append("no site has test examples: there will be no accuracies")


@contextmanager
def _quietly() -> Iterator[None]:
    """Flower's log from errors on: what it tells of a run is no news here."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
