"""Nothing calls home: what evenfed starts with Flower speaks to this machine and to its own nodes alone."""

import importlib.util
import os
import sys
from typing import Any

from ..core.errors import InputError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "UV_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system: no cluster, so Ray stays on the loopback address
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning at every start
}


def quiet_env() -> str:
    """The same as a file for shells and systemd."""
    lines = [f"{name}={value}\n" for name, value in QUIET.items()]
    return "".join(lines)


def be_quiet() -> None:
    """Before flwr is imported: set what the user has not set. Without Flower there is nothing to do."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("flwr") is None:
        raise InputError("Flower is not installed; pip install 'evenfed[flower]' adds it")
    if "flwr.simulation" in sys.modules:  # this is a client app that `flwr run` has loaded, just before it starts Ray
        keep_ray_at_home()


def keep_ray_at_home() -> None:
    """Ray asks clouds' metadata services where it runs even if its statistics are off: that process is not started."""
    no_statistics = os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    if no_statistics and importlib.util.find_spec("ray") is not None:
        from ray._private import services

        services.start_api_server = _not_started


def _not_started(*arguments: Any, **options: Any) -> tuple[None, None]:
    return None, None
