"""A fair algorithm as an ordinary Flower strategy: losses first, weights known, updates folded as they arrive."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from torch import Tensor

from ..comparison.folder import RunFolder
from ..comparison.header import Header
from ..comparison.plan import Variant
from ..core import streams
from ..core.algorithm import Algorithm
from ..core.errors import InputError, check_whole
from ..core.round import Fold, open_round
from ..core.server import Record, Server
from ..settings import Settings
from ..simulate.loop import State
from . import wire
from .private import PrivateRound, check_run, check_wrapper, remembered
from .roster import Roster, replies
from .sums import rule_of
from .wire import Shape, Task


class FairStrategy(Strategy):
    """Runs `algorithm` (a name, "semi_vred[beta=0.5,smooth=0.25]", or an instance) over Flower's nodes.

    `options` are the fields of `evenfed.Settings` (rounds, lr, batch_size, participation, seed, ...).
    `out`: results go to out/<label>/seed-<seed>, with a checkpoint every round, and the same call goes on
    from there after the server has died. `clients`: how many there are (default: the nodes' num-partitions);
    `wait`: seconds to wait for them to connect; `timeout`: seconds to wait for replies, after which a client
    is dropped from the round. `ordered` folds replies in the clients' order: runs then repeat to the bit.
    `listen(record)` is called after every round; True ends the run there, to be gone on with later. `private`:
    masked sums (SecAgg+) instead of single losses, updates and scores, where the algorithm allows (docs/private.md).
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
        header: Header | None = None,
        listen: Callable[[Record], bool | None] | None = None,
        **options: Any,
    ) -> None:
        chosen = _chosen(algorithm, label)
        self.algorithm, self.label = chosen.algorithm, chosen.label
        self.settings = Settings.of({**chosen.options, **options, "engine": "flower"})
        self.folder = None if out is None else RunFolder.at(Path(out), self.label, self.settings.seed)
        if clients is not None:
            check_whole("clients", clients, 1)
        for name, seconds in (("wait", wait), ("timeout", timeout)):
            if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
                raise InputError(f"{name}={seconds!r}: give a number of seconds above 0")
        self.wait, self.timeout, self.ordered = float(wait), float(timeout), ordered
        self.header, self.listen, self.private = header, listen, private
        if not isinstance(private, bool):
            raise InputError(f"private={private!r}: give true or false")
        if private:
            rule_of(self.algorithm)  # refuses those that need more than sums
        self.roster = Roster(clients)
        self.records: list[Record] = []
        self.how = f"flower: {'replies in order' if ordered else 'replies as they arrive'}"
        self._now: _Progress | None = None

    @property
    def server(self) -> Server:
        """What the server holds between rounds."""
        return self._progress.server

    @property
    def _progress(self) -> "_Progress":
        if self._now is None:
            raise InputError("the strategy has not begun; call start(grid, initial_arrays)")
        return self._now

    def summary(self) -> None:
        """Log what is run."""
        log(INFO, "\t├──> evenfed: %s", self.algorithm)
        log(INFO, "\t├──> %s", self.settings)
        log(INFO, "\t└──> results: %s", self.folder.path if self.folder else "not kept (no `out`)")

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
        """All rounds that are not done yet, each folded as its replies arrive.

        As Flower's own `start`, which also works but holds all replies of a round and cannot resume.
        `wrapped`: one of Flower's privacy wrappers around this strategy, to be run in its place.
        """
        outer = wrapped or self
        if self.private and wrapped:
            check_wrapper(wrapped)
        if num_rounds is not None:
            self.settings = dataclasses.replace(self.settings, rounds=num_rounds)
        self.timeout = self.timeout if timeout is None else timeout
        outer.summary()
        arrays, result = self._begin(initial_arrays, grid), Result(arrays=ArrayRecord())
        for number in range(self.server.index + 1, self.settings.rounds + 1):
            config = ConfigRecord(dict(train_config or {}))
            asked = outer.configure_train(number, arrays, config, grid)
            replies = self._stream(grid, asked)
            after, metrics = outer.aggregate_train(number, replies if outer is self else list(replies))
            arrays = arrays if after is None else after
            config = ConfigRecord(dict(evaluate_config or {}))
            asked = outer.configure_evaluate(number, arrays, config, grid)
            scores = outer.aggregate_evaluate(number, self._stream(grid, asked))
            central = evaluate_fn(number, arrays) if evaluate_fn else None
            for kept, found in (
                (result.train_metrics_clientapp, metrics),
                (result.evaluate_metrics_clientapp, scores),
                (result.evaluate_metrics_serverapp, central),
            ):
                if found is not None:
                    kept[number] = found
            if self._progress.stopped:
                break
        result.arrays = arrays
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask those drawn for the loss of the model, plan, and order training from those with a weight."""
        if self._now is None:
            self._begin(arrays, grid)
        else:
            self.roster.refresh(grid, self.timeout)
            self._now.adopt(arrays)
        now = self._progress
        now.began, server = time.perf_counter(), now.server
        drawn = server.draw(self.settings.drawn(int((server.sizes > 0).sum())))
        if self.private:
            now.hidden = self._private(grid)
            now.personal = now.hidden.rule.personal(self.algorithm)
            task = dataclasses.replace(self._task(), personal=now.personal)
            return now.hidden.open(drawn.tolist(), task, now.arrays, config)
        turn = open_round(server, self._losses(grid, server.theta, drawn), drawn)
        now.fold, now.grid = Fold(turn), grid
        task = dataclasses.replace(self._task(), personal=turn.plan.personal)
        now.personal = task.personal
        steps = turn.plan.snapshot_steps
        tasks = {
            client: task if steps is None else dataclasses.replace(task, snapshot_step=int(steps[k]))
            for k, client in enumerate(turn.plan.ids.tolist())
        }
        log(INFO, "round %s: %s drawn, %s train", server.index, len(drawn), len(tasks))
        return self._messages(wire.TRAIN, tasks, server.theta, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold each reply into the step and let it go; what fails or does not fit is dropped and named."""
        now = self._progress
        if now.hidden is not None:
            for reply in replies:
                now.hidden.add(reply)
            now.close(None)
            assert now.record is not None
            return now.arrays, MetricRecord({"objective": now.record.objective, "dropped": len(now.record.dropped)})
        if now.fold is None:
            raise InputError(f"round {server_round} was not configured; call configure_train first")
        for reply in replies:
            client = now.asked.pop(reply.metadata.src_node_id, None)
            if client is None:
                continue
            try:
                if reply.has_error():
                    raise InputError(reply.error.reason)
                now.fold.add(wire.update_of(reply, client, now.shape, now.server.theta, now.server.buffers))
            except InputError as error:
                self._tell_dropped(client, error)
            del reply
        for client in now.asked.values():
            self._tell_dropped(client, "no reply")
        now.close(lambda theta, ids: self._losses(now.grid, theta, ids))
        assert now.record is not None
        known = now.record.losses[~np.isnan(now.record.losses)]
        metrics: dict[str, Any] = {"objective": now.record.objective, "dropped": len(now.record.dropped)}
        if len(known):
            metrics |= {"mean-loss": float(known.mean()), "worst-loss": float(known.max())}
        return now.arrays, MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """MaskedTask a test of the new model from every client that holds test data, in rounds that are due."""
        now, every = self._progress, self.settings.evaluate_every
        if now.record is None:  # a wrapper refused the replies: nothing was aggregated
            now.close(None)
        now.adopt(arrays)
        done = now.server.index
        if done < self.settings.rounds and (every == 0 or done % every):
            return []
        tested = [client for client, size in enumerate(self.roster.column("test")) if size]
        task = dataclasses.replace(self._task(), personal=now.personal)
        if self.private:
            now.scores = self._private(grid).scores(tested, task, now.arrays)
            return []
        return self._messages(wire.EVALUATE, dict.fromkeys(tested, task), now.server.theta, config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Scores into the round's record, which ends the round: it is written down, with a checkpoint."""
        now = self._progress
        assert now.record is not None
        found: dict[str, Any] = {}
        for reply in replies:
            client = now.asked.pop(reply.metadata.src_node_id, None)
            for name in ("accuracy", "unpadded"):
                value = wire.number(reply, name)
                if client is not None and value is not None:
                    found.setdefault(name, np.full(len(now.server.sizes), np.nan))[client] = value
        scores, now.scores = now.scores, None
        record = dataclasses.replace(now.record, seconds=time.perf_counter() - now.began, scores=scores, **found)
        now.record = None
        self.records.append(record)
        finished = now.server.index >= self.settings.rounds
        if self.folder is not None:
            self.folder.write([record], State(now.server), finished)
            self.folder.forget(keep=None if finished else now.server.index)
        now.stopped = bool(self.listen is not None and self.listen(record))
        if record.accuracy is None:
            return None if scores is None else MetricRecord(scores)
        known = record.accuracy[~np.isnan(record.accuracy)]
        return MetricRecord({"mean-accuracy": float(known.mean()), "worst-accuracy": float(known.min())})

    def _begin(self, arrays: ArrayRecord, grid: Grid) -> ArrayRecord:
        """Meet the clients, and stand where the run was left."""
        before = None if self.folder is None else self.folder.header()
        self.roster.gather(grid, self.wait, None if before is None else before.clients)
        shape = Shape.of(arrays, self.roster.column("parameters")[0], self.roster.column("buffers")[0])
        sent = ArrayRecord({name: arrays[name] for name in [*(shape.layout.names or ()), *shape.buffers]})
        theta, buffers = shape.read(sent)
        sizes, s = self.roster.column("train"), self.settings
        count = s.drawn(sum(size > 0 for size in sizes))  # refuses more participants than there are
        if self.private:
            check_run(count, shape)
        server = Server.start(
            self.algorithm,
            theta,
            sizes,
            lr=s.lr,
            seed=s.seed,
            server_lr=s.server_lr,
            local_steps=streams.local_steps(np.array(sizes), s.batch_size, s.local_epochs).tolist(),
            smooth=s.smooth,
            optimizer=s.optimizer_factory(),
            buffers=buffers,
        )
        server = remembered(server) if self.private else server
        state = State(dataclasses.replace(server, layout=shape.layout))
        if self.folder is not None:
            state = self._resumed(self.folder, state)
        self._now = _Progress(state.server, shape)
        return self._now.arrays

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
        header = self.header or Header(
            label=self.label,
            seed=self.settings.seed,
            config=config,
            clients=self.roster.describe(),
            device="the clients' own",
        )
        folder.refuse_other(header.config)
        if folder.finished:
            raise InputError(f"{folder.path} holds a finished run; choose another `out`, or remove it")
        state = folder.resumed(fresh)
        if state.server.index:
            log(INFO, "goes on from round %s of %s", state.server.index, folder.path)
        folder.begin(dataclasses.replace(header, engine=self.how, extra={"flwr": version("flwr")}), state)
        return state

    def _private(self, grid: Grid) -> PrivateRound:
        now = self._progress
        return PrivateRound(now.server, self.roster.nodes, lambda m: self._stream(grid, m), self.timeout)

    def _task(self) -> Task:
        name = f"{self.label}, seed {self.settings.seed}"
        return Task.of(name, self._progress.server.index, self.settings, self.algorithm)

    def _messages(
        self, kind: str, tasks: Mapping[int, Task], theta: Tensor, config: Mapping[str, Any] = {}
    ) -> list[Message]:
        """An order for each client that is connected; `asked` remembers which node is which."""
        now, nodes = self._progress, self.roster.nodes
        arrays = now.arrays if theta is now.server.theta else now.shape.arrays(theta, now.server.buffers)
        now.asked = {nodes[client]: client for client in tasks if client in nodes}
        return [
            wire.message(node, kind, arrays, tasks[client].record(config), self.timeout)
            for node, client in now.asked.items()
        ]

    def _losses(self, grid: Grid, theta: Tensor, ids: Tensor) -> Tensor:
        """The clients' losses [len(ids)] at a model; NaN where none came."""
        found = dict.fromkeys(ids.tolist(), float("nan"))
        asked = self._messages(wire.LOSS, dict.fromkeys(found, self._task()), theta)
        left_out: dict[int, str] = dict.fromkeys(found, "not connected")
        left_out |= dict.fromkeys(self._progress.asked.values(), "no reply")
        for reply in replies(grid, asked, self.timeout):
            client, told = self._progress.asked.pop(reply.metadata.src_node_id, None), wire.number(reply, "loss")
            if client is not None and told is not None:
                found[client] = told
                del left_out[client]
            elif client is not None:
                left_out[client] = str(reply.error.reason) if reply.has_error() else "the reply holds no loss"
        for client, reason in left_out.items():
            self._tell_dropped(client, reason)
        return torch.tensor([found[client] for client in ids.tolist()], dtype=torch.float64)

    def _stream(self, grid: Grid, messages: Iterable[Message]) -> Iterable[Message]:
        return replies(grid, messages, self.timeout, self.ordered)

    def _tell_dropped(self, client: int, reason: object) -> None:
        name, at = self.roster.about[client]["name"], self._progress.server.index
        log(WARNING, "round %s: client %s (%s) is dropped: %s", at, client, name, reason)


def _chosen(algorithm: str | Algorithm, label: str | None) -> Variant:
    """The algorithm with its label and options of its own."""
    if isinstance(algorithm, str):
        found = Variant.parse(algorithm)
        return found if label is None else dataclasses.replace(found, label=label)
    if not isinstance(algorithm, Algorithm):
        raise InputError(f"algorithm is a {type(algorithm).__name__}; give a name or an instance of an Algorithm")
    return Variant(label or algorithm.name, algorithm)


class _Progress:
    """Where a strategy stands: between rounds the server, within one what is open."""

    def __init__(self, server: Server, shape: Shape) -> None:
        self.server, self.shape = server, shape
        self.arrays = shape.arrays(server.theta, server.buffers)  # the server's model as Flower holds it
        self.asked: dict[int, int] = {}  # node -> client, of the orders without a reply
        self.fold: Fold | None = None
        self.hidden: PrivateRound | None = None  # in place of the fold
        self.scores: dict[str, Any] | None = None
        self.grid: Any = None
        self.record: Record | None = None
        self.personal: float | None = None
        self.began = 0.0
        self.stopped = False

    def adopt(self, arrays: ArrayRecord) -> None:
        """The model that goes on is the one Flower holds: a wrapper may have added noise to ours."""
        if arrays is not self.arrays:
            theta, buffers = self.shape.read(arrays)
            self.server = dataclasses.replace(self.server, theta=theta.to(self.server.theta), buffers=buffers)
            self.arrays = arrays

    def close(self, losses_at: Callable[[Tensor, Tensor], Tensor] | None) -> None:
        """End the open round with what was folded, or summed."""
        if self.hidden is not None:
            self.server, self.record = self.hidden.close()
        else:
            assert self.fold is not None
            self.server, self.record = self.fold.close(losses_at)
        self.fold = self.hidden = None
        self.arrays = self.shape.arrays(self.server.theta, self.server.buffers)
