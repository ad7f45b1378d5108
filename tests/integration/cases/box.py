"""A sandbox of the running service, as callers without our client see it: plain HTTP, and frames on a WebSocket.

The tests in here are named after the cases they cover; docs/cases.md is the table of them. What the client adds is tested beside
the raw calls where a case asks for it.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import websockets
from websockets.sync.client import ClientConnection, connect

import sandman
from tests.fakes.proxy import FaultProxy
from tests.service import Service

Answer = dict[str, Any]
SLOW = 3.0
"""Times of the cases are multiplied by this: the tests share two cores with much else."""


@dataclass
class Box:
    """One ready sandbox, the service it is in, and ways to talk to both."""

    service: Service
    http: httpx.Client
    client: sandman.Client
    sandbox: sandman.Sandbox

    @property
    def path(self) -> str:
        return f"/v1/sandboxes/{self.sandbox.id}"

    # Plain HTTP

    def post(self, command: str | list[str], **members: Any) -> httpx.Response:
        body = {"command" if isinstance(command, str) else "argv": command, **members}
        return self.http.post(f"{self.path}/exec", json=body, timeout=120)

    def run(self, command: str | list[str], **members: Any) -> Answer:
        """The result of a command that was run."""
        answer = self.post(command, **members)
        assert answer.status_code in (200, 202), (answer.status_code, answer.text[:2000])
        found: Answer = answer.json()
        return found

    def out(self, command: str | list[str], **members: Any) -> str:
        """What a command printed; it must succeed."""
        answer = self.run(command, **members)
        assert answer["exit_code"] == 0, answer
        text: str = answer["stdout"]
        return text

    def refused(self, command: str | list[str], status: int, slug: str, **members: Any) -> Answer:
        """The problem of a command that must not run."""
        return problem(self.post(command, **members), status, slug)

    def record(self, exec_id: str, **query: Any) -> Answer:
        answer = self.http.get(f"{self.path}/execs/{exec_id}", params=query, timeout=120)
        assert answer.status_code == 200, answer.text
        found: Answer = answer.json()
        return found

    def running(self) -> list[Answer]:
        answer = self.http.get(f"{self.path}/execs?state=running")
        assert answer.status_code == 200, answer.text
        items: list[Answer] = answer.json()["items"]
        return items

    def signal(self, exec_id: str, name: str, scope: str = "tree") -> httpx.Response:
        return self.http.post(f"{self.path}/execs/{exec_id}/signal", json={"signal": name, "scope": scope})

    # What is there

    def alive(self, name: str) -> list[int]:
        """Pids of the processes of this name (zombies are none)."""
        script = (
            "for p in $(pgrep -x \"$0\"); do grep -q '^State:.*[ZX]' /proc/$p/status 2>&1 || echo $p; done"
        )
        return [int(pid) for pid in self.run(["sh", "-c", script, name])["stdout"].split()]

    def end(self, *names: str) -> None:
        """End what a test has left in the background, of these names."""
        self.run(f"pkill -KILL -x '{'|'.join(names)}'; sleep 0.05")

    # Frames

    def channel(self, **options: Any) -> Channel:
        return Channel(self.service.url, self.sandbox.id, self.service.key, **options)

    def proxy(self) -> FaultProxy:
        parts = urlsplit(self.service.url)
        assert parts.hostname and parts.port
        return FaultProxy(parts.hostname, parts.port)

    @contextmanager
    def client_at(self, url: str, **options: Any) -> Iterator[sandman.Sandbox]:
        """The same sandbox through another address, as a client of its own sees it."""
        with sandman.Client(url, self.service.key, **options) as client:
            yield client.sandbox(self.sandbox.id)

    # The processes behind it, seen from outside

    def daemon_pid(self) -> int:
        for line in self.service.sandbox_processes():
            pid, _, command = line.partition(" ")
            inside = Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].split("\n")[0].split()
            if inside[-1:] == ["1"] and "sandmand" in command and self._is_mine(int(pid)):
                return int(pid)
        raise AssertionError(f"no daemon: {self.service.sandbox_processes()}")

    def app_pid(self) -> int:
        """The process that serves the API: the child of the one that `up` started, or that one itself."""
        pid = self.service.children()["app"]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return max([pid, *map(int, children)], key=resident_bytes)

    def _is_mine(self, pid: int) -> bool:
        return (
            self.sandbox.id
            in Path(f"/proc/{pid}/cgroup").read_text() + Path(f"/proc/{pid}/mountinfo").read_text()
        )


def problem(answer: httpx.Response, status: int, slug: str) -> Answer:
    assert answer.status_code == status, (answer.status_code, answer.text[:2000])
    assert answer.headers["content-type"] == "application/problem+json"
    found: Answer = answer.json()
    assert found["type"] == f"urn:sandman:problem:{slug}", found
    return found


def fields(found: Answer) -> set[str]:
    """Which fields of the request a problem names."""
    named = {error["field"] for error in found.get("errors", [])}
    return named | ({found["field"]} if "field" in found else set())


def open_files(pid: int) -> list[str]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))  # noqa: PTH115
        except OSError:
            continue
    return found


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass
class Collected:
    """What one channel said."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    gaps: list[Answer] = field(default_factory=list)
    started: Answer | None = None
    end: Answer | None = None
    """The exit, or the error that took its place."""


