"""Which column of a table is what: by its name, as people and frameworks write them."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.errors import InputError, unknown
from ..core.words import first_of
from ..metrics import ACCURACY, LOSS, Metric
from .sheet import InputTable

CLIENT = "client"
ALGORITHM = "algorithm"
SEED = "seed"
ROUND = "round"
SIZE = "size"
GROUP = "group"
Given = Mapping[str, str | None]  # role -> column, if the user names one


def _words(text: str) -> list[str]:
    return text.split()


SYNONYMS: Mapping[str, Sequence[str]] = {
    CLIENT: _words(
        "client client_id clientid client_name cid client_idx client_index node_id node partition_id partition pid "
        "site site_id site_name user user_id device device_id hospital institution silo silo_id party party_id worker "
        "worker_id participant participant_id collaborator learner owner center centre"
    ),
    ALGORITHM: _words("algorithm algo method strategy entry label model model_name approach optimizer run_name"),
    SEED: _words("seed random_seed seed_id trial repetition repeat rep replicate fold run run_id"),
    ROUND: _words(
        "round server_round rnd current_round round_number round_num round_idx communication_round comm_round "
        "global_round central_iteration iteration iter step global_step epoch"
    ),
    SIZE: _words(
        "size num_examples n_examples examples num_samples n_samples samples test_size n_test num_test test_examples "
        "test_samples support n"
    ),
    GROUP: _words("group region cluster cohort domain country category kind type"),
}
_ACCURACY = {"accuracy", "acc", "top1", "acc1"}
_BOUNDED = {"f1", "auc", "auroc", "auprc", "precision", "recall", "iou", "dice", "sensitivity", "specificity"}
_HIGHER = _BOUNDED | set(_words("roc r2 bleu rouge map kappa mcc score ndcg"))
_LOWER = set(_words("loss error err rmse mse mae mape perplexity ppl wer cer eer nll logloss crossentropy deviance"))
_METRICS = _ACCURACY | _HIGHER | _LOWER
_SCOPES = {"test": 0, "eval": 1, "evaluate": 1, "evaluation": 1, "val": 1, "valid": 1, "validation": 1, "": 2}
_ASIDE = {"train": 4, "training": 4, "fit": 4, "local": 3, "client": 2, "mean": 5, "avg": 5, "average": 5, "std": 5}
_PREFIXES = ("metrics.", "params.", "tags.mlflow.", "tags.")  # of MLflow's tables


def normal(name: str) -> str:
    """A name without case, punctuation and MLflow's prefixes.

    >>> normal("Client ID"), normal("metrics.test/acc"), normal("tags.mlflow.runName")
    ('client_id', 'test_acc', 'run_name')
    """
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    parted = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", name)
    joined = re.sub(r"[^a-z0-9]+", "_", parted.lower())
    return joined.strip("_")


def _tokens(name: str) -> list[str]:
    return [token for token in normal(name).split("_") if token]


def is_metric(name: str) -> bool:
    """Whether a column's name is that of a metric people report."""
    return not _METRICS.isdisjoint(_tokens(name))


def is_scope(name: str) -> bool:
    """Whether a name says what a metric was measured on."""
    return bool(name) and normal(name) in {**_SCOPES, **_ASIDE}


def is_bounded(name: str) -> bool:
    """Whether a metric lies between 0 and 1, or between 0 and 100."""
    return not (_ACCURACY | _BOUNDED).isdisjoint(_tokens(name))


def metric_in(name: str) -> str:
    """The metric's part of a column's name: `acc` of `fedavg_acc`."""
    return next(token for token in _tokens(name) if token in _METRICS)


def says_direction(name: str) -> bool:
    """Whether a metric's name says which end of it is better; a `score` may be either.

    >>> says_direction("test_loss"), says_direction("f1_score"), says_direction("score"), says_direction("latency")
    (True, True, False, False)
    """
    return not (_METRICS - {"score"}).isdisjoint(_tokens(name))


def measures(column: str, metric: str) -> bool:
    """Whether a column is of the metric that a user names.

    >>> measures("fedavg_acc", "accuracy"), measures("fedavg_test_acc", "test_acc"), measures("fedavg_acc", "loss")
    (True, True, False)
    """
    own = metric_in(column)
    asked = _tokens(metric)
    if own in _ACCURACY:
        return not _ACCURACY.isdisjoint(asked)
    return own in asked


def metric_of(name: str, lower_is_better: bool | None) -> Metric:
    """What a column of this name measures, and which end of it is better."""
    tokens = set(_tokens(name))
    is_accuracy = bool(tokens & _ACCURACY)
    lower = lower_is_better
    if lower is None:
        lower = bool(tokens & _LOWER) and not is_accuracy
    if is_accuracy and not lower:
        return ACCURACY
    rest = [token for token in tokens if not is_scope(token)]
    if rest == [LOSS.name]:
        return LOSS if lower else Metric(name="negative loss")
    return Metric(name=name, higher_is_better=not lower)


