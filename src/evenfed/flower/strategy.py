"""A fair algorithm as an ordinary Flower strategy: losses first, weights known, updates folded as they arrive."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from numpy.typing import NDArray
from torch import Tensor

from ..comparison.folder import RunFolder
from ..comparison.header import Header
from ..comparison.plan import Variant
from ..core.algorithm import Algorithm
from ..core.errors import InputError, check_whole
from ..core.server import Record, Server
from ..settings import Settings
from ..simulate.beginning import new_server
from ..simulate.state import State
from . import wire
from .fields import check_tell_errors
from .plain import PlainRound
from .private import PrivateRound, check_algorithm, check_run, with_private_memory
from .roster import Connection, Roster
from .standing import Standing
from .telling import final_table, round_line
from .trips import check_trips
from .wire import Shape, Task
from .wrapping import described


class FairStrategy(Strategy):
    """Runs `algorithm` (a name, "semi_vred[beta=0.5,smooth=0.25]", or an instance) over Flower's nodes.

    `options` are the fields of `evenfed.Settings` (rounds, lr, batch_size, participation, seed, ...).

    * `out`: results go to out/<label>/seed-<seed>, with a checkpoint every round. The same call resumes from there
      after the server has died.
    * `clients`: how many there are (default: the nodes' num-partitions).
    * `wait`: seconds to wait for them to connect.
    * `timeout`: seconds to wait for replies, after which a client is dropped from the round.
    * `ordered`: fold replies in the clients' order; runs then repeat to the bit.
    * `private`: masked sums (SecAgg+) instead of single losses, updates and scores, where the algorithm allows it
      (docs/private.md).
    * `trips`: how often a client is asked per round. 3: for its loss, to train, for its score. 2: score and next loss
      are of the same model and asked for together; the result is equal to the bit. 1: the loss comes with the update;
      updates are held until all are in, and the last round alone is scored, unless `evaluate_every` says otherwise.
    * `tell_errors`: log the text of clients' exceptions. It may quote their data, so by default only the type is told.
    * `listen(record)` is called after every round; if it returns True the run ends there, to be resumed later.

    With `average`, clients are judged by the average, which is also the run's result; they train the current model.
    """

    def __init__(
        self,
        algorithm: str | Algorithm = "semi_vred",
        *,
        out: Path | str | None = None,
        label: str | None = None,
        clients: int | None = None,
        wait: float = 600.0,
        timeout: float = 3600.0,
        ordered: bool = False,
        private: bool = False,
        trips: int = 3,
        tell_errors: bool = False,
        header: Header | None = None,
        listen: Callable[[Record], bool | None] | None = None,
        **options: Any,
    ) -> None:
        variant = Variant.of_entry(algorithm, label)
        self.algorithm = variant.algorithm
        self.label = variant.label
        chosen = {**variant.options, **options, "engine": "flower"}
        if trips == 1:
            chosen.setdefault("evaluate_every", 0)
        self.settings = Settings.of(chosen)
        self.folder: RunFolder | None = None
        if out is not None:
            root = Path(out)
            self.folder = RunFolder.at(root, self.label, self.settings.seed)
        if clients is not None:
            check_whole("clients", clients, 1)
        self.wait = _seconds("wait", wait)
        self.timeout = _seconds("timeout", timeout)
        if not isinstance(private, bool):
            raise InputError(f"private={private!r}: give true or false")
        if private:
            check_algorithm(self.algorithm)
        self.private = private
        check_trips(trips, self.algorithm, self.settings, private)
        self.trips = trips
        self.ordered = ordered
        self.header = header
        self.listen = listen
        self.roster = Roster(clients, tell_errors=check_tell_errors(tell_errors))
        self.records: list[Record] = []
        order = "in order" if ordered else "as they arrive"
        self.how = f"flower: replies {order}"
        self._begun: Standing | None = None
        self._privacy: dict[str, Any] | None = None  # settings of a wrapper

    @property
    def server(self) -> Server:
        """What the server holds between rounds."""
        return self._standing.server

    @property
    def deployed(self) -> ArrayRecord:
        """The model that serves clients: the average if the run keeps one, else the current one."""
        return self._standing.deployed

    @property
    def _standing(self) -> Standing:
        if self._begun is None:
            raise InputError("the strategy has not begun; call start(grid, initial_arrays)")
        return self._begun

    def summary(self) -> None:
        """Log what is run."""
        log(INFO, "\t├──> evenfed: %s", self.algorithm)
        log(INFO, "\t├──> %s", self.settings)
        if self.settings.caution is not None:
            log(WARNING, "%s", self.settings.caution)
        place = self.folder.path if self.folder else "not kept (no `out`)"
        log(INFO, "\t└──> results: %s", place)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        wrapped: Strategy | None = None,
    ) -> Result:
        """Run all rounds that are not done yet, each folded as its replies arrive.

        As Flower's own `start`, which also works but holds all replies of a round and cannot resume. The result's
        arrays, and those that `evaluate_fn` gets, are of the deployed model; from Flower's own, of the current one.
        `wrapped`: one of Flower's privacy wrappers around this strategy, to be run in its place.
        """
        outer = wrapped or self
        if wrapped is not None:
            self._privacy = described(wrapped, self.private)
        if num_rounds is not None:
            self.settings = dataclasses.replace(self.settings, rounds=num_rounds)
        if timeout is not None:
            self.timeout = timeout
        outer.summary()
        arrays = self._begin(initial_arrays, grid)
        connection = self._connection(grid)
        result = Result(arrays=ArrayRecord())
        first = self.server.index + 1
        last = self.settings.rounds
        for number in range(first, last + 1):
            config = ConfigRecord(dict(train_config or {}))
            messages = outer.configure_train(number, arrays, config, grid)
            replies: Iterable[Message] = connection.replies(messages)
            if outer is not self:
                replies = list(replies)  # wrappers read them more than once
            aggregated, metrics = outer.aggregate_train(number, replies)
            if aggregated is not None:
                arrays = aggregated
            if metrics is not None:
                result.train_metrics_clientapp[number] = metrics
            config = ConfigRecord(dict(evaluate_config or {}))
            messages = outer.configure_evaluate(number, arrays, config, grid)
            score_replies = connection.replies(messages)
            scores = outer.aggregate_evaluate(number, score_replies)
            if scores is not None:
                result.evaluate_metrics_clientapp[number] = scores
            central = evaluate_fn(number, self.deployed) if evaluate_fn else None
            if central is not None:
                result.evaluate_metrics_serverapp[number] = central
            if self._standing.stopped:
                break
        result.arrays = self.deployed
        for line in final_table(self.records, self.roster.column("train"), self.roster.name):
            log(INFO, "\t%s", line)
        return result

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Find the clients' weights, and give training tasks to those with a weight."""
        if self._begun is None:
            self._begin(arrays, grid)
        else:
            self.roster.refresh(grid, self.timeout)
            self._begun.adopt(arrays)
        standing = self._standing
        standing.began = time.perf_counter()
        server = standing.server
        settings = self.settings
        task = Task.of(
            run=f"{self.label}, seed {settings.seed}",
            index=server.index,
            settings=settings,
            algorithm=self.algorithm,
        )
        connection = self._connection(grid)
        if self.private:
            standing.round = PrivateRound(server, standing.shape, task, connection)
        else:
            standing.round = PlainRound(server, standing.shape, task, connection, self.trips, standing.measured)
        standing.measured = {}
        drawn = self._drawn(server)
        return standing.round.open(drawn, standing.arrays, standing.weighed, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the replies into the step; what fails or does not fit is dropped and named."""
        standing = self._standing
        if standing.round is None or standing.record is not None:
            raise InputError(f"round {server_round} was not configured; call configure_train first")
        standing.round.collect(replies)
        record = standing.close()
        self.roster.log_guarded(record)
        metrics: dict[str, Any] = {
            "objective": record.objective,
            "dropped": len(record.dropped),
            "clipped": len({clip.client for clip in record.clipped}),
        }
        losses = _known(record.losses)
        if len(losses):
            metrics["mean-loss"] = float(losses.mean())
            metrics["worst-loss"] = float(losses.max())
        return standing.arrays, MetricRecord(metrics)

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Ask every client that holds test data for its scores, in rounds that are due.

        Of the model that the round deploys, and of the current one where that is another.
        """
        standing = self._standing
        if standing.record is None:  # a wrapper refused the replies: nothing was aggregated
            standing.close()
        standing.adopt(arrays)
        finished_rounds = standing.server.index
        every = self.settings.evaluate_every
        due = every != 0 and finished_rounds % every == 0
        last = finished_rounds >= self.settings.rounds
        if not due and not last:
            return []
        assert standing.round is not None
        current = None if self.settings.average is None else standing.arrays
        if self.trips != 2 or last:
            return standing.round.ask_scores(standing.deployed, current, config)
        assert isinstance(standing.round, PlainRound)
        weighed_is_sent_as = wire.ARRAYS
        if current is not None and self.settings.weigh_at == "current":
            weighed_is_sent_as = wire.CURRENT
        following = self._drawn(standing.server).tolist()
        return standing.round.ask_scores(standing.deployed, current, config, following, weighed_is_sent_as)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Put the scores into the round's record and end the round: it is written down, with a checkpoint."""
        standing = self._standing
        assert standing.round is not None and standing.record is not None
        scores = standing.round.collect_scores(replies)
        if isinstance(standing.round, PlainRound):
            standing.measured = standing.round.measured
        seconds = time.perf_counter() - standing.began
        record = dataclasses.replace(standing.record, seconds=seconds, **scores)
        standing.round = None
        standing.record = None
        self.records.append(record)
        log(INFO, "%s", round_line(record, self.settings.rounds, self.roster.name))
        finished = standing.server.index >= self.settings.rounds
        if self.folder is not None:
            state = State(standing.server)
            self.folder.save([record], state)
            self.folder.forget(keep=standing.server.index)
            if finished:
                self.folder.finish(state)
        if self.listen is not None:
            standing.stopped = bool(self.listen(record))
        metrics: dict[str, Any] = dict(record.scores or {})
        for prefix, accuracies in (("", record.accuracy), ("current-", record.current)):
            if accuracies is not None:
                known = _known(accuracies)
                if not len(known):
                    continue
                metrics[f"{prefix}mean-accuracy"] = float(known.mean())
                metrics[f"{prefix}worst-accuracy"] = float(known.min())
        return MetricRecord(metrics) if metrics else None

    def _drawn(self, server: Server) -> Tensor:
        """Who takes part in the server's next round."""
        with_data = server.sizes > 0
        count = self.settings.drawn(int(with_data.sum()))
        return server.draw(count)

    def _connection(self, grid: Grid) -> Connection:
        return Connection(grid, self.roster, self.timeout, self.ordered)

    def _begin(self, arrays: ArrayRecord, grid: Grid) -> ArrayRecord:
        """Meet the clients, and stand where the run was left."""
        header = None if self.folder is None else self.folder.header()
        earlier_clients = None if header is None else header.clients
        self.roster.gather(grid, self.wait, earlier_clients)
        parameters = self.roster.column("parameters")[0]
        buffer_names = self.roster.column("buffers")[0]
        shape = Shape.of(arrays, parameters, buffer_names)
        travelling = shape.chosen(arrays)
        theta, buffers = shape.read(travelling)
        sizes = self.roster.sizes(earlier_clients)
        server = new_server(
            self.algorithm,
            self.settings,
            theta,
            sizes,
            layout=shape.layout,
            buffers=buffers,
        )
        if self.private:
            with_data = sizes > 0
            count = self.settings.drawn(int(with_data.sum()))
            check_run(count, shape)
            server = with_private_memory(server)
        state = State(server)
        if self.folder is not None:
            state = self._resumed(self.folder, state)
        self._begun = Standing(state.server, shape)
        return self._begun.arrays

    def _resumed(self, folder: RunFolder, fresh: State) -> State:
        config = {
            "data": {"name": "flower"},
            "model": {"parameters": len(fresh.server.theta)},
            "algorithm": self.algorithm.name,
            "hyper_parameters": self.algorithm.describe(),
            "train": self.settings.describe(),
        }
        if self.private:
            config["private"] = True
        if self._privacy is not None:
            config["privacy"] = self._privacy
        header = self.header or Header(
            label=self.label,
            seed=self.settings.seed,
            config=config,
            clients=self.roster.describe(),
            device="the clients' own",
        )
        folder.refuse_other(header.config, self.settings)
        if folder.holds(self.settings.rounds):
            raise InputError(
                f"{folder.path} holds a finished run; give more rounds to go on, choose another `out`, or remove it"
            )
        state = folder.resumed(fresh)
        folder.sweep()
        if state.server.index:
            log(INFO, "goes on from round %s of %s", state.server.index, folder.path)
        header = dataclasses.replace(
            header,
            engine=self.how,
            extra={"flwr": version("flwr")},
        )
        folder.begin(header, state)
        return state


def _seconds(name: str, value: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value > 0:
        raise InputError(f"{name}={value!r}: give a number of seconds above 0")
    return float(value)


def _known(values: NDArray[Any]) -> NDArray[Any]:
    """Those that are numbers."""
    is_number = ~np.isnan(values)
    return values.compress(is_number)
