"""The image `host`: the machine's own userland, with every folder writable and none of its secrets.

Inside, files of the host's root belong to nobody, and a folder that belongs to nobody cannot be written. So a *skeleton* (a copy of
the folders of /usr and /opt, without files, owned by the sandboxes' uid) lies over them as a second lower layer: each folder then
belongs to the sandbox's root, and files come from the host. /etc and the small rest are copied: only files that everybody on the
host may read, and none that look like a secret. /var, /home, /root, /srv are fresh: what services and people keep there is not shown.

The layers are made once (about a second) and made anew, under another key, when the host changed noticeably: another modification
time of a folder in the two top levels of /usr or /opt or of the package database, or any change in /etc. Deeper changes in between
need nothing: new files show at once, new folders are just not writable.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from worker.providers.local.folders import Folders, give, make_given, make_passable
from worker.providers.local.removal import remove_tree

LAYOUT_VERSION = 4
"""Part of the key: raise it when the layers are built differently."""
BIG_TREES = ("usr", "opt")
LIBRARY_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC_FILE_BYTES_MAX = 16 * 1024**2
DENIED_NAMES = ("shadow", "gshadow", "sudoers", "ssh_host_", "machine-id", "krb5.keytab")
DENIED_SUFFIXES = (".key", ".keytab", ".p12", ".pfx", ".jks", "_rsa", "_ed25519", "_ecdsa", "_dsa")
PRIVATE_MARK = b"PRIVATE KEY"
FRESH = {
    "root": 0o700,
    "home": 0o755,
    "home/user": 0o755,
    "srv": 0o755,
    "mnt": 0o755,
    "media": 0o755,
    "workspace": 0o755,
    "run": 0o755,
    "dev": 0o755,
    "proc": 0o755,
    "sys": 0o755,
    "tmp": 0o1777,
    "var": 0o755,
    "var/tmp": 0o1777,
    "var/cache": 0o755,
    "var/lib": 0o755,
    "var/log": 0o755,
    "var/mail": 0o755,
    "var/spool": 0o755,
}
UNUSED_SECONDS = 900.0
"""Layers looked at more recently may be in the hands of a create that has not written down yet that it uses them."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class HostLayers:
    key: str
    root: Path
    """The lowest layer of "/"."""
    trees: tuple[tuple[str, Path], ...]
    """(name, skeleton) of each big tree that gets an overlay over the host's."""
    bare: tuple[str, ...]
    """Big trees that cannot carry an overlay because something is mounted inside: shown read-only."""


def host_trees(root: Path = Path("/")) -> list[str]:
    """Which top folders the host's programs live in; on older layouts /bin and /lib are real folders."""
    names = [name for name in BIG_TREES if (root / name).is_dir()]
    return names + [
        name for name in LIBRARY_NAMES if (root / name).is_dir() and not (root / name).is_symlink()
    ]


def has_mounts_inside(tree: str, mountinfo: str) -> bool:
    prefix = f"/{tree}/"
    return any(
        len(fields := line.split(" ")) > 4 and fields[4].startswith(prefix) for line in mountinfo.splitlines()
    )


