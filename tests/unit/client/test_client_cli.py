"""The command line without a service: words, exit codes of wrong usage, and the way into the service's own program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandman.cli import copying, main, service, show
from sandman.cli.create_options import pair
from sandman.cli.main import parse
from sandman.models import FileInfo

CLIENT = Path(__file__).resolve().parents[3] / "client"


def run_cli(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sandman", *words],
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CLIENT), "HOME": "/nonexistent", **env},
    )


@pytest.mark.parametrize("words", [[], ["exec"], ["nosuch"], ["run"], ["cp", "a"], ["create", "--cpu", "x"]])
def test_wrong_usage_is_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*words])
    assert caught.value.code == 2


def test_everything_behind_the_dashes_is_the_command() -> None:
    options = parse(["exec", "sb-1", "-w", "/", "--", "ls", "-l", "--", "--json"])
    assert options.words == ["ls", "-l", "--", "--json"] and options.cwd == "/" and not options.json
    options = parse(["exec", "-w", "/", "sb-1", "ls", "-l"])
    assert options.words == ["ls", "-l"] and options.cwd == "/"


def test_no_key_says_what_to_do(tmp_path: Path) -> None:
    done = run_cli("ls", SANDMAN_DATA_DIR=str(tmp_path), SANDMAN_URL="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "SANDMAN_API_KEY" in done.stderr and "sandman up" in done.stderr and "Traceback" not in done.stderr


def test_up_becomes_the_services_own_program(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    up = tmp_path / "worker" / "up"
    up.mkdir(parents=True)
    # A folder without it would yield to the real service's package, which an editable install has on the path.
    for package in (up.parent, up):
        (package / "__init__.py").touch()
    (up / "__main__.py").write_text(
        "import os, sys; print(os.getpid(), sys.argv[1:], os.environ['PYTHONPATH'])"
    )
    done = run_cli("up", "--port", "1", "--help", SANDMAN_SERVICE_ROOT=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "['--port', '1', '--help']" in done.stdout and str(tmp_path) in done.stdout


def test_up_without_the_service_says_how_to_get_it(tmp_path: Path) -> None:
    done = run_cli("up", SANDMAN_SERVICE_ROOT=str(tmp_path))
    assert done.returncode == 1 and "pip install sandman" in done.stderr


def test_in_a_checkout_the_service_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDMAN_SERVICE_ROOT", raising=False)
    assert service.find_root() == CLIENT.parent


@pytest.mark.parametrize(
    "text, place",
    [
        ("sb-abc:/x", ("sb-abc", "/x")),
        ("sb-abc:", ("sb-abc", "")),
        ("./sb-abc:/x", None),
        ("a:b", None),
        ("plain", None),
    ],
)
def test_places_of_cp(text: str, place: tuple[str, str] | None) -> None:
    assert copying.remote(text) == place


def test_pairs() -> None:
    import argparse

    assert pair("A=b=c") == ("A", "b=c")
    with pytest.raises(argparse.ArgumentTypeError):
        pair("A")


def test_a_file_name_cannot_forge_a_line_or_colour() -> None:
    line = show.line_of(FileInfo(path="/a\n\x1b[31mb", type="file"))
    assert "\n" not in line and "\x1b" not in line
    assert show.line_of(FileInfo(path_b64="L/8=")).endswith("/\\udcff")
