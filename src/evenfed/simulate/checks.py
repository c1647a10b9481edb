"""Model, loss and score tried on a few examples before round 1: one number per example, or an error with the cure."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map_only

from .. import losses, scores, trees
from ..clients.client import Pool
from ..clients.lazy import expect_binary, expect_classes
from ..core.errors import InputError, first_line
from ..losses import LossFunction, cross_entropy, per_example, takes_logits
from ..metrics import Metric
from .layers.recurrent import wherever_weights_lie

EXAMPLES = 8  # tried together, then one by one


@dataclass(frozen=True)
class ProblemProbe:
    """A few examples, and what the model makes of them in evaluation mode."""

    what: str  # training or test
    outputs: Any  # a tensor; for a loss of one's own also a dict or tuple of tensors
    targets: Tensor

    @classmethod
    def of(cls, model: nn.Module, pool: Pool, what: str) -> "ProblemProbe":
        """From examples spread over the pool; at least two, if need be the same one twice."""
        available = len(pool.targets)
        count = max(2, min(EXAMPLES, available))
        spread = torch.linspace(0, available - 1, count)
        rows = spread.long().to(pool.targets.device)
        inputs, targets = pool.at(rows)
        with _quietly(), torch.no_grad(), wherever_weights_lie():
            probed = copy.deepcopy(model).eval()
            try:
                outputs = trees.outputs(probed, inputs)
                alone = trees.outputs(probed, trees.rows(inputs, slice(1)))
                with torch.enable_grad():
                    trained = trees.outputs(probed, inputs)
            except Exception as error:
                raise InputError(
                    f"the model fails on a batch of {count} {what} inputs {trees.shapes(inputs)}: {_text(error)}; give "
                    "data of the shape and type your model takes"
                ) from error
        _check_dependence(trained)
        _check_rows(outputs, alone, count)
        return cls(what, outputs, targets)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def shapes(self) -> str:
        outputs = ", ".join(_shape(tensor) for tensor in tree_leaves(self.outputs))
        return f"{self.what} outputs {outputs}, targets {_shape(self.targets)}"

    def check_loss(self, loss: LossFunction) -> None:
        """One loss per example, with a gradient."""
        outputs = tree_map_only(Tensor, _with_gradient, self.outputs)
        with torch.enable_grad():
            values = self._values("loss", loss, outputs)
        has_gradient = any(tensor.requires_grad for tensor in tree_leaves(outputs))
        if has_gradient and not values.requires_grad:
            raise InputError("loss has no gradient with respect to the outputs; give one that torch can differentiate")
        if not self._are_examples_own(loss, values) and self._could_broadcast:
            raise self._mixed("loss")

    def check_score(self, score: LossFunction) -> None:
        """One number per example, which the other examples of a batch do not change."""
        values = self._values("score", score, self.outputs)
        if not self._are_examples_own(score, values):
            raise self._mixed("score")

    def check_classes(self, highest: int) -> None:
        """Outputs that cross entropy takes, for targets up to `highest`."""
        if not isinstance(self.outputs, Tensor):
            kind = type(self.outputs).__name__
            raise InputError(
                f"the model gave a {kind} without logits, and cross entropy takes a tensor of class scores; return "
                "one, or an object or dict with `logits`, or give a `loss` that takes what your model returns"
            )
        shape = self.outputs.shape
        if self._has_classes_last:
            raise InputError(
                f"{self.shapes}: cross entropy takes scores [examples, classes, positions]; return "
                "outputs.movedim(-1, 1) from the model, or give a loss that does so"
            )
        is_single = self.outputs.ndim == 1 or shape[1] == 1
        if is_single:
            raise InputError(
                f"{self.shapes}: one number per example has no classes to choose from; for two classes give "
                "loss=evenfed.losses.binary (or a model with two outputs), for numbers loss=evenfed.losses.mse"
            )
        classes = shape[1]
        if highest >= classes:
            raise InputError(
                f"targets go up to {highest} but the model scores {classes} classes; keep them in 0 .. {classes - 1}"
            )

    def _values(self, name: str, function: LossFunction, outputs: Any) -> Tensor:
        """Of all examples; refused if their shape is not that of one number (or one per position) for each."""
        values = self._called(name, function, outputs, self.targets)
        one_output = _some(outputs, slice(1))
        alone = self._called(name, function, one_output, self.targets[:1])
        count = len(self)
        if values.ndim == 0:
            cure = "it must return one loss per example (reduction='none')"
            if name == "score":
                cure = "it must return one number per example, not their mean"
            raise InputError(f"{name} gave one number for {count} examples; {cure}")
        has_rows = len(values) == count
        if has_rows and alone.shape == (1, *values.shape[1:]):
            return values
        broadcast = ""
        if has_rows and values.shape[-1] == count:
            broadcast = ": every output met every target"
        raise InputError(
            f"{name} gave {list(values.shape)} for {count} examples and {list(alone.shape)} for one ({self.shapes})"
            f"{broadcast}; it must return one {name} per example: {self._cure(name)}"
        )

    def _called(self, name: str, function: LossFunction, outputs: Any, targets: Tensor) -> Tensor:
        try:
            with _quietly():
                values = function(outputs, targets)
        except Exception as error:
            raise InputError(f"{name} fails on a batch ({self.shapes}): {_text(error)}; {self._cure(name)}") from error
        if not isinstance(values, Tensor):
            kind = type(values).__name__
            raise InputError(f"{name} gave a {kind}; it must return a tensor with one {name} per example")
        if values.is_complex():
            raise InputError(f"{name} gave complex numbers; it must return one real {name} per example")
        return values

    def _are_examples_own(self, function: LossFunction, values: Tensor) -> bool:
        """Whether examples have the same values one by one."""
        alone = []
        with _quietly(), torch.no_grad():
            for i in range(len(self)):
                one = slice(i, i + 1)
                value = function(_some(self.outputs, one), self.targets[one])
                alone.append(per_example(value))
        one_by_one = torch.cat(alone)
        together = per_example(values.detach())
        return torch.allclose(together, one_by_one, rtol=1e-3, atol=1e-4, equal_nan=True)

    def _mixed(self, name: str) -> InputError:
        return InputError(
            f"the {name} of an example changes with the other examples of its batch ({self.shapes}); it must depend on "
            f"its own output and target alone: {self._cure(name)}"
        )

    @property
    def _could_broadcast(self) -> bool:
        """Whether outputs and targets have other shapes that torch would stretch to each other."""
        if not isinstance(self.outputs, Tensor):
            return False
        shape = self.outputs.shape
        target_shape = self.targets.shape
        if shape == target_shape:
            return False
        try:
            torch.broadcast_shapes(shape, target_shape)
        except RuntimeError:
            return False
        return True

    @property
    def _has_classes_last(self) -> bool:
        if not isinstance(self.outputs, Tensor):
            return False
        shape = self.outputs.shape
        wanted = (shape[0], *shape[2:])
        target_shape = self.targets.shape
        fits_classes_last = target_shape == shape[:-1]
        return len(shape) > 2 and fits_classes_last and target_shape != wanted

    @property
    def _has_column_of_classes(self) -> bool:
        """Whether targets [b, 1] are class numbers, for outputs [b, classes]."""
        if not isinstance(self.outputs, Tensor) or self.targets.is_floating_point():
            return False
        shape = self.outputs.shape
        target_shape = self.targets.shape
        has_classes = len(shape) == 2 and shape[1] > 1
        has_column = len(target_shape) == 2 and target_shape[1] == 1
        return has_classes and has_column

    def _cure(self, name: str) -> str:
        """What to change, from the shapes and types of outputs and targets."""
        outputs = self.outputs
        targets = self.targets
        if self._has_classes_last:
            return (
                "classes lie on the last axis, and cross entropy takes them on axis 1: use outputs.movedim(-1, 1) "
                "in the model or in the loss"
            )
        if self._has_column_of_classes:
            return (
                f"targets are a column {list(targets.shape)}, and classes are numbers [{len(targets)}], one per "
                "example: give y.squeeze(1)"
            )
        if isinstance(outputs, Tensor) and losses.aligned(outputs, targets) is not outputs:
            shipped = "evenfed.losses.mse and evenfed.losses.binary take"
            if name == "score":
                shipped = "evenfed.scores.binary takes"
            return (
                "give outputs and targets one shape (end the model with nn.Flatten(0), or reshape the targets); "
                f"{shipped} either"
            )
        if name == "loss" and not targets.is_floating_point():
            return "if it takes numbers instead of classes, give float targets, or use evenfed.losses.binary"
        return f"give outputs and targets of the shape and type that your {name} takes"


def check_parameters(model: nn.Module) -> None:
    """Refuse parameters and buffers without values, or that are not dense."""
    named = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in named:
        if is_lazy(tensor):
            raise InputError(
                f"the model's {name} has no shape yet (a lazy layer); call the model once on a batch of inputs before "
                "you give it"
            )
        if tensor.is_meta:
            raise InputError(
                f"the model's {name} is on the meta device, which holds no values; make the model on the CPU, or load "
                "its weights"
            )
        if tensor.layout is not torch.strided:
            raise InputError(f"the model's {name} is sparse; give a model with dense parameters: to_dense()")


def _check_rows(outputs: Any, alone: Any, count: int) -> None:
    """Tensors with one row per example, of a batch and of one example `alone`."""
    tensors = tree_leaves(outputs)
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        kind = type(outputs).__name__
        raise InputError(
            f"the model gave a {kind} for a batch; it must return a tensor with one row per example, an object or dict "
            "with `logits`, or, for a loss of your own, a dict or tuple of tensors"
        )
    for together, one in zip(tensors, tree_leaves(alone), strict=True):
        rest = together.shape[1:]
        if together.shape != (count, *rest) or one.shape != (1, *rest):
            raise InputError(
                f"the model gave {list(together.shape)} for {count} examples and {list(one.shape)} for one; it "
                "must keep the axis of examples (squeeze(-1) instead of squeeze())"
            )


def _some(outputs: Any, rows: slice) -> Any:
    """Some rows of what a model gave."""
    return tree_map_only(Tensor, lambda tensor: tensor[rows], outputs)


def _check_dependence(outputs: Any) -> None:
    """Refuse outputs that no parameter has a part in: nothing could be learnt."""
    tensors = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    if tensors and not any(tensor.requires_grad for tensor in tensors):
        raise InputError(
            "the model's outputs depend on none of its trainable parameters; use them in `forward`, without detach(), "
            "no_grad() or rounding to whole numbers"
        )


def _with_gradient(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().requires_grad_()


@contextmanager
def _quietly() -> Iterator[None]:
    """Without torch's warnings about shapes: what they mean is an error here, or nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _text(error: Exception) -> str:
    message = first_line(error)
    return message or type(error).__name__


