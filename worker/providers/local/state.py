"""What is written down about one sandbox, its lock, and the mark that says it was deleted.

The state file is written before anything else of a sandbox exists and removed after everything else is gone, so whatever a killed
process leaves behind is named in it. All state files lie in one folder: its mtime tells a watcher that something changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from worker.providers.local.errors import Interrupted
from worker.providers.local.folders import Folders
from worker.providers.local.processes import ProcessRef, boot_id

TOMBSTONE_SECONDS = 900.0
"""How long a deleted id is refused: above the time that a worker can be stuck inside one create."""

StatePhase = Literal["preparing", "launching", "running", "deleting"]


class SandboxState(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    phase: StatePhase
    created_ms: int
    boot: str
    layer: str = ""
    """The key of the image copy (or of the host's layers) that it stands on; what is named here is never evicted."""
    address: str = ""
    enforced: dict[str, str] = {}
    cgroups: list[str] = []
    memory_cgroup: str = ""
    pid: int = 0
    """bubblewrap's outer process; its death takes the whole sandbox along."""
    ticks: int = 0
    init_pid: int = 0
    """The sandbox's first process: being the first of its namespace, all others are gone when it is."""
    init_ticks: int = 0

    @property
    def process(self) -> ProcessRef:
        return ProcessRef(self.pid, self.ticks, self.boot)

    @property
    def init(self) -> ProcessRef:
        return ProcessRef(self.init_pid, self.init_ticks, self.boot)


def new_state(sandbox_id: str) -> SandboxState:
    return SandboxState(
        id=sandbox_id, phase="preparing", created_ms=time.time_ns() // 1_000_000, boot=boot_id()
    )


_decoder = msgspec.json.Decoder(SandboxState)


def load(folders: Folders, sandbox_id: str) -> SandboxState | None:
    """None: there is none. A file that cannot be read (a machine that lost power) counts as a sandbox that is gone."""
    try:
        return _decoder.decode(folders.state(sandbox_id).read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        return SandboxState(id=sandbox_id, phase="deleting", created_ms=0, boot="")


def save(folders: Folders, state: SandboxState) -> None:
    """Atomic for whoever reads it. Not synced: it describes processes, which do not outlive the machine either."""
    draft = draft_of(folders, state.id)
    draft.write_bytes(msgspec.json.encode(state))
    draft.rename(folders.state(state.id))


def forget(folders: Folders, sandbox_id: str) -> None:
    draft_of(folders, sandbox_id).unlink(missing_ok=True)
    folders.state(sandbox_id).unlink(missing_ok=True)


def draft_of(folders: Folders, sandbox_id: str) -> Path:
    """Where a state is written before it takes its place; one is left when the writer is killed in between."""
    return folders.state(sandbox_id).with_suffix(".new")


def ids_with_state(folders: Folders) -> set[str]:
    return {
        entry.name.split(".", 1)[0]
        for entry in os.scandir(folders.states)
        if entry.name.endswith((".json", ".new"))
    }


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold a lock file that does not outlive its use. Raises Interrupted after `seconds`; blocks a thread meanwhile."""
    deadline = time.monotonic() + seconds
    pause = 0.002
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before us unlinked the file: then what we hold is nobody's lock any more.
            if _same_file(fd, path):
                break
        except BlockingIOError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if time.monotonic() > deadline:
            raise Interrupted(f"{path.name} has been locked for {seconds:g} s")
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        # Explicit: a child that another thread is just forking may hold a copy of the descriptor until it execs.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def bury(folders: Folders, sandbox_id: str) -> None:
    """From now on a create of this id, which some slow worker may still have in hand, is refused."""
    (folders.tombstones / sandbox_id).touch(mode=0o600)


def is_buried(folders: Folders, sandbox_id: str) -> bool:
    return (folders.tombstones / sandbox_id).exists()


def prune_tombstones(folders: Folders) -> None:
    oldest = time.time() - TOMBSTONE_SECONDS
    for entry in os.scandir(folders.tombstones):
        with contextlib.suppress(FileNotFoundError):
            if entry.stat().st_mtime < oldest:
                (folders.tombstones / entry.name).unlink()


def prune_locks(folders: Folders) -> None:
    """Remove lock files whose holders were killed."""
    for entry in list(os.scandir(folders.locks)):
        with contextlib.suppress(Interrupted), locked(folders.locks / entry.name, 0.0):
            pass
