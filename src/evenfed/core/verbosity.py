"""How much is said of progress."""

from enum import Enum, auto


class Verbosity(Enum):
    """What a command writes to stderr while it works. Warnings and errors are always shown."""

    QUIET = auto()  # nothing
    NORMAL = auto()  # what is done, and how far it is
    VERBOSE = auto()  # also every single step
