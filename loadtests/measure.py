"""What the measurements share: clients that cost next to nothing themselves, the floor to compare with, and memory as the kernel tells it.

Raw sockets speak HTTP and WebSocket here: a client library's own cost (httpx: about 1 ms) would hide what is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NOOP = ["/bin/true"]
WARM_UP = 30
MIB = 1024**2


def check(result: dict[str, Any]) -> None:
    if result["exit_code"] != 0:
        raise RuntimeError(f"unexpected result: {result}")


def bare(argv: Sequence[str] = NOOP) -> None:
    """The floor: the program started by posix_spawn, its output read from a pipe, and waited for."""
    pid, reading = spawn(argv)
    collect(pid, reading)


def spawn(argv: Sequence[str]) -> tuple[int, int]:
    reading, writing = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writing, 1), (os.POSIX_SPAWN_CLOSE, reading)]
    pid = os.posix_spawn(argv[0], list(argv), {"PATH": "/usr/bin:/bin"}, file_actions=actions)
    os.close(writing)
    return pid, reading


def collect(pid: int, reading: int) -> None:
    while os.read(reading, 65536):
        pass
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        raise RuntimeError(f"the program ended with {status}")


def share(values: Sequence[float], part: float) -> float:
    """The value that this part of all values does not pass: 0.5 is the median."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def post_bytes(path: str, body: Any, token: str) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


class KeepAlive:
    """One connection of a loop, one request at a time; answers are read by Content-Length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self._reader, self._writer, self._token = reader, writer, token

    async def post(self, path: str, body: Any) -> dict[str, Any]:
        self._writer.write(post_bytes(path, body, self._token))
        answer = await self._reader.readuntil(b"\r\n\r\n")
        lines = answer.decode().lower().split("\r\n")
        length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
        result: dict[str, Any] = json.loads(await self._reader.readexactly(length))
        if not lines[0].startswith("http/1.1 200"):
            raise RuntimeError(f"{path}: {lines[0]} {result}")
        return result


class Blocking:
    """One connection to a unix socket without a loop, one request at a time."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))

    def ask(self, request: bytes) -> bytes:
        """The answer's body; the request is complete, made before the clock runs."""
        self.socket.sendall(request)
        data = bytearray()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        head = bytes(data[:end])
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        length = int(found[1]) if found else 0
        while len(data) < end + 4 + length:
            data += self._more()
        return bytes(data[end + 4 :])

    def _more(self) -> bytes:
        data = self.socket.recv(65536)
        if not data:
            raise RuntimeError("the connection ended")
        return data

    def close(self) -> None:
        self.socket.close()


class BlockingSocket(Blocking):
    """One WebSocket over a unix socket. Frames to the peer are masked with zeros, which is a mask like any other."""

    def __init__(self, path: Path, token: str) -> None:
        super().__init__(path)
        self.socket.sendall(
            b"GET /v1/connect HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer "
            + token.encode()
            + b"\r\n\r\n"
        )
        self._data = bytearray()
        while b"\r\n\r\n" not in self._data:
            self._data += self._more()
        del self._data[: self._data.index(b"\r\n\r\n") + 4]
        self._at = 0

    @staticmethod
    def frame(message: dict[str, Any]) -> bytes:
        data = json.dumps(message).encode()
        size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
        return b"\x81" + size + bytes(4) + data

    def receive(self) -> tuple[int, memoryview | bytes]:
        """Opcode and payload of the next message; the daemon sends each in one frame."""
        self._need(2)
        opcode, size = self._data[self._at] & 15, self._data[self._at + 1]
        header = 2
        if size >= 126:
            header = 4 if size == 126 else 10
            self._need(header)
            size = int.from_bytes(self._data[self._at + 2 : self._at + header], "big")
        self._need(header + size)
        payload = bytes(self._data[self._at + header : self._at + header + size])
        self._at += header + size
        return opcode, payload

    def _need(self, size: int) -> None:
        while len(self._data) - self._at < size:
            if self._at:
                del self._data[: self._at]
                self._at = 0
            self._data += self.socket.recv(262144) or self._more()

    def end(self) -> dict[str, Any]:
        """The next command's end."""
        while True:
            opcode, payload = self.receive()
            if opcode == 1:
                message: dict[str, Any] = json.loads(bytes(payload))
                if message["op"] == "exit":
                    return message
                if message["op"] == "error":
                    raise RuntimeError(str(message))


class Memory:
    """Highest resident size of each watched group of processes while inside."""

    def __init__(self, pids: dict[str, list[int]], every_seconds: float = 0.1) -> None:
        self._pids, self._every = pids, every_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.before = self._now()
        self.peak = dict(self.before)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def growth(self) -> dict[str, int]:
        return {name: self.peak[name] - self.before[name] for name in self._pids}

    def _now(self) -> dict[str, int]:
        return {name: sum(resident(pid) for pid in pids) for name, pids in self._pids.items()}

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            for name, size in self._now().items():
                self.peak[name] = max(self.peak[name], size)


def resident(pid: int) -> int:
    return _kilobytes(Path(f"/proc/{pid}/status"), "VmRSS:")


def proportional(pid: int) -> int:
    """PSS: memory shared with other processes counts by its share."""
    return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def _kilobytes(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