class Channel:
    """A strict peer of the exec socket: every frame must be the next one that the protocol allows, or the test fails."""

    def __init__(self, url: str, sandbox_id: str, key: str, **options: Any) -> None:
        self._stack = ExitStack()
        opening = connect(
            f"{url.replace('http', 'ws', 1)}/v1/sandboxes/{sandbox_id}/connect",
            additional_headers={"Authorization": f"Bearer {key}"},
            subprotocols=[websockets.Subprotocol("sandman.v1")],
            compression=None,
            **options,
        )
        self.socket: ClientConnection = self._stack.enter_context(opening)
        self.seen: dict[int, Collected] = {}
        self.largest = 0
        """Of the frames received, in bytes."""
        self.grant = True
        self.input_credit: dict[int, int] = {}
        self._offsets: dict[tuple[int, int], int] = {}

    def say(self, op: str, ch: int | None = None, **members: Any) -> None:
        self.socket.send(json.dumps({"op": op, **({} if ch is None else {"ch": ch}), **members}))

    def start(self, ch: int, command: str | list[str], **members: Any) -> Collected:
        collected = self.seen[ch] = Collected()
        self._offsets[ch, 1] = self._offsets[ch, 2] = 0
        self.say("start", ch, **{"command" if isinstance(command, str) else "argv": command}, **members)
        return collected

    def attach(self, ch: int, exec_id: str, stdout: int = 0, stderr: int = 0, **members: Any) -> Collected:
        collected = self.seen[ch] = Collected()
        self._offsets[ch, 1], self._offsets[ch, 2] = stdout, stderr
        self.say("attach", ch, id=exec_id, stdout_offset=stdout, stderr_offset=stderr, **members)
        return collected

    def write(self, ch: int, data: bytes) -> None:
        """Input, in frames within the credit."""
        while data:
            while self.input_credit.get(ch, 0) <= 0:
                assert self.step(20), "no input credit"
            piece = data[: min(self.input_credit[ch], 64 * 1024)]
            self.socket.send(struct.pack(">BI", 0, ch) + piece)
            self.input_credit[ch] -= len(piece)
            data = data[len(piece) :]

    def step(self, timeout: float) -> bool:
        """Take one frame; False when none came in time."""
        try:
            message = self.socket.recv(timeout=max(timeout, 0))
        except TimeoutError:
            return False
        self.largest = max(self.largest, len(message))
        if isinstance(message, bytes):
            self._take_output(message)
        else:
            self._take_control(json.loads(message))
        return True

    def _take_output(self, message: bytes) -> None:
        kind, ch, offset = struct.unpack(">BIQ", message[:13])
        seen, data = self.seen[ch], message[13:]
        assert seen.started is not None and seen.end is None, "output outside of started … exit"
        assert offset == self._offsets[ch, kind], "output is not in one piece"
        assert data
        self._offsets[ch, kind] += len(data)
        (seen.stdout if kind == 1 else seen.stderr).extend(data)
        if self.grant:
            self.say("credit", ch, bytes=len(data))

    def _take_control(self, found: Answer) -> None:
        op = found["op"]
        if op in ("heartbeat", "pong"):
            return
        seen = self.seen[found["ch"]]
        assert seen.end is None, f"{op} after the end"
        if op == "started":
            assert seen.started is None
            seen.started = found
            self.input_credit[found["ch"]] = found.get("stdin_credit", 0)
        elif op == "stdin_credit":
            self.input_credit[found["ch"]] += found["bytes"]
        elif op == "gap":
            kind = 1 if found["stream"] == "stdout" else 2
            assert found["from"] == self._offsets[found["ch"], kind] < found["to"]
            self._offsets[found["ch"], kind] = found["to"]
            seen.gaps.append(found)
        elif op in ("exit", "error"):
            seen.end = found
        else:
            raise AssertionError(f"an unknown message: {found}")

    def until(self, ch: int, text: bytes = b"", seconds: float = 30.0) -> Collected:
        """Until the channel's end, or until its stdout holds `text`."""
        seen = self.seen[ch]
        deadline = time.monotonic() + seconds
        while (text not in seen.stdout) if text else (seen.end is None):
            left = deadline - time.monotonic()
            assert left > 0, f"not within {seconds} s: {bytes(seen.stdout[-300:])!r} {seen.end}"
            self.step(left)
        return seen

    def close(self) -> None:
        """As a caller that is done does: a close frame, and its answer."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def timed(began: float) -> float:
    return time.monotonic() - began
