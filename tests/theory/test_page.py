"""docs/theory.md: every numbered statement (T1, T2, ...) has a test of its number, and every test a statement."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


def test_every_statement_has_a_test_and_every_test_a_statement():
    stated = [int(k) for k in re.findall(r"\*\*T(\d+)\b", PAGE.read_text())]
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    tested = {int(k) for k in re.findall(r"^def test_t(\d+)_", tests, flags=re.MULTILINE)}
    assert stated == list(range(1, len(stated) + 1)) and set(stated) == tested


def test_statements_referred_to_exist():
    page = PAGE.read_text()
    stated = set(re.findall(r"\*\*T(\d+)\b", page))
    assert set(re.findall(r"\bT(\d+)\b", page)) <= stated
    assert max(map(len, page.splitlines())) <= 120
