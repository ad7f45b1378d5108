"""The command line of `sandman up`: options over environment over defaults, and plain words for what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker.up.options import default_data_dir, parse


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SANDMAN_")]:
        monkeypatch.delenv(name)


def test_defaults() -> None:
    options = parse([])
    assert (options.host, options.port, options.provider) == ("127.0.0.1", 8700, "local")
    assert options.data_dir == default_data_dir()
    assert options.redis_url is None and options.image_roots == ()


def test_an_option_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDMAN_PORT", "9000")
    monkeypatch.setenv("SANDMAN_DATA_DIR", "/srv/sandman")
    assert parse([]).port == 9000
    assert parse(["--port", "9001"]).port == 9001
    assert parse([]).data_dir == Path("/srv/sandman")


def test_relative_folders_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = parse(["--data-dir", "d", "--image-root", "a", "--image-root", "/b"])
    assert options.data_dir == tmp_path / "d"
    assert options.image_roots == (tmp_path / "a", Path("/b"))


def test_people_get_warnings_and_collectors_everything() -> None:
    assert parse([]).log_level == "warning"
    assert parse(["--log-format", "json"]).log_level == "info"
    assert parse(["--log-level", "DEBUG"]).log_level == "debug"


@pytest.mark.parametrize(
    "argv",
    [["--port", "x"], ["--port", "65536"], ["--log-level", "loud"], ["--log-format", "xml"], ["extra"]],
)
def test_what_is_wrong_is_said(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_port_is_asked_for_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--port", "abc"])
    assert "a port is a number from 0 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["SANDMAN_PORT", "SANDMAN_LOG_LEVEL", "SANDMAN_LOG_FORMAT"])
def test_what_is_wrong_in_the_environment_is_said_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "nonsense")
    with pytest.raises(SystemExit):
        parse([])
