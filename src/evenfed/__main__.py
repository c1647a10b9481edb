"""`python -m evenfed`."""

from .cli.main import main

main()
