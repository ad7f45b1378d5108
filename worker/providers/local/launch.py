"""From a prepared workspace to a running daemon.

Each step is written into the sandbox's state before the next one, so that whoever finds the state later knows how far it came; the
process that the state names cannot run before it is named there, limited and in its cgroups. The daemon's configuration comes last:
without it the daemon ends, so a launch that was killed half way, or whose supervisor was, ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from worker.providers.local import cgroups, rlimits
from worker.providers.local.arguments import DAEMON_INSIDE, SandboxPlan, bwrap_argv
from worker.providers.local.cgroups import Limits
from worker.providers.local.errors import Interrupted, LaunchFailed
from worker.providers.local.gate import hold
from worker.providers.local.processes import name_of, parent_of, reference, wait_ended
from worker.providers.local.state import SandboxState
from worker.providers.local.status import Report, read_report, told
from worker.providers.local.workspace import Workspace, open_log, open_status

BACKLOG = 1024
"""Connections that may wait while the daemon starts: a burst of callers must not be refused."""
START_SECONDS = 20.0
"""From bubblewrap's start to the daemon's; about 10 ms on an idle machine, seconds when a burst of 200 shares two cores."""
DAEMON_NAME = Path(DAEMON_INSIDE).name


@dataclass(frozen=True, slots=True)
class Launch:
    workspace: Workspace
    plan: SandboxPlan
    """Its descriptors are filled in here."""
    bwrap: Path
    socket_path: Path
    config: dict[str, object]
    """The daemon's, without `listen`. It goes through a pipe: it never lies on a disk or in an argument list, and a daemon whose maker
    was killed reads nothing and ends."""
    limits: Limits
    cgroups: list[Path]
    user: tuple[int, int] | None
    service_parent: int
    """Who this process's parent was when the service started."""


def start(launch: Launch, note: Callable[[SandboxState], None], state: SandboxState) -> SandboxState:
    """Run it until the daemon has its configuration. Raises LocalError, OSError; the caller tears down."""
    with contextlib.ExitStack() as stack:

        def own(fd: int) -> int:
            stack.callback(os.close, fd)
            return fd

        listener = stack.enter_context(listen(launch.socket_path))
        config_read, config_write = os.pipe2(os.O_CLOEXEC)
        config, status, log = (
            own(config_read),
            own(open_status(launch.workspace)),
            own(open_log(launch.workspace)),
        )
        lifeline = stack.enter_context(os.fdopen(config_write, "wb", buffering=0))
        plan = replace(launch.plan, status_fd=status, config_fd=config)
        with hold(
            bwrap_argv(launch.bwrap, plan),
            inherit=(listener.fileno(), config, status),
            stderr=log,
            ulimits=rlimits.for_shell(state.enforced, launch.limits),
            user=launch.user,
        ) as gate:
            supervisor = parent_of(gate.process.pid)
            state = msgspec.structs.replace(
                state, phase="launching", pid=gate.process.pid, ticks=gate.process.ticks
            )
            note(state)
            cgroups.join(launch.cgroups, gate.process.pid)
            rlimits.prefer_for_oom(gate.process.pid)
            gate.open()
            report = wait_started(state, launch.workspace.path)
        # By now both of bubblewrap's processes have asked to die with their parents. If the supervisor died before that, nobody
        # will ever end them: so a daemon gets its configuration only while everything above it is still in place.
        if parent_of(state.pid) != supervisor or os.getppid() != launch.service_parent:
            raise LaunchFailed("the supervisor has ended")
        content = msgspec.json.encode({**launch.config, "listen": f"fd:{listener.fileno()}"})
        _write_all(lifeline.fileno(), content)
    return finish(state, report, launch.limits)


def finish(state: SandboxState, report: Report, limits: Limits) -> SandboxState:
    """What remains to be done to a daemon that has just started; idempotent. Raises LaunchFailed."""
    init = None if report.child is None else reference(report.child)
    if init is None:
        raise LaunchFailed("the sandbox's daemon ended at once")
    return msgspec.structs.replace(
        state,
        phase="running",
        enforced=rlimits.apply_inside(init.pid, state.enforced, limits),
        init_pid=init.pid,
        init_ticks=init.ticks,
    )


def wait_started(state: SandboxState, folder: Path) -> Report:
    """Until bubblewrap's child has become the daemon. Raises LaunchFailed with what bubblewrap said, Interrupted."""
    deadline = time.monotonic() + START_SECONDS
    pidfd = state.process.open()
    pause = 0.004
    try:
        while True:
            report = read_report(folder / "status.json")
            if report.child is not None and name_of(report.child) == DAEMON_NAME:
                return report
            if pidfd is None or wait_ended(pidfd, pause):
                said = told(folder / "log", state.id) or "it was killed"
                raise LaunchFailed(f"the sandbox's first process ended before it was usable: {said}")
            if time.monotonic() > deadline:
                raise Interrupted(f"the sandbox's daemon did not start within {START_SECONDS:g} s")
            pause = min(pause * 1.5, 0.1)
    finally:
        if pidfd is not None:
            os.close(pidfd)


def listen(path: Path) -> socket.socket:
    """The daemon's socket, made out here: nothing of it can be seen, replaced or connected to from inside. The folder is 0700."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _write_all(fd: int, content: bytes) -> None:
    """Raises LaunchFailed when the reader is gone, Interrupted when it does not read."""
    os.set_blocking(fd, False)
    deadline = time.monotonic() + START_SECONDS
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while content:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise Interrupted("the sandbox's daemon does not read its configuration")
        try:
            content = content[os.write(fd, content) :]
        except BlockingIOError:
            continue
        except BrokenPipeError as error:
            raise LaunchFailed("the sandbox's daemon ended at once") from error
