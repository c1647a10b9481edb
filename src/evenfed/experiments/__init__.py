"""The experiments that come with the package: `@name` stands for `name.toml` here."""

import re
from pathlib import Path

from ..core.errors import unknown

FOLDER = Path(__file__).parent


def located(path: Path) -> Path:
    """The file that a path, or `@name`, refers to.

    >>> located(Path("@demo")).name, located(Path("mine.toml"))
    ('demo.toml', PosixPath('mine.toml'))
    """
    written = str(path)
    if not written.startswith("@"):
        return path
    name = written.removeprefix("@").removesuffix(".toml")
    if name not in bundled():
        raise unknown("experiment", f"@{name}", [f"@{each}" for each in bundled()])
    return FOLDER / f"{name}.toml"


def shown(path: Path) -> str:
    """How a user writes this experiment on the command line."""
    if path.resolve().parent == FOLDER.resolve():
        return f"@{path.stem}"
    return str(path)


def named_after(path: Path) -> str:
    """The name of an experiment that its file gives it: what cannot name a folder becomes `-`.

    >>> named_after(Path("my own.toml"))
    'my-own'
    """
    return re.sub(r"[^\w.+-]+", "-", path.stem)


def bundled() -> dict[str, str]:
    """Name -> the first sentence of the comment at its top."""
    experiments = {}
    for path in sorted(FOLDER.glob("*.toml")):
        comment = []
        for line in path.read_text().splitlines()[1:]:  # the first line is the command
            if not line.startswith("# "):
                break
            comment.append(line.removeprefix("# "))
        sentence, _, _ = " ".join(comment).partition(". ")
        experiments[path.stem] = sentence.rstrip(".")
    return experiments
