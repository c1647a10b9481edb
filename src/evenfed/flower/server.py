"""A Flower server app that reads its options from the app's configuration, and where it keeps its runs."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from torch import nn

from ..callbacks import Callbacks, callback_list
from ..callbacks.registry import by_name
from ..callbacks.registry import chosen as trackers
from ..comparison.storage.folder import RunFolder
from ..comparison.variants import Variant
from ..core.choices import extended
from ..core.errors import InputError, unknown
from ..settings import Settings
from ..simulate.problem import initial_model
from . import fleet_options
from .client import ModelFunction
from .logs import shorten_input_errors
from .metrics import EvaluateFunction
from .strategy import FairStrategy
from .wire import Fields, Values

PREFIX = "evenfed."
_ARGUMENTS = [*inspect.signature(FairStrategy).parameters, "track"]
OWN = [name for name in _ARGUMENTS if name not in ("header", "listen", "options")]


class AbsentRunError(InputError):
    """There is no run to resume."""


class FairServerApp(ServerApp):
    """A server app that can say which strategy a run's configuration asks for."""

    strategy: Callable[[Values], FairStrategy]


def server_app(
    model: ModelFunction,
    *,
    listen: Callbacks = (),
    evaluate_fn: EvaluateFunction | None = None,
    wrap: Callable[[Strategy], Strategy] | None = None,
    **defaults: Any,
) -> FairServerApp:
    """A Flower server app that trains `model()` with the strategy the run's configuration asks for.

    `[tool.flwr.app.config.evenfed]` of the app's pyproject.toml, or the option
    `flwr run . --run-config "evenfed.lr=0.1"`, may hold every option of `FairStrategy` and `evenfed.Settings`;
    `defaults` fill in. Three of them are the app's own:

    * `out`: by default runs/<run id>, so that no two runs meet; false keeps nothing.
    * `resume`: true resumes the newest run of this label and seed below runs (or the one in `out`); a run's id resumes
      that run. A finished run ends at once with its result.
    * `track`: trackers by name, "tensorboard,mlflow", or a table of their options.

    Beside them:

    * `listen`: callbacks, as `evenfed.train` takes them.
    * `evaluate_fn(round, arrays)` evaluates the deployed model on the server, before the first round and after each:
      a MetricRecord or dict of numbers, which the round's record keeps as `central`; or None.
    * `wrap(strategy)` gives the strategy to run in its place: one of Flower's DifferentialPrivacy... wrappers.

    >>> import torch
    >>> app = server_app(lambda: torch.nn.Linear(4, 3), algorithm="semi_vred", rounds=5, lr=0.1)
    """
    app = FairServerApp()

    def strategy_of(run_config: Values, run_id: int = 0) -> FairStrategy:
        return _strategy(options(run_config, defaults), run_id, listen)

    app.strategy = strategy_of

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        shorten_input_errors()
        strategy = strategy_of(context.run_config, context.run_id)
        start = initial_model(model, strategy.settings.seed)
        strategy.module = start
        wrapped = None if wrap is None else _wrapped(wrap, strategy)
        strategy.start(grid, initial_arrays(start), evaluate_fn=evaluate_fn, wrapped=wrapped)

    return app


def _strategy(chosen: Fields, run_id: int, listen: Callbacks) -> FairStrategy:
    algorithm = chosen.pop("algorithm", "semi_vred")
    label = chosen.pop("label", None)
    variant = Variant.of_entry(algorithm, label)
    seed = {**variant.options, **chosen}.get("seed", 0)
    place = chosen.pop("out", None)
    wanted = chosen.pop("resume", None)
    out, resume = place_of(place, wanted, run_id, variant.label, seed)
    callbacks = callback_list(listen)
    track = chosen.pop("track", None)
    if track is not None:
        if isinstance(track, str):  # a run's configuration holds no lists
            track = [name.strip() for name in track.split(",")]
        callbacks += by_name(trackers(track))
    return FairStrategy(algorithm, label=label, out=out, resume=resume, listen=callbacks, **chosen)


