"""A strategy's run: its folder on disk, its callbacks, its rounds, and what the log says of all of them."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from logging import INFO, WARNING
from pathlib import Path
from types import MappingProxyType

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn

from ..callbacks import Callbacks, Progress, callback_list
from ..callbacks.progress import RunInfo, after_round
from ..callbacks.registry import deciding
from ..comparison.analysis.diagnostics import breakdown
from ..comparison.storage.conflicts import refuse_other
from ..comparison.storage.folder import RunFolder
from ..comparison.storage.header import Header, Table
from ..comparison.storage.lock import hold_run
from ..comparison.storage.restoring import state_in
from ..core.errors import InputError
from ..core.server import Record, Server
from ..core.tables import changed_fields
from ..core.words import counted
from ..metrics import ACCURACY, Metric
from ..simulate.checkpoint import notes_in
from ..simulate.state import Run, State
from .logs import final_table, log, metrics_line
from .metrics import central_metrics
from .reply_fields import check_flag

Notes = Mapping[str, Tensor]
Ask = Callable[[Iterable[Message]], Iterable[Message]]  # sends messages and gives replies
ONLY_WEIGHING = {"smooth", "weigh_at"}  # options that change the weights by losses and nothing else


@dataclass(frozen=True)
class AboutClients:
    """What callbacks may know of the clients."""

    client_names: Sequence[str]
    metric: Metric = ACCURACY
    judged: object | None = True  # None: no client has test data
    module: nn.Module | None = None

    @property
    def model(self) -> nn.Module:
        if self.module is None:
            raise InputError(
                "this strategy knows arrays and no module; give it one (server_app does: strategy.module = model), or "
                "read progress.server.deployed_params"
            )
        return self.module


def clients_table(names: Sequence[str], train: Sequence[float], test: Sequence[float]) -> Table:
    """The clients as a run's header keeps them: names, and numbers of examples."""
    return {
        "names": list(names),
        "train": list(train),
        "test": list(test),
        "classes": None,
        "split_seed": None,
        "notes": [],
    }


