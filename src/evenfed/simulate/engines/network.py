"""The model as slots compute it: its live parameters, in one precision, with layers in their stackable form."""

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ... import trees
from ...core.errors import InputError
from ...settings import Precision
from ...trees import Inputs
from ..layers import implicit
from ..layers.live import LiveParameters
from ..problem import Problem


class SlotModel:
    """What the training step and measurements share."""

    def __init__(self, problem: Problem, model: nn.Module, precision: Precision) -> None:
        dtype = problem.theta.dtype
        if precision == "bf16" and dtype != torch.float32:
            name = str(dtype).removeprefix("torch.")
            raise InputError(
                f"the model's parameters are {name}, and bf16 rounds float32; convert it, or use precision='fp32'"
            )
        self.problem = problem
        self.model = model
        self.precision = precision
        self.dtype = dtype
        self.compute = torch.bfloat16 if precision == "bf16" else dtype
        two_examples = trees.rows(problem.train.inputs, slice(2))
        make_live = partial(LiveParameters.of, model, problem.layout, two_examples)
        self.live = lru_cache(make_live)
        self.plain: set[str] = set()  # convolutions that have no form of their own here
        implicit.has_kernels(problem.device.type, self.compute)  # tried out now: inside a trace it could not be

    @property
    def is_rounded(self) -> bool:
        """Whether products are computed with rounded copies of the weights."""
        return self.compute != self.dtype

    def zeros(self, *shape: int) -> Tensor:
        """In the type in which parameters are kept."""
        return torch.zeros(shape, dtype=self.dtype, device=self.problem.device)

    def outputs(
        self,
        live: LiveParameters,
        weights: Tensor,
        rest: Tensor,
        x: Inputs,
        stacked: bool,
    ) -> Any:
        """The model's outputs for a batch, in full precision."""
        parameters = live.parameters(weights, rest)
        reduced: AbstractContextManager[Any] = nullcontext()
        if self.is_rounded:
            reduced = torch.autocast(self.problem.device.type, self.compute)
        with live.rewriting(parameters, self.plain if stacked else None), reduced:
            outputs = trees.outputs(self.model, x, parameters)

        def in_full(output: Tensor) -> Tensor:
            return output.to(rest.dtype) if output.is_floating_point() else output

        return tree_map_only(Tensor, in_full, outputs)
