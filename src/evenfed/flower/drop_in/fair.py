"""A fair algorithm in place of Flower's FedAvg, over clients that do not use evenfed."""

import dataclasses
import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from ...callbacks import Callbacks
from ...comparison.analysis.client_history import over
from ...comparison.variants import Variant
from ...core.algorithm import Algorithm
from ...core.errors import InputError, check_whole
from ...core.scalars import unwrapped
from ...core.server import Record, Server
from ...simulate.state import Run
from .. import fleet_options, wire
from ..array_layout import BUFFERS
from ..fleet_options import FleetOptions
from ..journal import Journal, run_rounds
from ..logs import guard_caution, guard_lines, log, round_line
from ..metrics import EvaluateFunction, add_initial, numbers_of, result_of
from ..sites import Admission
from .fair_journal import FairJournal, skipped
from .fair_sampling import FairSampling, check_least, in_fedavgs_words
from .fair_state import FairState
from .foreign_clients import ASKED, ForeignClients, LossIn, ReportKeys, check_algorithm, check_entry, server_settings
from .foreign_replies import ForeignReplies, aggregated_reports
from .trips import ForeignRound, PerClient, check_trips

Aggregation = Callable[[list[RecordDict], str], MetricRecord] | None
RECEIVER = attrgetter("metadata.dst_node_id")


