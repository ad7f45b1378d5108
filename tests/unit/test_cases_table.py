"""The table of hard cases says where each is tested: what it names must be there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| B(\d{3}) \|.*\]\(\.\./")
LINK = re.compile(r"\]\(\.\./([^)]+)\)")
NAMED = re.compile(r"(?:def test_|func Test)(\w+)")


def rows() -> dict[str, list[str]]:
    lines = (ROOT / "docs/cases.md").read_text().splitlines()
    return {found[1]: LINK.findall(line) for line in lines if (found := ROW.match(line))}


def ids_in(path: Path) -> set[str]:
    return {number for name in NAMED.findall(path.read_text()) for number in re.findall(r"[bB](\d{3})", name)}


def test_every_file_of_the_table_has_a_test_of_its_case() -> None:
    assert len(rows()) > 36
    missing = [
        f"B{number}: {name}"
        for number, names in rows().items()
        for name in names
        if not (ROOT / name).is_file() or number not in ids_in(ROOT / name)
    ]
    assert missing == []


def test_every_case_that_has_tests_is_in_the_table() -> None:
    tested = {number for path in (ROOT / "tests").rglob("test_*.py") for number in ids_in(path)}
    tested |= {number for path in (ROOT / "daemon").rglob("*_test.go") for number in ids_in(path)}
    assert sorted(tested - set(rows())) == []
