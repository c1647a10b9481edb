"""Flower's results: of the message API (`Result`) and of the older one (`History`), as objects or as JSON."""

from collections.abc import Mapping
from typing import Any

from ..core.errors import InputError, first_line
from .column_roles import CLIENT, SYNONYMS, normal
from .sheet import InputTable
from .tags import Tag

_BY_ROUND = ("evaluate_metrics_clientapp", "train_metrics_clientapp")  # Result: round -> metric -> value
_BY_METRIC = ("metrics_distributed", "metrics_distributed_fit")  # History: metric -> [(round, value), ...]
Record = dict[str, Any]
ByRound = Mapping[Any, Record]
_AVERAGES = (
    "these are averages over clients, as Flower's strategies compute them, without single clients' results. Give "
    "the strategy `evaluate_metrics_aggr_fn=evenfed.flower.each_client`, which keeps them, or write them to a file "
    "with evenfed.flower.recorded(strategy, 'clients.jsonl')"
)


def sheet(name: str, source: Any) -> InputTable | None:
    """The table of clients in a result; None if it is something else."""
    is_flowers = False
    for part in (*_BY_ROUND, *_BY_METRIC):
        metrics = _part(source, part)
        if metrics is None:
            continue
        is_flowers = True
        if not metrics:
            continue
        try:
            by_round = _turned(metrics) if part in _BY_METRIC else metrics
            records = _records(by_round)
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(
                f"{name}: `{part}` is not as Flower writes it ({first_line(error)}); give its Result or History"
            ) from None
        return _table(name, part, records)
    if not is_flowers:
        return None
    raise InputError(f"{name}: a Flower result without client metrics; evaluate clients (fraction_evaluate above 0)")


def _part(source: Any, name: str) -> Mapping[Any, Any] | None:
    part = getattr(source, name, None)
    if isinstance(source, Mapping):
        part = source.get(name)
    return part if isinstance(part, Mapping) else None


def _turned(by_metric: Mapping[str, Any]) -> ByRound:
    """By round, what is listed by metric."""
    by_round: dict[int, Record] = {}
    for metric, values in by_metric.items():
        for number, value in values:
            of_round = by_round.setdefault(number, {})
            of_round[metric] = value
    return by_round


def _records(by_round: ByRound) -> list[Record]:
    records: list[Record] = []
    for number, metrics in by_round.items():
        of_round = _from_lists(metrics) or _from_names(metrics)
        for record in of_round:
            record["round"] = int(number)
            records.append(record)
    return records


def _table(name: str, part: str, records: list[Record]) -> InputTable:
    if not records:
        raise InputError(f"{name}: {_AVERAGES}")
    table = InputTable.of_records(name, records, (f"Flower result, {part}.",))
    names = set(map(normal, table.columns))
    if names.isdisjoint(SYNONYMS[CLIENT]):
        known = ", ".join(table.columns)
        raise InputError(
            f"{name}: Flower's replies do not say whose they are ({known}); let the client's app return its "
            '"partition-id" among its metrics: context.node_config["partition-id"]'
        )
    return table


def _from_lists(metrics: Record) -> list[Record]:
    """A row per client, from metrics that are lists with one value per client."""
    names = []
    columns = []
    for name, values in metrics.items():
        if isinstance(values, list | tuple):
            names.append(name)
            columns.append(values)
    records = []
    for values in zip(*columns, strict=False):
        record = dict(zip(names, values, strict=True))
        records.append(record)
    return records


def _from_names(metrics: Record) -> list[Record]:
    """A row per client, from metrics that name their client."""
    by_client: dict[str, Record] = {}
    for name, value in metrics.items():
        tag = Tag.of(name)
        if tag is not None:
            record = by_client.setdefault(tag.client, {"client": tag.client})
            record[tag.metric or "score"] = value
    return list(by_client.values())
