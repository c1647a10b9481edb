"""How dense the code is: syntax nodes per line and comprehensions per 100 lines, leaving out docstrings and comments.

    python tools/density.py src                      # the total, and the densest files
    python tools/density.py src --nodes 8.45 --comprehensions 3 --lines 60     # fail above these limits

A statement counts every line it covers, so breaking an expression over lines helps only as much as it helps a reader.
"""

import argparse
import ast
import sys
from dataclasses import dataclass
from pathlib import Path

Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
Comprehension = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Density:
    """What was counted in one file, or in several."""

    name: str
    nodes: int = 0
    lines: int = 0
    comprehensions: int = 0
    longest: int = 0  # lines of the longest function, without its docstring

    @property
    def nodes_per_line(self) -> float:
        return self.nodes / max(self.lines, 1)

    @property
    def comprehensions_per_100(self) -> float:
        return 100 * self.comprehensions / max(self.lines, 1)

    def add(self, other: "Density") -> None:
        self.nodes += other.nodes
        self.lines += other.lines
        self.comprehensions += other.comprehensions
        self.longest = max(self.longest, other.longest)

    def __str__(self) -> str:
        return (
            f"{self.nodes_per_line:5.1f} nodes per line, {self.comprehensions_per_100:4.1f} comprehensions per 100, "
            f"{self.lines:6} code lines, longest function {self.longest:3}: {self.name}"
        )


def measure(path: Path) -> Density:
    """One file."""
    tree = ast.parse(path.read_text())
    density = Density(str(path))
    for node in ast.walk(tree):
        if isinstance(node, Function):
            docstring = (ast.get_docstring(node) or "").splitlines()
            density.longest = max(density.longest, node.end_lineno - node.lineno + 1 - len(docstring))
    for node in ast.walk(tree):
        if isinstance(node, Documented) and ast.get_docstring(node) is not None:
            first = node.body[0]
            node.body = node.body[1:] or [ast.Pass(lineno=first.lineno, end_lineno=first.lineno)]
    used: set[int] = set()
    for node in ast.walk(tree):
        density.nodes += 1
        density.comprehensions += isinstance(node, Comprehension)
        if not hasattr(node, "lineno"):
            continue
        is_simple_statement = isinstance(node, ast.stmt) and not hasattr(node, "body")
        last = node.end_lineno if is_simple_statement else node.lineno
        used.update(range(node.lineno, last + 1))
    density.lines = len(used)
    return density


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--nodes", type=float, default=float("inf"), help="most syntax nodes per line")
    parser.add_argument("--comprehensions", type=float, default=float("inf"), help="most per 100 lines")
    parser.add_argument("--lines", type=float, default=float("inf"), help="longest function, without its docstring")
    parser.add_argument("--show", type=int, default=10, help="how many of the densest files to list")
    asked = parser.parse_args()
    files: list[Path] = []
    for folder in asked.folders:
        files += sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
    measured = [measure(path) for path in files]
    total = Density("all")
    for density in measured:
        total.add(density)
    measured.sort(key=lambda density: density.nodes_per_line, reverse=True)
    for density in measured[: asked.show]:
        print(density)
    print(total)
    too_dense = total.nodes_per_line > asked.nodes or total.comprehensions_per_100 > asked.comprehensions
    if too_dense or total.longest > asked.lines:
        sys.exit(f"too dense: at most {asked.nodes} nodes, {asked.comprehensions} comprehensions, {asked.lines} lines")


if __name__ == "__main__":
    main()
