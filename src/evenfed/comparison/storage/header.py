"""The header of a run: what was run, on which clients, where and when. Only this module knows the file's keys."""

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...core.errors import DamageWarning, InputError
from ...core.files import plain_file, replace_text
from ...core.sparse import MANY
from ...settings import Settings
from . import client_table, provenance, schema

Table = Mapping[str, Any]
FORMAT = 2  # of run folders; a header without a number is older
FORMAT_OF_FEW = 1  # where neither rounds nor clients lie in files of their own
REACHED = "reached.json"


@dataclass(frozen=True, order=True)
class RunProvenance:
    """When, from which source and by which command a run was made."""

    started: str
    version: str
    commit: str  # "": unknown
    command: str = ""  # as typed; "": unknown


@dataclass(frozen=True)
class Header:
    """All that is known of a run but its rounds."""

    config: Table  # all that decides the result
    clients: Table  # their names, numbers of examples and classes, and how the data were split
    label: str = ""
    seed: int = 0
    selected_on: str | None = None  # the data its values were chosen on, if `evenfed tune` chose them
    engine: str | None = None
    device: str | None = None
    provenance: Table = field(default_factory=dict)  # of the last session
    finished: bool = False
    seconds: float = 0.0  # of the rounds that are kept
    resumed_at: Sequence[int] = ()  # the round each session started at, the first one's 0 included
    earlier: Sequence[Table] = ()  # provenance of earlier sessions whose rounds are kept
    stopped: str | None = None  # why a callback ended the run early
    model_round: int | None = None  # the round that the model is from, if a callback put back an earlier one
    initial: str | None = None  # a hash of the model it started from, where that came from Python
    frozen: str | None = None  # a hash of the parameters that are not trained, likewise
    layers: str | None = None  # the model as `print` shows it, likewise
    metric: Table | None = None  # what clients are judged by, if not accuracy
    judged_classes: Sequence[str] | None = None  # how many judged examples of each class a client has, as text
    lines_digest: str | None = None  # of the lines of rounds.jsonl, as last written
    taken_from: str | None = None  # the comparison that made this run, if another did
    extra: Table = field(default_factory=dict)  # keys this version does not know

    @classmethod
    def from_json(cls, data: Table) -> "Header":
        """From the file's content. Options that did not exist when it was written have their defaults."""
        number = data.get("format", 0)
        if isinstance(number, int) and number > FORMAT:
            raise InputError(
                f"it has format {number}, of a newer version of evenfed; this one reads formats up to {FORMAT}: upgrade"
            )
        schema.check_header(data)
        known: dict[str, Any] = {}
        source = {}
        extra = {}
        for key, value in data.items():
            if key in provenance.KEYS:
                source[key] = value
            elif key in _FIELDS:
                known[key] = value
            elif key != "format":
                extra[key] = value
        train = {**Settings().describe(), **data["config"]["train"]}
        known["config"] = {**data["config"], "train": train}
        return cls(**known, provenance=source, extra=extra)

    def to_json(self, clients: Table | None = None) -> dict[str, Any]:
        """The file's content; `clients`: what refers to their table, if that is not to be in it."""
        data = {
            "format": FORMAT if len(self.clients["names"]) > MANY else FORMAT_OF_FEW,
            "label": self.label,
            "seed": self.seed,
            "selected_on": self.selected_on,
            "config": self.config,
            "clients": client_table.inline(self.clients) if clients is None else clients,
            "engine": self.engine,
            "device": self.device,
            **self.provenance,
            "finished": self.finished,
            "seconds": self.seconds,
            "resumed_at": list(self.resumed_at),
            "earlier": list(self.earlier),
            **self.extra,
        }
        for name in (
            "initial",
            "frozen",
            "layers",
            "metric",
            "judged_classes",
            "lines_digest",
            "taken_from",
            "stopped",
            "model_round",
        ):
            value = getattr(self, name)
            is_in_table = name == "judged_classes" and clients is not None
            if value is not None and not is_in_table:
                data[name] = value
        return data

    def begun(self, before: "Header | None", at: int) -> "Header":
        """This header for a session of this process that starts at round `at`; `before` is the folder's header."""
        current = provenance.provenance()
        if before is None:
            return dataclasses.replace(self, provenance=current, resumed_at=[at])
        started_at = before.resumed_at[-1] if before.resumed_at else 0
        last_session = {"from_round": started_at, **before.provenance}
        earlier = []
        for session in (*before.earlier, last_session):
            if session["from_round"] < at:
                earlier.append(session)
        return dataclasses.replace(
            self,
            provenance=current,
            resumed_at=[*before.resumed_at, at],
            earlier=earlier,
        )

    @property
    def made(self) -> list[RunProvenance]:
        """One for each session whose rounds are kept, the last one's last."""
        made = []
        for source in (*self.earlier, self.provenance):
            version = source["versions"]["evenfed"]
            commit = source.get("commit") or ""
            command = source.get("command") or ""
            session = RunProvenance(source["started"], version, commit, command)
            made.append(session)
        return made

    @property
    def data(self) -> Table:
        options: Table = self.config["data"]
        return options

    @property
    def train(self) -> Table:
        options: Table = self.config["train"]
        return options

    @property
    def meets_clients(self) -> bool:
        """Whether the run learnt of clients from round to round, so that earlier rounds say nothing of later ones."""
        return "fair" in self.config

    @property
    def rounds(self) -> int:
        return int(self.train["rounds"])

    def evaluates(self, rounds: int) -> bool:
        """Whether the model after so many rounds is evaluated, were it not the last."""
        every = int(self.train["evaluate_every"])
        return every > 0 and rounds % every == 0

    @property
    def last_rounds(self) -> int:
        return int(self.train["last_rounds"])

    @property
    def judge(self) -> str:
        """What accuracies are measured on: "test" or "validation"."""
        return str(self.data.get("judge", "test"))

    @property
    def train_sizes(self) -> list[int]:
        sizes: list[int] = np.asarray(self.clients["train"]).tolist()
        return sizes

    @property
    def judged_sizes(self) -> list[int]:
        """The number of examples each client is judged on."""
        sizes: list[int] = np.asarray(self.clients["test"]).tolist()
        return sizes

    @property
    def label_counts(self) -> NDArray[np.int64] | None:
        """[n, classes] of the examples each client is judged on; None if unknown, or not of classes."""
        if self.judged_classes is None:
            table = self.clients
            return table.label_counts if isinstance(table, client_table.ManyClients) else None
        rows = [row.split() for row in self.judged_classes]
        return np.array(rows, dtype=np.int64)


