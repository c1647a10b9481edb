"""Warnings of options that may not be meant, before anything is trained."""

import warnings
from collections.abc import Sequence

import torch

from ..clients.pooling import ClientsLike
from ..settings import Settings, cautions_of
from ..simulate.engines.stackability import check_training, depends_on_chance
from ..simulate.initial_models import InitialModels
from ..simulate.problem import Problem
from ..simulate.state import Run
from .analysis.findings import BASELINE


def without_effect(settings: Settings) -> list[str]:
    """Options that are set and change the weights of algorithms that look at losses, and nothing else."""
    options = []
    if settings.smooth is not None:
        options.append("smooth")
    if settings.weigh_at == "average":
        options.append("weigh_at")
    return options


def warn_of_options(runs: Sequence[Run], clients: ClientsLike) -> None:
    """Once of each option that may not be meant."""
    for caution in cautions_of(run.settings for run in runs):
        is_of_participation = caution.startswith("participation")
        if len(clients) > 1 or not is_of_participation:
            warnings.warn(caution, stacklevel=3)


def warn_of_seeds(runs: Sequence[Run], problem: Problem, drawn: InitialModels | None) -> None:
    """Where seeds start from the same module by mistake, or all train FedAvg in the same way."""
    of_baseline = [run.settings for run in runs if run.label == BASELINE]
    seeds = [settings.seed for settings in of_baseline]
    if len(seeds) < 2:
        return
    if drawn is not None:
        for seed in seeds[:2]:
            drawn.problem(seed)  # keeps the model that it makes
        if not torch.equal(drawn(seeds[0]), drawn(seeds[1])):
            return
        if drawn.is_one_module:
            warnings.warn(
                "model() returns the same module every time, so all seeds start from the same parameters; make a new "
                "one in it, such as lambda: MyModel(), or give the module itself",
                stacklevel=3,
            )
            return
    if not _is_without_chance(of_baseline[0], problem):
        return
    warnings.warn(
        f"all {len(seeds)} seeds give the same FedAvg run: they start from the same model, and every client is one "
        "batch. They show nothing about chance; give a function that makes another model for each seed, such as "
        "lambda: MyModel(), or a smaller batch_size",
        stacklevel=3,
    )


def _is_without_chance(settings: Settings, problem: Problem) -> bool:
    """Whether nothing is drawn once the initial model is given."""
    sizes = problem.train.sizes
    with_data = int((sizes > 0).sum())
    batch_size = settings.batch_size
    is_one_batch = batch_size is None or batch_size >= int(sizes.max())
    is_everyone = settings.drawn(with_data) == with_data
    if not is_one_batch or not is_everyone or settings.augment is not None:
        return False
    check_training(problem, [settings.batching])  # a model that fails in training mode is refused in words
    return not depends_on_chance(problem)