@dataclass
class Journal:
    """Locks the folder, resumes from it, tells callbacks of a round and writes it down, in this order.

    `resume`: True requires a run, and ends at once with the result of a finished one; False refuses any; None resumes
    an unfinished one.
    """

    run: Run
    folder: RunFolder | None = None
    resume: bool | None = None
    shares: Path | None = None  # a folder of many runs, locked against who would write all of them
    listen: Callbacks = ()
    records: list[Record] = field(default_factory=list)  # of all rounds so far
    stopped: str | None = None  # why a callback ended the run
    postponed: list[Record] = field(default_factory=list)  # rounds before there was a server to write down
    restored: Server | None = None  # an earlier round's, whose model a callback made the result
    interrupted: Callable[[], object] = lambda: False  # whether to leave the run here, to be resumed later

    @classmethod
    def of(
        cls,
        run: Run,
        out: Path | str | None,
        resume: bool | None,
        listen: Callbacks,
        is_locked: bool = False,
    ) -> "Journal":
        """Of a run kept in `out`, if that is given; `is_locked`: a comparison has locked it already."""
        if out is None:
            return cls(run, resume=resume, listen=listen)
        root = Path(out)
        folder = RunFolder.at(root, run.label, run.settings.seed)
        return cls(run, folder, resume, None if is_locked else root, listen)

    def __post_init__(self) -> None:
        if self.resume is not None:
            check_flag("resume", self.resume)
        if self.resume and self.folder is None:
            raise InputError("resume needs a folder with a run; give `out` (flwr run: evenfed.out)")
        self.callbacks = callback_list(self.listen)
        if self.decides and self.run.algorithm.personal() is not None:
            raise InputError(
                f"EarlyStopping puts back an earlier model, and clients of {self.run.algorithm.name} keep their own; "
                "leave it out on Flower"
            )
        self.about: RunInfo = AboutClients([])
        self.clients: Table = {"names": [], "train": []}
        self.is_over = False  # all rounds are done, or a callback has ended it
        self._notes: Notes = {}  # what callbacks keep with the run
        self._locks = ExitStack()
        self._is_locked = False

    @property
    def decides(self) -> Table:
        """What of the callbacks decides the result, for the run's configuration."""
        return deciding(self.callbacks)

    @property
    def sizes(self) -> list[float]:
        return list(self.clients["train"])

    def name(self, client: int) -> str:
        return str(self.clients["names"][client])

    def is_finished(self, config: Table) -> bool:
        """Lock the folder and say whether it holds this run, finished: before any client is asked.

        `config`: all that decides the result, but for what only clients know.
        """
        if self.folder is None:
            return False
        self._lock(self.folder)
        path = self.folder.path
        header = self.folder.header()
        if header is None:
            if self.resume:
                raise InputError(
                    f"resume: {path} holds no run to resume; leave `resume` out to begin one there (flwr run: "
                    "evenfed.resume)"
                )
            return False
        if self.resume is False:
            raise InputError(
                f"{path} holds a run; give resume=true to resume it, or another `out` (flwr run: evenfed.resume, "
                "evenfed.out)"
            )
        known = {"model": header.config.get("model"), **config}
        refuse_other(self.folder, known, self.run.settings)
        if not self.folder.holds(self.run.settings.rounds):
            return False
        if not self.resume:
            raise InputError(
                f"{path} holds a finished run; give resume=true for its result, more rounds, another `out`, or remove "
                "it (flwr run: evenfed.resume, evenfed.rounds, evenfed.out)"
            )
        return True

    def kept_notes(self) -> Notes:
        """What the run's newest checkpoint holds in addition to the server; empty before the first."""
        if self.folder is None:
            return {}
        checkpoints = self.folder.sound_checkpoints()
        return notes_in(checkpoints[max(checkpoints)]) if checkpoints else {}

    def ended_state(self) -> State:
        assert self.folder is not None
        header = self.folder.header()
        assert header is not None
        state = state_in(self.folder, header, self.run.algorithm, self.run.settings)
        if state is None:
            raise InputError(f"{self.folder.path} holds a finished run without its model; choose another `out`")
        self.clients = header.clients
        self.about = AboutClients(header.clients["names"], Metric.from_json(header.metric) or ACCURACY)
        self.records = list(self.folder.history().records)
        self.stopped = header.stopped
        self.is_over = True
        log(INFO, "%s holds this run, finished after %s rounds", self.folder.path, len(self.records))
        return state

    def begin(
        self,
        header: Header,
        fresh: State,
        engine: str,
        about: RunInfo,
    ) -> State:
        """Stand where the run was left, or at `fresh`, and tell callbacks that it starts."""
        self.about = about
        self.clients = header.clients
        state = fresh
        rounds = self.run.settings.rounds
        if self.folder is not None:
            if self.is_finished(header.config):  # Flower's own loop asks here for the first time
                raise InputError(f"{self.folder.path} holds a finished run; call the strategy's own `start`")
            state = self.folder.resumed(fresh)
            self.folder.sweep()
            at = state.server.index
            if at and self.folder.header() is not None:
                log(INFO, "resuming after round %s of %s", at, self.folder.path)
                self.stopped = self.folder.stop_reason(at)
            begun = dataclasses.replace(header, engine=engine, extra={"flwr": version("flwr")})
            self.folder.begin(begun, state)
            self.records = [*self.folder.history().records, *self.postponed]
        progress = self._progress(state, self.records[-1] if self.records else None)
        for callback in self.callbacks:
            callback.start([progress])
        self._notes = progress.notes
        if state.server.index >= rounds or self.stopped is not None:
            self._end(progress)  # before a kill, which came before that was noted
        return state

    def after_round(self, record: Record, server: Server, notes: Notes = MappingProxyType({})) -> None:
        """Tell callbacks, then write the round down: what they note belongs to its checkpoint, as our `notes` do."""
        kept = {**self._notes, **notes}
        progress = self._progress(State(server, notes=kept), record)
        errors = after_round(self.callbacks, progress)
        self._notes = progress.notes
        self.stopped = progress.stopped
        self.records.append(record)
        if self.folder is not None:
            rounds = [*self.postponed, record]
            self.folder.save(rounds, progress.state, stopped=self.stopped, clients=self.clients)
            self.postponed = []
            self.folder.forget(keep=server.index)
        if errors:
            raise errors[0]
        if server.index >= self.run.settings.rounds or self.stopped is not None:
            self._end(progress)

    def postpone(self, record: Record) -> None:
        """Keep a round that nobody replied to, until there is a server to write it down with."""
        self.records.append(record)
        self.postponed.append(record)

    def log_start(self) -> None:
        """Warn of options that may not be meant, and say where results go."""
        settings = self.run.settings
        algorithm = self.run.algorithm
        for caution in settings.cautions:
            log(WARNING, "%s", caution)
        if not algorithm.uses_losses:
            for option in ONLY_WEIGHING & changed_fields(settings).keys():
                log(WARNING, "%s has no effect: %s does not weigh clients by their losses", option, algorithm.name)
        place = self.folder.path if self.folder else "not kept (no `out`)"
        log(INFO, "\t└──> results: %s", place)

    def log_end(self, result: Result, seconds: float) -> None:
        """How long the run took, its last metrics, a table of its clients, and whether training broke down."""
        log(INFO, "%s done, %s s in this process", counted(len(self.records), "round"), f"{seconds:.1f}")
        for title, metrics in (
            ("train metrics", result.train_metrics_clientapp),
            ("evaluate metrics", result.evaluate_metrics_clientapp),
            ("central metrics", result.evaluate_metrics_serverapp),
        ):
            if metrics:
                last = max(metrics)
                log(INFO, "\t%s of round %s: %s", title, last, metrics_line(metrics[last]))
        for line in final_table(self.records, self.sizes, self.name, self.about.metric):
            log(INFO, "\t%s", line)
        reason = breakdown(self.records)
        if reason is not None:
            text = "%s broke down: %s. Try a smaller learning rate, fewer local steps or a smaller fairness strength"
            log(WARNING, text, self.run.algorithm.name, reason)

    def close(self) -> None:
        for callback in self.callbacks:
            callback.close()
        self._locks.close()
        self._is_locked = False

    def _end(self, progress: Progress) -> None:
        for callback in self.callbacks:
            callback.end(progress)
        if self.folder is not None:
            self.folder.finish(progress.state, self.stopped, progress.restored)
        if progress.restored is not None:
            self.restored = progress.restored.server
        self.is_over = True
        if self.stopped is not None:
            log(INFO, "stopped: %s", self.stopped)

    def _lock(self, folder: RunFolder) -> None:
        if not self._is_locked:
            self._locks = hold_run(folder.path, self.shares)
            self._is_locked = True

    def _progress(self, state: State, record: Record | None) -> Progress:
        path = None if self.folder is None else self.folder.path
        return Progress(self.run, self.about, state, record, path)


