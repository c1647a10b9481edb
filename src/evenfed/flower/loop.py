"""The rounds of a strategy that has a journal, from where the run was left to its end."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from .journal import Journal
from .metrics import central_metrics


@dataclass(frozen=True)
class Loop:
    """As Flower's own, but that it may begin after any round and ends where the journal says."""

    strategy: Strategy  # the outermost: a wrapper, if there is one
    grid: Grid
    journal: Journal
    ask: Callable[[Iterable[Message]], Iterable[Message]]  # sends messages and gives replies
    train_config: ConfigRecord | None = None
    evaluate_config: ConfigRecord | None = None

    def run(self, arrays: ArrayRecord, result: Result) -> None:
        """All rounds that are left, from the model `arrays`; their metrics go into the result."""
        number = self.journal.rounds_done
        rounds = self.journal.run.settings.rounds
        while not self.journal.is_over and number < rounds:
            number += 1
            arrays = self._round(number, arrays, result)
            records = self.journal.records
            central = central_metrics(records[-1]) if records else None
            if central is not None:
                result.evaluate_metrics_serverapp[number] = central
            if self.journal.interrupted():
                return

    def _round(self, number: int, arrays: ArrayRecord, result: Result) -> ArrayRecord:
        """One round; the model after it."""
        strategy = self.strategy
        config = ConfigRecord(dict(self.train_config or {}))
        messages = strategy.configure_train(number, arrays, config, self.grid)
        aggregated, metrics = strategy.aggregate_train(number, self.ask(messages))
        if aggregated is not None:
            arrays = aggregated
        if metrics is not None:
            result.train_metrics_clientapp[number] = metrics
        config = ConfigRecord(dict(self.evaluate_config or {}))
        messages = strategy.configure_evaluate(number, arrays, config, self.grid)
        scores = strategy.aggregate_evaluate(number, self.ask(messages))
        if scores is not None:
            result.evaluate_metrics_clientapp[number] = scores
        return arrays
