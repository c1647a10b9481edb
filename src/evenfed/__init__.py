"""Fair federated learning: serve the worst-served clients better without dragging down the others."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import algorithms, augment, callbacks, losses, scores
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

_HOMES = {
    "register": "algorithms",
    "Progress": "callbacks",
    "Client": "client",
    "compare": "comparison.api",
    "train": "comparison.api",
    "load": "comparison.loading",
    "Comparison": "comparison.result",
    "Result": "comparison.result",
    "InputError": "core.errors",
    "Turn": "core.fold",
    "close_round": "core.round",
    "open_round": "core.round",
    "Record": "core.server",
    "Server": "core.server",
    "Update": "core.server",
    "federate": "data.arrays",
    "Fairness": "fairness",
    "Suppression": "fairness",
    "Metric": "metrics",
    "Settings": "settings",
}  # name -> the module it is from

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """All but the version is loaded when it is first asked for: the command line need not wait for torch."""
        if name in _HOMES:
            home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
            value = getattr(home, name)
            globals()[name] = value
            return value
        module = f"{__name__}.{name}"
        if name.startswith("__") or importlib.util.find_spec(module) is None:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        return importlib.import_module(module)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
