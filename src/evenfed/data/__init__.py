"""Data sets as clients: what is on disk, and the ways to split it.

`federate(DataSettings(...))` gives a data set that evenfed knows by name. Your own arrays: `evenfed.federate`.
"""

from typing import TYPE_CHECKING

from ..core.lazy_imports import attributes

if TYPE_CHECKING:
    from .dataset import Dataset
    from .federation import Federation, federate
    from .flwr import from_flwr
    from .options import DataSettings

__all__ = ["DataSettings", "Dataset", "Federation", "federate", "from_flwr"]

_HOMES = {
    "Dataset": "dataset",
    "Federation": "federation",
    "federate": "federation",
    "from_flwr": "flwr",
    "DataSettings": "options",
}  # name -> the module it is from

if not TYPE_CHECKING:
    __getattr__ = attributes(__name__, _HOMES)
