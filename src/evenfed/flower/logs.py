"""Flower's log: a line per round, and a table of the clients at the end.

Names of clients and files are shown as text: a name cannot write lines or colours of its own.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from flwr.app import MetricRecord
from flwr.supercore import log as write

from ..comparison.analysis.client_history import ClientHistory
from ..core.errors import InputError
from ..core.printable import printable
from ..core.server import Record, Server
from ..metrics import ACCURACY, Metric

Name = Callable[[int], str]  # of a client, by its position
MOST_ROWS = 50  # of the table at the end
MOST_NAMES = 20  # in a round's line


def log(level: int, message: str, *values: object) -> None:
    """One line; only `message` may hold line breaks and tabs."""
    shown: list[object] = []
    for value in values:
        is_plain = isinstance(value, int | float)
        shown.append(value if is_plain else printable(str(value)))
    write(level, message, *shown)


@contextmanager
def quieter(level: int, without: str | None = None) -> Iterator[None]:
    """Flower's log from this level on, without lines that hold a text."""
    logger = logging.getLogger("flwr")
    level_before = logger.level

    def is_wanted(line: logging.LogRecord) -> bool:
        return without is None or without not in line.getMessage()

    logger.setLevel(level)
    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        logger.setLevel(level_before)
        logger.removeFilter(is_wanted)


def shorten_input_errors() -> None:
    """From now on Flower logs an error in the user's options as one line, without a traceback."""
    logging.getLogger("flwr").addFilter(_shortened)


def _shortened(line: logging.LogRecord) -> bool:
    error = line.exc_info[1] if line.exc_info else None
    if isinstance(error, InputError):
        line.msg = str(error)
        line.args = ()
        line.exc_info = None
    return True


def round_line(
    record: Record,
    rounds: int | None,
    name: Name,
    metric: Metric = ACCURACY,
) -> str:
    """One round in one line.

    >>> record = Record(2, np.array([0.2, 0.54]), np.array([0.4, 0.6]), 0.41, 0, accuracy=np.array([0.95, 0.83]))
    >>> round_line(record, 20, lambda client: f"hospital-{client + 1}")
    'round 3/20: objective 0.41, worst hospital-2 (accuracy 83 %, loss before 0.54), dropped: none'
    """
    number = record.index + 1
    of_all = "" if rounds is None else f"/{rounds}"
    parts = []
    if not math.isnan(record.objective):
        parts.append(f"objective {record.objective:.3g}")
    worst = _worst(record, metric)
    if worst is not None:
        who = printable(name(worst))
        service = _service(record, worst, metric)
        parts.append(f"worst {who} ({service})")
    scores = record.scores or {}
    for title, value in scores.items():
        parts.append(f"{title} {value:.3g}")
    central = record.central or {}
    for title, value in central.items():
        parts.append(f"central {printable(title)} {value:.3g}")
    dropped = _names(record.dropped, name)
    parts.append(f"dropped: {dropped}")
    if record.clipped:
        held = sorted({clip.client for clip in record.clipped})
        parts.append(f"held back: {_names(held, name)}")
    if record.skipped:
        reason = record.reason or "nothing usable came back"
        cause = ""
        if record.caused_by:
            cause = f" (because of {_names(record.caused_by, name)})"
        parts.append(f"skipped: {reason}{cause}")
    if record.refused:
        reasons = "; ".join(map(printable, record.refused))
        parts.append(f"refused: {reasons}")
    summary = ", ".join(parts)
    return f"round {number}{of_all}: {summary}"


def guard_lines(record: Record, who: Name) -> list[str]:
    """Whose numbers counted for less, and because of whom a round was skipped.

    >>> record = Record(2, np.zeros(2), np.zeros(2), 0.41, 0, skipped=True, reason="no weight is left", caused_by=(1,))
    >>> guard_lines(record, lambda client: f"hospital-{client + 1}")
    ['round 3 is skipped because of hospital-2: no weight is left']
    """
    number = record.index + 1
    lines = []
    for clip in record.clipped:
        name = printable(who(clip.client))
        lines.append(f"round {number}: guard: {name}: {clip.says}")
    if record.skipped and record.reason is not None:
        cause = ""
        if record.caused_by:
            cause = f" because of {_names(record.caused_by, who)}"
        lines.append(f"round {number} is skipped{cause}: {record.reason}")
    return lines


