"""`python -m evenfed`."""

from .cli import main

main()
