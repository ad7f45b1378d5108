"""Naming a process so that a recycled pid is never mistaken for it, and ending it.

A pid alone means nothing after a crash: the start time (in clock ticks since boot) and the boot's id go with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything, blanks and parentheses too.
    return text[text.rindex(")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """When it started; None when it is gone or only waits to be reaped."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return int(fields[19])


def parent_of(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[1])


def name_of(pid: int) -> str | None:
    """The program's name, cut to 15 bytes by the kernel."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class ProcessRef:
    pid: int
    ticks: int
    boot: str

    def alive(self) -> bool:
        return self.pid > 0 and self.boot == boot_id() and start_ticks(self.pid) == self.ticks

    def open(self) -> int | None:
        """A pidfd of this very process, to be closed by the caller; None when it is gone."""
        if self.pid <= 0 or self.boot != boot_id():
            return None
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return None
        # Checked after opening: the descriptor pins the process, so what is true now stays true.
        if start_ticks(self.pid) != self.ticks:
            os.close(fd)
            return None
        return fd


def reference(pid: int) -> ProcessRef | None:
    ticks = start_ticks(pid)
    return None if ticks is None else ProcessRef(pid, ticks, boot_id())


def wait_ended(pidfd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0, round(seconds * 1000))))


def kill_and_wait(process: ProcessRef, deadline: float) -> bool:
    """End it with SIGKILL; True once it is gone. `deadline` is by time.monotonic()."""
    fd = process.open()
    if fd is None:
        return True
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        return wait_ended(fd, deadline - time.monotonic())
    finally:
        os.close(fd)


def namespace_of(pid: int, kind: str) -> int | None:
    """The inode that identifies the namespace a process is in; None when it is gone or may not be looked at."""
    try:
        link = os.readlink(f"/proc/{pid}/ns/{kind}")  # noqa: PTH115  (Path would tidy the text)
    except OSError:
        return None
    return int(link[link.index("[") + 1 : -1])
