"""A fair algorithm as an ordinary Flower strategy: losses first, weights known, updates folded as they arrive."""

import dataclasses
import time
from collections.abc import Iterable
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from ..callbacks import Callbacks
from ..callbacks.progress import RunInfo
from ..comparison.analysis.configuration import config_of
from ..comparison.storage.folder import RunFolder
from ..comparison.storage.header import Header, Table
from ..comparison.variants import Variant
from ..core.algorithm import Algorithm
from ..core.errors import InputError, check_whole
from ..core.server import Record, Server
from ..core.tables import changed_fields
from ..core.words import assignments
from ..settings import Settings
from ..simulate.state import Run, State
from . import wire
from .array_layout import ArrayLayout
from .drop_in.trips import check_trips
from .fleet_options import FleetOptions, check_known, seconds
from .journal import AboutClients, Journal, run_rounds
from .logs import guard_caution, guard_lines, log, round_line
from .metrics import EvaluateFunction, add_initial, numbers_of, result_of, score_metrics, train_metrics
from .participation import DrawnClients, Participation
from .plain import PlainRound
from .reply_fields import check_flag
from .roster import Roster
from .secagg.masking_client import LEAST
from .secagg.private import PrivateRound, check_private, wrapper_settings
from .sites import Admission
from .strategy_state import StrategyState, first_server
from .wire import ScoreRequest, Task

IN_ORDER = "flower: replies in order"
AS_THEY_ARRIVE = "flower: replies as they arrive"


