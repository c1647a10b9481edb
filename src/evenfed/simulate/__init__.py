"""Federated training on one machine: a plain loop (`reference`) and a fast engine with the same results."""

from .api import Comparison, Progress, Result, compare, train

__all__ = ["Comparison", "Progress", "Result", "compare", "train"]
