"""Nothing calls home: the environment of all that evenfed starts with Flower."""

import importlib.util
import os

from ..core.errors import InputError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "UV_OFFLINE": "1",
}


def be_quiet() -> None:
    """Set what is not set; refuses to go on without Flower."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("flwr") is None:
        raise InputError("Flower is not installed; pip install 'evenfed[flower]' adds it")
