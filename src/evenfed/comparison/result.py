"""What `train` and `compare` give back: a finished run, and the runs of a comparison."""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ..clients.pooling import ClientsLike
from ..core.algorithm import Algorithm
from ..core.average import ModelState
from ..core.choices import position_of
from ..core.errors import InputError
from ..core.server import Record, Server
from ..core.words import counted
from ..fairness import Fairness, Suppression
from ..metrics import Metric
from ..settings import Settings
from ..simulate.problem import loaded
from ..simulate.state import State
from . import display
from .analysis import groups
from .analysis.entry import notes_on
from .analysis.entry_figures import EntryFigures, row
from .analysis.entry_order import write_order
from .analysis.expected import Expected
from .analysis.frame import Rounds, frame
from .analysis.history import History
from .fingerprints import frozen_hash
from .labelled import Labelled
from .runs import FLOOR_NAMES
from .storage.conflicts import folder_named, refuse_further_runs, refuse_other_data, refuse_replacing
from .storage.folder import RunFolder
from .storage.header import Header
from .storage.lock import locked

if TYPE_CHECKING:
    import pandas

    from ..report.table import Table


@dataclass(frozen=True, repr=False)
class Result(display.Shown):
    """A run, finished unless it was loaded before its end. `print` shows a short table."""

    label: str
    algorithm: Algorithm
    settings: Settings
    records: list[Record]  # one per round
    client_names: Sequence[str]
    shares: NDArray[np.float64]  # [n] each client's share of all training examples
    header: Header  # what was run on what, as a run's folder holds it
    state: State | None = None  # of the round that the model is from; packed results have none
    module: nn.Module | None = None  # of the model's kind, with its frozen parameters; results share it
    folder: Path | None = None  # of this run on disk, if it is kept there
    group_metric: groups.GroupMetric | None = None  # for `groups`; a run read from disk has none
    window: int | None = None  # rounds that late figures are averaged over, if not the run's own `last_rounds`

    @cached_property
    def model(self) -> nn.Module:
        """The trained global model, averaged if the run has `average`; made when first asked for."""
        return self._module_with(self.server.deployed)

    @property
    def server(self) -> Server:
        """All that the server held at the end: parameters, memory, buffers."""
        return self._state.server

    @property
    def personal(self) -> Tensor | None:
        """[n, D] clients' own models (Ditto); the global one for those never drawn."""
        return None if self._state.personal is None else self._state.serving()

    @property
    def engine(self) -> str:
        """How clients were visited, and why."""
        return self.header.engine or ""

    @property
    def stopped(self) -> str | None:
        """Why a callback ended the run early."""
        return self.header.stopped

    @property
    def model_round(self) -> int | None:
        """The round that `model` is from, if a callback put back an earlier one."""
        return self.header.model_round

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def metric(self) -> Metric | None:
        """What clients are judged by, if it is recorded: else accuracy, or the loss of a run without."""
        return Metric.from_json(self.header.metric)

    @property
    def history(self) -> History:
        """All figures that follow from the records, round by round and at the end."""
        last_rounds = self.window or self.settings.last_rounds
        counts = self.header.label_counts
        return History(self.records, self.shares, last_rounds, self.model_round, self.metric, self.stopped, counts)

    @property
    def accuracy(self) -> NDArray[np.float64] | None:
        """[n] test accuracy (or score) at the end, NaN for a client without test data; None if no client has any."""
        final = self.history.final
        return None if final is None else final.accuracy

    @property
    def current_accuracy(self) -> NDArray[np.float64] | None:
        """[n] of the model that clients train on, where its average is deployed; `history.current` has its figures."""
        final = self.history.final
        return None if final is None else final.current

    @property
    def test_losses(self) -> NDArray[np.float64] | None:
        """[n] the loss on test data at the end."""
        final = self.history.final
        return None if final is None else final.test_losses

    @property
    def fairness(self) -> Fairness | None:
        """mean, std, worst, worst10, worst20, best10 of what clients are judged by: `accuracy` or `test_losses`."""
        return self.history.fairness

    @property
    def recalls(self) -> NDArray[np.float64] | None:
        """[classes] right answers / examples of each class at the end, over all clients' test examples."""
        final = self.history.final
        return None if final is None else final.recalls

    @property
    def expected(self) -> Expected | None:
        """What class shares times `recalls` give: `accuracy`, `fairness`, `late_fairness`, and how well they `fit`."""
        return self.history.expectation

    @property
    def unseen(self) -> Fairness | None:
        """The metrics of `fairness` of clients that never train, at the end; None if there are none."""
        return self.history.unseen

    @property
    def test(self) -> dict[str, float]:
        """accuracy (or score) and loss of the global model on the test set that belongs to no client, at the end."""
        return self.history.test

    def groups(self, clients: ClientsLike) -> "pandas.DataFrame":
        """One row per group of each client and of all: examples and the run's metric; of two classes, also rates.

        `clients`: those of the training, with `groups=`. Clients with names are found by them; others must be the whole
        list in the order of the training. Rates: selection rate, TPR and FPR. The rows `difference` hold the largest
        difference between two groups, NaN where only one has a value.
        """
        metric = self.group_metric or groups.GroupMetric.of_config(self.header.config, self.metric)
        return groups.table(self.client_model, clients, self.header, metric)

    @property
    def late_fairness(self) -> Fairness | None:
        """The same metrics, averaged over the last rounds (`history.last_rounds` of them)."""
        return self.history.late_fairness

    @property
    def oscillation(self) -> float:
        """Lag-1 correlation over rounds of the clients' losses about their mean; below -0.85 it over-corrects."""
        return self.history.oscillation

    @property
    def moved(self) -> float:
        """Share of the weight placed differently from FedAvg, from 0 to 1, averaged over rounds."""
        return self.history.moved

    def client_model(self, client: int | str) -> nn.Module:
        """The model that serves the client with this name or position; its own (layers), if the run trains such."""
        client = position_of("client", client, self.client_names)
        norms = None if self.state is None else self.state.norms
        deployed = self.server.deployed
        if norms is not None:
            theta = norms.model(deployed.theta, client)
            buffers = norms.statistics(deployed.buffers, client)
            return self._module_with(ModelState(theta, buffers))
        if self.personal is None:
            return self.model
        return self._module_with(ModelState(self.personal[client], deployed.buffers))

    def _module_with(self, model: ModelState) -> nn.Module:
        if self.module is None:
            raise InputError(
                "a saved run holds parameters but no module; give one of the same kind: "
                "evenfed.load(path, model=MyModel())"
            )
        return loaded(self.module, self.server.layout, model)

    def to_pandas(self) -> "pandas.DataFrame":
        """One row per round and client: label, seed, round (from 1), client, loss, weight, accuracy, test_loss."""
        return frame([self._rounds])

    def save(self, path: str | Path) -> Path:
        """Write the run to a folder that `evenfed.load` and `evenfed report` read: safetensors and JSON.

        Runs of other entries and seeds may be there, on the same data: together they are a comparison. A run of the
        same entry and seed is replaced if it has the same configuration.
        """
        root = folder_named(path)
        with locked(root):
            refuse_other_data(root, self.header.config)
            refuse_replacing(self._target_in(root), self.header.config)
            self.write_to(root)
        return root

    def report(self, out: str | Path | None = None, show: bool = True, full: bool = False) -> list[Path]:
        """Write the tables and figures of `evenfed report` to `out`, print the first, and return the files' paths.

        `full` prints every table, `show=False` nothing. Without `out`, a run on disk has its report in its own folder.
        """
        return display.report_on([self], self.folder, out, show, full)

    def page(self, path: str | Path) -> Path:
        """Write one HTML file that opens offline: the verdict, a table and every chart."""
        return display.page_on([self], self.folder, Path(path))

    def __repr__(self) -> str:
        return f"<Result: {self._title}>"

    @property
    def _title(self) -> str:
        rounds = counted(len(self.records), "round")
        clients = display.clients_in_words(len(self.client_names), [self.history])
        return f"{self.label}, seed {self.seed}: {rounds}, {clients}"

    def _tables(self) -> "list[Table]":
        from ..report import brief

        notes = []
        if self.stopped is not None:
            notes.append(f"Stopped early: {self.stopped}.")
        elif self.history.breakdown is not None:
            notes.append(f"Broke down: {self.history.breakdown}.")
        if self.folder is not None:
            notes.append(f"Kept in {self.folder}.")
        return [brief.of_run(self._title, self.history, notes)]

    @property
    def _state(self) -> State:
        if self.state is None:
            raise InputError("packed results hold rounds but no model; load the folder they were packed from")
        return self.state

    @property
    def _rounds(self) -> Rounds:
        return self.label, self.seed, self.client_names, self.records

    def write_to(self, root: Path) -> RunFolder:
        """To its place in `root`; a run with the same label and seed is replaced."""
        target = self._target_in(root)
        if self.folder is not None and self.folder.is_dir():
            if self.folder.resolve() != target.path.resolve():
                target.clear()
                target.take_over(RunFolder(self.folder), self.header)
            return target
        target.clear()
        header = self.header
        if self.module is not None:
            header = dataclasses.replace(header, frozen=frozen_hash(self.module))
        target.store(header, self.records, self.state)
        return target

    def _target_in(self, root: Path) -> RunFolder:
        return RunFolder.at(root, self.label, self.seed)


