"""Groups inside clients: how well, and how differently, a model serves them; with rates as fairlearn defines them."""

import copy
import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ... import losses, scores, trees
from ...clients.client import Client
from ...clients.examples import is_loader, read
from ...clients.pooling import ClientsLike, client_list, names, only_pool
from ...clients.tables import Heading
from ...core.errors import InputError, unknown
from ...core.naming import name_of
from ...losses import per_example
from ...metrics import ACCURACY, LOSS, Metric
from ...simulate.problem import Problem
from ..fingerprints import OWN_DATA
from ..storage.header import Header
from .configuration import Configuration
from .frame import pandas_for

if TYPE_CHECKING:
    import pandas

EVERYONE = "all"
DIFFERENCE = "difference"
_LOSSES = {**losses.NAMED, **{name_of(loss): loss for loss in losses.NAMED.values()}}
_SCORES = {**scores.NAMED, **{name_of(score): score for score in (scores.top1, scores.binary)}}


@dataclass(frozen=True)
class GroupMetric:
    """What the examples of a group are judged by: the run's own metric."""

    metric: Metric
    function: Callable[[Any, Any], Any]  # of outputs and targets
    whole_client: bool = False  # it takes arrays and gives one number; else tensors, and one number per example
    has_logits: bool = False  # a single output stands for two classes
    heading: Heading = field(default_factory=Heading)  # the columns of the run's tables; a folder does not hold them

    @classmethod
    def of_problem(cls, problem: Problem) -> "GroupMetric":
        """The metric that clients are judged by while they train."""
        options: dict[str, Any] = {
            "has_logits": losses.takes_logits(problem.loss) or problem.score is scores.binary,
            "heading": problem.heading,
        }
        if problem.metric.is_loss:
            return cls(problem.metric, problem.loss, **options)
        if problem.score is not None:
            return cls(problem.metric, problem.score, **options)
        assert problem.whole_client is not None and problem.whole_client.function is not None
        return cls(problem.metric, problem.whole_client.function, whole_client=True, **options)

    @classmethod
    def of_config(cls, config: Configuration, metric: Metric | None) -> "GroupMetric":
        """The metric of a run that was read from disk. A folder holds names, so it must be one of evenfed's own."""
        metric = metric or ACCURACY
        named = {**config, **config["model"]}  # by the command line, or from Python
        loss = _LOSSES.get(named.get("loss") or "cross_entropy")
        usual_score = "binary" if loss is losses.binary else "top1"
        score = _SCORES.get(named.get("score") or usual_score)
        has_logits = loss is losses.binary or score is scores.binary
        if metric.name == scores.AUROC.name:
            return cls(metric, scores.auroc, whole_client=True, has_logits=has_logits)
        function: Any = None
        if metric == ACCURACY:
            function = score
        elif metric == LOSS:
            function = loss
        is_noted = config["data"]["name"] != OWN_DATA or "loss" in named  # older versions saved without
        if function is None or not is_noted:
            raise InputError(
                f"this run was read from its folder, which holds no code, and its {metric.name} may be a function of "
                "your own; call `groups` on the result of `train` or `compare`"
            )
        return cls(metric, function, has_logits=has_logits)

    def of(self, outputs: Any, targets: Tensor) -> float:
        """The figure of these examples together; NaN if they have none."""
        if not self.whole_client:
            values = per_example(self.function(outputs, targets))
            return float(values.double().mean())
        all_outputs = outputs.cpu().numpy()
        all_targets = targets.cpu().numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn's, about groups with one class
            try:
                value = self.function(all_outputs, all_targets)
            except ValueError:
                return float("nan")
        return float(value)

    def rates(self, outputs: Any, targets: Tensor) -> dict[str, float]:
        """How often the second of two classes is predicted: at all, where it is right, and where it is wrong.

        Empty where there are not two classes.
        """
        if not isinstance(outputs, Tensor) or outputs.ndim > 2:
            return {}
        columns = outputs.reshape(len(outputs), -1)
        width = columns.shape[1]
        are_classes = targets.ndim == 1 and not targets.is_floating_point()
        if width == 1 and self.has_logits:
            is_positive = targets.flatten() > 0.5
            is_predicted = columns[:, 0] > 0
        elif width == 2 and are_classes:
            is_positive = targets == 1
            is_predicted = columns.argmax(1) == 1
        else:
            return {}
        return {
            "selection_rate": _share(is_predicted),
            "tpr": _share(is_predicted[is_positive]),
            "fpr": _share(is_predicted[~is_positive]),
        }


