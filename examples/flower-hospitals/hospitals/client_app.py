"""What a hospital runs."""

from evenfed.flower import client_app
from hospitals.task import data, model

app = client_app(model, data)
