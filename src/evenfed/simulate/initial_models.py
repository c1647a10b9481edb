"""The initial models that a function makes, one per seed, with their frozen parameters and buffers."""

import copy
import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from .module_modes import buffers_of
from .problem import Model, Problem, initial_model, theta_of


class InitialModels:
    """The models that a function makes, one per seed, as vectors of trained parameters.

    Frozen parameters and buffers can differ between seeds too. Seeds with equal ones (a pretrained base) share a
    problem and its engine; a seed with others gets its own problem.
    """

    def __init__(self, problem: Problem, make: Callable[[], nn.Module]) -> None:
        self.make = make
        self.problems = [problem]
        self.starts: dict[int, tuple[Problem, Tensor]] = {}  # by seed

    def __call__(self, seed: int) -> Tensor:
        """[D] the trained parameters of this seed's model."""
        if seed in self.starts:
            _, theta = self.starts[seed]
            return theta
        module = self._made(seed)
        return theta_of(self.problems[0], module)

    @property
    def is_one_module(self) -> bool:
        """Whether the function returns a module that it keeps, and makes none."""
        return initial_model(self.make, 0) is initial_model(self.make, 0)

    def problem(self, seed: int) -> Problem:
        """The problem with this seed's frozen parameters and buffers."""
        if seed not in self.starts:
            module = self._made(seed)
            problem = self._problem_of(module)
            self.starts[seed] = (problem, theta_of(problem, module))
        problem, _ = self.starts[seed]
        return problem

    def _made(self, seed: int) -> nn.Module:
        """A new module, checked to be like the first problem's."""
        module = initial_model(self.make, seed)
        expected = _tensors(self.problems[0].model)
        tensors = _tensors(module)
        if list(tensors) != list(expected):
            raise InputError(f"model() has other parameters for seed {seed} than before; make the same for every seed")
        for name, tensor in tensors.items():
            kind = _kind(tensor)
            expected_kind = _kind(expected[name])
            if kind != expected_kind:
                raise InputError(
                    f"model() makes {name} {kind} for seed {seed}, {expected_kind} before; make the same for every seed"
                )
        return module

    def _problem_of(self, module: nn.Module) -> Problem:
        first = self.problems[0]
        module = copy.deepcopy(module).to(first.device)
        for problem in self.problems:
            if _same_frozen(problem.model, module):
                return problem
        problem = dataclasses.replace(first, model=module, buffers=buffers_of(module))
        self.problems.append(problem)
        return problem


def drawn_by(problem: Problem, model: Model) -> InitialModels | None:
    """Initial models by seed; None for a given module, which is the same for every seed."""
    if isinstance(model, nn.Module):
        return None
    return InitialModels(problem, model)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _kind(tensor: Tensor) -> str:
    trained = "trained" if tensor.requires_grad else "not trained"
    return f"{list(tensor.shape)} ({tensor.dtype}, {trained})"


def _same_frozen(model: nn.Module, other: nn.Module) -> bool:
    """Whether all that is not trained is equal to the bit."""
    tensors = _tensors(other)
    for name, tensor in _tensors(model).items():
        if not tensor.requires_grad and not torch.equal(tensor, tensors[name]):
            return False
    return True
