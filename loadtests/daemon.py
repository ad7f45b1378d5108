"""The daemon alone, measured in one run: how big, how fast it starts, what it costs idle, and what a no-op command costs through it.

    .venv/bin/python -m loadtests.daemon [--rounds 300] [--daemon PATH]

Every number of time stands beside its floor, a bare posix_spawn of the same program from the same run, taken in turns with it, so that
whatever else the machine does meets both alike. The aims are for an idle machine; a missed one is printed and does not end the run.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from loadtests.measure import (
    MIB,
    NOOP,
    WARM_UP,
    Blocking,
    BlockingSocket,
    Memory,
    bare,
    check,
    collect,
    post_bytes,
    proportional,
    share,
    spawn,
)

TOKEN = "the-token-of-a-measured-daemon"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
MANY = 50
IN_FLIGHT = 64
STREAM_BYTES = 1024 * MIB
STREAM_WINDOW = 8 * MIB
SETTLE_SECONDS = 2.0
"""An idle daemon gives memory back after a moment."""


@dataclass(frozen=True)
class Running:
    pid: int
    path: Path

    def healthy(self) -> None:
        line = Blocking(self.path)
        line.ask(HEALTH)
        line.close()


class Starter:
    """Starts daemons as the service does: the socket listens already, and it and the configuration are inherited."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program, self._folder = program, folder
        self._count = 0
        self._running: list[Running] = []

    def prepare(self) -> Callable[[], Running]:
        """All that is not the daemon's own start is done here; what it returns is one posix_spawn."""
        self._count += 1
        path = self._folder / f"{self._count}.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(512)
        config = {
            "listen": "fd:3",
            "token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
            "sandbox": f"sb-{self._count}",
            "spool_dir": str(self._folder),
        }
        memory = os.memfd_create("config", 0)
        os.write(memory, json.dumps(config).encode())
        os.lseek(memory, 0, os.SEEK_SET)
        # Through high numbers: one of the two may be 3 or 4 itself.
        moves = [(listener.fileno(), 200), (memory, 201), (200, 3), (201, 4)]
        actions = [(os.POSIX_SPAWN_DUP2, old, new) for old, new in moves]
        argv = [str(self.program), "serve", "--config-fd", "4"]

        def start() -> Running:
            pid = os.posix_spawn(argv[0], argv, {}, file_actions=actions)
            one = Running(pid, path)
            self._running.append(one)
            listener.close()
            os.close(memory)
            return one

        return start

    def end(self, one: Running) -> None:
        self._running.remove(one)
        os.kill(one.pid, signal.SIGKILL)
        os.waitpid(one.pid, 0)

    def end_all(self) -> None:
        for one in list(self._running):
            self.end(one)


def told(what: str, value: str, aim: str = "", good: bool | None = None, more: str = "") -> None:
    verdict = {None: "", True: "ok", False: "MISSED"}[good]
    print(f"{what:34} {value:>12}   {aim:14} {verdict:7} {more}", flush=True)


def starts(starter: Starter) -> None:
    seconds = []
    for _ in range(30):
        start = starter.prepare()
        began = time.perf_counter()
        one = start()
        one.healthy()
        seconds.append(time.perf_counter() - began)
        starter.end(one)
    p50 = share(seconds, 0.5)
    told(
        "cold start, spawn to health",
        f"{p50 * 1e3:.2f} ms",
        "≤ 3 ms",
        p50 <= 0.003,
        f"p99 {share(seconds, 0.99) * 1e3:.2f} ms",
    )

    prepared = [starter.prepare() for _ in range(MANY)]
    began = time.perf_counter()
    many = [start() for start in prepared]
    for one in many:
        one.healthy()
    took = time.perf_counter() - began
    told(f"{MANY} started at once, all healthy", f"{took * 1e3:.0f} ms", "≤ 100 ms", took <= 0.1)
    time.sleep(SETTLE_SECONDS)
    sizes = [proportional(one.pid) for one in many]
    mean = sum(sizes) / len(sizes)
    told(
        f"PSS of one of {MANY} idle",
        f"{mean / MIB:.2f} MiB",
        "≤ 1.5 MiB",
        mean <= 1.5 * MIB,
        f"most {max(sizes) / MIB:.2f} MiB",
    )
    for one in many:
        starter.end(one)


