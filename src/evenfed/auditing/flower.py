"""Flower's results: of the message API (`Result`) and of the older one (`History`), as objects or as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core.errors import InputError
from .roles import SIZE, SYNONYMS, normal
from .sheet import Sheet
from .tags import Tag

_BY_ROUND = ("evaluate_metrics_clientapp", "train_metrics_clientapp")  # Result: round -> metric -> value
_BY_METRIC = ("metrics_distributed", "metrics_distributed_fit")  # History: metric -> [(round, value), ...]
Record = dict[str, Any]
_AVERAGES = (
    "these are averages over clients, as Flower's strategies make them: nothing can be said of single clients. Give "
    "the strategy `evaluate_metrics_aggr_fn=evenfed.flower.each_client`, which keeps them, or write them to a file "
    "with evenfed.flower.recorded(strategy, 'clients.jsonl')"
)


def is_result(source: Any) -> bool:
    """Whether an object is one of Flower's results."""
    return any(hasattr(source, name) for name in (*_BY_ROUND, *_BY_METRIC))


def sheet(name: str, source: Any) -> Sheet | None:
    """The table of clients in a result; None if it is something else."""
    for part in _BY_ROUND:
        by_round = _part(source, part)
        if by_round:
            return _table(name, part, list(_records(by_round)))
    for part in _BY_METRIC:
        by_metric = _part(source, part)
        if by_metric:
            return _table(name, part, list(_records(_turned(by_metric))))
    if _part(source, _BY_ROUND[0]) is None and _part(source, _BY_METRIC[0]) is None:
        return None
    raise InputError(
        f"{name}: a result of Flower without metrics of clients; evaluate them (fraction_evaluate above 0)"
    )


def _part(source: Any, name: str) -> Mapping[Any, Any] | None:
    part = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
    return part if isinstance(part, Mapping) else None


def _turned(by_metric: Mapping[str, Sequence[tuple[int, Any]]]) -> dict[int, dict[str, Any]]:
    """By round."""
    by_round: dict[int, dict[str, Any]] = {}
    for metric, values in by_metric.items():
        for number, value in values:
            by_round.setdefault(int(number), {})[metric] = value
    return by_round


def _records(by_round: Mapping[Any, Mapping[str, Any]]) -> Iterator[Record]:
    """A row per round and client, from lists of one value per client, or from metrics that name their client."""
    for number, metrics in by_round.items():
        lists = {key: value for key, value in metrics.items() if isinstance(value, list | tuple)}
        if lists:
            for values in zip(*lists.values(), strict=False):
                yield {"round": int(number), **dict(zip(lists, values, strict=True))}
            continue
        by_client: dict[str, Record] = {}
        for key, value in metrics.items():
            tag = Tag.of(key)
            if tag is not None:
                by_client.setdefault(tag.client, {})[tag.metric or "score"] = value
        for client, figures in by_client.items():
            yield {"round": int(number), "client": client, **figures}


def _table(name: str, part: str, records: Sequence[Record]) -> Sheet:
    if not records:
        raise InputError(f"{name}: {_AVERAGES}")
    table = Sheet.of_records(name, records, (f"A result of Flower, {part}.",))
    clients = SYNONYMS["client"]
    if not any(normal(column) in clients for column in table.columns):
        known = ", ".join(column for column in table.columns if normal(column) not in SYNONYMS[SIZE])
        raise InputError(
            f"{name}: Flower's replies do not say whose they are ({known}); let the client's app return its "
            '"partition-id" among its metrics: context.node_config["partition-id"]'
        )
    return table
