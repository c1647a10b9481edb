"""A round's record as Flower's metrics, and what a central evaluation adds to it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from ..core.errors import InputError
from ..core.scalars import is_number
from ..core.server import Record
from ..metrics import ACCURACY, Metric

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]  # of a round's number and its model


def train_metrics(record: Record) -> MetricRecord:
    metrics: dict[str, Any] = {
        "objective": record.objective,
        "dropped": len(record.dropped),
        "clipped": len({clip.client for clip in record.clipped}),
    }
    losses = record.known("losses")
    if len(losses):
        metrics["mean-loss"] = float(losses.mean())
        metrics["worst-loss"] = float(losses.max())
    return MetricRecord(metrics)


def score_metrics(record: Record, metric: Metric = ACCURACY) -> MetricRecord | None:
    """How well clients are served after a round; None if it was not evaluated."""
    metrics: dict[str, Any] = dict(record.scores or {})
    current = record.known("current_losses" if metric.is_loss else "current")
    for prefix, known in (("", metric.known(record)), ("current-", current)):
        if len(known):
            worst = known.min() if metric.higher_is_better else known.max()
            metrics[f"{prefix}mean-{metric.name}"] = float(known.mean())
            metrics[f"{prefix}worst-{metric.name}"] = float(worst)
    if not metrics:
        return None
    return MetricRecord(metrics)


def central_metrics(record: Record) -> MetricRecord | None:
    """What `evaluate_fn` returned after the round."""
    if record.central is None:
        return None
    return MetricRecord(dict(record.central))


def numbers_of(values: object) -> dict[str, float] | None:
    """What a record keeps of what `evaluate_fn` returned."""
    if values is None:
        return None
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        raise InputError(f"evaluate_fn returned a {kind}; it must return a MetricRecord, a dict of numbers, or None")
    numbers = {}
    for name, value in values.items():
        if not is_number(value):
            raise InputError(f"evaluate_fn returned {name}={value!r}; its metrics are single numbers")
        numbers[str(name)] = float(value)
    return numbers


def add_initial(result: Result, evaluate_fn: EvaluateFunction | None, arrays: ArrayRecord) -> None:
    """The central evaluation of the model before the first round."""
    if evaluate_fn is None:
        return
    numbers = numbers_of(evaluate_fn(0, arrays))
    if numbers is not None:
        result.evaluate_metrics_serverapp[0] = MetricRecord(dict(numbers))


def result_of(records: Iterable[Record], metric: Metric = ACCURACY) -> Result:
    """As Flower's strategies return it, of rounds that are done; its model is not among them."""
    result = Result(arrays=ArrayRecord())
    for record in records:
        number = record.index + 1
        result.train_metrics_clientapp[number] = train_metrics(record)
        scores = score_metrics(record, metric)
        if scores is not None:
            result.evaluate_metrics_clientapp[number] = scores
        central = central_metrics(record)
        if central is not None:
            result.evaluate_metrics_serverapp[number] = central
    return result
