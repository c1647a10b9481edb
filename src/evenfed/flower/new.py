"""`evenfed flower new`: a complete Flower app, ready for `flwr run`."""

import importlib.util
import re
from importlib import resources
from pathlib import Path

from ..core.errors import InputError
from .quiet import QUIET

FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "task.py": "MODULE/task.py",
    "client_app.py": "MODULE/client_app.py",
    "server_app.py": "MODULE/server_app.py",
}


def write_app(folder: Path) -> list[Path]:
    """The app's files in `folder`, which must be new or empty; what was written."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name or not name[0].isalpha():
        raise InputError(f"'{folder.name}' cannot name a Flower app; begin with a letter, e.g. my-app")
    if importlib.util.find_spec(name.replace("-", "_")) is not None:
        raise InputError(f"'{name}' is the name of an installed Python package; give the folder another name")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; give a new folder")
    words = {"MODULE": name.replace("-", "_"), "NAME": name, "OUT": (folder.resolve() / "runs").as_posix()}
    template = resources.files(__package__) / "template"
    texts = {place: (template / f"{source}.txt").read_text() for source, place in FILES.items()}
    texts |= {"MODULE/__init__.py": "", ".gitignore": "runs/\n__pycache__/\n"}
    texts["quiet.env"] = "".join(f"{key}={value}\n" for key, value in QUIET.items())
    try:
        return [_written(folder / _filled(place, words), _filled(text, words)) for place, text in texts.items()]
    except OSError as error:
        raise InputError(f"{folder} cannot be written to ({error.strerror}); give another folder") from None


def _filled(text: str, words: dict[str, str]) -> str:
    return re.sub("|".join(rf"\b{word}\b" for word in words), lambda found: words[found[0]], text)


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
