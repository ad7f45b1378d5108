"""Runs the service's processes from the first start to the last reaped child.

The order of starting: Valkey until it answers, then worker, loops and API together. The order of stopping is in `_stop`; both are
told in docs/operations.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from worker.up import http
from worker.up.children import Child, ChildPlan
from worker.up.drainer import Drainer
from worker.up.folders import Folders
from worker.up.keys import write_private
from worker.up.options import default_data_dir
from worker.up.preflight import SERVICE_ROOT
from worker.up.report import Report
from worker.up.spawn import children_of, reap
from worker.up.status import StatusLine

VALKEY_START_SECONDS = 60.0
"""A long append-only file is read at about 100 MB/s."""
READY_NOTE_SECONDS = 15.0
"""How long the service may take to become ready before it is said what is missing."""
FATAL_FAILURES = 5
"""Deaths in a row before the service was ever ready: it will not come up by being tried again."""
STATUS_SECONDS = {"text": 2.0, "json": 30.0}
"""Between two looks at the counts. Each is a request, and a log line of it in json; collectors have /metrics for more."""

DEFAULT_URL = "http://127.0.0.1:8700"

# Stopping, in seconds from the signal: 10 are promised. docs/operations.md repeats this table.
APP_SECONDS = 3.0
"""Until then open answers may finish; waiting creates are answered with an error that says why."""
DRAIN_UNTIL = 7.5
"""Until then sandboxes are taken back one by one, with their reclaim written down."""
WORKERS_SECONDS = 0.8
VALKEY_SECONDS = 1.0


class Supervisor:
    def __init__(
        self,
        folders: Folders,
        plans: list[ChildPlan],
        env: Mapping[str, str],
        *,
        host: str,
        port: int,
        key: str | None,
        report: Report,
    ) -> None:
        self._folders = folders
        self._env = env
        self._host = host
        self._port = port
        self._key = key
        self._report = report
        self._children = {plan.name: Child(plan, env, folders, report) for plan in plans}
        self._drainer = Drainer(env, folders)
        self._stop_asked = asyncio.Event()
        self._at_once = asyncio.Event()
        self._was_ready = False

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(
            self._host, f"[{self._host}]" if ":" in self._host else self._host
        )
        return f"http://{host}:{self._port}"

    async def run(self) -> int:
        """Returns the exit status. Nothing of the service is alive afterwards."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._asked_to_stop, number)
        status = 1
        serving = asyncio.create_task(self._serve())
        stopping = asyncio.create_task(self._stop_asked.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            else:
                status = 0
        finally:
            serving.cancel()
            orderly = asyncio.create_task(self._stop())
            hurried = asyncio.create_task(self._at_once.wait())
            await asyncio.wait({orderly, hurried}, return_when=asyncio.FIRST_COMPLETED)
            if self._at_once.is_set():
                orderly.cancel()
                status = 130
            await self._end_everything()
            self._remove_traces()
        self._report.say("stopped", "stopped; nothing is left running")
        return status

    # Starting and watching

    async def _serve(self) -> None:
        """Returns only when the service cannot be brought up."""
        valkey = self._children.get("valkey")
        if valkey is not None:
            self._report.say("starting", "starting Valkey (the ledger)")
            valkey.start()
            if not await self._valkey_answers(valkey):
                self._report.say("gave_up", f"Valkey does not start; its messages are in {valkey.plan.log}")
                return
        self._report.say("starting", "starting worker, loops and API")
        for child in self._children.values():
            if child is not valkey:
                child.start()
        if not await self._ready():
            return
        self._was_ready = True
        self._announce()
        await self._show_status()

    async def _valkey_answers(self, valkey: Child) -> bool:
        deadline = time.monotonic() + VALKEY_START_SECONDS
        while time.monotonic() < deadline and valkey.failures < FATAL_FAILURES:
            if valkey.pid is not None and await _redis_ping(self._folders.valkey_socket):
                return True
            await asyncio.sleep(0.02)
        return False

    async def _ready(self) -> bool:
        started = time.monotonic()
        noted = False
        while True:
            answer = await http.get(self._host, self._port, "/health/ready")
            if answer is not None and answer.status == 200:
                return True
            for child in self._children.values():
                if child.failures >= FATAL_FAILURES:
                    self._report.say(
                        "gave_up",
                        f"{child.plan.name} died {child.failures} times before the service was ready; its messages are above",
                        child=child.plan.name,
                    )
                    return False
            if not noted and time.monotonic() - started > READY_NOTE_SECONDS:
                noted = True
                missing = answer.body if answer is not None else "the API does not answer yet"
                self._report.say("not_ready", f"not ready after {READY_NOTE_SECONDS:.0f} s: {missing}")
            await asyncio.sleep(0.05)

    def _announce(self) -> None:
        record = {"url": self.url, "pid": os.getpid(), "data_dir": str(self._folders.data)}
        write_private(self._folders.data / "service.json", json.dumps(record) + "\n")
        self._report.say("ready", f"ready at {self.url}", url=self.url)
        key_file = self._folders.data / "api-key"
        lines = [f"Sandman is ready: {self.url}", ""]
        if self._key is not None:
            lines += [f"console    {self.url}/   (log in with the key)"]
            lines += [f"API key    {self._key}", f"           in {key_file}", ""]
            lines += [
                "try it     " + line if number == 0 else "           " + line
                for number, line in enumerate(self._first_steps(key_file))
            ]
        else:
            lines += [f"console    {self.url}/   (log in with a key; `sandman keys list` shows their names)"]
        lines += ["", "Ctrl-C stops it and takes back every sandbox; a second one stops at once."]
        self._report.banner(lines)

    def _first_steps(self, key_file: Path) -> list[str]:
        """What to type elsewhere. The command line finds the default address and key file by itself."""
        program = "./sandman" if (SERVICE_ROOT / "sandman").is_file() else "sandman"
        steps = [] if self.url == DEFAULT_URL else [f"export SANDMAN_URL={self.url}"]
        if key_file.parent != default_data_dir():
            steps.append(f"export SANDMAN_API_KEY_FILE={key_file}")
        return [*steps, f"{program} run -- echo hello from a sandbox"]

    async def _show_status(self) -> None:
        line = StatusLine()
        while True:
            await asyncio.sleep(STATUS_SECONDS[self._report.format])
            answer = await http.get(self._host, self._port, "/v1/stats", key=self._key)
            text = line.changed(answer.body if answer is not None and answer.status == 200 else None)
            if text is not None:
                self._report.say("status", text, **line.fields)

    def _asked_to_stop(self, number: signal.Signals) -> None:
        if self._stop_asked.is_set() and number == signal.SIGINT:
            self._at_once.set()
        self._stop_asked.set()

    def _reap(self) -> None:
        for pid, code in reap():
            if self._drainer.died(pid, code):
                continue
            for child in self._children.values():
                if child.pid == pid:
                    child.died(code)
                    break
            # Anything else was a sandbox handed over to us, or a process left behind by a child: reaping it was all.

    # Stopping

    async def _stop(self) -> None:
        """Stop in order: nobody new (API), everybody out (drain and loops), then those who worked on it, the ledger last."""
        began = time.monotonic()
        self._report.say(
            "stopping", "stopping: no new requests; taking back every sandbox (Ctrl-C again: at once)"
        )
        app, valkey = self._children["app"], self._children.get("valkey")
        # The API's end is final now, the others are still restarted if they die: the drain needs them.
        app.cease()
        if app.started:
            self._drainer.start()
            await app.stop(APP_SECONDS)
            if await self._drainer.finish(began + DRAIN_UNTIL - time.monotonic()):
                self._report.say("drained", "every sandbox is taken back")
            else:
                self._report.say(
                    "drain_late",
                    "some sandboxes were not taken back in time; killing them, the next start cleans up",
                )
        workers = [child for name, child in self._children.items() if name in {"worker", "loops"}]
        await asyncio.gather(*(child.stop(WORKERS_SECONDS) for child in workers))
        self._kill_adopted()
        if valkey is not None:
            await valkey.stop(VALKEY_SECONDS)

    def _kill_adopted(self) -> None:
        """SIGKILL what was handed over to us: sandboxes that the drain did not get to, left-behind helpers of a child."""
        own = {child.pid for child in self._children.values()}
        for pid in children_of(os.getpid()):
            if pid not in own:
                _kill(pid)

    async def _end_everything(self) -> None:
        """SIGKILL whatever is still a child of ours, until there is none. Sandboxes die with their first process."""
        for child in self._children.values():
            child.cease()
        deadline = time.monotonic() + 2.0
        while (left := children_of(os.getpid())) and time.monotonic() < deadline:
            for child in self._children.values():
                child.signal(signal.SIGKILL)
            for pid in left:
                _kill(pid)
            await asyncio.sleep(0.02)

    def _remove_traces(self) -> None:
        (self._folders.data / "service.json").unlink(missing_ok=True)
        self._folders.release()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


async def _redis_ping(path: Path) -> bool:
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(b"PING\r\n")
                return await reader.readline() == b"+PONG\r\n"
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
