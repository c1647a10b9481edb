"""`evenfed flower new`: a complete Flower app, ready for `flwr run`."""

import importlib.util
import keyword
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from ...core.errors import InputError
from ...core.files import replace_text
from ..no_telemetry import quiet_env

FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "task.py": "MODULE/task.py",
    "client_app.py": "MODULE/client_app.py",
    "server_app.py": "MODULE/server_app.py",
}


def write_app(folder: Path) -> list[Path]:
    """Write the app's files into `folder`, which must be new or empty; returns their paths."""
    lowered = folder.resolve().name.lower()
    name = re.sub(r"[^a-z0-9]+", "-", lowered).strip("-")
    module = name.replace("-", "_")
    if not name or not name[0].isalpha():
        raise InputError(f"'{folder.name}' cannot name a Flower app; begin with a letter, e.g. my-app")
    if keyword.iskeyword(module):
        raise InputError(f"'{name}' is a keyword of Python, so the app could not be loaded; give another name")
    if importlib.util.find_spec(module) is not None:
        raise InputError(f"'{name}' is the name of an installed Python package; give the folder another name")
    in_use = folder.exists()
    if folder.is_dir():
        in_use = any(folder.iterdir())
    if in_use:
        raise InputError(f"{folder} exists and is not empty; give a new folder")
    words = {
        "MODULE": module,
        "NAME": name,
    }
    written = []
    try:
        for place, text in _texts().items():
            path = folder / filled(place, words)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, filled(text, words))
            written.append(path)
    except OSError as error:
        raise InputError(f"{folder} cannot be written to ({error.strerror}); give another folder") from None
    return written


def _texts() -> dict[str, str]:
    """Every file of the app by its place, with words to be filled in."""
    template = resources.files("evenfed.flower") / "template"
    texts = {}
    for source, place in FILES.items():
        file = template / f"{source}.txt"
        texts[place] = file.read_text()
    texts["MODULE/__init__.py"] = ""
    texts[".gitignore"] = "runs/\n__pycache__/\n"
    texts["quiet.env"] = quiet_env()
    return texts


def filled(text: str, words: Mapping[str, str]) -> str:
    """The text with whole words in capitals replaced.

    >>> filled("cd NAME && ls NAMES", {"NAME": "wards"})
    'cd wards && ls NAMES'
    """
    any_word = "|".join(words)

    def meaning(word: re.Match[str]) -> str:
        return words[word[0]]

    return re.sub(rf"\b({any_word})\b", meaning, text)
