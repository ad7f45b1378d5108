"""The documents keep up with the code: every setting is listed, every command and file that they name exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = re.compile(r"SANDMAN_[A-Z0-9]+(?:_[A-Z0-9]+)*")
READ_BY_SETTINGS = re.compile(r'env\.\w+\(\s*"([A-Z0-9_]+)"')
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_setting_is_listed() -> None:
    read = {
        f"SANDMAN_{name}" for name in READ_BY_SETTINGS.findall((ROOT / "app/ledger/settings.py").read_text())
    }
    for folder in ("app", "worker", "client/sandman"):
        for path in (ROOT / folder).rglob("*.py"):
            read.update(name for name in VARIABLE.findall(path.read_text()) if not name.endswith("_"))
    read.update(VARIABLE.findall((ROOT / "sandman").read_text()))
    listed = set(VARIABLE.findall((ROOT / "docs/settings.md").read_text()))
    assert read - listed == set(), "not in docs/settings.md"
    assert listed - read == set(), "in docs/settings.md, but nothing reads it"


def test_links_lead_somewhere() -> None:
    dead = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents()
        for target in LINK.findall(document.read_text())
        if not (document.parent / target).exists()
    ]
    assert dead == []


def test_files_named_in_the_readme_exist() -> None:
    named = re.findall(r"`((?:\./)?[a-z_]+(?:/[A-Za-z0-9_.-]+)*/?)`", (ROOT / "README.md").read_text())
    paths = [name for name in named if "/" in name]
    assert paths
    assert [name for name in paths if not (ROOT / name).exists()] == []


def test_commands_in_the_readme_exist() -> None:
    words = set(re.findall(r"(?m)^(?:\$ )?(?:\./)?sandman ([a-z]+)", (ROOT / "README.md").read_text()))
    assert {"up", "test"} <= words
    script = (ROOT / "sandman").read_text()
    in_script = set(re.findall(r"(?m)^  ([a-z]+)\)", script))
    command_line = "".join(path.read_text() for path in (ROOT / "client/sandman").rglob("*.py"))
    in_client = set(re.findall(r'add_parser\(\s*"([a-z]+)"', command_line))
    assert words - in_script - in_client == set()


def test_extras_and_groups_are_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["optional-dependencies"] == project["dependency-groups"]


def test_locks_hold_no_addresses() -> None:
    for lock in (ROOT / "deploy").glob("*.lock"):
        text = lock.read_text()
        assert "://" not in text and "--index" not in text and "--find-links" not in text
        assert "--hash=sha256:" in text