class Ways:
    """One no-op command, by each way to run it."""

    def __init__(self, one: Running) -> None:
        self._http = Blocking(one.path)
        self._request = post_bytes("/v1/exec", {"argv": NOOP}, TOKEN)
        self.socket = BlockingSocket(one.path, TOKEN)
        self._start = self.socket.frame({"op": "start", "ch": 1, "argv": NOOP})

    def by_http(self) -> None:
        check(json.loads(self._http.ask(self._request)))

    def by_socket(self) -> None:
        self.socket.socket.sendall(self._start)
        check(self.socket.end())

    def compare(self, rounds: int, title: str, bound: float | None) -> None:
        ways: dict[str, Callable[[], None]] = {
            "bare posix_spawn": bare,
            "HTTP keep-alive": self.by_http,
            "WebSocket": self.by_socket,
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + WARM_UP):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                if number >= WARM_UP:
                    seconds[name].append(time.perf_counter() - began)
        floor50, floor99 = (share(seconds["bare posix_spawn"], part) for part in (0.5, 0.99))
        for name, values in seconds.items():
            p50, p99 = share(values, 0.5), share(values, 0.99)
            is_floor = name == "bare posix_spawn"
            good = None if bound is None or is_floor else p50 <= bound * floor50
            aim = "" if good is None else f"≤ {bound} × bare"
            ratios = "" if is_floor else f"p50 {p50 / floor50:.2f} ×, p99 {p99 / floor99:.2f} × bare"
            told(f"{title}, {name}", f"{p50 * 1e3:.2f} ms", aim, good, f"p99 {p99 * 1e3:.2f} ms   {ratios}")


def in_flight(ways: Ways, rounds: int) -> None:
    """So many no-ops begun before the first one's end is read, over one WebSocket."""
    frames = b"".join(ways.socket.frame({"op": "start", "ch": ch, "argv": NOOP}) for ch in range(IN_FLIGHT))

    def by_daemon() -> None:
        ways.socket.socket.sendall(frames)
        for _ in range(IN_FLIGHT):
            check(ways.socket.end())

    def plain() -> None:
        for pid, reading in [spawn(NOOP) for _ in range(IN_FLIGHT)]:
            collect(pid, reading)

    plains, ours = list[float](), list[float]()
    for _ in range(max(rounds // 10, 10)):
        for way, seconds in ((plain, plains), (by_daemon, ours)):
            began = time.perf_counter()
            way()
            seconds.append((time.perf_counter() - began) / IN_FLIGHT)
    p50, floor = share(ours, 0.5), share(plains, 0.5)
    told(
        f"{IN_FLIGHT} in flight, each",
        f"{p50 * 1e3:.2f} ms",
        "≤ 1.5 × bare",
        p50 <= 1.5 * floor,
        f"{1 / p50:.0f}/s   {p50 / floor:.2f} × bare ({floor * 1e3:.2f} ms)",
    )


def stream(one: Running) -> None:
    line = BlockingSocket(one.path, TOKEN)
    argv = ["head", "-c", str(STREAM_BYTES), "/dev/zero"]
    with Memory({"daemon": [one.pid]}, every_seconds=0.01) as memory:
        began = time.perf_counter()
        line.socket.sendall(line.frame({"op": "start", "ch": 1, "argv": argv, "credit": STREAM_WINDOW}))
        came = owed = 0
        while True:
            opcode, payload = line.receive()
            if opcode == 2:
                came += len(payload) - 13
                owed += len(payload) - 13
                if owed >= STREAM_WINDOW // 4:
                    line.socket.sendall(line.frame({"op": "credit", "ch": 1, "bytes": owed}))
                    owed = 0
                continue
            message = json.loads(bytes(payload))
            if message["op"] == "exit":
                check(message)
                break
            if message["op"] in ("gap", "error"):
                raise RuntimeError(str(message))
        took = time.perf_counter() - began
    line.close()
    if came != STREAM_BYTES:
        raise RuntimeError(f"{came} bytes of {STREAM_BYTES} came")
    grew = memory.growth()["daemon"]
    told("1 GiB out of a command", f"{STREAM_BYTES / MIB / took:.0f} MiB/s", "all bytes", True)
    peak = memory.peak["daemon"]
    told(
        "  peak RSS meanwhile",
        f"{peak / MIB:.1f} MiB",
        "flat: + ≤ 16 MiB",
        grew <= 16 * MIB,
        f"grew {grew / MIB:.1f} MiB",
    )


@contextlib.contextmanager
def busy_processors() -> Iterator[None]:
    """Every processor spins meanwhile."""
    spinning = [
        os.posix_spawn("/bin/sh", ["sh", "-c", "while :; do :; done"], {}) for _ in range(os.cpu_count() or 1)
    ]
    try:
        time.sleep(0.2)
        yield
    finally:
        for pid in spinning:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--daemon", type=Path)
    given = parser.parse_args()
    if given.daemon is None:
        from worker.up.preflight import find_daemon

        given.daemon = find_daemon()
    load = os.getloadavg()[0]
    print(
        f"{given.daemon}, {os.cpu_count()} processors, load before {load:.1f}, {given.rounds} rounds of {NOOP[0]}\n"
    )
    size = given.daemon.stat().st_size
    told("binary", f"{size / MIB:.2f} MiB", "≤ 6 MB", size <= 6_000_000, f"{size:,} bytes")
    with tempfile.TemporaryDirectory(prefix="sm-d-") as folder:
        starter = Starter(given.daemon.resolve(), Path(folder))
        try:
            starts(starter)
            one = starter.prepare()()
            one.healthy()
            ways = Ways(one)
            ways.compare(given.rounds, "no-op", 1.5)
            in_flight(ways, given.rounds)
            stream(one)
            with busy_processors():
                ways.compare(max(given.rounds // 3, 20), "processors busy", 1.5)
        finally:
            starter.end_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
