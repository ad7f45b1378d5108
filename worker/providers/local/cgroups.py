"""One sandbox's cgroups: made with limits, joined from outside before the sandbox runs, killed, removed.

The paths are kept in the sandbox's state, because the next service may run in another cgroup and would look elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from worker.providers.local.hierarchy import Bases, make_folder

CPU_PERIOD_US = 100_000
"""The kernel's own default; ten times less costs switches, ten times more makes a throttled command stutter visibly."""
CPU_QUOTA_US_MIN = 1_000
"""The kernel refuses less."""


DAEMON_PIDS = 64
"""Processes and threads beyond what was asked for. Commands are held to what was asked for by the daemon, with RLIMIT_NPROC; the
rest is the daemon's own: its runtime would end it if it could not start a thread because a fork bomb took the last one."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_bytes: int
    cpu: float
    pids: int
    """What commands may use."""
    disk_bytes: int

    @property
    def pids_in_all(self) -> int:
        return self.pids + DAEMON_PIDS


def make(bases: Bases, sandbox_id: str, limits: Limits) -> list[Path]:
    """Idempotent. Raises OSError."""
    for controller, base in bases.folders.items():
        folder = base / sandbox_id
        make_folder(folder)
        for name, value, required in limit_files(controller, bases.versions[controller], limits):
            try:
                (folder / name).write_text(value)
            except OSError:
                if required:
                    raise
    return bases.sandbox_folders(sandbox_id)


def limit_files(controller: str, version: str, limits: Limits) -> list[tuple[str, str, bool]]:
    """(file, value, required) in the order to write them. Not required: files that only some kernels have."""
    quota = max(CPU_QUOTA_US_MIN, round(limits.cpu * CPU_PERIOD_US))
    if controller == "pids":
        return [("pids.max", str(limits.pids_in_all), True)]
    if version == "cgroup-v2":
        if controller == "memory":
            return [
                ("memory.max", str(limits.memory_bytes), True),
                ("memory.swap.max", "0", False),
            ]
        return [("cpu.max", f"{quota} {CPU_PERIOD_US}", True)]
    if controller == "memory":
        return [
            ("memory.limit_in_bytes", str(limits.memory_bytes), True),
            # Memory and swap together; exists only where the kernel accounts swap.
            ("memory.memsw.limit_in_bytes", str(limits.memory_bytes), False),
        ]
    return [
        ("cpu.cfs_period_us", str(CPU_PERIOD_US), True),
        ("cpu.cfs_quota_us", str(quota), True),
    ]


def join(folders: list[Path], pid: int) -> None:
    for folder in folders:
        (folder / "cgroup.procs").write_text(str(pid))


def members(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def oom_kills(folder: Path) -> int:
    """How often the kernel killed in this memory cgroup; 0 when it cannot be told."""
    for name in ("memory.oom_control", "memory.events"):
        with contextlib.suppress(OSError):
            for line in (folder / name).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    return 0


def kill_members(folder: Path) -> bool:
    """Send SIGKILL to all; True when nobody was left."""
    pids = members(folder)
    if not pids:
        return True
    try:
        # Version 2, Linux 5.14 and later: one write that no fork can outrun.
        (folder / "cgroup.kill").write_text("1")
        return False
    except OSError:
        pass
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # Still a member after the descriptor pinned it, so it is no stranger with a recycled pid.
            if pid in members(folder):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(fd)
    return False


def remove(folders: list[Path], deadline: float) -> list[Path]:
    """Kill whoever is left in them and remove them. Returns those that could not be removed by `deadline` (time.monotonic())."""
    left = [folder for folder in folders if folder.exists()]
    pause = 0.001
    while left:
        still = []
        for folder in left:
            if not kill_members(folder):
                still.append(folder)
                continue
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                # EBUSY: the last member is a zombie, or the kernel is still uncharging it.
                still.append(folder)
        left = still
        if left:
            if time.monotonic() > deadline:
                break
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
    return left


def leftovers(bases: Bases) -> set[str]:
    """Names of all sandboxes of this installation that have a cgroup under today's bases."""
    found: set[str] = set()
    for base in bases.folders.values():
        with contextlib.suppress(OSError):
            found.update(entry.name for entry in os.scandir(base) if entry.is_dir())
    return found
