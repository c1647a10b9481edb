"""The tables of README.md and of pages: what stands between `<!-- NAME -->` and `<!-- end of NAME -->` is replaced."""

from pathlib import Path

PAGE = Path(__file__).parent / "README.md"


def put(name: str, text: str, page: Path = PAGE) -> None:
    """`text` in its place."""
    before, begins, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, ends, after = rest.partition(f"<!-- end of {name} -->")
    if not begins or not ends:
        raise SystemExit(f"{page} has no place for '{name}'")
    page.write_text(f"{before}{begins}{text}\n{ends}{after}")
