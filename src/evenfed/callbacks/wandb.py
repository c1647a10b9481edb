"""Weights & Biases: one wandb run per run, clients as histograms; offline unless asked otherwise."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from ..core.errors import InputError, check_choice, first_line
from ..core.printable import printable
from .measures import configuration, finite, missing, numbers, per_client, remember, remembered
from .progress import Callback, Progress

Mode = Literal["offline", "online", "disabled"]


class WandB(Callback):
    """Writes every run as a wandb run; `wandb sync FOLDER/wandb/offline-run-*` uploads offline ones.

    `mode`: "offline" sends nothing; "online" uploads while training; "disabled" writes nothing.
    `folder`: where wandb puts its folder `wandb`.

    A run that resumes keeps its wandb id; rounds that were logged already are not logged twice.
    """

    def __init__(self, mode: Mode = "offline", project: str = "evenfed", folder: str | Path = ".") -> None:
        check_choice("mode of WandB", mode, get_args(Mode))
        self.mode = mode
        self.project = str(project)
        self.folder = Path(folder)
        self.open: dict[str, Any] = {}
        self.logged: dict[str, int] = {}

    def start(self, runs: Sequence[Progress]) -> None:
        try:
            import wandb
        except ImportError:
            raise missing("wandb", "WandB") from None
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_save_requirements=False)
        for run in runs:
            earlier = remembered(run, "wandb")
            identity = earlier.get("id", uuid.uuid4().hex[:12])
            try:
                opened = wandb.init(
                    project=self.project,
                    id=identity,
                    name=printable(run.run.name),
                    group=printable(run.label),
                    dir=str(self.folder),
                    mode=self.mode,
                    config=dict(configuration(run)),
                    reinit="create_new",
                    resume=None if self.mode == "offline" else "allow",
                    settings=settings,
                )
            except Exception as error:
                raise InputError(
                    f"wandb cannot start a run ({first_line(error)}); mode='offline' needs no account"
                ) from None
            self.open[run.run.name] = opened
            self.logged[run.run.name] = int(earlier.get("round", 0))
            remember(run, "wandb", {"id": identity, "round": self.logged[run.run.name]})

    def round(self, progress: Progress) -> None:
        import wandb

        name = progress.run.name
        if progress.round <= self.logged[name]:
            return
        values: dict[str, Any] = {**numbers(progress)}
        for kind, of_clients in per_client(progress).items():
            known = finite(of_clients)
            if len(known):
                values[f"clients/{kind}"] = wandb.Histogram(known.tolist())
        opened = self.open[name]
        opened.log(values, step=progress.round)
        self.logged[name] = progress.round
        remember(progress, "wandb", {"id": opened.id, "round": progress.round})

    def end(self, progress: Progress) -> None:
        self.open.pop(progress.run.name).finish()

    def close(self) -> None:
        for opened in self.open.values():
            opened.finish(exit_code=1)
        self.open = {}
