"""Starting a process that is not our child, and that does nothing until we say so.

bubblewrap must die with the supervisor and outlive the worker that makes it, but `--die-with-parent` binds it to whoever is its
parent when it starts. So a shell forks a child that waits on a pipe; the shell is ended, the kernel gives the child to the nearest
subreaper (the supervisor), and only then the pipe says "go" and the child becomes bubblewrap. If the worker is killed before that,
the pipe ends and so does the child: nothing has happened.

The child is the shell's foreground subshell, not a background job: shells start background jobs with SIGINT and SIGQUIT ignored,
and every command in the sandbox would inherit that. No preexec_fn: the worker has threads.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from worker.providers.local.errors import Interrupted, LaunchFailed
from worker.providers.local.processes import ProcessRef, reference

# $1 is how many of the arguments after it are pairs for ulimit. "$$" would be the outer shell's pid; /proc/self is whoever opens
# it. The trailing ":" keeps a shell from optimising the fork away.
SCRIPT = """\
(n=$1; shift
while [ "$n" -gt 0 ]; do ulimit "$1" "$2" || exit 1; shift 2; n=$((n - 1)); done
read -r pid rest </proc/self/stat && echo "$pid" && read -r go && exec "$@" </dev/null >/dev/null); :"""
ANSWER_SECONDS = 15.0
"""For a shell to start and say its pid; milliseconds on an idle machine."""


class Gate:
    """A process that waits. `open` lets it run; leaving the context without that ends it."""

    def __init__(self, process: ProcessRef, write_end: int) -> None:
        self.process = process
        self._write_end = write_end

    def open(self) -> None:
        """Raises LaunchFailed when it did not wait for us."""
        try:
            os.write(self._write_end, b"go\n")
        except BrokenPipeError as error:
            raise LaunchFailed("the waiting process was killed before it could start") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write_end)


def hold(
    argv: Sequence[str],
    *,
    inherit: Sequence[int],
    stderr: int,
    ulimits: Sequence[str] = (),
    user: tuple[int, int] | None = None,
) -> Gate:
    """Start `argv` up to the gate, with nothing but `inherit` and the standard three open, and an empty environment. `ulimits`: pairs
    of an option and a value; `user`: the (uid, gid) to become. Raises OSError, Interrupted, LaunchFailed."""
    answer_read, answer_write = os.pipe2(os.O_CLOEXEC)
    gate_read, gate_write = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            shell = subprocess.Popen(
                ["/bin/sh", "-c", SCRIPT, "sandman-gate", str(len(ulimits) // 2), *ulimits, *argv],
                stdin=gate_read,
                stdout=answer_write,
                stderr=stderr,
                env={},
                cwd="/",
                pass_fds=inherit,
                start_new_session=True,
                user=None if user is None else user[0],
                group=None if user is None else user[1],
                extra_groups=None if user is None else [],
            )
        finally:
            os.close(answer_write)
            os.close(gate_read)
        try:
            pid = _read_pid(answer_read)
        finally:
            shell.kill()
            shell.wait(timeout=ANSWER_SECONDS)
        process = reference(pid)
        if process is None:
            raise LaunchFailed("the waiting process was killed before it could start")
    except BaseException:
        os.close(gate_write)
        raise
    finally:
        os.close(answer_read)
    return Gate(process, gate_write)


def _read_pid(fd: int) -> int:
    line = b""
    while not line.endswith(b"\n"):
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if not poll.poll(ANSWER_SECONDS * 1000):
            raise Interrupted(f"/bin/sh did not start within {ANSWER_SECONDS:g} s")
        chunk = os.read(fd, 32)
        if not chunk:
            raise LaunchFailed("/bin/sh ended before it reached the gate")
        line += chunk
    return int(line)