class Fair(FedAvg):
    """Flower's FedAvg with the weights of `algorithm` (a name, "semi_vred[beta=1,smooth=0.1]", or an instance).

    Takes FedAvg's own arguments and hooks, and works with its clients. What it reads of their replies:

    * `loss_from`: the name of a client's loss, in its train replies, or with `loss_in="evaluate"` in its evaluate
      replies. It should be the loss of the model as received. Most clients average it while they train; a warning says
      so once, unless `measured_before`. `evenfed.flower.loss_before` and `evenfed.flower.extend` give the right one.
    * `size_from`: the name of its number of training examples (default: `weighted_by_key`).
    * `score_from`: the name of its score in evaluate replies (default: "eval_acc"), within `score_range`. More is
      better, unless the name holds "loss", "error", "mae" or "mse"; `score_higher_is_better` says it explicitly.

    Other arguments:

    * `trips`: how often a client is asked per round. 2: to train and for its score, as FedAvg does; the loss comes with
      one of the two. 1: to train only; the model is scored after the last round. 3: also for its loss first, so that
      clients without a weight need not train; needs `extend`, or `loss_in="evaluate"`.
    * `lr`, `local_steps`: of the clients' training, for algorithms whose step needs them (q-FFL: lr, FCFL: both);
      `lr` may also be in the configuration that clients get.
    * `buffers`: patterns of the names of arrays that are not trained. They are averaged by size.
    * `tell_errors`: log the text of clients' exceptions. It may quote their data, by default only the type is logged.
    * `out`: a run folder is kept in out/<label>/seed-<seed>, with a checkpoint every round; the same call resumes from
      there. `resume`: as of `FairStrategy`. Clients are known again by their nodes' ids.
    * `sites`: a file that lists who may join, by key or node id, with each site's name and largest size
      (docs/flower.md).
    * `listen`: callbacks, as `evenfed.train` takes them.
    * `quorum`, `oversample`, `rest`: when a round closes and who rests, as of `FairStrategy` (docs/flower.md).
    * `options`: smooth, average, server_lr, server_optimizer, as in `evenfed.Settings`.

    A reply that fails, or of which any field does not fit, is dropped from the round and named.
    """

    rounds: int | None = None  # how many there will be, once `start` is called
    timeout = 3600.0  # seconds
    evaluate_fn: EvaluateFunction | None = None
    _began = 0.0  # the open round
    _round: ForeignRound | None = None  # until its updates are in
    _record: Record | None = None  # until its scores are in
    _asked_scores: Sequence[int] = ()  # positions, in the open round

    def __init__(
        self,
        algorithm: str | Algorithm = "semi_vred",
        *,
        loss_from: str = "train_loss",
        size_from: str | None = None,
        score_from: str | None = None,
        score_range: tuple[float, float] = (0.0, 1.0),
        score_higher_is_better: bool | None = None,
        loss_in: LossIn = "train",
        measured_before: bool = False,
        trips: int = 2,
        local_steps: int | None = None,
        buffers: Sequence[str] = BUFFERS,
        tell_errors: bool = False,
        out: Path | str | None = None,
        resume: bool | None = None,
        sites: Path | str | None = None,
        listen: Callbacks = (),
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Aggregation = None,
        evaluate_metrics_aggr_fn: Aggregation = None,
        **options: Any,
    ) -> None:
        check_entry(algorithm)
        super().__init__(
            **in_fedavgs_words(options, fraction_train, fraction_evaluate, min_available_nodes),
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )
        variant = Variant.of_entry(algorithm)
        self.algorithm = variant.algorithm
        self.label = variant.label
        self.admission = Admission.of(sites)
        self._sampling = FairSampling(FleetOptions.taken_from(options), self.admission)
        chosen = {**variant.options, **options}
        self.settings = server_settings(chosen, OPTIONS)
        size_from = size_from or weighted_by_key
        self.keys = ReportKeys(loss_from, size_from, score_from, score_range, loss_in, score_higher_is_better, trips)
        self.trips = trips
        self._check(local_steps)
        self.journal = Journal.of(Run(self.label, self.algorithm, self.settings), out, resume, listen)
        self.clients = ForeignClients(self.keys, self.admission)
        self._state = FairState(self.algorithm, self.settings, unwrapped(local_steps), "lr" in chosen, tuple(buffers))
        decisive = {"fraction_train": self.fraction_train, "fraction_evaluate": self.fraction_evaluate, "trips": trips}
        self._fair_journal = FairJournal(self.journal, self.clients, self._state, self._sampling.resting, decisive)
        flags = (train_metrics_aggr_fn is not None, measured_before, tell_errors)
        self._reader = ForeignReplies(self.algorithm, self.settings, self.keys, self.clients, weighted_by_key, *flags)

    def _check(self, local_steps: int | None) -> None:
        """Refuse what does not fit together, before anything starts."""
        check_least(self, self.admission)
        check_algorithm(self.algorithm, local_steps)
        check_trips(self.trips, self.algorithm, self.settings)
        self.keys.check()

    @property
    def server(self) -> Server:
        """What the server holds between rounds."""
        if self._state.server is None:
            raise InputError("no client has replied yet; call start(grid, initial_arrays)")
        return self._state.server

    @property
    def deployed(self) -> ArrayRecord:
        """The model that serves clients: the average if one is kept, else the current one."""
        if self.journal.restored is not None:
            return self._state.layout.arrays(self.journal.restored.current)
        return self._state.deployed

    @property
    def records(self) -> list[Record]:
        """Of all rounds so far."""
        return self.journal.records

    def summary(self) -> None:
        """Log what is run."""
        keys = self.keys
        log(INFO, "\t├──> evenfed: %s", self.algorithm)
        log(INFO, "\t│\t├── loss: '%s' of %s replies", keys.loss, keys.loss_in)
        better = "higher" if keys.higher_is_better else "lower"
        log(INFO, "\t│\t├── size: '%s', score: '%s' (%s is better)", keys.size, keys.score, better)
        log(INFO, "\t│\t├── rounds: %s, trips per round: %s", self.rounds or "as given to start", self.trips)
        self.journal.log_start()
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Flower's own rounds, and a table of the clients at their end.

        With `average`, the result's arrays and those that `evaluate_fn` gets are of the average.
        """
        began = time.perf_counter()
        self.rounds = check_whole("num_rounds", num_rounds, 1)
        self.timeout = timeout
        self.evaluate_fn = evaluate_fn
        settings = dataclasses.replace(self.settings, rounds=num_rounds)
        self.journal.run = Run(self.label, self.algorithm, settings)
        self.summary()
        self._state.adopt(initial_arrays)

        def ask(messages: Iterable[Message]) -> Iterable[Message]:
            return self._sampling.ask(grid, messages, timeout)

        try:
            self._reader.losses = self._fair_journal.resume()
            result = result_of(self.records, self.keys.metric)
            self._fair_journal.restore_metrics(result)
            if not self.records:
                add_initial(result, evaluate_fn, initial_arrays)
            arrays = self._state.arrays
            run_rounds(self, grid, self.journal, ask, arrays, result, train_config, evaluate_config)
        finally:
            self.journal.close()
        result.arrays = self.deployed
        self.journal.log_end(result, time.perf_counter() - began)
        return result

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """FedAvg's messages; only to clients with a weight, where losses and sizes are known before."""
        if self.rounds is None and self.journal.folder is not None:
            raise InputError("`out` needs Fair's own `start`, which knows where a run was left; leave it out here")
        self._began = time.perf_counter()
        state = self._state
        if state.adopt(arrays):
            self._reader.losses = {}  # of another model
        state.set_rate(config)
        config[ASKED] = self.keys.loss
        messages = {}
        for message in sorted(self._tasks(server_round, arrays, config, grid), key=RECEIVER):
            position = self.clients.place(RECEIVER(message))
            messages[position] = message
        unmeasured: Mapping[int, str] = {}
        if self.trips == 3 or self.keys.loss_in == "evaluate":
            unmeasured = self._ask_losses(messages, arrays, config, grid)
        drawn = sorted(messages)
        known = self._reader.losses
        losses = {position: known[position] for position in drawn if position in known}
        self._reader.losses = {}
        self._round = ForeignRound(drawn, losses)
        if self.keys.loss_in == "evaluate" and self.algorithm.uses_losses:
            self._round.failures.update(unmeasured)  # a train reply holds another loss
            self._round.awaited -= unmeasured.keys()
        drawn = sorted(self._round.awaited)
        if self._round.is_measured and all(self.clients.sizes[position] for position in drawn):
            server = state.sized(self.clients.counts())
            drawn = self._round.open(server)
        self._sampling.enough = self._sampling.closing.updates(len(drawn), measured=len(messages))
        return [messages[position] for position in drawn]

    def _tasks(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """FedAvg's messages to more clients than are needed, where they are oversampled, and to none that rests."""
        least = max(self.min_train_nodes, self.min_available_nodes)
        awake = self._sampling.awake(grid, server_round - 1, least)
        least_as_given = self.min_train_nodes
        online = list(awake.get_node_ids())
        self.min_train_nodes = self._sampling.draw(len(online), self.fraction_train, least_as_given)
        try:
            return super().configure_train(server_round, arrays, config, awake)
        finally:
            self.min_train_nodes = least_as_given

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Weigh the updates and take the step; what fails or does not fit is dropped and named."""
        round = self._round
        self._round = None
        state = self._state
        if round is None:
            raise InputError(f"round {server_round} was not configured; call configure_train first")
        contents = self._reader.updates(replies, round, state)
        for position, reason in round.failures.items():
            log(WARNING, "round %s: %s is dropped: %s", server_round, self.clients.name(position), reason)
        sizes = self.clients.sizes
        if not any(sizes):  # nobody has ever replied
            self._record = skipped(state.skipped, len(sizes), round.failures)
            state.skipped += 1
            return None, None
        before = state.sized(self.clients.counts())
        if not self._fair_journal.has_begun:
            self._fair_journal.begin(before)
            caution = guard_caution(before)
            if caution is not None and self.fraction_train == 1:
                log(WARNING, "%s", caution)
        after, record = round.close(before)
        state.advance(after, record.skipped)
        self._record = record
        for line in guard_lines(record, self.clients.name):
            log(WARNING, "%s", line)
        if not contents:
            return state.arrays, None
        metrics = aggregated_reports(self.train_metrics_aggr_fn, contents, self.weighted_by_key)
        self._fair_journal.train_metrics = metrics
        metrics["dropped"] = len(record.dropped)
        if not math.isnan(record.objective):
            metrics["objective"] = record.objective
            metrics["worst-loss"] = float(np.nanmax(record.losses))
        return state.arrays, metrics

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """FedAvg's messages, about the model that the round deploys; with one trip after the last round only."""
        if self._state.adopt(arrays):
            self._reader.losses = {}  # of another model
        is_last = self.rounds is None or server_round >= self.rounds
        if self.trips == 1 and not is_last:
            return []
        if self.trips == 2:
            config[ASKED] = self.keys.loss
        least = max(self.min_evaluate_nodes, self.min_available_nodes)
        awake = self._sampling.awake(grid, server_round - 1, least)
        messages = list(super().configure_evaluate(server_round, self.deployed, config, awake))
        self._asked_scores = [self.clients.place(RECEIVER(message)) for message in messages]
        self._sampling.enough = self._sampling.closing.scores(len(messages))
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Put the scores into the round's record, and say in a line how the round went."""
        scores, contents = self._reader.scores(replies, server_round, self._asked_scores)
        metrics = None
        if contents:
            metrics = aggregated_reports(self.evaluate_metrics_aggr_fn, contents, self.weighted_by_key)
        if scores and metrics is not None:
            worst = min if self.keys.higher_is_better else max
            metrics["worst-score"] = worst(scores.values())
        self._fair_journal.evaluate_metrics = metrics
        if self._record is not None:
            self._end_round(self._record, scores)
        return metrics

    def _end_round(self, record: Record, scores: PerClient) -> None:
        """Complete the record and write it down."""
        clients = len(self.clients.sizes)
        metric = self.keys.metric
        noted = self.admission.noted(record)
        (record,) = over([noted], clients)
        if scores:
            column = np.full(clients, np.nan)
            for position, score in scores.items():
                column[position] = score
            field = "test_losses" if metric.is_loss else "accuracy"
            record = record.but(**{field: column})
        central = None
        if self.evaluate_fn is not None:
            given = self.evaluate_fn(record.index + 1, self.deployed)
            central = numbers_of(given)
        seconds = time.perf_counter() - self._began
        record = record.but(central=central, seconds=seconds)
        self._record = None
        self._sampling.end_round(record.index)
        line = round_line(record, self.rounds, self.clients.name, metric)
        log(INFO, "%s", line)
        self._fair_journal.after_round(record, self._reader.losses)

    def _ask_losses(
        self,
        messages: Mapping[int, Message],
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> dict[int, str]:
        """Ask those drawn for the losses that are not known yet; returns why some of them remain unknown."""
        kind = MessageType.EVALUATE if self.keys.loss_in == "evaluate" else wire.LOSS
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        questions = []
        for position, message in messages.items():
            if position not in self._reader.losses:
                node = RECEIVER(message)
                question = Message(content, dst_node_id=node, message_type=kind)
                questions.append(question)
        sampling = self._sampling
        known = len(messages) - len(questions)
        sampling.enough = sampling.closing.losses(len(questions), known)
        replies = sampling.ask(grid, questions, self.timeout)
        return self._reader.asked_losses(replies, list(messages))


OPTIONS = [*inspect.signature(Fair).parameters, *fleet_options.names()]  # named where one is misspelt
OPTIONS.remove("options")
