"""Runs that train alike: they differ in the average they deploy, so they are trained once."""

import dataclasses
from collections.abc import Sequence

import torch

from ..core.server_step import with_average
from ..settings import Settings
from .state import Run, State


def leaders(runs: Sequence[Run], states: Sequence[State]) -> list[int]:
    """For each run, the first one that trains as it does: itself, or one before it."""
    leaders: list[int] = []
    for k, run in enumerate(runs):
        leader = k
        for candidate in sorted(set(leaders)):
            has_same_model = torch.equal(states[k].server.theta, states[candidate].server.theta)
            if has_same_model and _train_alike(run, runs[candidate]):
                leader = candidate
                break
        leaders.append(leader)
    return leaders


def trained_together(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs by what is trained for them, in order of the first of each."""
    groups: list[list[Run]] = []
    for run in runs:
        for group in groups:
            if _train_alike(run, group[0]):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def following(leader: State, before: State, skipped: bool) -> State:
    """The state of a run after a round that its leader has trained; `before` is its own before the round."""
    server = with_average(leader.server, before.server.average, skipped)
    return dataclasses.replace(leader, server=server)


def _train_alike(one: Run, other: Run) -> bool:
    if one.algorithm != other.algorithm:
        return False
    return _training(one.settings) == _training(other.settings)


def _training(settings: Settings) -> Settings:
    """The options that decide which models are trained; an average does if losses are measured at it."""
    if settings.weigh_at == "average":
        return settings
    return dataclasses.replace(settings, average=None)
