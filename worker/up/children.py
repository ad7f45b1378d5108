"""One process of the service: how it is started, and what happens when it dies although it should not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from worker.up.backoff import Backoff
from worker.up.folders import Folders
from worker.up.report import Report
from worker.up.spawn import spawn


@dataclass(frozen=True, kw_only=True)
class ChildPlan:
    name: str
    argv: tuple[str, ...]
    owns_group: bool
    """True when everything in its process group is its own. The worker's group may hold sandboxes on their way to us."""
    log: Path | None = None
    """Its output; None is the supervisor's own stderr."""


def python(module: str) -> tuple[str, ...]:
    # -P: the working directory is the data folder, and nothing in there may be imported.
    return (sys.executable, "-P", "-m", module)


def plan_children(folders: Folders, valkey: Path | None) -> list[ChildPlan]:
    """In the order they are started. Without `valkey` the ledger lies in a Redis that somebody else runs."""
    plans = []
    if valkey is not None:
        log = folders.logs / "valkey.log"
        plans.append(ChildPlan(name="valkey", argv=valkey_command(valkey, folders), owns_group=True, log=log))
    plans.append(ChildPlan(name="worker", argv=python("worker.rq_worker"), owns_group=False))
    plans.append(ChildPlan(name="loops", argv=python("worker.loops"), owns_group=False))
    plans.append(ChildPlan(name="app", argv=python("app.serve"), owns_group=True))
    return plans


def valkey_command(binary: Path, folders: Folders) -> tuple[str, ...]:
    """`appendfsync no` is the safe choice here, see docs/decisions/0003: everything answered is in the file's pages already."""
    options = {
        "port": "0",
        "unixsocket": str(folders.valkey_socket),
        "unixsocketperm": "600",
        "dir": str(folders.redis),
        "appendonly": "yes",
        "appendfsync": "no",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "notice",
    }
    return (str(binary), *(word for name, value in options.items() for word in (f"--{name}", value)))


class Child:
    """Keeps one process running until `stop`. Must be told of its death (`died`): the supervisor reaps for all."""

    def __init__(self, plan: ChildPlan, env: Mapping[str, str], folders: Folders, report: Report) -> None:
        self.plan = plan
        self.pid: int | None = None
        self.restarts = 0
        self._env = env
        self._folders = folders
        self._report = report
        self._backoff = Backoff()
        self._started = 0.0
        self._again: asyncio.TimerHandle | None = None
        self._stopping = False
        self._ended = asyncio.Event()

    @property
    def failures(self) -> int:
        """Deaths in a row without a healthy while between them."""
        return self._backoff.failures

    @property
    def started(self) -> bool:
        """Whether it ever ran."""
        return self._started > 0

    def start(self) -> None:
        self._again = None
        self._started = time.monotonic()
        self._ended.clear()
        log = None
        if self.plan.log is not None:
            log = os.open(self.plan.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self.pid = spawn(
                self.plan.argv,
                self._env,
                cwd=self._folders.data,
                keep=(self._folders.children_lock,),
                stdout=2 if log is None else log,
                stderr=log,
            )
        finally:
            if log is not None:
                os.close(log)

    def died(self, code: int) -> None:
        """Clean up behind it and, unless it was meant to end, start it again after the back-off."""
        lived = time.monotonic() - self._started
        if self.plan.owns_group and self.pid is not None:
            # Processes that it had started itself would keep its port or socket from its successor.
            _signal_group(self.pid, signal.SIGKILL)
        self.pid = None
        self._ended.set()
        if self._stopping:
            return
        delay = self._backoff.delay(lived)
        self.restarts += 1
        self._report.say(
            "child_died",
            f"{self.plan.name} {how_it_ended(code)} after {lived:.1f} s; starting it again in {delay:g} s{self._last_words()}",
            child=self.plan.name,
            code=code,
            lived_seconds=round(lived, 1),
            delay_seconds=delay,
        )
        self._again = asyncio.get_running_loop().call_later(delay, self._start_again)

    def _start_again(self) -> None:
        try:
            self.start()
        except OSError as error:
            # No process or descriptor to be had, or a full disk: that passes, and nobody else would try again.
            delay = self._backoff.delay(0.0)
            self._report.say(
                "child_not_started",
                f"{self.plan.name} cannot be started: {error}; trying again in {delay:g} s",
                child=self.plan.name,
                delay_seconds=delay,
            )
            self._again = asyncio.get_running_loop().call_later(delay, self._start_again)

    def cease(self) -> None:
        """From now on its death is final."""
        self._stopping = True
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            if self.plan.owns_group and number == signal.SIGKILL:
                _signal_group(self.pid, number)
            else:
                os.kill(self.pid, number)

    async def stop(self, seconds: float) -> bool:
        """SIGTERM, then SIGKILL after `seconds`. False when it had to be killed."""
        self.cease()
        self.signal(signal.SIGTERM)
        if await self._wait(seconds):
            return True
        self.signal(signal.SIGKILL)
        await self._wait(1.0)
        return False

    async def _wait(self, seconds: float) -> bool:
        if self.pid is None:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def _last_words(self) -> str:
        if self.plan.log is None:
            return ""
        lines = self.plan.log.read_text(errors="replace").splitlines()[-3:] if self.plan.log.exists() else []
        return "".join(f"\n         {line[:200]}" for line in lines)


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        pass


def make_environment(
    settings: Mapping[str, str], service_root: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """What the children see. Settings go by environment because argv can be read by every user of the machine."""
    env = {
        name: value
        for name, value in inherited.items()
        if name not in {"PYTHONPATH", "PYTHONHOME", "NOTIFY_SOCKET"}
    }
    env["PYTHONPATH"] = str(service_root)
    env["PYTHONUNBUFFERED"] = "1"
    env.update(settings)
    return env
