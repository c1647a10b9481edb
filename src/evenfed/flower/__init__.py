"""The same algorithms across real machines: an ordinary Flower strategy, server app and client app.

The only package that imports flwr. What it starts does not call home: telemetry, update checks, usage
statistics and installs at run time are off unless the environment says otherwise.
"""

from typing import TYPE_CHECKING

from ..core.lazy_imports import attributes
from .no_telemetry import be_quiet

if TYPE_CHECKING:
    from .client import client_app
    from .drop_in.fair import Fair
    from .drop_in.mods import extend, loss_before
    from .recording import each_client, recorded
    from .server import server_app
    from .strategy import FairStrategy

__all__ = [
    "Fair",
    "FairStrategy",
    "client_app",
    "each_client",
    "extend",
    "loss_before",
    "recorded",
    "server_app",
]

_HOMES = {  # name -> its module
    "client_app": "client",
    "each_client": "recording",
    "extend": "drop_in.mods",
    "Fair": "drop_in.fair",
    "FairStrategy": "strategy",
    "loss_before": "drop_in.mods",
    "recorded": "recording",
    "server_app": "server",
}

be_quiet()  # before flwr is imported, which reads its environment then

if not TYPE_CHECKING:
    __getattr__ = attributes(__name__, _HOMES)  # a site's process, one for each message, loads no server
