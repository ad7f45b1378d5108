"""The daemon against plain `subprocess`: generated commands, run both ways in the same folder, must give the same bytes and the same end.

    SANDMAN_DIFFERENTIAL_CASES=20000 SANDMAN_DIFFERENTIAL_SEED=7 …    more than CI runs, or others

Four differences are meant, and each is checked for what it is: a leftover that holds the pipes does not delay the daemon's answer
(`held`), what it writes afterwards is kept apart (`late`), an answer is cut to `max_output_bytes` (`limit`), and in a command too long
for one argument the shell's own messages name `eval` (`pad`). A failure names the case's number; `tests.differential.case(SEED, NUMBER)` makes it again.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.differential import HOLD_SECONDS, Case, case
from tests.fakes.bare_daemon import BareDaemon, start_daemon

SEED = int(os.environ.get("SANDMAN_DIFFERENTIAL_SEED", "1"))
CASES = int(os.environ.get("SANDMAN_DIFFERENTIAL_CASES", "1500"))
WORKERS = 6
"""Cases sleep and wait for forks: three for each of two cores keep both busy."""
BOUND_SECONDS = 30.0
WHOLE = 64 * 1024**2
"""The most that an answer may hold: far over what any case writes."""


@dataclass(frozen=True)
class Outcome:
    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    failed: tuple[int, bool] | None = None
    """errno of a start that failed, and whether it was the working directory's."""
    files: tuple[str, ...] = ()


