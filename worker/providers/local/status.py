"""What bubblewrap wrote about a sandbox, and what is to be said about its end.

The worker is not bubblewrap's parent and cannot wait for it, so the exit status comes from bubblewrap's own report. Without one,
nothing is made up: then bubblewrap itself was killed, which the supervisor's death does on purpose.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from app.ledger.model import Reason
from worker.providers.local.cgroups import oom_kills
from worker.providers.local.processes import ProcessRef, boot_id, namespace_of, parent_of, reference
from worker.providers.local.state import SandboxState

REPORT_BYTES_MAX = 16 * 1024
LOG_TAIL_BYTES = 64 * 1024
SAID_MAX = 500
KILLED = 128 + 9
_CRASH = re.compile(r"^(?:fatal error|panic|runtime): .*$", re.MULTILINE)
_SHORTAGE = re.compile(r"allocate|out of memory|newosproc|OS thread|pthread_create|thread exhaustion")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    child: int | None = None
    """The sandbox's first process, by its pid outside."""
    pid_namespace: int | None = None
    exit_code: int | None = None

    def init(self, outer_pid: int) -> ProcessRef | None:
        """The first process, if it still is the one that was reported: in the namespace that was (which another user's process, or
        one that made itself undumpable, does not show), or a child of bubblewrap."""
        if self.child is None:
            return None
        found = reference(self.child)
        if found is None:
            return None
        if namespace_of(self.child, "pid") != self.pid_namespace and parent_of(self.child) != outer_pid:
            return None
        return found


def read_report(path: Path) -> Report:
    """What is there so far; a line that is only half written is not."""
    try:
        with path.open("rb") as stream:
            content = stream.read(REPORT_BYTES_MAX)
    except OSError:
        return Report()
    found: dict[str, int] = {}
    for line in content.splitlines():
        try:
            found.update(msgspec.json.decode(line, type=dict[str, int]))
        except msgspec.DecodeError:
            continue
    return Report(found.get("child-pid"), found.get("pid-namespace"), found.get("exit-code"))


def told(path: Path, sandbox: str) -> str:
    """What the sandbox's log says at its end, as a sentence for the caller. A crash of the daemon writes pages of a stack trace:
    that goes into the service's own log, for whoever can do something with it."""
    said = log_tail(path)
    crash = _CRASH.search(said)
    if crash is None:
        return said[-SAID_MAX:]
    log.error("local.daemon_crashed", sandbox=sandbox, trace=said)
    shortage = "; its limits of memory or processes may be too small" if _SHORTAGE.search(said) else ""
    return f"it crashed ({crash[0][:200]}){shortage}"


def log_tail(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(-min(LOG_TAIL_BYTES, os.fstat(stream.fileno()).st_size), os.SEEK_END)
            return stream.read(LOG_TAIL_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def why_gone(state: SandboxState, folder: Path) -> tuple[Reason, str]:
    """Of a sandbox whose processes are gone while nobody deleted it."""
    if state.boot != boot_id():
        return Reason.NODE_LOST, "the machine was started anew"
    if state.phase in ("preparing", "deleting"):
        return Reason.NODE_LOST, "a leftover: its creation or removal was interrupted"
    report = read_report(folder / "status.json")
    if report.exit_code is None:
        return Reason.NODE_LOST, "its processes were killed from outside, or its supervisor ended"
    if report.exit_code == KILLED and state.memory_cgroup and oom_kills(Path(state.memory_cgroup)) > 0:
        return Reason.OOM_KILLED, "the sandbox's memory limit was reached and its daemon was killed"
    said = told(folder / "log", state.id)
    ended = (
        f"was killed by signal {report.exit_code - 128}"
        if report.exit_code > 128
        else f"ended with exit status {report.exit_code}"
    )
    return Reason.EXITED, f"the sandbox's daemon {ended}" + (f": {said}" if said else "")
