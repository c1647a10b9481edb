"""Groups inside clients: how differently a model treats them, in fairlearn's metrics."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ... import trees
from ...clients.client import Client
from ...clients.pooling import ClientsLike, client_list, only_pool
from ...core.errors import InputError

if TYPE_CHECKING:
    import pandas

EVERYONE = "all"
DIFFERENCE = "difference"
_Judged = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]  # targets, predictions, groups


def table(
    model_of: Callable[[int], nn.Module],
    clients: ClientsLike,
    names: Sequence[str],
) -> "pandas.DataFrame":
    """One row per group of all clients together and of each client, and one with the differences between groups.

    Columns: client, group, examples, accuracy and, for two classes, selection_rate, tpr, fpr and equalised_odds. In
    the row `difference`, selection_rate is the demographic parity difference and equalised_odds the equalised odds
    difference. Of more than two classes, accuracy alone is said.
    """
    pandas, fairlearn = _packages()
    judged: dict[str, _Judged] = {}
    for k, client in enumerate(client_list(clients)):
        if client.groups is not None:
            name = names[k]
            judged[name] = _judged(model_of(k), client, name)
    if not judged:
        raise InputError("no client has groups; give evenfed.Client(groups=[...]), one label per test example")
    columns = zip(*judged.values(), strict=True)
    together = tuple(np.concatenate(column) for column in columns)
    rows: list[dict[str, Any]] = []
    for name, of_client in {EVERYONE: together, **judged}.items():
        rows += _rows(fairlearn, name, of_client)  # type: ignore[arg-type]
    return pandas.DataFrame(rows)


def _rows(fairlearn: Any, name: str, judged: _Judged) -> list[dict[str, Any]]:
    targets, predictions, groups = judged
    classes = {*np.unique(targets), *np.unique(predictions)}
    is_binary = classes <= {0, 1}
    metrics = {"examples": fairlearn.count, "accuracy": _accuracy}
    if is_binary:
        metrics["selection_rate"] = fairlearn.selection_rate
        metrics["tpr"] = fairlearn.true_positive_rate
        metrics["fpr"] = fairlearn.false_positive_rate
    frame = fairlearn.MetricFrame(
        metrics=metrics,
        y_true=targets,
        y_pred=predictions,
        sensitive_features=groups,
    )
    rows = []
    for group, figures in frame.by_group.iterrows():
        rows.append({"client": name, "group": group, **figures})
    between = dict(frame.difference())
    between["examples"] = len(targets)
    if is_binary:
        between["equalised_odds"] = max(between["tpr"], between["fpr"])
    rows.append({"client": name, "group": DIFFERENCE, **between})
    return rows


def _judged(model: nn.Module, client: Client, name: str) -> _Judged:
    """Targets, predicted classes and groups of a client's test examples."""
    if client.test is None:
        raise InputError(f"client {name} has groups but no test examples; give `test`, with one group each")
    parameter = next(model.parameters())
    pool = only_pool([client.with_test_only()], "test", parameter.dtype)
    inputs, targets = pool.to(parameter.device).of(0)
    examples = len(targets)
    groups = np.asarray(client.groups)
    if groups.shape != (examples,):
        raise InputError(f"client {name}: groups {list(groups.shape)} for {examples} test examples; give one each")
    with torch.no_grad():
        outputs = trees.outputs(model, inputs)
    has_classes = outputs.ndim > 1 and outputs.shape[1] > 1
    if has_classes:
        predictions = outputs.argmax(1)
    else:
        is_positive = outputs.flatten() > 0
        predictions = is_positive.long()
    if targets.ndim > 1 and targets.shape[1:].numel() == 1:
        targets = targets.flatten()
    if targets.shape != predictions.shape:
        raise InputError(f"client {name}: groups need one class per example, and targets are {list(targets.shape)}")
    return targets.cpu().numpy(), predictions.cpu().numpy(), groups


def _accuracy(targets: NDArray[Any], predictions: NDArray[Any]) -> float:
    right = np.asarray(targets) == np.asarray(predictions)
    return float(right.mean())


def _packages() -> tuple[Any, Any]:
    try:
        import fairlearn.metrics
        import pandas
    except ImportError:
        raise InputError("groups need fairlearn and pandas; install them with: pip install 'evenfed[groups]'") from None
    return pandas, fairlearn.metrics
