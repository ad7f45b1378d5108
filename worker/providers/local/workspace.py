"""One sandbox's own files: the upper layers it writes to, and the few files that are written there before it starts.

What a sandbox writes lies in STORAGE/sandboxes/ID and nowhere else, so that removing that folder removes all of it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from worker.providers.local.arguments import Overlay
from worker.providers.local.errors import ImageInvalid
from worker.providers.local.folders import Folders, give, make_given, make_passable
from worker.providers.local.host import HostLayers
from worker.providers.local.images import Image
from worker.providers.local.rootfs import resolve

HOSTNAME = "sandbox"
NO_NETWORK_RESOLV = "# This sandbox has no network.\n"
HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost ip6-loopback\n"


@dataclass(frozen=True, slots=True)
class Base:
    """What a sandbox stands on: an image's root, and trees that lie over it with a skeleton of their folders."""

    key: str
    root: Path
    trees: tuple[tuple[str, Path], ...] = ()
    """(name, skeleton) of host trees that are part of it."""
    bare: tuple[str, ...] = ()

    @property
    def is_host(self) -> bool:
        return bool(self.trees or self.bare)


def host_base(layers: HostLayers) -> Base:
    return Base(layers.key, layers.root, layers.trees, layers.bare)


def image_base(image: Image) -> Base:
    return Base(image.key, image.root)


class Workspace:
    """Raises OSError throughout; nothing here is undone on failure, because removing the folder undoes all."""

    def __init__(self, folders: Folders, sandbox_id: str, base: Base) -> None:
        self._folders = folders
        self._base = base
        self.path = folders.sandbox(sandbox_id)

    @property
    def status(self) -> Path:
        """What bubblewrap reports: its child's pid and namespaces at the start, the exit status at the end."""
        return self.path / "status.json"

    @property
    def log(self) -> Path:
        """What bubblewrap and the daemon write to standard error."""
        return self.path / "log"

    def make(self) -> tuple[Overlay, ...]:
        make_passable(self.path, self._folders)
        overlays = [self._overlay("/", "root", (self._base.root,))]
        for name, skeleton in self._base.trees:
            overlays.append(self._overlay(f"/{name}", name, (Path("/", name), skeleton)))
        return tuple(overlays)

    def read_only(self) -> tuple[tuple[Path, str], ...]:
        return tuple((Path("/", name), f"/{name}") for name in self._base.bare)

    def write_network_files(self, *, host_network: bool) -> None:
        resolv = NO_NETWORK_RESOLV
        if host_network:
            try:
                resolv = Path("/etc/resolv.conf").read_text()
            except OSError:
                pass
        self.write("/etc/resolv.conf", resolv)
        self.write("/etc/hosts", HOSTS)
        self.write("/etc/hostname", HOSTNAME + "\n")

    def write(self, path: str, content: str) -> None:
        """A file in place of whatever the image has there."""
        folder, _, name = path.rpartition("/")
        place = self.folder(folder) / name
        place.write_text(content)
        place.chmod(0o644)
        give(place, self._folders)

    def folder(self, path: str) -> Path:
        """Make sure that a folder exists inside, and say where it lies in the upper layer. Folders of the image show through: what
        is made over them takes on their mode. Raises ImageInvalid when something else than a folder is in the way."""
        inside = resolve(self._base.root, path).relative_to(self._base.root)
        lower, upper = self._base.root, self.path / "root"
        parts = inside.parts
        for name, skeleton in self._base.trees:
            if parts[:1] == (name,):
                lower, upper, parts = skeleton, self.path / name, parts[1:]
        for part in parts:
            lower, upper = lower / part, upper / part
            try:
                mode = lower.lstat().st_mode
            except OSError:
                mode = stat.S_IFDIR | 0o755
            if not stat.S_ISDIR(mode):
                raise ImageInvalid(f"{path!r} is not a folder in the image")
            with contextlib.suppress(FileExistsError):
                make_given(upper, self._folders, stat.S_IMODE(mode))
        return upper

    def _overlay(self, target: str, name: str, lowers: tuple[Path, ...]) -> Overlay:
        upper, work = self.path / name, self.path / f"{name}.work"
        for folder in (upper, work):
            make_given(folder, self._folders)
        return Overlay(target, lowers, upper, work)


def open_status(workspace: Workspace) -> int:
    return os.open(
        workspace.status, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
    )


def open_log(workspace: Workspace) -> int:
    # Appending: bubblewrap and the daemon share it.
    return os.open(workspace.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