@dataclass(frozen=True, repr=False)
class Comparison(display.Shown, Labelled[Result]):
    """Several algorithms and seeds, trained on the same clients from the same initial models.

    `print` shows a table, `comparison["semi_vred"]` gives an entry's results, one per seed. It is a mapping: `keys`,
    `values`, `items`, `dict(comparison)`.
    """

    results: dict[str, list[Result]]  # label -> one result per seed
    floor: list[Result]  # FedAvg again with other batches or seeds: what chance alone does
    folder: Path | None = None  # of all runs on disk, if they are kept there

    @property
    def rows(self) -> list[EntryFigures]:
        """One row per entry: its metrics, and what it does to the clients that FedAvg serves worst and best."""
        rows = []
        for label, results in self.results.items():
            rows.append(row(label, _histories(results), self._fedavgs(results)))
        return rows

    @property
    def noise_floor(self) -> EntryFigures | None:
        """The row of FedAvg with other batches, or else with other seeds, compared with FedAvg."""
        return next(iter(self._noise_floors), None)

    @property
    def _noise_floors(self) -> list[EntryFigures]:
        baseline = _histories(self.results.get("fedavg", []))
        rows = []
        for label, name in FLOOR_NAMES.items():
            repeated = [result for result in self.floor if result.label == label]
            if repeated:
                rows.append(row(name, _histories(repeated)[: len(baseline)], baseline))
        return rows

    def suppression(self, label: str) -> list[Suppression]:
        """The paper's Table 2 for one entry at the last round, one per seed."""
        results = self[label]
        fedavgs = self._fedavgs(results)
        if fedavgs is None:
            raise InputError(f"FedAvg was not trained with the seeds of {label}; compare them with the same seeds")
        per_seed = []
        for run, fedavg in zip(_histories(results), fedavgs, strict=True):
            figures = run.last_figures
            baseline = fedavg.last_figures
            if figures is not None and baseline is not None:
                per_seed.append(Suppression.of(figures, baseline, run.metric.higher_is_better))
        return per_seed

    def _fedavgs(self, results: Sequence[Result]) -> list[History] | None:
        """FedAvg's runs with the same seeds; None if it has not all of them."""
        by_seed = {result.seed: result.history for result in self.results.get("fedavg", [])}
        if any(result.seed not in by_seed for result in results):
            return None
        return [by_seed[result.seed] for result in results]

    @property
    def every(self) -> list[Result]:
        """All results, the noise floor's last."""
        return [*itertools.chain(*self.results.values()), *self.floor]

    def to_pandas(self) -> "pandas.DataFrame":
        """One row per entry, seed, round (from 1) and client: loss, weight, accuracy, test_loss.

        The noise floor has the labels "fedavg-other-batches" and "fedavg-other-seeds".
        Where an entry deploys its average, `current` and `current_loss` are of the model that clients train on.
        """
        return frame([result._rounds for result in self.every])

    def save(self, path: str | Path) -> Path:
        """Write all runs to a folder that `evenfed.load` and `evenfed report` read: safetensors and JSON."""
        root = folder_named(path)
        with locked(root):
            targets = [result._target_in(root) for result in self.every]
            refuse_further_runs(root, targets)
            for result, target in zip(self.every, targets, strict=True):
                refuse_replacing(target, result.header.config)
            for result in self.every:
                result.write_to(root)
            write_order(root, list(self.results))
        return root

    def report(self, out: str | Path | None = None, show: bool = True, full: bool = False) -> list[Path]:
        """Write the tables and figures of `evenfed report` to `out`, print the first, and return the files' paths.

        `full` prints every table, `show=False` nothing. Without `out`, a comparison on disk has it in its folder.
        """
        return display.report_on(self.every, self.folder, out, show, full)

    def page(self, path: str | Path) -> Path:
        """Write one HTML file that opens offline: the verdict, a table and every chart."""
        return display.page_on(self.every, self.folder, Path(path))

    def _tables(self) -> "list[Table]":
        from ..report import brief

        rounds = max(len(result.records) for result in self.every)
        first = self.every[0]
        seeds = len(next(iter(self.results.values())))
        late = min(first.history.last_rounds, rounds)
        histories = _histories(self.every)
        amounts = [
            counted(len(self), "entry", "entries"),
            counted(seeds, "seed"),
            counted(rounds, "round"),
            display.clients_in_words(len(first.client_names), histories),
        ]
        title = f"{', '.join(amounts)}; average of the last {counted(late, 'round')}"
        notes = [display.SPREAD_NOTE] if seeds > 1 else []
        for label, results in self.results.items():
            notes += notes_on(label, _histories(results))
        if self.folder is not None:
            notes.append(f"Kept in {self.folder}.")
        return [brief.of_comparison(title, self.rows, self._noise_floors, notes)]


def _histories(results: Sequence[Result]) -> list[History]:
    return [result.history for result in results]