class FairStrategy(Strategy):
    """Runs `algorithm` (a name, "semi_vred[beta=0.5,smooth=0.25]", or an instance) over Flower's nodes.

    `options` are the fields of `evenfed.Settings` (rounds, lr, batch_size, participation, seed, ...).

    * `out`: results go to out/<label>/seed-<seed>, with a checkpoint every round. The same call resumes from there
      after the server has died. One process at a time writes there.
    * `resume`: true requires a run in `out`; if it is finished, its result is returned at once, before any client is
      asked. false refuses to resume. By default an unfinished run is resumed and a finished one is refused.
    * `clients`: how many there are (default: the nodes' num-partitions).
    * `sites`: a file that lists who may join, by key or node id (docs/flower.md).
    * `wait`: seconds to wait for them to connect.
    * `timeout`: seconds to wait for replies, after which a client is dropped from the round.
    * `ordered`: fold replies in the clients' order; runs then repeat to the bit.
    * `private`: masked sums (SecAgg+) instead of single losses, updates and scores, where the algorithm allows it
      (docs/private.md).
    * `trips`: how often a client is asked per round. 3: for its loss, to train, for its score. 2: score and next loss
      are of the same model and asked for together; the result is equal to the bit. 1: the loss comes with the update;
      updates are summed or held until all are in, and the last round alone is scored, unless `evaluate_every` says
      otherwise.
    * `tell_errors`: log the text of clients' exceptions. It may quote their data, by default only the type is logged.
    * `listen`: callbacks, as `evenfed.train` takes them: a function of a `Progress`, called after every round, or an
      `evenfed.callbacks.Callback`, or several.

    For large fleets (docs/flower.md): `min_available`, `quorum`, `oversample`, `rest`, `min_train_nodes`,
    `min_evaluate_nodes`; and Flower's names `fraction_train`, `fraction_evaluate`, `min_available_nodes`.

    With `average`, clients are judged by the average, which is also the run's result; they train the current model.
    """

    def __init__(
        self,
        algorithm: str | Algorithm = "semi_vred",
        *,
        out: Path | str | None = None,
        resume: bool | None = None,
        label: str | None = None,
        clients: int | None = None,
        sites: Path | str | None = None,
        wait: float = 600.0,
        timeout: float = 3600.0,
        ordered: bool = False,
        private: bool = False,
        trips: int = 3,
        tell_errors: bool = False,
        header: Header | None = None,
        listen: Callbacks = (),
        **options: Any,
    ) -> None:
        variant = Variant.of_entry(algorithm, label)
        self.algorithm = variant.algorithm
        self.label = variant.label
        self.fleet_options = FleetOptions.taken_from(options)
        check_known(options)
        self.fleet_options.check_beside(ordered, private)
        chosen = {**variant.options, **options, "engine": "flower"}
        if trips == 1:
            chosen.setdefault("evaluate_every", 0)
        self.settings = Settings.of(chosen)
        run = Run(self.label, self.algorithm, self.settings)
        self.journal = Journal.of(run, out, resume, listen, is_locked=header is not None)
        if clients is not None:
            clients = check_whole("clients", clients, 1)
        self.wait = seconds("wait", wait)
        self.timeout = seconds("timeout", timeout)
        self.private = check_flag("private", private)
        self.ordered = check_flag("ordered", ordered)
        if private:
            check_private(self.algorithm, self.settings)
        check_trips(trips, self.algorithm, self.settings, private)
        self.trips = trips
        self.header = header
        self.roster = Roster(
            clients,
            Admission.of(sites),
            judged_by=self.settings.metric,
            tell_errors=check_flag("tell_errors", tell_errors),
        )
        least = LEAST if private else 1
        self.participation = Participation(
            self.fleet_options, self.settings, self.roster, self.wait, self.timeout, least
        )
        self.module: nn.Module | None = None  # of the model's kind, for callbacks
        self.about: RunInfo | None = None  # what callbacks see of the clients, where more is known than they tell
        self.evaluate_fn: EvaluateFunction | None = None
        self.how = IN_ORDER if ordered else AS_THEY_ARRIVE
        self._started: StrategyState | None = None
        self._privacy: Table | None = None  # settings of a wrapper

    @property
    def server(self) -> Server:
        """What the server holds between rounds."""
        return self._state.server

    @property
    def deployed(self) -> ArrayRecord:
        """The model that serves clients: the average if the run keeps one, else the current one.

        Where a callback has put back the model of an earlier round, that one.
        """
        restored = self.journal.restored
        if restored is not None:
            return self._state.layout.arrays(restored.current)
        return self._state.deployed

    @property
    def _state(self) -> StrategyState:
        if self._started is None:
            raise InputError("the strategy has not begun; call start(grid, initial_arrays)")
        return self._started

    @property
    def records(self) -> list[Record]:
        """Of all rounds so far."""
        return self.journal.records

    @property
    def folder(self) -> RunFolder | None:
        return self.journal.folder

    def summary(self) -> None:
        """Log what is run."""
        log(INFO, "\t├──> evenfed: %s", self.algorithm)
        options = {"guard": "off" if self.settings.guarding() is None else "on", **changed_fields(self.settings)}
        del options["engine"]
        log(INFO, "\t├──> %s; other options: default", assignments(options))
        self.journal.log_start()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
        wrapped: Strategy | None = None,
    ) -> Result:
        """Run all rounds that are not done yet, each folded as its replies arrive.

        As Flower's own `start`, which also works but holds all replies of a round and cannot resume. The result's
        arrays, and those that `evaluate_fn` gets, are of the deployed model; from Flower's own, of the current one.
        `wrapped`: one of Flower's privacy wrappers around this strategy, to be run in its place.
        """
        began = time.perf_counter()
        outer = wrapped or self
        if wrapped is not None:
            self._privacy = wrapper_settings(wrapped, self.private)
        if num_rounds is not None:
            rounds = check_whole("num_rounds", num_rounds, 1)
            self.settings = dataclasses.replace(self.settings, rounds=rounds)
        if timeout is not None:
            self.timeout = timeout
            self.participation.timeout = timeout
        self.evaluate_fn = evaluate_fn
        self.journal.run = Run(self.label, self.algorithm, self.settings)
        outer.summary()
        try:
            if self.journal.is_finished(self._config()):  # its result needs no client
                server = self.journal.ended_state().server
                self._started = StrategyState(server, ArrayLayout.of_model(server.layout, server.current))
            else:
                self._begin(initial_arrays, grid)
            result = result_of(self.records, self.journal.about.metric)
            if self.server.index == 0:
                add_initial(result, evaluate_fn, self.deployed)

            def ask(messages: Iterable[Message]) -> Iterable[Message]:
                replies = self._state.replies(messages)
                return replies if outer is self else list(replies)  # a wrapper reads them more than once

            run_rounds(outer, grid, self.journal, ask, self._state.arrays, result, train_config, evaluate_config)
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
        """Find the clients' weights, and give training tasks to those with a weight."""
        if self._started is None:
            self._begin(arrays, grid)
        else:
            self.participation.next_round(grid, self._started.server.index)
            self._started.adopt(arrays)
        state = self._state
        state.began = time.perf_counter()
        drawn = self._drawn(state, grid)
        server = state.server
        settings = self.settings
        task = Task.of(
            run=f"{self.label}, seed {settings.seed}",
            index=server.index,
            settings=settings,
            algorithm=self.algorithm,
        )
        connection = self.participation.connection(grid, server.index, self.ordered)
        if self.private:
            state.round = PrivateRound(server, task, connection, state.ahead)
        else:
            state.round = PlainRound(server, state.layout, task, connection, self.trips, state.measured, drawn.closing)
        return state.round.open(drawn.ids, state.arrays, state.weighed, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the replies into the step; what fails or does not fit is dropped and named."""
        state = self._state
        if state.round is None or state.record is not None:
            raise InputError(f"round {server_round} was not configured; call configure_train first")
        state.round.collect(replies)
        record = state.close()
        for line in guard_lines(record, self.roster.who):
            log(WARNING, "%s", line)
        return state.arrays, train_metrics(record)

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Ask clients that hold test data for their scores, in rounds that are due.

        Of the model that the round deploys, and of the current one where that is another.
        """
        state = self._state
        if state.record is None:  # a wrapper refused the replies: nothing was aggregated
            state.close()
        state.adopt(arrays)
        finished_rounds = state.server.index
        every = self.settings.evaluate_every
        due = every != 0 and finished_rounds % every == 0
        last = finished_rounds >= self.settings.rounds
        if not due and not last:
            return []
        assert state.round is not None
        current = None if self.settings.average is None else state.arrays
        tested = self.participation.judge(grid, state.server)
        state.round.connection = self.participation.connection(grid, finished_rounds - 1, self.ordered)
        asks_ahead = self.trips == 2 or self.private
        request = ScoreRequest(tested, state.deployed, current)
        if asks_ahead and not last:
            following = self._drawn(state, grid).ids.tolist()
            weighs_current = current is not None and self.settings.weigh_at == "current"
            measure = wire.CURRENT if weighs_current else wire.ARRAYS
            request = dataclasses.replace(request, following=following, measure=measure)
        return state.round.ask_scores(request, config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Put the scores into the round's record and end the round: it is written down, with a checkpoint."""
        state = self._state
        assert state.round is not None and state.record is not None
        scores = state.round.collect_scores(replies)
        state.keep_for_next()
        took = time.perf_counter() - state.began
        central = None
        if self.evaluate_fn is not None:
            central = self.evaluate_fn(state.server.index, state.deployed)
        record = self.roster.admission.noted(state.record)
        record = dataclasses.replace(record, seconds=took, central=numbers_of(central), **scores)
        self.participation.end_round(record.index)
        state.round = None
        state.record = None
        journal = self.journal
        metric = journal.about.metric
        rounds = self.settings.rounds
        line = round_line(record, rounds, self.roster.name, metric)
        log(INFO, "%s", line)
        is_last = state.server.index >= rounds
        newly_met = self.participation.newly_met(is_last)
        journal.clients = newly_met or journal.clients
        journal.after_round(record, state.server, self.participation.resting.notes())
        return score_metrics(record, metric)

    def _drawn(self, state: StrategyState, grid: Grid) -> DrawnClients:
        drawn = self.participation.draw(grid, state.server)
        state.server = self.participation.sized(state.server)
        return drawn

    def _begin(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Meet the clients, and continue where the run was left."""
        stored = None if self.folder is None else self.folder.header()
        earlier_clients = None if stored is None else stored.clients
        self.participation.resting.recall(self.journal.kept_notes())
        self.participation.begin(grid, earlier_clients)
        layout = self.roster.layout(arrays)
        sizes = self.roster.sizes(earlier_clients)
        server = first_server(self.algorithm, self.settings, layout, arrays, sizes, self.private)
        caution = guard_caution(server)
        if caution is not None:
            log(WARNING, "%s", caution)
        header = self._header(len(server.theta))
        state = self.journal.begin(header, State(server), self.how, self._about())
        self._started = StrategyState(state.server, layout)

    def _about(self) -> RunInfo:
        if self.about is not None:
            return self.about
        return AboutClients(
            client_names=self.roster.names(),
            metric=self.roster.metric(),
            judged=self.roster.tested() or None,
            module=self.module,
        )

    def _config(self) -> Table:
        """All that decides the result, but for the model, which clients know."""
        if self.header is not None:
            return dict(self.header.config)
        config = {**config_of(self.journal.run, {"name": "flower"}), **self.journal.decides}
        if self.private:
            config["private"] = True
        if self._privacy is not None:
            config["privacy"] = self._privacy
        return config

    def _header(self, parameters: int) -> Header:
        if self.header is not None:
            return self.header
        return Header(
            label=self.label,
            seed=self.settings.seed,
            config={**self._config(), "model": {"parameters": parameters}},
            clients=self.roster.describe(),
            metric=self.roster.metric().recorded,
            device="the clients' own",
        )