@dataclass(frozen=True)
class Roles:
    """The column of each role, and the columns of figures."""

    columns: Mapping[str, str]  # role -> column
    metrics: Sequence[str] = ()  # columns; one row holds one client's figures
    wide: Mapping[str, str] = field(default_factory=dict)  # algorithm -> column: one column per algorithm
    others: Sequence[str] = ()  # columns that may be metrics, and were not asked for

    @classmethod
    def of(cls, sheet: InputTable, given: Given, metrics: Sequence[str]) -> "Roles":
        """`given`: columns by role, as the user says; `metrics`: columns, or the name of what a wide table holds."""
        columns = _columns_by_role(sheet, given, metrics)
        if CLIENT not in columns:
            listed = _listed(sheet.columns)
            raise InputError(
                f"{sheet.name} has no column of clients; its columns are {listed}. Name one of them "
                "`client`, or say which column it is: --client COLUMN"
            )
        numeric = sheet.numeric()
        taken = columns.values()
        free = [column for column in numeric if column not in taken]
        known = list(filter(is_metric, free))
        asked = _asked(sheet, metrics, numeric)
        if asked:
            others = [column for column in known if column not in asked]
            return cls(columns, asked, others=others)
        wide = _wide(free, known)
        if wide and ALGORITHM not in columns:
            _check_wide(known, metrics)
            return cls(columns, wide=wide)
        if metrics:
            raise unknown("column", metrics[0], free)
        if known:
            first, *others = sorted(known, key=_preference)
            return cls(columns, [first], others=others)
        if len(free) == 1:
            return cls(columns, free)
        what = "no other column of numbers"
        if free:
            what = f"several columns of numbers: {_listed(free)}"
        raise InputError(
            f"{sheet.name}: which column is the metric? The table has {what}. Name it: --metric COLUMN (repeatable)"
        )

    def describe(self) -> str:
        """Which column was read as what."""
        parts = []
        for role, column in self.columns.items():
            part = role if role == column else f"{role} from '{column}'"
            parts.append(part)
        for column in self.metrics:
            parts.append(f"metric from '{column}'")
        read = ", ".join(parts)
        sentence = f"Columns read: {read}."
        if self.wide:
            wide = _listed(self.wide.values())
            sentence += f" One column per algorithm: {wide}."
        if self.others:
            sentence += f" Not read: {_listed(self.others)} (--metric)."
        return sentence


def _columns_by_role(sheet: InputTable, given: Given, metrics: Sequence[str]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for role, column in given.items():
        if column is None:
            continue
        if column not in sheet.columns:
            raise unknown(f"column (--{role})", column, sheet.columns)
        columns[role] = column
    taken = {*columns.values(), *metrics}
    free = [name for name in sheet.columns if name not in taken]
    for role, synonyms in SYNONYMS.items():
        if role in columns:
            continue
        column = _first(free, synonyms)
        if column is not None:
            columns[role] = column
            free.remove(column)
    return {role: columns[role] for role in SYNONYMS if role in columns}


def _first(names: Sequence[str], synonyms: Sequence[str]) -> str | None:
    """The column whose name comes first among the synonyms."""
    by_name = {normal(name): name for name in reversed(names)}
    for synonym in synonyms:
        if synonym in by_name:
            return by_name[synonym]
    return None


def _asked(sheet: InputTable, metrics: Sequence[str], numeric: Collection[str]) -> list[str]:
    """The columns that were named as metrics; none if one name is what a wide table holds."""
    by_name = {normal(column): column for column in reversed(sheet.columns)}
    asked = []
    missing = []
    for name in metrics:
        column = by_name.get(normal(name))
        if name in sheet.columns:
            column = name
        if column is None:
            missing.append(name)
        elif column not in numeric:
            listed = _listed(numeric)
            raise InputError(f"{sheet.name}: column '{column}' does not hold numbers; columns of numbers are {listed}")
        else:
            asked.append(column)
    if asked and missing:
        raise unknown("column (--metric)", missing[0], sheet.columns)
    return asked


def _check_wide(known: Sequence[str], metrics: Sequence[str]) -> None:
    """Refuse a metric other than the one that the names of the algorithms' columns end in."""
    if not known:
        return
    column = known[0]
    for metric in metrics:
        if not measures(column, metric):
            own = metric_in(column)
            hint = f"the columns hold '{own}' ({_listed(known)}). Did you mean '{own}'?"
            raise unknown("metric", metric, [own], hint)


def _wide(free: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Columns that stand for algorithms: `fedavg`, `qffl`, or `fedavg_acc`, `qffl_acc`; none if they do not."""
    if len(free) < 2:
        return {}
    if not known:
        return dict(zip(free, free, strict=True))
    algorithms: dict[str, str] = {}
    measured = set()
    for column in known:
        metric = []
        rest = []
        for token in _tokens(column):
            if token in _METRICS:
                metric.append(token)
            elif not is_scope(token):
                rest.append(token)
        algorithm = "_".join(rest)
        algorithms[algorithm] = column
        measured.add("_".join(metric))
    names_all = "" not in algorithms and len(algorithms) == len(known)
    is_wide = names_all and len(known) > 1 and len(measured) == 1
    return algorithms if is_wide else {}


def _preference(column: str) -> tuple[int, int, str]:
    """Accuracies first, on test data."""
    tokens = set(_tokens(column))
    kind = 2
    if tokens & _ACCURACY:
        kind = 0
    elif tokens & _HIGHER:
        kind = 1
    scopes = {**_SCOPES, **_ASIDE}
    ranks = [scopes[scope] for scope in scopes if scope in tokens]
    rank = max(ranks, default=_SCOPES[""])
    return kind, rank, column


def _listed(names: Collection[str]) -> str:
    return first_of(list(names), 20)
