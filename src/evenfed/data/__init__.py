"""Data sets as clients: what is on disk, and the ways to split it.

`federate(DataSettings(...))` gives a data set that evenfed knows by name. Your own arrays: `evenfed.federate`.
"""

from .dataset import Dataset
from .federation import Federation, federate
from .flwr import from_flwr
from .options import DataSettings

__all__ = ["DataSettings", "Dataset", "Federation", "federate", "from_flwr"]
