"""A Flower app in its folder, read and loaded as Flower does."""

import re
import sys
import tomllib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict, fuse_dicts, parse_config_args, validate_config
from flwr.serverapp import ServerApp
from flwr.supercore.object_ref import load_app

from ...core.errors import InputError, first_line, unknown

PAIR = r"""\S+?=('[^']*'|"[^"]*"|\S+)"""  # as Flower finds them


@dataclass(frozen=True)
class Project:
    """Where an app is, what its pyproject.toml names, and the configuration of a run."""

    folder: Path
    components: dict[str, str]
    run_config: dict[str, Any]


def read_project(folder: Path, run_config: str = "") -> Project:
    """From pyproject.toml, as Flower reads it; `run_config` as in `flwr run --run-config`."""
    path = folder / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} is missing; give the folder of a Flower app, as `evenfed flower new` makes") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}") from None
    is_valid, errors, _ = validate_config(table, check_module=False, project_dir=folder)
    if not is_valid:
        raise InputError(f"{path}: " + "; ".join(errors))
    app = table["tool"]["flwr"]["app"]
    components = app["components"]
    if "clientapp" not in components or "serverapp" not in components:
        raise InputError(f"{path} names no clientapp and serverapp under [tool.flwr.app.components]")
    _check_pairs(run_config)
    try:
        config = flatten_dict(app.get("config"))
        overrides = parse_config_args([run_config]) if run_config else {}
        wrong = [key for key in overrides if key not in config]
        if not wrong:
            config = fuse_dicts(config, overrides)
    except Exception as error:
        raise InputError(
            f"--run-config {run_config!r}: {first_line(error)}; write key=value pairs of keys that are in {path}"
        ) from None
    if wrong:
        raise unknown("key of --run-config", wrong[0], config)
    return Project(folder.resolve(), dict(components), dict(config))


def _check_pairs(run_config: str) -> None:
    """Refuse what Flower would leave out without a word: text that is no pair, and pairs without a value."""
    if run_config.endswith(".toml"):
        return
    rest = re.sub(PAIR, "", run_config).strip()
    if rest:
        raise InputError(f"--run-config {run_config!r}: '{rest}' is no key=value pair; write evenfed.lr=0.05")


@contextmanager
def loaded(project: Project) -> Iterator[tuple[ClientApp, ServerApp]]:
    """The two apps; afterwards Python has forgotten the project's modules."""
    path_before = list(sys.path)
    writes_before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # leave the folder as it is
    try:
        client = _component(project, "clientapp", ClientApp)
        server = _component(project, "serverapp", ServerApp)
        yield client, server
    finally:
        sys.dont_write_bytecode = writes_before
        sys.path[:] = path_before
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).is_relative_to(project.folder):
                del sys.modules[name]


def _component(project: Project, kind: str, wanted: type) -> Any:
    reference = project.components[kind]
    try:
        app = load_app(reference, InputError, project.folder)
    except InputError as error:
        raise InputError(f'{kind} = "{reference}": {first_line(error)}') from None
    except Exception as error:
        raise InputError(f'{kind} = "{reference}": {why(error, project)}') from None
    if not isinstance(app, wanted):
        made = type(app)
        for base in (ClientApp, ServerApp):
            if isinstance(app, base):
                made = base
        raise InputError(f'{kind} = "{reference}" is a {made.__name__}; it must be a {wanted.__name__}')
    return app


def why(error: Exception, project: Project) -> str:
    """What failed in one sentence, and where in the project."""
    if isinstance(error, InputError):
        return str(error)
    sentence = f"{type(error).__name__}: {first_line(error)}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(project.folder):
            return f"{sentence} ({file.relative_to(project.folder)}, line {frame.lineno})"
    return sentence
