"""Limits of last resort, for machines without usable cgroups, and the ones that every sandbox gets.

The gate's shell sets them before it becomes bubblewrap, except for the number of processes: the kernel counts those per user *and
user namespace*, so that one is set once the sandbox is in its own.

Memory: RLIMIT_DATA, not RLIMIT_AS. Go, Java and Node reserve address space by the gigabyte and never touch it; RLIMIT_AS would stop
them at start, RLIMIT_DATA counts only private writable memory. It holds for each process, not for their sum. CPU has no
counterpart (RLIMIT_CPU ends a process instead of slowing it), so it is not limited then. Disk: RLIMIT_FSIZE bounds each file.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from worker.providers.local.cgroups import Limits
from worker.providers.local.hierarchy import Bases

MEMORY_FLOOR = 192 * 1024**2
"""The limit holds for the daemon too, and its runtime maps its heap in pieces of 64 MiB, writable from the start: one piece and
what is around it are 78 MiB. With a second one it still lives."""
OPEN_FILES = 65_536
"""Soft and hard, at most the service's own. Programs that walk over all possible descriptors get slow with much more."""
OOM_SCORE = 300
"""When the whole machine runs out of memory, a sandbox goes before the service does."""


def enforcement(bases: Bases) -> dict[str, str]:
    """Limit → how it is enforced on this machine: what the record of every sandbox says."""
    fallback = {"memory": "rlimit", "cpu": "none", "pids": "rlimit" if counts_per_namespace() else "none"}
    return {
        **{limit: bases.versions.get(limit, fallback[limit]) for limit in ("memory", "cpu", "pids")},
        "disk": "rlimit",
    }


def counts_per_namespace() -> bool:
    """Since Linux 5.14 RLIMIT_NPROC is counted per user namespace; before, all sandboxes would share one count."""
    release = Path("/proc/sys/kernel/osrelease").read_text().split(".")
    digits = [int("".join(c for c in part if c.isdigit()) or 0) for part in release[:2]]
    return (digits[0], digits[1]) >= (5, 14)


def for_shell(enforced: dict[str, str], limits: Limits) -> list[str]:
    """`ulimit` options for the gate: a root without CAP_SYS_RESOURCE (most containers) may not set them on another user's process
    from outside. Units are those that POSIX gives a shell named sh."""
    files = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    options = ["-c", "0", "-n", str(files), "-f", str(max(1, limits.disk_bytes // 512))]
    if enforced["memory"] == "rlimit":
        options += ["-d", str(max(limits.memory_bytes, MEMORY_FLOOR) // 1024)]
    return options


def prefer_for_oom(pid: int) -> None:
    # Raising a score needs no privilege; where it cannot be done it is not worth failing for.
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(OOM_SCORE))


def apply_inside(pid: int, enforced: dict[str, str], limits: Limits) -> dict[str, str]:
    """To the sandbox's first process, once it runs in its own user namespace. Returns what is enforced after all."""
    if enforced["pids"] != "rlimit":
        return enforced
    try:
        resource.prlimit(pid, resource.RLIMIT_NPROC, (limits.pids_in_all, limits.pids_in_all))
    except OSError:
        return {**enforced, "pids": "none"}
    return enforced