class Place:
    """One worker's folder; both ways run every case in it, so that paths in the output are the same."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "here"

    def fresh(self, one: Case) -> str:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if one.argv is not None:
            self.programs()
        cwd = self.folder / one.cwd
        if one.cwd not in ("nowhere", "script"):
            cwd.mkdir(parents=True, exist_ok=True)
        return str(cwd) if one.cwd != "." else str(self.folder)

    def programs(self) -> None:
        def make(name: str, text: str, mode: int) -> None:
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            path.chmod(mode)

        make("bin1/tool", "#!/bin/sh\necho one\n", 0o644)
        make("bin2/tool", '#!/bin/sh\necho two "$0" "$@"\nexit 2\n', 0o755)
        make("script", '#!/bin/sh -e\necho "$0" "$@"\ncat\nfalse\n', 0o755)
        make("noexec", "#!/bin/sh\n", 0o644)
        make("noshebang", "echo no\n", 0o755)
        make("lost", "#!/nowhere/at/all\n", 0o755)
        (self.folder / "folder").mkdir()
        (self.folder / "loop").symlink_to("loop")

    def files(self, one: Case) -> tuple[str, ...]:
        """What the command left in the folder; a leftover may still be at it."""
        if one.family == "leftover":
            return ()
        found = []
        for path in sorted(self.folder.rglob("*")):
            mode = path.lstat().st_mode
            content = path.read_bytes().hex() if stat.S_ISREG(mode) else ""
            found.append(f"{path.relative_to(self.folder)} {mode:o} {content}")
        return tuple(found)


def plainly(one: Case, place: Place) -> Outcome:
    cwd = place.fresh(one)
    argv = list(one.argv) if one.argv is not None else [one.shell, "-c", one.command or ""]
    try:
        process = subprocess.Popen(
            argv, cwd=cwd, env=one.full_env, stdin=subprocess.DEVNULL if one.stdin is None else subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if one.merge else subprocess.PIPE, start_new_session=True, umask=0o022,
        )  # fmt: skip
    except OSError as error:
        return Outcome(failed=(error.errno or 0, error.filename == cwd), files=place.files(one))
    begun = time.monotonic()
    try:
        out, err = process.communicate(one.stdin, timeout=BOUND_SECONDS)
    finally:
        process.kill()
    assert not one.held or time.monotonic() - begun > HOLD_SECONDS * 0.9, (
        "the case holds nothing: it proves nothing"
    )
    code = process.returncode
    return Outcome(
        128 - code if code < 0 else code, -code if code < 0 else None, out, err or b"", files=place.files(one)
    )


class Line:
    """One worker's connections to the daemon. The number of a case decides by which of three ways it goes."""

    def __init__(self, daemon: BareDaemon) -> None:
        self._headers = {"Authorization": f"Bearer {daemon.token}"}
        self._http = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=BOUND_SECONDS)
        self._http.connect()
        assert self._http.sock is not None
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._daemon = daemon
        self._socket: ClientConnection | None = None
        self._open = contextlib.ExitStack()
        self._channel = 0

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        self._http.request(method, path, json.dumps(body) if body is not None else None, self._headers)
        answer = self._http.getresponse()
        return answer.status, answer.read()

    def run(self, one: Case, number: int, cwd: str) -> dict[str, Any]:
        """The answer, or the problem. stdout and stderr are bytes."""
        request: dict[str, Any] = {
            "cwd": cwd,
            "env": one.full_env,
            "merge_stderr": one.merge,
            "timeout_seconds": BOUND_SECONDS,
        }
        if one.argv is not None:
            request["argv"] = list(one.argv)
        else:
            padding = f": {'A' * one.pad}; " if one.pad else ""
            request |= {"command": padding + (one.command or ""), "shell": one.shell}
        if one.stdin is not None:
            request["stdin_base64"] = base64.b64encode(one.stdin).decode()
        if number % 4 == 3 and one.limit is None:
            return self._over_socket(request)
        request |= {"encoding": "base64", "max_output_bytes": WHOLE if one.limit is None else one.limit}
        if number % 4 == 2:
            request |= {"background": True, "id": f"case-{number}"}
            status, raw = self.call("POST", "/v1/exec", request)
            if status == 202:
                status, raw = self.call("GET", f"/v1/execs/case-{number}?wait={BOUND_SECONDS}")
        else:
            status, raw = self.call("POST", "/v1/exec", request)
        result: dict[str, Any] = json.loads(raw)
        if status == 200:
            result["stdout"], result["stderr"] = (
                base64.b64decode(result[name]) for name in ("stdout", "stderr")
            )
        return result

    def _over_socket(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._socket is None:
            self._socket = self._open.enter_context(
                connect(
                    f"ws://127.0.0.1:{self._daemon.port}/v1/connect",
                    additional_headers=self._headers,
                    subprotocols=[Subprotocol("sandman.v1")],
                    compression=None,
                    max_size=None,
                    proxy=None,
                )
            )
        self._channel += 1
        self._socket.send(json.dumps({"op": "start", "ch": self._channel, "credit": WHOLE, **request}))
        streams = {1: bytearray(), 2: bytearray()}
        while True:
            message = self._socket.recv(BOUND_SECONDS)
            if isinstance(message, bytes):
                stream = streams[message[0]]
                assert int.from_bytes(message[5:13], "big") == len(stream), (
                    "a frame's offset is not where the stream is"
                )
                stream += message[13:]
                continue
            control: dict[str, Any] = json.loads(message)
            if control["op"] in ("exit", "error"):
                return control | {"stdout": bytes(streams[1]), "stderr": bytes(streams[2])}

    def late(self, identity: str) -> bytes:
        deadline = time.monotonic() + 10
        while True:
            status, raw = self.call("GET", f"/v1/execs/{identity}/output?late=true")
            assert status == 200, raw
            if raw or time.monotonic() > deadline:
                return raw
            time.sleep(0.05)

    def close(self) -> None:
        self._http.close()
        self._open.close()


def by_daemon(one: Case, number: int, place: Place, line: Line) -> Outcome:
    cwd = place.fresh(one)
    begun = time.monotonic()
    result = line.run(one, number, cwd)
    took = time.monotonic() - begun
    if result.get("type") == "urn:sandman:problem:exec-start-failed":
        failed = (getattr(errno, result["errno"]), result["reason"] == "cwd")
        return Outcome(failed=failed, files=place.files(one))
    assert "exit_code" in result, result
    assert not result["timed_out"] and not result["oom_killed"], result
    assert not one.held or took < HOLD_SECONDS, f"the leftover delayed the answer: {took:.2f} s"
    stdout, stderr = result["stdout"], result["stderr"]
    if one.late:
        stdout += line.late(result["id"])
    if one.limit is None:
        counts = (result["stdout_bytes"], result["stderr_bytes"])
        assert counts == (len(result["stdout"]), len(result["stderr"])), f"counts differ: {counts}"
    else:
        stdout, stderr = Cut(result, "stdout", one.limit), Cut(result, "stderr", one.limit)
    return Outcome(result["exit_code"], result["signal"], stdout, stderr, files=place.files(one))


class Cut(bytes):
    """Output as an answer shows it that is bounded: equal to the whole when both its ends and its counts are the whole's."""

    total: int
    head: int

    def __new__(cls, result: dict[str, Any], name: str, limit: int) -> Cut:
        made = super().__new__(cls, result[name])
        made.total = result[f"{name}_bytes"]
        made.head = result.get(f"{name}_head_bytes", len(made))
        missing = made.total - len(made)
        assert len(made) == min(limit, made.total) and result[f"{name}_truncated"] == missing, result
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, bytes) or len(other) != self.total:
            return False
        tail = len(self) - self.head
        head_same = bytes(self[: self.head]) == other[: self.head]
        return head_same and bytes(self[self.head :]) == other[len(other) - tail :]

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = bytes.__hash__


