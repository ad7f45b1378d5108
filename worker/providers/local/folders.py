"""Where everything of this provider lies, and who may pass.

As root, what bubblewrap must reach (it runs as the sandboxes' uid) has that uid's group and mode 0710: it can be passed through
by that group and nobody else, and listed by no one but root. State, locks and sockets are the service's alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from worker.providers.local.options import LocalOptions


@dataclass(frozen=True, slots=True)
class Folders:
    storage: Path
    runtime: Path
    uid: int
    gid: int
    as_root: bool

    @property
    def sandboxes(self) -> Path:
        """One folder a sandbox: what it wrote."""
        return self.storage / "sandboxes"

    @property
    def states(self) -> Path:
        """One file a sandbox: written first, removed last."""
        return self.storage / "state"

    @property
    def locks(self) -> Path:
        return self.storage / "locks"

    @property
    def tombstones(self) -> Path:
        return self.storage / "tombstones"

    @property
    def trash(self) -> Path:
        """Files of sandboxes that are gone: moved here at once, unlinked at leisure."""
        return self.storage / "trash"

    @property
    def images(self) -> Path:
        return self.storage / "images"

    @property
    def host(self) -> Path:
        """Layers that make the machine's own userland usable as an image."""
        return self.storage / "host"

    @property
    def programs(self) -> Path:
        return self.storage / "bin"

    @property
    def sockets(self) -> Path:
        return self.runtime / "s"

    def sandbox(self, sandbox_id: str) -> Path:
        return self.sandboxes / sandbox_id

    def state(self, sandbox_id: str) -> Path:
        return self.states / f"{sandbox_id}.json"

    def socket(self, sandbox_id: str) -> Path:
        return self.sockets / f"{sandbox_id}.sock"

    def make(self) -> None:
        """Idempotent. Raises OSError."""
        self.storage.mkdir(mode=0o711 if self.as_root else 0o700, parents=True, exist_ok=True)
        for shared in (self.sandboxes, self.images, self.host, self.programs):
            make_passable(shared, self)
        for own in (self.states, self.locks, self.tombstones, self.trash):
            own.mkdir(mode=0o700, exist_ok=True)
        self.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.sockets.mkdir(mode=0o700, exist_ok=True)


def folders_of(options: LocalOptions) -> Folders:
    return Folders(options.storage, options.runtime, options.uid, options.gid, options.as_root)


def make_passable(folder: Path, folders: Folders) -> None:
    """A folder that the sandboxes' uid may pass through."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folders.as_root:
        os.chown(folder, 0, folders.gid)
        folder.chmod(0o710)


def give(path: Path, folders: Folders) -> None:
    """Hand one file, link or folder to the sandboxes' uid; the service's own user needs no such gift."""
    if folders.as_root:
        os.lchown(path, folders.uid, folders.gid)


def make_given(path: Path, folders: Folders, mode: int = 0o755) -> None:
    """A new folder of the sandboxes' uid, with that mode whatever the umask: it is what a sandbox sees."""
    path.mkdir()
    path.chmod(mode)
    give(path, folders)
