"""One child by itself; with a supervisor around it it is tried in test_supervisor.py."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from worker.up import __main__ as entry
from worker.up import children, folders
from worker.up.children import Child, ChildPlan
from worker.up.errors import StartRefused
from worker.up.folders import Folders
from worker.up.options import parse
from worker.up.report import Report


def test_a_start_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when no process can be forked for a moment: nobody else would bring the child back."""
    places = Folders(data=tmp_path, runtime=tmp_path, storage=tmp_path, lock=-1, children_lock=-1)
    tries = []

    def fork_seldom(*_: object, **__: object) -> int:
        tries.append(1)
        if len(tries) in (2, 3):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return 4_000_000 + len(tries)

    monkeypatch.setattr(children, "spawn", fork_seldom)

    async def live() -> int | None:
        plan = ChildPlan(name="it", argv=("/bin/true",), owns_group=False)
        child = Child(plan, {}, places, Report("text"))
        child.start()
        child.died(1)
        async with asyncio.timeout(20):
            while len(tries) < 4:
                await asyncio.sleep(0.01)
        return child.pid

    assert asyncio.run(live()) == 4_000_004


def test_the_slower_of_two_starts_leaves_the_folder_of_the_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found no folder and began; one is refused, and what was made is the other's."""
    data = tmp_path / "data"
    faster: list[Folders] = []
    real = folders.prepare

    def prepare(data_dir: Path, *, sandbox_uid: int) -> Folders:
        if not faster:
            faster.append(real(data_dir, sandbox_uid=sandbox_uid))
            folders.ensure_secret(data_dir)
        return real(data_dir, sandbox_uid=sandbox_uid)

    daemon = tmp_path / "sandmand"
    daemon.touch(mode=0o755)
    monkeypatch.setenv("SANDMAN_DAEMON_PATH", str(daemon))
    monkeypatch.setattr(folders, "prepare", prepare)
    monkeypatch.setattr(os, "umask", lambda mask: 0o022)  # this process goes on with other tests
    try:
        with pytest.raises(StartRefused, match="Another"):
            entry.prepare(parse(["--data-dir", str(data), "--port", "0"]), Report("text"))
        assert (data / "secret").exists()
    finally:
        faster[0].release()
