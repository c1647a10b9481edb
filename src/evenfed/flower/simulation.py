"""Runs on Flower's own simulation engine: one start of Ray for all of them, one run after another."""

import importlib.util
import logging
import os
from collections.abc import Callable

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from ..core.errors import InputError
from .logs import quieter
from .no_telemetry import keep_ray_at_home


def simulate(
    serve: Callable[[Grid], None],
    app: ClientApp,
    clients: int,
    gpu: bool = False,
) -> None:
    """`serve(grid)` with `clients` simulated nodes that run `app`, on all cores of this machine and on no other."""
    if importlib.util.find_spec("ray") is None:
        raise InputError("Flower's simulation needs Ray; pip install 'evenfed[flower]' adds it")
    from flwr.simulation import run_simulation

    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on every system
        cores = len(os.sched_getaffinity(0))
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid)

    backend = {
        "init_args": {"num_cpus": cores, "log_to_driver": False, "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 1 / cores if gpu else 0.0},
    }
    keep_ray_at_home()
    with quieter(logging.WARNING, without="DEPRECATED FEATURE"):  # that this call will move
        run_simulation(server, app, clients, backend_config=backend)  # type: ignore[arg-type]
