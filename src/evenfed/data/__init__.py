"""Data sets as clients: sources that need no download, and the ways to split them."""

from .partition import dirichlet
from .sources import DataSettings, load

__all__ = ["DataSettings", "dirichlet", "load"]
