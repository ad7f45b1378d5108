"""A TCP proxy as many stand in front of a service: it gives up a connection when its server was silent for too long.

What counts is only what comes from the server (nginx: proxy_read_timeout), whatever the caller sends.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

READ_BYTES = 64 * 1024


@dataclass
class IdleProxy:
    """`with IdleProxy(host, port, seconds) as proxy:`; `cuts` counts the connections that were given up."""

    host: str
    port: int
    idle_seconds: float
    connections: int = 0
    cuts: int = 0
    url: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)
    _listener: socket.socket = field(default_factory=socket.socket)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._begin(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in list(self._threads):
            thread.join(5)
        self._listener.close()

    def _begin(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stop.is_set():
            with suppress(TimeoutError):
                caller, _ = self._listener.accept()
                self.connections += 1
                self._begin(self._pass, caller)

    def _pass(self, caller: socket.socket) -> None:
        with (
            caller,
            socket.create_connection((self.host, self.port)) as server,
            selectors.DefaultSelector() as ready,
        ):
            for each in (caller, server):
                each.settimeout(30)
                ready.register(each, selectors.EVENT_READ)
            heard = time.monotonic()
            while not self._stop.is_set():
                if time.monotonic() - heard > self.idle_seconds:
                    self.cuts += 1
                    return
                for key, _ in ready.select(0.1):
                    source = key.fileobj
                    assert isinstance(source, socket.socket)
                    try:
                        data = source.recv(READ_BYTES)
                        if not data:
                            return
                        (server if source is caller else caller).sendall(data)
                    except OSError:
                        return
                    if source is server:
                        heard = time.monotonic()
