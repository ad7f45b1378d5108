"""The state file, its lock and the marks of deleted sandboxes, with somebody killed in between."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from app.ledger.model import Reason
from tests.unit.local_archives import own_folders
from worker.providers.local import state as states
from worker.providers.local.errors import Interrupted
from worker.providers.local.processes import ProcessRef, boot_id, kill_and_wait, reference
from worker.providers.local.state import (
    SandboxState,
    forget,
    ids_with_state,
    load,
    locked,
    new_state,
    prune_locks,
    save,
)
from worker.providers.local.status import Report, read_report, why_gone

ID = "sb-" + "a" * 26


def test_a_state_is_kept_and_forgotten(tmp_path: Path) -> None:
    folders = own_folders(tmp_path)
    assert load(folders, ID) is None
    state = new_state(ID)
    save(folders, state)
    assert load(folders, ID) == state and ids_with_state(folders) == {ID}
    forget(folders, ID)
    forget(folders, ID)
    assert load(folders, ID) is None and ids_with_state(folders) == set()


def test_a_state_that_was_lost_is_a_sandbox_that_is_gone(tmp_path: Path) -> None:
    folders = own_folders(tmp_path)
    folders.state(ID).write_bytes(b"\0" * 100)
    found = load(folders, ID)
    assert found is not None and not found.process.alive()
    assert why_gone(found, folders.sandbox(ID))[0] is Reason.NODE_LOST
    # Killed while it wrote: only the draft is there, and still the sandbox is known.
    folders.state(ID).rename(folders.state(ID).with_suffix(".new"))
    assert ids_with_state(folders) == {ID}
    forget(folders, ID)
    assert ids_with_state(folders) == set()


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with locked(path, 20):
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == 1
    assert not path.exists()


def test_waiting_for_a_lock_ends(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", 1), pytest.raises(Interrupted), locked(tmp_path / "lock", 0.05):
        pass


def test_a_lock_left_by_a_killed_process_stops_nobody(tmp_path: Path) -> None:
    folders = own_folders(tmp_path)
    (folders.locks / ID).touch()
    with locked(folders.locks / ID, 0.0):
        pass
    (folders.locks / ID).touch()
    prune_locks(folders)
    assert not list(folders.locks.iterdir())


def test_marks_of_deleted_sandboxes_do_not_pile_up(tmp_path: Path) -> None:
    folders = own_folders(tmp_path)
    states.bury(folders, ID)
    states.prune_tombstones(folders)
    assert states.is_buried(folders, ID)
    os.utime(folders.tombstones / ID, (1, 1))
    states.prune_tombstones(folders)
    assert not states.is_buried(folders, ID)


def test_a_recycled_pid_is_not_the_process() -> None:
    me = reference(os.getpid())
    assert me is not None and me.alive()
    other = ProcessRef(me.pid, me.ticks - 1, me.boot)
    assert not other.alive() and other.open() is None
    assert kill_and_wait(other, time.monotonic()), "it is gone, and I am still here"
    assert not ProcessRef(me.pid, me.ticks, "another boot").alive()
    assert not ProcessRef(0, 0, boot_id()).alive()


def test_a_zombie_is_not_alive() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert reference(pid) is None
    os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("content", "report"),
    [
        (b"", Report()),
        (b'{ "child-pid": 7, "pid-namespace": 9, "net-', Report()),
        (b'{ "child-pid": 7, "pid-namespace": 9 }\n', Report(7, 9)),
        (b'{ "child-pid": 7, "pid-namespace": 9 }\n{ "exit-code": 137 }\n', Report(7, 9, 137)),
        (b'{ "child-pid": "x" }\n', Report()),
    ],
)
def test_what_bubblewrap_reported(tmp_path: Path, content: bytes, report: Report) -> None:
    (tmp_path / "status.json").write_bytes(content)
    assert read_report(tmp_path / "status.json") == report


@pytest.mark.parametrize(
    ("report", "oom_kills", "reason", "word"),
    [
        ("", 0, Reason.NODE_LOST, "outside"),
        ('{"exit-code": 3}', 0, Reason.EXITED, "status 3: it said so"),
        ('{"exit-code": 137}', 0, Reason.EXITED, "signal 9"),
        ('{"exit-code": 137}', 1, Reason.OOM_KILLED, "memory"),
        ('{"exit-code": 3}', 1, Reason.EXITED, "status 3"),
    ],
)
def test_why_a_sandbox_is_gone(
    tmp_path: Path, report: str, oom_kills: int, reason: Reason, word: str
) -> None:
    (tmp_path / "status.json").write_text(report)
    (tmp_path / "log").write_text("it said so\n")
    (tmp_path / "memory.events").write_text(f"oom_kill {oom_kills}\n")
    state = SandboxState(id=ID, phase="running", created_ms=1, boot=boot_id(), memory_cgroup=str(tmp_path))
    found, detail = why_gone(state, tmp_path)
    assert found is reason and word in detail


def test_another_boot_is_a_lost_node(tmp_path: Path) -> None:
    state = SandboxState(id=ID, phase="running", created_ms=1, boot="before")
    assert why_gone(state, tmp_path)[0] is Reason.NODE_LOST