def guard_caution(server: Server) -> str | None:
    """What to say once of a guard over two clients."""
    if server.guard is None or server.clients_with_data != 2 or not server.algorithm.uses_losses:
        return None
    return (
        "two clients: the guard lets neither have more than half of the weight, or its share if that is larger, so "
        "fairness has little to shift; train with more clients, or with guard='off'"
    )


def final_table(
    records: Sequence[Record],
    sizes: Sequence[float],
    name: Name,
    metric: Metric = ACCURACY,
) -> list[str]:
    """A row per client: size, last loss and accuracy that are known, mean weight, rounds in which it was dropped.

    Of many clients, those served worst.
    """
    judged_by = "test loss" if metric.is_loss else printable(metric.name)
    rows = [["client", "size", "loss", judged_by, "mean weight", "rounds dropped"]]
    service = ClientHistory.of(records, len(sizes), metric)
    clients = list(range(len(sizes)))
    if len(sizes) > MOST_ROWS:
        clients = sorted(_served_worst(service, metric))
    for client in clients:
        size = sizes[client]
        who = printable(name(client))
        count = f"{size:g}"
        loss = _cell(service.loss[client], ".3g")
        figure = _cell(service.figure[client], ".1%" if metric.is_share else ".3f")
        weight = _cell(service.weight[client], ".3f")
        dropped = _cell(service.dropped[client], ".0f")
        rows.append([who, count, loss, figure, weight, dropped])
    columns = zip(*rows, strict=True)
    first_width, *widths = [max(map(len, column)) for column in columns]
    lines = []
    for who, *cells in rows:
        aligned = map(str.rjust, cells, widths)
        lines.append("  ".join([who.ljust(first_width), *aligned]))
    others = len(sizes) - len(clients)
    if others:
        lines.append(f"and {others:,} more clients, served better or never scored")
    return lines


def metrics_line(metrics: MetricRecord) -> str:
    """Metrics in one line.

    >>> metrics_line(MetricRecord({"eval_acc": 0.8125, "sizes": [3, 4]}))
    'eval_acc 0.8125, sizes 2 values'
    """
    parts = []
    for name, value in metrics.items():
        shown = f"{len(value)} values" if isinstance(value, list) else f"{value:.4g}"
        parts.append(f"{name} {shown}")
    return ", ".join(parts)


def _cell(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _served_worst(service: ClientHistory, metric: Metric) -> list[int]:
    """The clients with the worst figures; where none are known, with the highest losses."""
    figure = np.asarray(service.figure)
    merit = metric.sign * figure
    if np.isnan(figure).all():
        merit = -np.asarray(service.loss)
    order = np.argsort(merit, kind="stable")  # NaN comes last
    worst: list[int] = order[:MOST_ROWS].tolist()
    return worst


def _names(clients: Sequence[int], name: Name) -> str:
    names = [printable(name(client)) for client in clients[:MOST_NAMES]]
    others = len(clients) - len(names)
    if others:
        names.append(f"and {others:,} more")
    return ", ".join(names) or "none"


def _worst(record: Record, metric: Metric) -> int | None:
    """The client that is judged worst; where no figure is known, with the highest loss."""
    figures = metric.of(record)
    if figures is not None and not np.isnan(figures).all():
        return int(np.nanargmin(metric.sign * figures))
    if np.isnan(record.losses).all():
        return None
    return int(np.nanargmax(record.losses))


def _service(record: Record, client: int, metric: Metric) -> str:
    """How well a client was served: its figure after the round, by which it is the worst, and its loss before."""
    loss = record.losses[client]
    figures = metric.of(record)
    parts = []
    if figures is not None and not math.isnan(figures[client]):
        figure = figures[client]
        if metric.is_share:
            parts.append(f"accuracy {100 * figure:.0f} %")
        elif metric.is_loss:
            parts.append(f"test loss {figure:.2f}")
        else:
            parts.append(f"{printable(metric.name)} {figure:.3f}")
    if not math.isnan(loss):
        parts.append(f"loss before {loss:.2f}")
    return ", ".join(parts)
