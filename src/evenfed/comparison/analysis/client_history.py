"""What a run did for each client, over its rounds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core.server import PER_CLIENT, Record
from ...fairness import Vector
from ...metrics import ACCURACY, Metric


@dataclass(frozen=True)
class ClientHistory:
    """One number per client in each array; NaN where it is unknown."""

    loss: Vector  # the last one that the client reported, before a round
    figure: Vector  # the last one that it was judged by, after a round
    weight: Vector  # mean over all rounds
    rounds: Vector  # in which it took part
    dropped: Vector  # rounds in which it was dropped
    clipped: Vector  # rounds in which the guard held it back

    @classmethod
    def of(
        cls,
        records: Sequence[Record],
        clients: int,
        metric: Metric = ACCURACY,
        model_round: int | None = None,
    ) -> "ClientHistory":
        """Of these rounds; `model_round`: the round that the run's model is from, if not the last one."""
        loss = np.full(clients, np.nan)
        figure = np.full(clients, np.nan)
        weight = np.zeros(clients)
        hidden = np.zeros(clients, dtype=bool)  # weights that only the client knew, as in private runs
        rounds = np.zeros(clients)
        dropped = np.zeros(clients)
        clipped = np.zeros(clients)
        for record in records:
            losses = record.losses
            weights = record.weights
            registered = slice(len(losses))  # clients of that round
            _newer(loss, losses)
            rounds[registered] += ~np.isnan(losses)
            weight[registered] += np.nan_to_num(weights)
            hidden[registered] |= np.isnan(weights)
            dropped[list(record.dropped)] += 1
            held_back = {clip.client for clip in record.clipped}
            clipped[sorted(held_back)] += 1
            figures = metric.of(record)
            is_of_model = model_round is None or record.index < model_round
            if figures is not None and is_of_model:
                _newer(figure, figures)
        weight[hidden] = np.nan
        number = len(records) or np.nan
        return cls(loss, figure, weight / number, rounds, dropped, clipped)


def over(records: Sequence[Record], clients: int) -> list[Record]:
    """Extends each record to all clients of the run, with NaN for clients not yet registered in that round."""
    return [_widened(record, clients) for record in records]


def _widened(record: Record, clients: int) -> Record:
    kept = record.kept("losses")
    if not isinstance(kept, np.ndarray) or len(kept) >= clients:
        return record
    changes = {}
    for field in PER_CLIENT:
        values = record.kept(field)
        if isinstance(values, np.ndarray):
            missing = clients - len(values)
            unknown = 0.0 if field == "weights" else np.nan
            changes[field] = np.pad(values, (0, missing), constant_values=unknown)
    return record.but(**changes)


def _newer(column: Vector, values: Vector) -> None:
    """Replace earlier values by those known now; clients that registered later have no entry in `values`."""
    first = column[: len(values)]
    known = ~np.isnan(values)
    first[known] = values[known]
