"""Fair federated learning: serve the worst-served clients better without dragging down the others."""

from . import algorithms, augment, callbacks, losses, scores
from ._version import __version__
from .algorithms import register
from .callbacks import Progress
from .client import Client
from .comparison.api import compare, train
from .comparison.loading import load
from .comparison.result import Comparison, Result
from .core.errors import InputError
from .core.fold import Turn
from .core.round import close_round, open_round
from .core.server import Record, Server, Update
from .data.arrays import federate
from .fairness import Fairness, Suppression
from .metrics import Metric
from .settings import Settings

__all__ = [
    "Client",
    "Comparison",
    "Fairness",
    "InputError",
    "Metric",
    "Progress",
    "Record",
    "Result",
    "Server",
    "Settings",
    "Suppression",
    "Turn",
    "Update",
    "__version__",
    "algorithms",
    "augment",
    "callbacks",
    "close_round",
    "compare",
    "federate",
    "losses",
    "load",
    "open_round",
    "register",
    "scores",
    "train",
]