def _wrapped(wrap: Callable[[Strategy], Strategy], strategy: FairStrategy) -> Strategy:
    wrapped = wrap(strategy)
    if not isinstance(wrapped, Strategy):
        kind = type(wrapped).__name__
        raise InputError(f"wrap(strategy) returned a {kind}; it must return a Flower strategy around the one given")
    return wrapped


def options(config: Values, defaults: Values) -> Fields:
    """The options under `evenfed.`, after the defaults; an unknown one names the nearest, an empty one is left out.

    >>> options({"evenfed.lr": 0.1, "evenfed.out": "", "mine": 3}, {"rounds": 5})
    {'rounds': 5, 'lr': 0.1}
    >>> options({"evenfed.optimizer.name": "sgd", "evenfed.optimizer.momentum": 0.9}, {})
    {'optimizer': {'name': 'sgd', 'momentum': 0.9}}
    """
    settings = [field.name for field in fields(Settings)]
    settings.remove("engine")  # it is Flower
    settings.remove("device")  # the clients choose their own
    allowed = [*OWN, *fleet_options.names(), *settings]
    chosen = dict(defaults)
    for key, value in config.items():
        if key.startswith(PREFIX) and value != "":
            name, _, option = key.removeprefix(PREFIX).partition(".")
            chosen[name] = extended(chosen.get(name), option, value) if option else value
    for name in chosen:
        if name not in allowed:
            raise unknown("evenfed option", name, allowed)
    return chosen


def initial_arrays(model: nn.Module) -> ArrayRecord:
    """What travels of a model: trained parameters and buffers."""
    tensors = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            tensors[name] = parameter.detach()
    for name, buffer in model.named_buffers():
        tensors[name] = buffer.detach()
    return ArrayRecord(tensors)


RUNS = Path("runs")  # below the folder in which Flower's server was started
Resume = bool | int | str | None  # whether to resume, or the id of the run to resume


def place_of(
    out: object,
    resume: Resume,
    run_id: int,
    label: str,
    seed: int,
) -> tuple[Path | None, bool | None]:
    """The folder `out` of a run, and whether a run must be there to go on with.

    `out`: a folder, False for none, or None for runs/<run id>, which no other run has. There, `resume` True means the
    run of this label and seed that was written last, and an id that run.
    """
    is_id = resume is not None and not isinstance(resume, bool)
    if out is False:
        if resume:
            raise InputError("evenfed.out=false keeps nothing to resume from; leave evenfed.resume or evenfed.out out")
        return None, None
    if out is not None:
        if not isinstance(out, str | Path):
            raise InputError(f"evenfed.out={out!r}: give a folder, or false to keep nothing")
        if is_id:
            raise InputError(
                f"evenfed.resume={resume} names a run below {RUNS}; leave evenfed.out out, or give evenfed.resume=true"
            )
        return Path(out), bool(resume) if resume is not None else None
    if is_id:
        return _named(str(resume)), True
    if resume:
        return _latest(label, seed), True
    return RUNS / str(run_id), None


def _named(run_id: str) -> Path:
    path = RUNS / run_id
    if Path(run_id).name != run_id or not path.is_dir():
        raise AbsentRunError(
            f"evenfed.resume={run_id}: there is no folder {path.resolve()}; `flwr list` shows the ids of runs"
        )
    return path


def _latest(label: str, seed: int) -> Path:
    """Of the runs of this label and seed, the one written last."""
    written: dict[float, Path] = {}
    for path in RUNS.glob("*"):
        header = RunFolder.at(path, label, seed).header_path
        if header.exists():
            written[header.stat().st_mtime] = path
    if not written:
        raise AbsentRunError(
            f"evenfed.resume: {RUNS.resolve()} holds no run of {label} with seed {seed}; leave evenfed.resume out to "
            "begin one, or give its folder with evenfed.out"
        )
    return written[max(written)]
