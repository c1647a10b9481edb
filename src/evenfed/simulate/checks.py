"""Model, loss and score tried on a few examples before round 1: one number per example, or an error with the cure."""

import copy
import inspect
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
from ..core.maths import are_finite
from ..core.naming import noticing_changes
from ..losses import LossFunction, cross_entropy, per_example, takes_logits
from ..metrics import Metric
from ..trees import Inputs
from . import target_checks
from .layers.recurrent import wherever_weights_lie
from .target_checks import check_binary_pool, check_class_targets, check_counted, highest_target, scores_classes

_SCALES = (-10.0, 1000.0)  # of a model's parameters
EXAMPLES = 8  # tried together, then one by one


@dataclass(frozen=True)
class ProblemProbe:
    """A few examples, and what the model makes of them in evaluation mode."""

    what: str  # training or test
    inputs: Inputs
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
        given = trees.mapped(Tensor.clone, inputs)
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
        _check_unchanged(given, inputs)
        _check_dependence(trained)
        _check_rows(outputs, alone, count)
        return cls(what, inputs, outputs, targets)

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
        could_broadcast = target_checks.could_broadcast(self.outputs, self.targets)
        if could_broadcast and not self._are_examples_own(loss, values):
            raise self._mixed("loss", loss)
        if not bool(values.isfinite().any()) and self._is_finite:
            raise InputError(
                f"loss is not finite for any of {len(self)} {self.what} examples, although outputs and targets are; "
                "mend its formula (the logarithm of a negative number, a division by 0)"
            )

    def check_score(self, score: LossFunction) -> None:
        """One number per example, which the other examples of a batch do not change."""
        values = self._values("score", score, self.outputs)
        if not self._are_examples_own(score, values):
            raise self._mixed("score", score)

    def check_classes(self, highest: int, whose: str) -> None:
        """Outputs that cross entropy takes, for targets up to `highest`, of the examples `whose` they are."""
        if not isinstance(self.outputs, Tensor):
            kind = type(self.outputs).__name__
            raise InputError(
                f"the model gave a {kind} without logits, and cross entropy takes a tensor of class scores; return "
                "one, or an object or dict with `logits`, or give a `loss` that takes what your model returns"
            )
        shape = self.outputs.shape
        if target_checks.has_classes_last(self.outputs, self.targets):
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
                f"{whose}: targets go up to {highest} but the model scores {classes} classes; keep them in 0 .. "
                f"{classes - 1}, or give the model more outputs"
            )

    def warn_of_probabilities(self, model: nn.Module, loss: LossFunction) -> None:
        """Where the model seems to end in a softmax or a sigmoid, which the loss applies by itself."""
        takes_scores = loss is cross_entropy or isinstance(loss, nn.CrossEntropyLoss) or takes_logits(loss)
        if not takes_scores or not _within_unit(self.outputs):
            return
        for scale in _SCALES:  # other parameters move other outputs out of the unit interval
            scaled = copy.deepcopy(model).eval()
            with _quietly(), torch.no_grad(), wherever_weights_lie():
                for parameter in scaled.parameters():
                    parameter.mul_(scale)
                outputs = trees.outputs(scaled, self.inputs)
            if not _within_unit(outputs):
                return
        warnings.warn(
            "the model's outputs lie between 0 and 1, as after a softmax or a sigmoid, and the loss applies its own; "
            "end the model with the layer before it (no nn.Softmax, no nn.Sigmoid), or give a loss that takes "
            "probabilities",
            stacklevel=2,
        )

    def _values(self, name: str, function: LossFunction, outputs: Any) -> Tensor:
        """Of all examples; refused if their shape is not that of one number (or one per position) for each."""
        with noticing_changes(function):
            values = self._called(name, function, outputs, self.targets)
        one_output = trees.output_rows(outputs, slice(1))
        alone = self._called(name, function, one_output, self.targets[:1])
        count = len(self)
        if values.ndim == 0:
            cure = "it must return one loss per example (reduction='none')"
            shipped = losses.name_of(function)
            if shipped is not None:
                cure += f"; loss='{shipped}' does"
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
            f"{broadcast}; it must return one {name} per example: {self._cure(name, function)}"
        )

    def _called(
        self,
        name: str,
        function: LossFunction,
        outputs: Any,
        targets: Tensor,
    ) -> Tensor:
        try:
            with _quietly():
                values = function(outputs, targets)
        except Exception as error:
            cure = self._cure(name, function)
            if self._are_swapped(function):
                cure = "it takes (targets, outputs); give a function of (outputs, targets), in this order"
            raise InputError(f"{name} fails on a batch ({self.shapes}): {_text(error)}; {cure}") from error
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
                value = function(trees.output_rows(self.outputs, one), self.targets[one])
                alone.append(per_example(value))
        one_by_one = torch.cat(alone)
        together = per_example(values.detach())
        return torch.allclose(together, one_by_one, rtol=1e-3, atol=1e-4, equal_nan=True)

    @property
    def _is_finite(self) -> bool:
        return are_finite([*tree_leaves(self.outputs), self.targets])

    def _mixed(self, name: str, function: LossFunction) -> InputError:
        return InputError(
            f"the {name} of an example changes with the other examples of its batch ({self.shapes}); it must depend on "
            f"its own output and target alone: {self._cure(name, function)}"
        )

    def _cure(self, name: str, function: LossFunction) -> str:
        return target_checks.remedy(name, function, self.outputs, self.targets)

    def _are_swapped(self, function: LossFunction) -> bool:
        try:
            with _quietly():
                values = function(self.targets, self.outputs)
        except Exception:
            return False
        return isinstance(values, Tensor) and values.ndim > 0 and len(values) == len(self)


