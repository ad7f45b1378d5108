"""Starts processes that cannot outlive the supervisor, and reaps whatever ends.

The kernel does the hard part. PR_SET_PDEATHSIG kills each child when the supervisor dies in whatever way; the child checks its
parent after setting it, so a supervisor that died in between is noticed too. PR_SET_CHILD_SUBREAPER makes the supervisor the
parent of what its descendants leave behind: sandboxes are handed over to it that way, so they live on when the worker that made
them is killed, and die with the supervisor.

Plain fork rather than subprocess: one waitpid(-1) loop must reap children and adopted sandboxes alike, and `subprocess` and
asyncio's watchers would fight it over exit statuses. Forking is safe here because the supervisor has a single thread, and
PR_SET_PDEATHSIG needs that too: it fires when the forking *thread* ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """For a process that was not started by `spawn`."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: Path,
    keep: Sequence[int] = (),
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> int:
    """Start `argv` in a session of its own and return its pid.

    `keep` are descriptors it inherits under their numbers. Without `stdin` it reads nothing, without `stdout` and `stderr` it
    writes to ours. In a session of its own the terminal's Ctrl-C reaches the supervisor alone, which ends the others in order.
    """
    supervisor = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin, 0)
        if stdout is not None:
            os.dup2(stdout, 1)
        if stderr is not None:
            os.dup2(stderr, 2)
        for descriptor in keep:
            os.set_inheritable(descriptor, True)
        os.chdir(cwd)
        os.execve(argv[0], list(argv), dict(env))
    except BaseException as error:
        os.write(2, f"sandman: cannot start {argv[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def reap() -> list[tuple[int, int]]:
    """Everything that has ended by now: (pid, exit code; -n when killed by signal n). Never blocks."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def children_of(pid: int) -> list[int]:
    """Direct children by the kernel's own list; falls back to a scan where the kernel was built without it."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    fields = (entry / "stat").read_text().rpartition(") ")[2].split()
                except OSError:
                    continue
                if int(fields[1]) == pid:
                    found.append(int(entry.name))
        return found
