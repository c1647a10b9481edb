"""Data sets as clients: what is on disk, and the ways to split it."""

from .dataset import Dataset
from .federation import Federation, federate
from .options import DataSettings

__all__ = ["DataSettings", "Dataset", "Federation", "federate"]
