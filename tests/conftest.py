"""Fixtures shared by all tests."""

import pytest

import evenfed
from evenfed.core.algorithm import Algorithm


@pytest.fixture(params=evenfed.algorithms.names())
def algorithm(request) -> Algorithm:
    """Every algorithm at its defaults."""
    return evenfed.algorithms.get(request.param)
