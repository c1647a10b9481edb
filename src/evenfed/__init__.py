"""Fair federated learning: serve the worst-served clients better without dragging down the others."""

from typing import TYPE_CHECKING

from ._version import __version__
from .core.lazy_imports import attributes

if TYPE_CHECKING:
    from . import algorithms, augment, callbacks, losses, scores
    from .algorithms import register
    from .auditing.audit import Audit, audit
    from .callbacks import Progress
    from .clients.client import Client
    from .clients.population import Clients
    from .comparison.api import compare, train
    from .comparison.loading import load
    from .comparison.result import Comparison, Result
    from .core.errors import InputError
    from .core.open_round import OpenRound
    from .core.round import close_round, open_round
    from .core.server import Record, Server, Update
    from .data.arrays import federate
    from .fairness import Fairness, Inequality, Suppression
    from .metrics import Metric
    from .settings import Settings

__all__ = [
    "Audit",
    "Client",
    "Clients",
    "Comparison",
    "Fairness",
    "Inequality",
    "InputError",
    "Metric",
    "Progress",
    "Record",
    "Result",
    "Server",
    "Settings",
    "Suppression",
    "OpenRound",
    "Update",
    "__version__",
    "algorithms",
    "audit",
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

_HOMES = {
    "register": "algorithms",
    "Audit": "auditing.audit",
    "audit": "auditing.audit",
    "Progress": "callbacks",
    "Client": "clients.client",
    "compare": "comparison.api",
    "train": "comparison.api",
    "load": "comparison.loading",
    "Comparison": "comparison.result",
    "Result": "comparison.result",
    "InputError": "core.errors",
    "OpenRound": "core.open_round",
    "close_round": "core.round",
    "open_round": "core.round",
    "Record": "core.server",
    "Server": "core.server",
    "Update": "core.server",
    "federate": "data.arrays",
    "Fairness": "fairness",
    "Inequality": "fairness",
    "Suppression": "fairness",
    "Metric": "metrics",
    "Clients": "clients.population",
    "Settings": "settings",
}  # name -> the module it is from

if not TYPE_CHECKING:
    __getattr__ = attributes(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
