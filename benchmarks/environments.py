"""Peers in environments of their own under .venvs, installed on first use."""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
NEEDS_NEWER = {"blazefl": "python3.12"}  # peers that ask for a newer Python than evenfed does


def python_of(name: str) -> Path | str:
    """The peer's own Python; or why there is none."""
    folder = ROOT / ".venvs" / name
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    interpreter = sys.executable
    if name in NEEDS_NEWER:
        wanted = NEEDS_NEWER[name]
        found = shutil.which(wanted)
        if found is None:
            return f"could not be installed: it needs {wanted}, which is not on the path"
        interpreter = found
    subprocess.run([interpreter, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "-r", str(HERE / "peers" / f"{name}.txt")]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    if installed.returncode:
        return "could not be installed: " + installed.stderr.strip().splitlines()[-1]
    (folder / "ready").touch()
    return python
