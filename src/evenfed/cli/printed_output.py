"""What `evenfed compare` printed once all runs were finished, so that the same command again need not load torch.

It is kept in the output folder, with the state of every file that it was made from. If one of them has changed, or the
package has, it is made anew.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from .console import console

OUT = "runs"  # the output folder, unless --out names another
_PACKAGE = Path(__file__).parents[1]

States = dict[str, list[int] | None]  # of files, by their paths


def printed(arguments: Sequence[str]) -> str | None:
    """What this command line printed, if it would print the same again."""
    if not arguments or arguments[0] != "compare":
        return None
    try:
        kept = json.loads(_place(arguments).read_text())
        files = kept["files"]
        same_package = kept["package"] == _package()
        is_valid = same_package and files == states(map(Path, files))
        return str(kept["text"]) if is_valid else None
    except (OSError, ValueError, KeyError, TypeError):  # nothing is kept, or something else
        return None


def keep(arguments: Sequence[str], out: Path, text: str, files: States) -> None:
    """Keep what this command line printed. `files`: those it was made from, as they were before they were read."""
    place = _place(arguments)
    if place.parent.parent != out:
        return
    content = {"package": _package(), "files": files, "text": text}
    beside = place.with_suffix(".new")
    try:
        place.parent.mkdir(exist_ok=True)
        beside.unlink(missing_ok=True)  # a link must not be followed
        beside.write_text(json.dumps(content))
        beside.replace(place)
    except OSError:  # a full disk, say: the next time takes as long as this time
        beside.unlink(missing_ok=True)


def states(paths: Iterable[Path]) -> States:
    """Size and times of files; None for one that is not there. No program can set the time of the last change."""
    by_path: States = {}
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            by_path[str(path)] = None
            continue
        by_path[str(path)] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return by_path


def _place(arguments: Sequence[str]) -> Path:
    """The file for this command line, in this folder, on a page like this one."""
    page = console()
    command = [
        *arguments,
        os.getcwd(),
        page.width,
        page.is_terminal,
        page.color_system,
        page.no_color,
        page.encoding,
    ]
    name = _digest(command)
    return _output(arguments) / ".printed" / f"{name}.json"


def _output(arguments: Sequence[str]) -> Path:
    out = OUT
    for position, argument in enumerate(arguments):
        if argument.startswith("--out="):
            out = argument.removeprefix("--out=")
        elif argument == "--out" and position + 1 < len(arguments):
            out = arguments[position + 1]
    return Path(out)


def _package() -> str:
    """The state of this package's files: its version, and what its developers changed since."""
    sources = [*_PACKAGE.rglob("*.py"), *_PACKAGE.rglob("*.toml")]
    return _digest(states(sorted(sources)))


def _digest(content: object) -> str:
    described = json.dumps(content, sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()