@dataclass(frozen=True)
class _Judged:
    """Test examples, with what the model makes of them."""

    outputs: Any
    targets: Tensor
    groups: NDArray[Any]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        client: Client,
        name: str,
        heading: Heading,
    ) -> "_Judged":
        """Of one client; a table must have the columns that `heading` has seen."""
        if client.test is None:
            raise InputError(f"client {name} has groups but no test examples; give `test`, with one group each")
        parameter = next(model.parameters())
        tested = dataclasses.replace(client.with_test_only(), name=name)
        pool = only_pool([tested], "test", parameter.dtype, heading)
        inputs, targets = pool.to(parameter.device).of(0)
        examples = len(targets)
        groups = np.asarray(client.groups)
        if groups.shape != (examples,):
            raise InputError(f"client {name}: groups {list(groups.shape)} for {examples} test examples; give one each")
        with torch.no_grad():
            outputs = trees.outputs(model, inputs)
        return cls(outputs, targets, groups)

    @classmethod
    def together(cls, parts: Sequence["_Judged"]) -> "_Judged":
        return cls(
            trees.concatenated([part.outputs for part in parts]),
            torch.cat([part.targets for part in parts]),
            np.concatenate([part.groups for part in parts]),
        )

    def figures(self, metric: GroupMetric, group: Any) -> dict[str, float]:
        """Of the examples of one group."""
        is_member = self.groups == group
        members = np.flatnonzero(is_member)
        rows = torch.from_numpy(members).to(self.targets.device)
        outputs = trees.rows(self.outputs, rows)
        targets = self.targets[rows]
        return {
            "examples": len(rows),
            metric.metric.name: metric.of(outputs, targets),
            **metric.rates(outputs, targets),
        }


def _by_position(clients: ClientsLike, run_names: Sequence[str]) -> dict[int, Client]:
    """The clients by their positions in a run: those with names by these, others as the run's whole list."""
    clients = client_list(clients)
    given_names = list(names(clients))
    if not all(client.name for client in clients):
        if given_names != list(run_names):
            raise InputError(
                f"groups: {len(clients)} clients, some without a name, and the run has {len(run_names)}; give all "
                "clients of the run in its order, or clients with the names they had"
            )
        return dict(enumerate(clients))
    positions = {name: position for position, name in enumerate(run_names)}
    by_position = {}
    for name, client in zip(given_names, clients, strict=True):
        if name not in positions:
            raise unknown("client of this run", name, run_names)
        by_position[positions[name]] = client
    return by_position


def table(
    model_of: Callable[[int], nn.Module],
    clients: ClientsLike,
    header: Header,
    metric: GroupMetric,
) -> "pandas.DataFrame":
    """One row per group of all clients together and of each client, and one with the differences between groups.

    `model_of`: the model that serves a client, by its position in the run. `header`: of the run.
    Columns: client, group, examples, the run's metric and, for two classes, selection_rate, tpr, fpr and
    equalised_odds. In the row `difference`, selection_rate is the demographic parity difference and equalised_odds the
    equalised odds difference. A figure is NaN where it is not defined, such as the tpr of a group without positives or
    the difference of a single group.
    """
    pandas = pandas_for("groups need")
    run_names = header.clients["names"]
    run_sizes = header.judged_sizes if header.judge == "test" else None
    heading = copy.copy(metric.heading)
    judged: dict[str, _Judged] = {}
    for position, client in _by_position(clients, run_names).items():
        if client.groups is not None:
            name = run_names[position]
            if not heading.columns:
                _note_columns(client, name, heading)
            of_client = _Judged.of(model_of(position), client, name, heading)
            judged[name] = of_client
            examples = len(of_client.targets)
            if run_sizes is not None and examples != run_sizes[position]:
                raise InputError(
                    f"client {name} has {examples} test examples and had {run_sizes[position]} in the run; give the "
                    "clients that were trained, in the same order"
                )
    if not judged:
        raise InputError("no client has groups; give evenfed.Client(groups=[...]), one label per test example")
    everyone = _Judged.together(list(judged.values()))
    rows: list[dict[str, Any]] = []
    for name, of_client in {EVERYONE: everyone, **judged}.items():
        rows += _rows(name, of_client, metric)
    return pandas.DataFrame(rows)


def _note_columns(client: Client, name: str, heading: Heading) -> None:
    """The columns of a client's training table, for a run that was read from its folder."""
    if is_loader(client.train):
        return
    where = f"client {name}, train"
    training_table = read(client.train, where, client.column_of(client.train))
    heading.check(training_table, where)


def _rows(name: str, judged: _Judged, metric: GroupMetric) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for group in np.unique(judged.groups):
        figures = judged.figures(metric, group)
        rows.append({"client": name, "group": group, **figures})
    difference: dict[str, Any] = {"client": name, "group": DIFFERENCE}
    for column in rows[0]:
        if column not in difference:
            difference[column] = _largest_gap(column, rows)
    difference["examples"] = len(judged.targets)
    if "tpr" in difference:
        difference["equalised_odds"] = max(difference["tpr"], difference["fpr"])
    rows.append(difference)
    return rows


def _share(flags: Tensor) -> float:
    """Of flags that are set; NaN if there are none."""
    shares = flags.cpu().double()
    return float(shares.mean())


def _largest_gap(column: str, rows: Sequence[Mapping[str, Any]]) -> float:
    """Between any two groups; NaN if fewer than two have a figure."""
    known: list[float] = []
    for row in rows:
        figure = row[column]
        if not np.isnan(figure):
            known.append(figure)
    if len(known) < 2:
        return float("nan")
    return max(known) - min(known)