def fingerprint(uid: int, hidden: tuple[Path, ...]) -> str:
    digest = hashlib.sha256(f"{LAYOUT_VERSION} {uid} {hidden}".encode())
    for tree in host_trees():
        top = Path("/", tree)
        digest.update(f"{top} {has_mounts_inside(tree, _mountinfo())}\n".encode())
        for folder in (
            top,
            *sorted(path for path in top.iterdir() if path.is_dir() and not path.is_symlink()),
        ):
            digest.update(f"{folder} {folder.stat().st_mtime_ns}\n".encode(errors="replace"))
    for path, entry in _walk(Path("/etc")):
        digest.update(
            f"{path} {entry.st_mode} {entry.st_size} {entry.st_mtime_ns}\n".encode(errors="replace")
        )
    for database in ("/var/lib/dpkg/status", "/var/lib/rpm", "/lib/apk/db/installed"):
        with contextlib.suppress(OSError):
            digest.update(f"{database} {Path(database).stat().st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def layers_at(folders: Folders, key: str) -> HostLayers | None:
    """The finished layers of that key, if they are there."""
    base = folders.host / key
    if not (base / "root").is_dir():
        return None
    trees, bare = [], []
    for tree in host_trees():
        if has_mounts_inside(tree, _mountinfo()):
            bare.append(tree)
        elif (base / "trees" / tree).is_dir():
            trees.append((tree, base / "trees" / tree))
    return HostLayers(key, base / "root", tuple(trees), tuple(bare))


def build(folders: Folders, key: str, hidden: tuple[Path, ...]) -> None:
    """Make the layers of `key`; atomic, and the caller holds the lock. `hidden`: folders of the service itself that must not be
    seen should they lie inside a tree. Raises OSError."""
    draft = folders.host / f".draft-{key}"
    if draft.exists():
        remove_tree(draft, folders.host)
    make_passable(draft, folders)
    make_passable(draft / "trees", folders)
    for tree in host_trees():
        if not has_mounts_inside(tree, _mountinfo()):
            _skeleton(Path("/", tree), draft / "trees" / tree, folders, hidden)
    _root_layer(draft / "root", folders)
    draft.rename(folders.host / key)


def drop_unused(folders: Folders, used: set[str]) -> None:
    """Remove the layers of earlier host states that no sandbox stands on; the caller holds the lock."""
    recently = time.time() - UNUSED_SECONDS
    for entry in os.scandir(folders.host):
        if entry.name not in used and entry.stat().st_mtime < recently:
            remove_tree(folders.host / entry.name, folders.host)


def _mountinfo() -> str:
    return Path("/proc/self/mountinfo").read_text()


def _skeleton(source: Path, target: Path, folders: Folders, hidden: tuple[Path, ...]) -> None:
    make_given(target, folders)
    todo = [(str(source), str(target))]
    masked = {str(path) for path in hidden}
    me = os.geteuid()
    while todo:
        here, there = todo.pop()
        try:
            entries = list(os.scandir(here))
        except OSError:
            continue
        for entry in entries:
            mirror = f"{there}/{entry.name}"
            try:
                if not entry.is_dir(follow_symlinks=False):
                    # The service's own private files would be readable inside, where the sandbox is the same user outside.
                    if not folders.as_root and not entry.is_symlink() and _private(entry.stat(), me):
                        _mask(mirror)
                    continue
                if entry.path in masked or not entry.stat(follow_symlinks=False).st_mode & stat.S_IXOTH:
                    _mask(mirror)
                    continue
            except FileNotFoundError:
                continue
            os.mkdir(mirror, 0o755)  # noqa: PTH102  (some ten thousand of them)
            os.chmod(mirror, 0o755)  # noqa: PTH101
            if folders.as_root:
                os.chown(mirror, folders.uid, folders.gid)
            todo.append((entry.path, mirror))


def _private(found: os.stat_result, me: int) -> bool:
    return found.st_uid == me and not found.st_mode & stat.S_IROTH


def _mask(path: str) -> None:
    """An overlay's own mark for "nothing here", which hides what lies below."""
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def _walk(top: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything under `top` in a fixed order, folders before what is in them, without following links."""
    todo = [top]
    while todo:
        folder = todo.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                yield Path(entry.path), found
                if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IXOTH:
                    todo.append(Path(entry.path))


def _root_layer(root: Path, folders: Folders) -> None:
    make_given(root, folders)
    for name, mode in FRESH.items():
        make_given(root / name, folders, mode)
    for tree in host_trees():
        make_given(root / tree, folders)
    for name in LIBRARY_NAMES:
        if Path("/", name).is_symlink():
            _link(os.readlink(Path("/", name)), root / name, folders)  # noqa: PTH115  (Path would tidy the text)
    _link("/run", root / "var/run", folders)
    _link("/run/lock", root / "var/lock", folders)
    _copy_etc(root / "etc", folders)
    _write_accounts(root / "etc", folders)


def _copy_etc(target: Path, folders: Folders) -> None:
    make_given(target, folders)
    for path, found in _walk(Path("/etc")):
        copy = target / path.relative_to("/etc")
        if is_denied(path.name) or not copy.parent.is_dir():
            continue
        if stat.S_ISLNK(found.st_mode):
            _link(os.readlink(path), copy, folders)  # noqa: PTH115  (Path would tidy the text)
        elif stat.S_ISDIR(found.st_mode):
            if found.st_mode & stat.S_IXOTH and found.st_mode & stat.S_IROTH:
                make_given(copy, folders)
        elif stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IROTH:
            _copy_public(path, copy, found, folders)


def is_denied(name: str) -> bool:
    return name.startswith(DENIED_NAMES) or name.endswith(DENIED_SUFFIXES)


def _copy_public(path: Path, copy: Path, found: os.stat_result, folders: Folders) -> None:
    if found.st_size > ETC_FILE_BYTES_MAX:
        return
    with contextlib.suppress(FileNotFoundError):
        content = path.read_bytes()
        if PRIVATE_MARK in content:
            return
        copy.write_bytes(content)
        copy.chmod(stat.S_IMODE(found.st_mode) & 0o777 | 0o600)
        os.utime(copy, ns=(found.st_mtime_ns, found.st_mtime_ns))
        give(copy, folders)


def _write_accounts(etc: Path, folders: Folders) -> None:
    """The system's accounts but not those of people, one for uid 1000, which images and callers ask for by habit, and password files
    without passwords for the tools that change accounts."""
    users = system_accounts(_lines(etc / "passwd")) or ["root:x:0:0:root:/root:/bin/sh"]
    groups = system_accounts(_lines(etc / "group")) or ["root:x:0:"]
    users.append("user:x:1000:1000:user:/home/user:/bin/sh")
    # Members of a group may be people.
    groups = [":".join([*line.split(":")[:3], ""]) for line in groups] + ["user:x:1000:"]
    shadow = [f"{line.split(':')[0]}:*:19000:0:99999:7:::" for line in users]
    gshadow = [f"{line.split(':')[0]}:*::" for line in groups]
    for name, lines, mode in (
        ("passwd", users, 0o644),
        ("group", groups, 0o644),
        ("shadow", shadow, 0o600),
        ("gshadow", gshadow, 0o600),
        ("machine-id", [], 0o444),
    ):
        path = etc / name
        path.write_text("".join(f"{line}\n" for line in lines))
        path.chmod(mode)
        give(path, folders)
    for name in ("passwd-", "group-", "subuid", "subgid", "subuid-", "subgid-"):
        (etc / name).unlink(missing_ok=True)


def system_accounts(lines: list[str]) -> list[str]:
    """Of passwd or group: distributions number people from 1000 on, and "nobody" is 65534."""
    kept = []
    for line in lines:
        fields = line.split(":")
        if len(fields) >= 3 and fields[2].isdigit() and (int(fields[2]) < 1000 or fields[2] == "65534"):
            kept.append(line)
    return kept


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def _link(target: str, path: Path, folders: Folders) -> None:
    path.symlink_to(target)
    give(path, folders)


class HostImage:
    """The current layers, looked after at most once a minute in each process."""

    RECHECK_SECONDS = 60.0

    def __init__(self, folders: Folders, hidden: tuple[Path, ...]) -> None:
        self._folders = folders
        self._hidden = hidden
        self._current: HostLayers | None = None
        self._checked = 0.0

    def current(self, used: set[str]) -> HostLayers:
        """Blocks for about a second when they must be made; the caller holds the lock of the host's layers. `used`: keys that
        sandboxes stand on. Raises OSError."""
        if self._current is not None and time.monotonic() - self._checked < self.RECHECK_SECONDS:
            return self._current
        key = fingerprint(self._folders.uid, self._hidden)
        found = layers_at(self._folders, key)
        if found is None:
            build(self._folders, key, self._hidden)
            drop_unused(self._folders, used | {key})
            found = layers_at(self._folders, key)
        if found is None:
            raise FileNotFoundError(
                2, "the host's layers vanished while they were made", str(self._folders.host)
            )
        os.utime(self._folders.host / key)
        self._current, self._checked = found, time.monotonic()
        return found

    def fresh(self) -> HostLayers | None:
        """What `current` would answer without looking; None when it must look."""
        if time.monotonic() - self._checked < self.RECHECK_SECONDS:
            return self._current
        return None
