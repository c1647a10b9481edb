"""The folder of one run, while it is written and afterwards.

header.json         configuration, provenance, engine, seconds: see `Header`; written at a session's beginning and end
reached.json        seconds, engine and the lines' digest at the last checkpoint of a run under way
rounds.jsonl        one line per round: losses, weights and accuracies of every client
columns.bin         the same of very many clients, which the lines refer to
clients.npz         their names and sizes, which the header refers to
checkpoint-<k>.safetensors   the state after k rounds: the run resumes from it, or is extended
model.safetensors   the trained model, once the run has ended
result.safetensors  the state of the round that the model is from, if a callback put back an earlier one
"""

import dataclasses
import errno
import json
import re
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core.errors import DamageError, DamageWarning, InputError
from ...core.files import BESIDE, plain_file, replace_text
from ...core.server import Record
from ...metrics import Metric
from ...simulate import checkpoint
from ...simulate.state import Run, State
from ..analysis.client_history import over
from ..analysis.history import History
from . import client_table, record_json
from .client_table import resolved
from .header import REACHED, Header, Reached, Table, with_reached
from .lock import ANOTHER_FOLDER
from .rounds_file import RoundsFile, chained


@dataclass(frozen=True)
class RunFolder:
    """One run on disk, written so that it can resume after its process has died at any moment."""

    path: Path

    @classmethod
    def at(cls, root: Path, label: str, seed: int) -> "RunFolder":
        """The folder of an entry and a seed in a comparison's folder."""
        return cls(root / label / f"seed-{seed}")

    @classmethod
    def of(cls, root: Path, run: Run) -> "RunFolder":
        return cls.at(root, run.label, run.settings.seed)

    @classmethod
    def all_in(cls, root: Path) -> "list[RunFolder]":
        """The folders of all runs that have begun in a comparison's folder."""
        headers = sorted(root.glob("*/seed-*/header.json"))
        return [cls(path.parent) for path in headers]

    @property
    def label(self) -> str:
        return self.path.parent.name

    @property
    def seed(self) -> int | None:
        """The run's seed; None if the folder's name does not tell one."""
        number = self.path.name.removeprefix("seed-")
        return int(number) if number.isdigit() else None

    @property
    def header_path(self) -> Path:
        return self.path / "header.json"

    @property
    def rounds_path(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def lines(self) -> RoundsFile:
        return RoundsFile(self.rounds_path)

    @property
    def model_path(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def result_path(self) -> Path:
        return self.path / "result.safetensors"

    def header(self) -> Header | None:
        """The header, or None if no run has begun here."""
        if not self.header_path.exists():
            return None
        path = plain_file(self.header_path)
        try:
            header = Header.from_json(json.loads(path.read_text()))
            clients = resolved(header.clients, self.path)
            header = dataclasses.replace(header, clients=clients)
            return with_reached(header, self.path)
        except InputError as error:
            raise InputError(f"{self.header_path} cannot be read: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{self.header_path} is not a run's header ({type(error).__name__}: {error}); remove the folder or "
                "choose another"
            ) from None

    @property
    def finished(self) -> bool:
        header = self.header()
        return header is not None and header.finished

    def history(self) -> History:
        """The rounds of a run that has ended; of another one, those written so far."""
        header = self.header()
        if header is None:
            raise InputError(f"{self.path} holds no run; give a folder that `evenfed compare` has written")
        texts = self._all_lines(header) if header.finished else self.lines.whole()
        history = self.history_of(header, self.lines.records(texts))
        counts = history.label_counts
        classes = None if counts is None else counts.shape[1]
        clients = len(header.clients["train"])
        self.lines.check(history.records, clients, classes)
        return history

    @staticmethod
    def history_of(header: Header, records: Sequence[Record]) -> History:
        """What a run with this header and these rounds adds up to."""
        sizes = np.asarray(header.clients["train"], dtype=np.float64)
        shares = sizes / sizes.sum()
        judged_by = Metric.from_json(header.metric)
        if header.meets_clients:
            records = over(records, len(sizes))
        return History(
            records,
            shares,
            header.last_rounds,
            header.model_round,
            judged_by,
            header.stopped,
            header.label_counts,
        )

    def _all_lines(self, header: Header) -> list[str]:
        rounds = header.rounds if header.stopped is None else None
        return self.lines.all(rounds, header.lines_digest)

    def holds(self, rounds: int) -> bool:
        """Whether a finished run with at least so many rounds is here. One with damaged rounds is warned of."""
        header = self.header()
        if header is None or not header.finished or header.rounds < rounds:
            return False
        try:
            self._all_lines(header)
        except DamageError as error:
            warnings.warn(str(error), DamageWarning, stacklevel=2)
            return False
        return True

    def take_over(self, other: "RunFolder", header: Header) -> None:
        """Copy another folder's run. `header`, which says that it is complete, is written last."""
        self.path.mkdir(parents=True, exist_ok=True)
        for file in other.path.iterdir():
            if file.is_file() and file != other.header_path:
                shutil.copyfile(file, self.path / file.name)
        self._write_header(header)

    def clear(self) -> None:
        if not self.header_path.exists():
            return
        for file in (self.header_path, self.rounds_path, self.model_path, self.result_path):
            file.unlink(missing_ok=True)
        for name in (client_table.FILE, REACHED):
            (self.path / name).unlink(missing_ok=True)
        self.lines.columns.cut(0)
        for file in self.checkpoints().values():
            file.unlink()

    def store(self, header: Header, records: Sequence[Record], state: State | None) -> None:
        """Write a run that has ended and was kept in memory, with its state if that is known."""
        seconds = sum(record.seconds for record in records)
        begun = header if header.provenance else header.begun(None, 0)
        self.path.mkdir(parents=True, exist_ok=True)
        texts = self.lines.written(records)
        digest = chained("", texts)
        replace_text(self.rounds_path, "".join(texts))
        if state is not None:
            checkpoint.save(state, self._checkpoint_path(state), {"lines": digest})
            checkpoint.model_file(state.server, self.model_path)
        self._write_header(dataclasses.replace(begun, finished=True, seconds=seconds, lines_digest=digest))

    def checkpoints(self) -> dict[int, Path]:
        by_round = {}
        for path in self.path.glob("checkpoint-*"):
            match = re.fullmatch(r"checkpoint-(\d+)\.safetensors", path.name)
            if match:
                by_round[int(match[1])] = path
        return by_round

    def sound_checkpoints(self) -> dict[int, Path]:
        """The checkpoints that are what was written, with the lines of all their rounds. Others are warned of."""
        header = self.header()
        sound = {}
        for at, path in self.checkpoints().items():
            try:
                digest = checkpoint.texts_in(path).get("lines")
                digests = []
                if digest is not None:
                    as_begun = None if header is None else header.lines_digest
                    digests = [digest, as_begun or digest]
                self.lines.kept(at, digests)
            except DamageError as error:
                warnings.warn(str(error), DamageWarning, stacklevel=2)
                continue
            sound[at] = path
        if not sound and header is not None and header.seconds > 0:
            warnings.warn(
                f"{self.path}: no checkpoint is good; it starts again at round 1", DamageWarning, stacklevel=2
            )
        return sound

    def resumed(self, fresh: State, at: int | None = None) -> State:
        """The state to resume from: that of round `at`, or the newest. Before the first checkpoint it is `fresh`."""
        if at is None:
            at = max(self.sound_checkpoints(), default=0)
        if at == 0:
            return fresh
        return checkpoint.load(fresh, self.checkpoints()[at])

    def final(self, fresh: State) -> State:
        """The state of a finished run whose model is its result."""
        if self.result_path.exists():
            return checkpoint.load(fresh, self.result_path)
        by_round = self.checkpoints()
        if by_round:
            return checkpoint.load(fresh, by_round[max(by_round)])
        if fresh.server.algorithm.personal() is not None:
            raise InputError(
                f"{self.path} holds no checkpoint, and with it the clients' own models are gone; {ANOTHER_FOLDER} to "
                "train again"
            )
        return checkpoint.load_model(fresh, self.model_path)

    def begin(self, header: Header, state: State) -> None:
        """Write the header of a new session, and drop the lines of rounds that will be run again."""
        at = state.server.index
        before = self.header()
        texts = self.lines.texts()[:at]
        goes_on = at < header.rounds and self.stop_reason(at) is None
        if texts and goes_on and not header.evaluates(at):
            record = record_json.unevaluated(json.loads(texts[-1]))  # it may have been evaluated as the last one
            texts[-1] = json.dumps(record) + "\n"
        begun = dataclasses.replace(
            header.begun(before, at),
            seconds=sum(json.loads(text)["seconds"] or 0.0 for text in texts),
            lines_digest=chained("", texts),
        )
        self._write_header(begun)
        replace_text(self.rounds_path, "".join(texts))
        self.lines.columns.cut(self.lines.end_of_columns(texts))

    def save(
        self,
        records: Sequence[Record],
        state: State,
        engine: str | None = None,
        stopped: str | None = None,
        clients: Table | None = None,
    ) -> None:
        """Append the rounds, then write a checkpoint: a checkpoint has all its lines.

        `clients`: in place of the header's, where a run meets more of them.
        """
        header = self._own_header()
        if clients is not None and clients != header.clients:
            self._write_header(dataclasses.replace(header, clients=clients))
        texts = self.lines.written(records)
        if texts:
            self.lines.append(texts)
        digest = chained(header.lines_digest or "", texts)
        texts_to_keep = {"lines": digest}
        if stopped is not None:
            texts_to_keep["stopped"] = json.dumps({"reason": stopped, "rounds": header.rounds})
        checkpoint.save(state, self._checkpoint_path(state), texts_to_keep)
        seconds = sum(record.seconds for record in records)
        reached = Reached(
            session=len(header.resumed_at),
            seconds=header.seconds + seconds,
            engine=engine or header.engine,
            lines_digest=digest,
        )
        reached.write(self.path)

    def finish(self, state: State, stopped: str | None = None, restored: State | None = None) -> None:
        """Write the model of a run whose last checkpoint is written, and note that it has ended.

        Raises if its lines are no longer those that were written.
        """
        checkpoint.model_file((restored or state).server, self.model_path)
        self.result_path.unlink(missing_ok=True)
        if restored is not None:
            checkpoint.save(restored, self.result_path)
        finished = dataclasses.replace(
            self._own_header(),
            finished=True,
            stopped=stopped,
            model_round=None if restored is None else restored.server.index,
        )
        self._all_lines(finished)
        self._write_header(finished)
        (self.path / REACHED).unlink(missing_ok=True)

    def forget(self, keep: int) -> None:
        """Delete all checkpoints but that of round `keep`; 0: the run is to start anew."""
        if keep == 0:
            (self.path / REACHED).unlink(missing_ok=True)  # first: who had come further would miss checkpoints
        for at, path in self.checkpoints().items():
            if at != keep:
                path.unlink()

    def sweep(self) -> None:
        """Delete what a process that died had not written to its end."""
        for path in self.path.glob(f"*{BESIDE}"):
            path.unlink()

    def stop_reason(self, at: int) -> str | None:
        """Why the run ended early at round `at`, if the checkpoint says so: more rounds do not change that."""
        path = self.checkpoints().get(at)
        if path is None:
            return None
        text = checkpoint.texts_in(path).get("stopped")
        if text is None:
            return None
        return str(json.loads(text)["reason"])

    def last_record(self, at: int) -> Record:
        text = self.lines.texts()[at - 1]
        return record_json.from_json(json.loads(text), self.lines.columns)

    def _own_header(self) -> Header:
        header = self.header()
        if header is None:
            raise FileNotFoundError(errno.ENOENT, "it is gone", str(self.header_path))
        return header

    def _checkpoint_path(self, state: State) -> Path:
        return self.path / f"checkpoint-{state.server.index}.safetensors"

    def _write_header(self, header: Header) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        clients = client_table.stored(header.clients, self.path, header.label_counts)
        text = json.dumps(header.to_json(clients), indent=1)
        replace_text(self.header_path, text + "\n")