def as_rows(label_counts: Tensor | NDArray[np.int64] | None) -> list[str] | None:
    """Numbers [n, classes] as one line of text per client; None if there are none."""
    if label_counts is None:
        return None
    return [" ".join(map(str, row)) for row in label_counts.tolist()]


@dataclass(frozen=True)
class Reached:
    """reached.json: how far a run has come since its header was written, which is not written again meanwhile."""

    session: int  # the number of the session it was written in, from 1
    seconds: float  # of the rounds that are kept
    engine: str | None
    lines_digest: str | None

    def write(self, folder: Path) -> None:
        text = json.dumps(dataclasses.asdict(self))
        replace_text(folder / REACHED, text + "\n")


def with_reached(header: Header, folder: Path) -> Header:
    """The header of a run under way as it would be written now."""
    path = folder / REACHED
    if header.finished or not path.exists():
        return header
    try:
        reached = Reached(**json.loads(plain_file(path).read_text()))
    except (ValueError, TypeError):
        warnings.warn(f"{path} is damaged, and not needed: it is left out", DamageWarning, stacklevel=3)
        return header
    if reached.session != len(header.resumed_at):
        return header  # of an earlier session, whose rounds the header counts
    return dataclasses.replace(
        header,
        seconds=reached.seconds,
        engine=reached.engine,
        lines_digest=reached.lines_digest,
    )


_FIELDS = {f.name for f in dataclasses.fields(Header)} - {"provenance", "extra"}