def run_rounds(
    strategy: Strategy,
    grid: Grid,
    journal: Journal,
    ask: Ask,
    arrays: ArrayRecord,
    result: Result,
    train_config: ConfigRecord | None,
    evaluate_config: ConfigRecord | None,
) -> None:
    """Flower's own loop, but it may begin after any round, from the model `arrays`, and ends where the journal says.

    `strategy`: the outermost, a wrapper if there is one. The rounds' metrics go into the result.
    """
    number = len(journal.records)
    while not journal.is_over and number < journal.run.settings.rounds:
        number += 1
        config = ConfigRecord(dict(train_config or {}))
        messages = strategy.configure_train(number, arrays, config, grid)
        aggregated, metrics = strategy.aggregate_train(number, ask(messages))
        if aggregated is not None:
            arrays = aggregated
        if metrics is not None:
            result.train_metrics_clientapp[number] = metrics
        config = ConfigRecord(dict(evaluate_config or {}))
        messages = strategy.configure_evaluate(number, arrays, config, grid)
        scores = strategy.aggregate_evaluate(number, ask(messages))
        if scores is not None:
            result.evaluate_metrics_clientapp[number] = scores
        central = central_metrics(journal.records[-1]) if journal.records else None
        if central is not None:
            result.evaluate_metrics_serverapp[number] = central
        if journal.interrupted():
            return
