"""What each client reports in a stock Flower run, for `evenfed audit`: Flower's strategies keep averages alone."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from ..core.errors import InputError
from ..core.files import plain_file

_PARTITION = "partition-id"
AnyStrategy = TypeVar("AnyStrategy", bound=Strategy)


def each_client(replies: list[RecordDict], weighted_by_key: str = "") -> MetricRecord:
    """Keep every client's metrics: `FedAvg(evaluate_metrics_aggr_fn=evenfed.flower.each_client)`.

    A list per metric, one value per client, instead of the weighted mean. Replies do not say whose they are, so the
    client's app returns its partition-id among its metrics.
    """
    columns: dict[str, list[float]] = {}
    for position, reply in enumerate(replies):
        metrics = all_metrics(reply)
        if _PARTITION not in metrics:
            raise InputError(
                f"a client's metrics do not say whose they are ({', '.join(metrics)}); return its partition-id among "
                'them: MetricRecord({..., "partition-id": context.node_config["partition-id"]})'
            )
        for name, value in metrics.items():
            column = columns.setdefault(name, [float("nan")] * position)
            column.append(value)
        for column in columns.values():
            if len(column) == position:
                column.append(float("nan"))
    return MetricRecord(dict(columns))


def recorded(strategy: AnyStrategy, path: str | Path) -> AnyStrategy:
    """The same strategy; each evaluation also adds a line per client to a file that `evenfed audit` reads.

    Works with every strategy of Flower's message API. A client is known by its partition-id, if it returns one among
    its metrics, or by its node's id.
    """
    file = plain_file(Path(path))
    file.parent.mkdir(parents=True, exist_ok=True)
    aggregate = strategy.aggregate_evaluate

    def aggregate_evaluate(server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        received = list(replies)
        lines = []
        for message in received:
            if message.has_content():
                client = str(message.metadata.src_node_id)
                lines.append(_line(server_round, client, message.content))
        with file.open("a") as target:
            target.writelines(lines)
        return aggregate(server_round, received)

    strategy.aggregate_evaluate = aggregate_evaluate  # type: ignore[method-assign]
    return strategy


def _line(server_round: int, node: str, content: RecordDict) -> str:
    metrics = all_metrics(content)
    client = metrics.pop(_PARTITION, node)
    row = {"round": server_round, "client": client, **metrics}
    return json.dumps(row) + "\n"


def all_metrics(content: RecordDict) -> dict[str, Any]:
    """Of all records of a reply."""
    metrics: dict[str, Any] = {}
    for record in content.metric_records.values():
        metrics.update(record)
    return metrics
