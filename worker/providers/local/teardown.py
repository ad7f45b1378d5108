"""Taking everything of a sandbox away, in an order that can be interrupted anywhere and begun again.

Processes first (nothing can write or fork any more), then cgroups, the socket, the files, and the state that names them all last.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from worker.providers.local import cgroups
from worker.providers.local.errors import Interrupted
from worker.providers.local.folders import Folders
from worker.providers.local.hierarchy import Bases
from worker.providers.local.processes import ProcessRef, kill_and_wait, reference
from worker.providers.local.removal import remove_tree
from worker.providers.local.state import SandboxState, forget
from worker.providers.local.status import read_report

KILL_SECONDS = 10.0
"""For the kernel to end every process: one that writes out a lot of memory or hangs in a broken disk takes long."""
UNLINK_SECONDS = 5.0
"""For unlinking within the call. A bigger tree is out of its place already, and the sweep goes on with it."""


def tear_down(folders: Folders, bases: Bases, sandbox_id: str, state: SandboxState | None) -> bool:
    """The caller holds the sandbox's lock. True when its files are unlinked too, False when that goes on in the trash. Raises
    Interrupted (to be tried again), OSError."""
    deadline = time.monotonic() + KILL_SECONDS
    places = [Path(path) for path in state.cgroups] if state is not None else []
    places = list(dict.fromkeys([*places, *bases.sandbox_folders(sandbox_id)]))
    _end_processes(folders, sandbox_id, state, places, deadline)
    left = cgroups.remove(places, deadline)
    if left:
        raise Interrupted(f"processes of {sandbox_id} do not end ({left[0]})")
    folders.socket(sandbox_id).unlink(missing_ok=True)
    done = remove_tree(folders.sandbox(sandbox_id), folders.trash, time.monotonic() + UNLINK_SECONDS)
    forget(folders, sandbox_id)
    return done


def _end_processes(
    folders: Folders, sandbox_id: str, state: SandboxState | None, places: list[Path], deadline: float
) -> None:
    folder = folders.sandbox(sandbox_id)
    # Before anything is killed: whose child a process is can only be seen while its parent lives.
    init = None
    if state is not None:
        init = state.init if state.init_pid else read_report(folder / "status.json").init(state.pid)
    ended = state is None or kill_and_wait(state.process, deadline)
    # It follows bubblewrap by itself, as its parent; being the first process of its namespace it takes all others along, and the
    # kernel says that it has ended only when they have.
    ended = (init is None or kill_and_wait(init, deadline)) and ended
    if ended and not any(place.exists() for place in places):
        # No cgroup that would name them: a bubblewrap that was killed half way through its start can leave a child that waits
        # for it for ever, in namespaces that were never reported.
        for stray in _strays(folder):
            ended = kill_and_wait(stray, deadline) and ended
    if not ended:
        raise Interrupted(f"processes of {sandbox_id} do not end")


def _strays(folder: Path) -> list[ProcessRef]:
    """Processes that were started with this sandbox's folder among their arguments. Only bubblewrap is; a program inside could
    claim to be, and would be ended for it."""
    mark = os.fsencode(folder) + b"/"
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            process = reference(int(entry.name))
            command = Path(entry.path, "cmdline").read_bytes()
        except OSError:
            continue
        if (
            process is not None
            and command.partition(b"\0")[0].endswith((b"/bwrap", b"sh"))
            and mark in command
        ):
            found.append(process)
    return found
