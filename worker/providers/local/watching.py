"""Noticing what changes, at next to no cost while nothing does.

A death is noticed through a pidfd that the event loop waits on; anything else through the mtime of the one folder in which all state
files lie. Neither reads the states of sandboxes that did not change.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Callable

from worker.providers.base import Observed
from worker.providers.local.folders import Folders
from worker.providers.local.state import load

POLL_SECONDS = 0.25
"""Four looks a second at one folder's mtime: some ten microseconds each."""
SETTLED_NS = 50_000_000
"""A change within the clock tick of the last look would show the same mtime; so look again until the folder has rested."""
FULL_SECONDS = 10.0
"""How often all are looked at anyway: for those whose pidfd could not be opened."""


class Watch:
    """One watcher's view. `observe` says what a sandbox is now, or None when there is none."""

    def __init__(self, folders: Folders, observe: Callable[[str], Observed | None]) -> None:
        self._folders = folders
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._died: set[str] = set()
        self._pidfds: dict[str, int] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        """Id → (inode, mtime) of its state file as last read."""
        self._phases: dict[str, str] = {}
        self._folder_mtime = 0
        self._full_at = 0.0

    async def changes(self) -> AsyncGenerator[Observed, None]:
        """Endless. What is gone already when it begins is said first."""
        try:
            first = True
            while True:
                for found in self._look():
                    if not first or found.phase == "gone":
                        yield found
                first = False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), POLL_SECONDS)
                self._wake.clear()
        finally:
            for sandbox_id in list(self._pidfds):
                self._release(sandbox_id)

    def _look(self) -> list[Observed]:
        candidates, self._died = self._died, set()
        try:
            mtime = self._folders.states.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        full = time.monotonic() > self._full_at
        if full or mtime != self._folder_mtime or time.time_ns() - mtime < SETTLED_NS:
            self._folder_mtime = mtime
            candidates |= self._changed(full)
        if full:
            self._full_at = time.monotonic() + FULL_SECONDS
        return [found for sandbox_id in sorted(candidates) if (found := self._update(sandbox_id)) is not None]

    def _changed(self, full: bool) -> set[str]:
        seen: dict[str, tuple[int, int]] = {}
        with os.scandir(self._folders.states) as entries:
            for entry in entries:
                sandbox_id, _, suffix = entry.name.partition(".")
                if suffix == "json":
                    with contextlib.suppress(FileNotFoundError):
                        found = entry.stat()
                        seen[sandbox_id] = (found.st_ino, found.st_mtime_ns)
        changed = {
            sandbox_id
            for sandbox_id, version in seen.items()
            if full or self._versions.get(sandbox_id) != version
        }
        for sandbox_id in self._versions.keys() - seen.keys():
            self._release(sandbox_id)
            self._phases.pop(sandbox_id, None)
        self._versions = seen
        return changed

    def _update(self, sandbox_id: str) -> Observed | None:
        """What to say about it, if its phase is another than was last said."""
        state = load(self._folders, sandbox_id)
        if state is None or state.phase == "deleting":
            # Its removal is somebody's own doing, and no news to anybody.
            self._release(sandbox_id)
            return None
        found = self._observe(sandbox_id)
        if found is None or self._phases.get(sandbox_id) == found.phase:
            return None
        self._phases[sandbox_id] = found.phase
        self._release(sandbox_id)
        if found.phase != "gone":
            fd = state.process.open()
            if fd is not None:
                self._pidfds[sandbox_id] = fd
                self._loop.add_reader(fd, self._on_death, sandbox_id)
            elif state.pid:
                # It died between the two looks, or no descriptor is free: the next look tells.
                self._died.add(sandbox_id)
        return found

    def _on_death(self, sandbox_id: str) -> None:
        self._release(sandbox_id)
        self._died.add(sandbox_id)
        self._wake.set()

    def _release(self, sandbox_id: str) -> None:
        fd = self._pidfds.pop(sandbox_id, None)
        if fd is not None:
            self._loop.remove_reader(fd)
            os.close(fd)
