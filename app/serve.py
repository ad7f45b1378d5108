"""Run the API on Granian: `python -m app.serve`.

Three things differ from Granian's defaults, each for a reason that was tried out:
- The signal that stops a worker first starts our own drain (`app/drain.py`); Granian alone waits for long answers for ever and
  cuts WebSockets without a word.
- A waiting create occupies a request for minutes, and Granian stops *reading requests* at `backpressure`. Below the number of
  waiting creates, /health would wait behind them.
- The listening socket hands keep-alive probes and a user time-out to every connection (`app/listener.py`), because a caller
  that vanished without a FIN would otherwise hold leases until TCP gives up after a quarter of an hour.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any, Final

from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops
from granian.http import HTTP1Settings
from granian.log import LogLevels

from app.drain import KILL_SECONDS
from app.ledger.settings import Settings, SettingsError, read_settings

# Requests in flight in one process, waiting creates included. Each costs about 20 KB while it waits.
REQUESTS_MAX: Final = 20_000
# Connections that wait to be accepted; the kernel caps it at net.core.somaxconn.
BACKLOG: Final = 16_384
# Granian closes a kept-alive connection that is idle for this long. It must outlast the pools of common clients (75 s and
# less), or a request that goes out just then fails for no reason of its own.
IDLE_MILLISECONDS: Final = 150_000


def build_server(settings: Settings) -> Any:
    return Granian(
        "app.asgi:app",
        address=settings.host,
        port=settings.port,
        interface=Interfaces.ASGI,
        workers=1,
        loop=Loops.uvloop,
        http=HTTPModes.http1,
        backlog=BACKLOG,
        backpressure=REQUESTS_MAX,
        http1_settings=HTTP1Settings(header_read_timeout=IDLE_MILLISECONDS),
        workers_kill_timeout=KILL_SECONDS,
        log_level=LogLevels.warning,
        log_access=False,
        process_name=None,
    )


def install_drain(begin: Any) -> None:
    """In a worker, before its signals are set up: let `begin(stop)` run between the signal and the end.

    `begin` is called in the event loop at the first SIGTERM or SIGINT; it must call `stop` within its bound. A second signal
    stops at once. Granian offers no hook for this, so its own `set_loop_signals` is wrapped; without that name the server still
    runs, and stops as Granian does.
    """
    from granian import _signals

    original = getattr(_signals, "set_loop_signals", None)
    if original is None:  # pragma: no cover - another Granian
        return

    def set_loop_signals(loop: asyncio.AbstractEventLoop) -> Any:
        event = original(loop)
        seen = False

        def on_signal() -> None:
            nonlocal seen
            if seen:
                event.set()
                return
            seen = True
            begin(event.set)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        return event

    _signals.set_loop_signals = set_loop_signals


def main() -> int:
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        print(f"sandman api: {error}", file=sys.stderr)
        return 2
    build_server(settings).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
