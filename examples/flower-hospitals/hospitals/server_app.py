"""What the server runs; its options stand in pyproject.toml."""

from evenfed.flower import server_app
from hospitals.task import model

app = server_app(model)