def _shape(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{list(tensor.shape)} ({kind})"


def _part_of_client(names: Sequence[str], part: str, client: int) -> str:
    return f"client {names[client]}, {part}"


def checked_functions(
    model: nn.Module,
    train: Pool,
    judged: Pool | None,
    client_names: Sequence[str],
    loss: LossFunction | None,
    score: LossFunction | None,
    whole_client: Metric | None,
) -> tuple[LossFunction, LossFunction | None]:
    """The loss and the score, tried on a few examples of each kind: what cannot be right is refused."""
    pools = []
    probes = []
    highest = -1
    for what, pool in (("training", train), ("test", judged)):
        if pool is None or len(pool.targets) == 0:
            continue
        if scores_classes(loss, pool):
            check_class_targets(pool)
            highest = max(highest, int(pool.targets.max()))
        pools.append(pool)
        probes.append(ProblemProbe.of(model, pool, what))
    chosen = loss or cross_entropy
    for pool, probe in zip(pools, probes, strict=True):
        if scores_classes(loss, pool):
            probe.check_classes(highest)
            expect_classes(pool, probe.outputs.shape[1])
        probe.check_loss(chosen)
        if takes_logits(chosen):
            part = "train" if probe.what == "training" else "test"
            check_binary_pool(pool, partial(_part_of_client, client_names, part))
            expect_binary(pool)
    if probes:
        last = probes[-1]  # of test data if there are any
        scores.check_targets(score or whole_client, chosen, last.outputs, pools[-1].targets)
    if whole_client is not None:
        return chosen, None
    if score is None and probes:
        first = probes[0]
        score = scores.default(chosen, first.outputs, first.targets)
    if score is not None and probes:
        probes[-1].check_score(score)
    return chosen, score


def scores_classes(loss: LossFunction | None, pool: Pool) -> bool:
    """Whether targets are classes; cross entropy by name also takes the likelihoods of classes."""
    if loss is None:
        return True
    return loss is cross_entropy and pool.targets.dtype == torch.int64


def check_class_targets(pool: Pool) -> None:
    dtype = pool.targets.dtype
    if dtype != torch.int64:
        kind = str(dtype).removeprefix("torch.")
        raise InputError(
            f"targets are {kind}; cross entropy takes whole class numbers (int64): convert them, or give `loss` for "
            'another kind of target ("mse" for numbers, "binary" for 0 or 1)'
        )
    lowest = int(pool.targets.min())
    if lowest < 0:
        raise InputError(
            f"targets go down to {lowest}; class numbers start at 0 (to leave some out, give a loss and a score of "
            "your own)"
        )


def check_binary_pool(pool: Pool, where: Callable[[int], str]) -> None:
    """Refuse a pool with targets that are neither 0 nor 1 nor between them; `where` names a client's examples."""
    targets = pool.targets
    is_beyond = losses.beyond_unit(targets)
    wrong = is_beyond.reshape(len(targets), -1).any(1)
    if not bool(wrong.any()):
        return
    first_wrong = int(wrong.nonzero()[0])
    ends = pool.sizes.cumsum(0)
    client = int(torch.searchsorted(ends, first_wrong, right=True))
    start = int(pool.starts[client])
    end = int(ends[client])
    losses.check_binary_targets(targets[start:end], where(client))
