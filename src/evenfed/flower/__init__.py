"""The same algorithms across real machines: an ordinary Flower strategy, server app and client app.

The only package that imports flwr. What it starts does not call home: telemetry, update checks, usage
statistics and installs at run time are off unless the environment says otherwise.
"""

from .quiet import be_quiet

be_quiet()  # before flwr is imported, which reads its environment then

from .client import client_app  # noqa: E402
from .server import server_app  # noqa: E402
from .strategy import FairStrategy  # noqa: E402

__all__ = ["FairStrategy", "client_app", "server_app"]