def difference(one: Case, number: int, place: Place, line: Line) -> str | None:
    try:
        plain, ours = plainly(one, place), by_daemon(one, number, place, line)
    except Exception as error:
        return f"case {number} ({one.family}): {type(error).__name__}: {error}\n{short(one)}"
    if one.pad:
        plain, ours = unnamed(plain), unnamed(ours)
    told = [
        f"  {name}: subprocess {short(getattr(plain, name))}, daemon {short(getattr(ours, name))}"
        for name in ("exit_code", "signal", "failed", "stdout", "stderr", "files")
        if getattr(ours, name) != getattr(plain, name)
    ]
    return "\n".join([f"case {number} ({one.family}): {short(one)}", *told]) if told else None


def unnamed(outcome: Outcome) -> Outcome:
    """Without where the shell says its text is from: `-c`, `eval` or nothing."""

    def drop(text: bytes) -> bytes:
        return re.sub(rb": (-c|eval): ", b": ", text)

    return replace(outcome, files=(), stdout=drop(outcome.stdout), stderr=drop(outcome.stderr))


def short(value: object) -> str:
    text = re.sub(r"(.)\1{60,}", r"\1…\1", repr(value))
    return text if len(text) < 1500 else f"{text[:1000]} … {text[-400:]}"


@pytest.fixture
def default_signals() -> Iterator[None]:
    """What the tests' own parent ignores (nohup, a background job of a shell) is inherited through `subprocess`, and not by the daemon."""
    ignored = [
        n
        for n in signal.valid_signals()
        if signal.getsignal(n) is signal.SIG_IGN and n not in (signal.SIGPIPE, signal.SIGXFSZ)
    ]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def daemon() -> Iterator[BareDaemon]:
    with tempfile.TemporaryDirectory(prefix="differential-") as folder:
        one = start_daemon(Path(folder), spool_dir=folder, max_execs=300)
        yield one
        one.stop()


def test_commands_end_and_write_as_under_subprocess(default_signals: None, daemon: BareDaemon) -> None:
    numbers = iter(range(CASES))
    taking, found = threading.Lock(), list[str]()

    def work(worker: int) -> None:
        with (
            tempfile.TemporaryDirectory(prefix=f"case-{worker}-") as folder,
            contextlib.closing(Line(daemon)) as line,
        ):
            place = Place(Path(folder))
            while len(found) < 10:
                with taking:
                    number = next(numbers, None)
                if number is None:
                    return
                told = difference(case(SEED, number), number, place, line)
                if told:
                    found.append(told)

    with ThreadPoolExecutor(WORKERS) as pool:
        for done in [pool.submit(work, worker) for worker in range(WORKERS)]:
            done.result()
    assert not found, f"seed {SEED}, of {CASES} cases:\n" + "\n".join(found)


def test_a_case_is_the_same_every_time() -> None:
    assert [case(5, n) for n in range(200)] == [case(5, n) for n in range(200)]
