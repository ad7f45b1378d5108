"""Fixtures of all tests: a real Valkey, and a real service.

`service` is one `sandman up` for the whole session, because starting one costs a second or two; each test that uses it is checked
to have left no sandbox behind. `own_service` gives a test its own, to be stopped, killed or started with other settings.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.service import Service, dying_with_us, eventually_clean, start_service
from worker.up.preflight import find_valkey

CLEAN_SECONDS = 15.0


def pytest_configure() -> None:
    """A shell starts what it runs in the background with SIGINT ignored, and every program that a test starts would inherit that:
    the tests of Ctrl-C must mean the same there."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Valkey:
    """A Valkey of the tests' own. Tests share it: use a namespace or key prefix of your own, or `flush`."""

    url: str
    socket: Path
    pid: int

    def flush(self) -> None:
        import redis  # Not at the top: the client's tests run where only the client's packages are.

        with redis.Redis.from_url(self.url) as client:
            client.flushall()


def start_valkey(folder: Path) -> tuple[subprocess.Popen[bytes], Valkey]:
    path = folder / "v.sock"
    command = [
        str(find_valkey()),
        "--port",
        "0",
        "--unixsocket",
        str(path),
        "--dir",
        str(folder),
        "--save",
        "",
    ]
    command += ["--appendonly", "yes", "--appendfsync", "everysec"]
    log = (folder / "valkey.log").open("wb")
    process = subprocess.Popen(dying_with_us(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    log.close()
    deadline = time.monotonic() + 15
    while not answers(path):
        if time.monotonic() > deadline or process.poll() is not None:
            process.kill()
            raise AssertionError((folder / "valkey.log").read_text())
        time.sleep(0.01)
    return process, Valkey(url=f"unix://{path}", socket=path, pid=process.pid)


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        try:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(64) == b"+PONG\r\n"
        except OSError:
            return False


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    """The real server in a folder of its own with a short path; the kernel ends it when pytest is killed."""
    folder = Path(tempfile.mkdtemp(prefix="sm-valkey-"))
    process, server = start_valkey(folder)
    yield server
    process.terminate()
    process.wait(10)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def session_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    one = start_service(tmp_path_factory.mktemp("service") / "data")
    yield one
    one.stop()
    left = eventually_clean(one.leftovers, 5.0)
    one.remove()
    assert not left, f"the service left something behind: {left}"


@pytest.fixture
def service(session_service: Service) -> Iterator[Service]:
    """The session's service. A test that uses it must have given its sandboxes back when it ends, or soon after."""
    yield session_service
    left = eventually_clean(session_service.sandbox_leftovers, CLEAN_SECONDS)
    assert not left, f"the test left something behind: {left}"


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts services of the test's own: `own_service(*options, env={}, wait=True)`. All are removed afterwards."""
    started: list[Service] = []

    def start(
        *options: str, data_dir: Path | None = None, env: dict[str, str] | None = None, wait: bool = True
    ) -> Service:
        log = tmp_path / f"up-{len(started)}.log"
        one = start_service(data_dir or tmp_path / "data", *options, env=env, wait=wait, log=log)
        started.append(one)
        return one

    yield start
    for one in reversed(started):
        one.remove()
