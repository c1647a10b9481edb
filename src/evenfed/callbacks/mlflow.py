"""MLflow: one MLflow run per run, in a local database or folder, clients as tables."""

import csv
import io
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import InputError, check_whole, first_line
from ..core.printable import in_sheet, printable
from .measures import configuration, missing, numbers, per_client, remember, remembered
from .progress import Callback, Progress

_FLUSH_SECONDS = 2.0


@dataclass
class _Open:
    run_id: str
    logged: int  # rounds that MLflow has already, from an earlier session
    metrics: list[Any] = field(default_factory=list)  # not sent yet
    last: Progress | None = None


class MLflow(Callback):
    """Writes every run to an MLflow store; show it with `mlflow ui --backend-store-uri STORE`.

    `store`: a database such as "sqlite:///mlflow.db", a server's URL, or a folder.
    `experiment`: MLflow's experiment, made if it is missing.
    `clients_every`: rounds between tables of all clients (artifacts `clients/round-*.csv`); the last round has one.

    A resumed run continues its MLflow run; no round is written twice.
    """

    def __init__(
        self,
        store: str | Path = "sqlite:///mlflow.db",
        experiment: str = "evenfed",
        clients_every: int = 10,
    ) -> None:
        self.store = str(store)
        self.experiment = str(experiment)
        self.clients_every = check_whole("clients_every", clients_every, 1)
        self.client: Any = None
        self.open: dict[str, _Open] = {}
        self.flushed = 0.0

    def start(self, runs: Sequence[Progress]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow's own, about its libraries
            self.client = self._connect()
            try:
                experiment_id = self._experiment_id()
                for run in runs:
                    self.open[run.run.name] = self._begun(run, experiment_id)
            except Exception as error:
                raise InputError(
                    f"MLflow's store {self.store} cannot be used ({first_line(error)}); give a database such as "
                    "sqlite:///mlflow.db, or a folder"
                ) from None

    def round(self, progress: Progress) -> None:
        under_way = self.open[progress.run.name]
        if progress.round <= under_way.logged:
            return
        under_way.last = progress
        milliseconds = int(1000 * time.time())
        values = {**numbers(progress), "round": float(progress.round)}
        from mlflow.entities import Metric

        for name, value in values.items():
            under_way.metrics.append(Metric(name, value, milliseconds, progress.round))
        if progress.round % self.clients_every == 0:
            self._write_clients(under_way, progress)
        if time.monotonic() - self.flushed > _FLUSH_SECONDS:
            self._flush()

    def end(self, progress: Progress) -> None:
        self._flush()
        under_way = self.open.pop(progress.run.name)
        if under_way.last is not None:
            self._write_clients(under_way, under_way.last)
        self.client.set_terminated(under_way.run_id, "FINISHED")

    def close(self) -> None:
        if self.client is None:
            return
        self._flush()
        for under_way in self.open.values():
            self.client.set_terminated(under_way.run_id, "KILLED")
        self.open = {}

    def _connect(self) -> Any:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing calls home
        if "://" not in self.store:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder was asked for
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise missing("mlflow-skinny", "MLflow") from None
        uri = self.store
        if "://" not in uri:
            uri = str(Path(uri).resolve())
        return MlflowClient(tracking_uri=uri)

    def _experiment_id(self) -> str:
        known = self.client.get_experiment_by_name(self.experiment)
        if known is not None:
            return str(known.experiment_id)
        artifacts = None
        if self.store.startswith("sqlite:///"):
            database = Path(self.store.removeprefix("sqlite:///")).resolve()
            artifacts = str(database.parent / "mlartifacts")
        return str(self.client.create_experiment(self.experiment, artifact_location=artifacts))

    def _begun(self, run: Progress, experiment_id: str) -> _Open:
        """The MLflow run of an earlier session, or a new one."""
        run_id = remembered(run, "mlflow").get(self.store)
        if run_id is not None:
            earlier = self.client.get_run(run_id)
            self.client.update_run(run_id, status="RUNNING")
            return _Open(run_id, logged=int(earlier.data.metrics.get("round", 0)))
        made = self.client.create_run(experiment_id, run_name=printable(run.run.name))
        run_id = made.info.run_id
        for name, value in configuration(run).items():
            text = printable(str(value))
            self.client.log_param(run_id, name, text[:500])
        remember(run, "mlflow", {self.store: run_id})
        return _Open(run_id, logged=0)

    def _write_clients(self, under_way: _Open, progress: Progress) -> None:
        columns = per_client(progress)
        page = io.StringIO()
        writer = csv.writer(page)
        writer.writerow(["client", *columns])
        for name, *values in zip(progress.client_names, *columns.values(), strict=True):
            writer.writerow([in_sheet(name), *values])
        file = f"clients/round-{progress.round:05}.csv"
        self.client.log_text(under_way.run_id, page.getvalue(), file)

    def _flush(self) -> None:
        for under_way in self.open.values():
            waiting = under_way.metrics
            for first in range(0, len(waiting), 1000):  # as many as MLflow takes at once
                self.client.log_batch(under_way.run_id, metrics=waiting[first : first + 1000])
            under_way.metrics = []
        self.flushed = time.monotonic()