def _within_unit(outputs: Any) -> bool:
    if not isinstance(outputs, Tensor) or outputs.is_complex():
        return False
    is_inside = (outputs >= 0) & (outputs <= 1)
    return bool(is_inside.all()) and bool((outputs != 0).any())


def check_factory(make: Callable[[], nn.Module]) -> None:
    """Refuse a function that makes models but takes arguments."""
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise InputError(
            f"model cannot be called without arguments ({error}); give a function such as lambda: MyModel(4, 3). The "
            "seed is set before each call"
        ) from None
    except ValueError:  # no signature to read
        return


def check_parameters(model: nn.Module) -> None:
    """Refuse parameters and buffers without values, or that are not dense, and scripts of torch.jit."""
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            "model is a script of torch.jit (scripted or traced), which cannot be trained here; give the Python module "
            "it was made from"
        )
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


def _check_unchanged(given: Inputs, inputs: Inputs) -> None:
    """Refuse a model that writes to its inputs: the next round would train on other data."""
    for before, after in zip(trees.leaves(given), trees.leaves(inputs), strict=True):
        if not torch.equal(before, after):
            raise InputError(
                "the model changes its inputs in place, and with them the data of later rounds; write x = x + 1, not "
                "x += 1, and give a first layer inplace=False"
            )


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
    chosen = loss or cross_entropy
    _refuse_parameters(chosen)
    pools = []
    probes = []
    highest = -1
    whose_highest = ""
    for what, part, pool in (("training", "train", train), ("test", "test", judged)):
        if pool is None or len(pool.targets) == 0:
            continue
        whose = partial(_part_of_client, client_names, part)
        if scores_classes(loss, pool):
            check_class_targets(pool, whose)
            own_highest, owner = highest_target(pool, whose)
            if own_highest > highest:
                highest = own_highest
                whose_highest = owner
        pools.append((pool, whose))
        probes.append(ProblemProbe.of(model, pool, what))
    for (pool, whose), probe in zip(pools, probes, strict=True):
        if scores_classes(loss, pool):
            probe.check_classes(highest, whose_highest)
            expect_classes(pool, probe.outputs.shape[1])
        probe.check_loss(chosen)
        if takes_logits(chosen):
            check_binary_pool(pool, whose)
            expect_binary(pool)
    if probes:
        last = probes[-1]  # of test data if there are any
        last_pool, whose_last = pools[-1]
        scores.check_targets(score or whole_client, chosen, last.outputs, last_pool.targets)
        probes[0].warn_of_probabilities(model, chosen)
    if whole_client is not None:
        return chosen, None
    if score is None and probes:
        first = probes[0]
        score = scores.default(chosen, first.outputs, first.targets)
    if score is not None and probes:
        probes[-1].check_score(score)
        check_counted(score, judged, whose_last)
    return chosen, score


def _refuse_parameters(loss: object) -> None:
    if not isinstance(loss, nn.Module):
        return
    trainable = [name for name, parameter in loss.named_parameters() if parameter.requires_grad]
    if trainable:
        raise InputError(
            f"loss has trainable parameters of its own ({', '.join(trainable)}), and only the model's are trained; put "
            "them into the model, or freeze them with loss.requires_grad_(False)"
        )


def _part_of_client(names: Sequence[str], part: str, client: int) -> str:
    return f"client {names[client]}, {part}"
