"""Where this process may make cgroups: parsed from /proc, tried for real, and different on every machine.

Version 1 has one tree a controller, and each may put this process elsewhere. Version 2 has one tree, where a cgroup that has
processes of its own cannot have children with controllers: so the service's own processes move to a leaf first, which is only
done where the cgroup was delegated to us or holds nobody else. Elsewhere (a login session, a unit without Delegate=) sandboxes go below
the nearest cgroup above ours that hands controllers on already and lets us in.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CONTROLLERS = ("memory", "cpu", "pids")
_OCTAL = re.compile(r"\\([0-7]{3})")
Version = Literal["cgroup-v1", "cgroup-v2"]


@dataclass(frozen=True, slots=True)
class Mount:
    point: Path
    root: str
    """Which folder of the tree is mounted there; not "/" inside many containers."""
    version: Version
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Bases:
    """Controller → the folder under which each sandbox gets its own; a controller that is missing cannot be used here."""

    folders: Mapping[str, Path]
    versions: Mapping[str, Version]
    problems: Mapping[str, str]
    """Controller → why not."""

    def sandbox_folders(self, sandbox_id: str) -> list[Path]:
        """In a fixed order, without doubles (version 2 has one for all)."""
        return list(dict.fromkeys(base / sandbox_id for base in self.folders.values()))

    def remove(self) -> None:
        """Those that are empty."""
        for base in dict.fromkeys(self.folders.values()):
            _remove_empty(base)


def parse_mounts(mountinfo: str) -> list[Mount]:
    mounts = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, after = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(after) < 3 or after[0] not in ("cgroup", "cgroup2"):
            continue
        options = frozenset(after[2].split(","))
        mounts.append(
            Mount(
                point=Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])),
                root=fields[3],
                version="cgroup-v1" if after[0] == "cgroup" else "cgroup-v2",
                controllers=options & set(CONTROLLERS),
            )
        )
    return mounts


def parse_membership(text: str) -> dict[str, str]:
    """Controller → path in its tree; "" is the path in version 2's tree."""
    paths = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    return paths


def folder_of(mount: Mount, path: str) -> Path | None:
    """Where a tree's path is seen through a mount; None when it lies outside of what is mounted."""
    if mount.root == "/":
        return mount.point / path.lstrip("/")
    if path == mount.root or path.startswith(mount.root + "/"):
        return mount.point / path[len(mount.root) :].lstrip("/")
    return None


def find_bases(instance: str, mountinfo: str, membership: str) -> Bases:
    """Make (idempotently) this installation's folder for each controller that works here."""
    mounts, own = parse_mounts(mountinfo), parse_membership(membership)
    folders: dict[str, Path] = {}
    versions: dict[str, Version] = {}
    problems: dict[str, str] = {}
    left = []
    for controller in CONTROLLERS:
        mount = next((m for m in mounts if m.version == "cgroup-v1" and controller in m.controllers), None)
        if mount is None:
            left.append(controller)
            continue
        try:
            folders[controller] = _base_v1(mount, own.get(controller), instance)
            versions[controller] = "cgroup-v1"
        except (OSError, LookupError) as error:
            problems[controller] = _said(error)
    unified = next((mount for mount in mounts if mount.version == "cgroup-v2"), None)
    if unified is not None and left:
        base, usable, why_not = _base_v2(unified, own.get(""), instance, left)
        folders.update(dict.fromkeys(usable, base))
        versions.update(dict.fromkeys(usable, "cgroup-v2"))
        problems.update(why_not)
    else:
        problems.update(dict.fromkeys(left, "no cgroup tree is mounted"))
    return Bases(folders, versions, problems)


def _said(error: OSError | LookupError) -> str:
    return f"{error.strerror} ({error.filename})" if isinstance(error, OSError) else str(error.args[0])


def read_bases(instance: str) -> Bases:
    return find_bases(
        instance, Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    )


def make_folder(folder: Path) -> None:
    """Idempotent. The umask must not decide who can enter: bwrap binds it into the sandbox as the sandbox's uid. Raises OSError."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)


def _base_v1(mount: Mount, path: str | None, instance: str) -> Path:
    own = None if path is None else folder_of(mount, path)
    if own is None or not own.is_dir():
        raise LookupError("this process's own cgroup is not visible")
    base = own / instance
    make_folder(base)
    # A folder that can be made and not be joined is of no use (a read-only or foreign tree): find out now, not at a create.
    if not os.access(base / "cgroup.procs", os.W_OK):
        raise LookupError(f"{base} cannot be joined")
    return base


def _base_v2(
    mount: Mount, path: str | None, instance: str, wanted: list[str]
) -> tuple[Path, list[str], dict[str, str]]:
    """One place for all controllers, since a process is in one cgroup of this tree: below our own if that can be arranged, else below
    the nearest cgroup above it that hands controllers on and that we may write to. Answers (place, usable, problems)."""
    own = None if path is None else folder_of(mount, path)
    if own is None or not own.is_dir():
        return mount.point, [], dict.fromkeys(wanted, "this process's own cgroup is not visible")
    leaf = f"{instance}.service"
    if own.name == leaf:
        own = own.parent
    above = [folder for folder in own.parents if folder.is_relative_to(mount.point)]
    best: tuple[Path, list[str], dict[str, str]] | None = None
    for parent in (own, *above):
        usable, problems = _controllers_below(parent, instance, wanted, leaf if parent == own else None)
        if best is None or len(usable) > len(best[1]):
            if best is not None:
                _remove_empty(best[0])
            best = (parent / instance, usable, problems if best is None else {**best[2], **problems})
        elif not usable:
            _remove_empty(parent / instance)
        if len(usable) == len(wanted):
            break
    assert best is not None
    return best[0], best[1], {name: why for name, why in best[2].items() if name not in best[1]}


def _controllers_below(
    parent: Path, instance: str, wanted: list[str], leaf: str | None
) -> tuple[list[str], dict[str, str]]:
    """Which controllers sandboxes below `parent`/`instance` can have, after what can be done for it was done."""
    usable: list[str] = []
    problems: dict[str, str] = {}
    base = parent / instance
    for controller in wanted:
        try:
            if controller not in (parent / "cgroup.controllers").read_text().split():
                raise LookupError(f"the {controller} controller is not delegated to {parent}")
            # To move a process takes the right to write to what is above both its old and its new place.
            if not os.access(parent / "cgroup.procs", os.W_OK):
                raise LookupError(f"{parent} may not be written to")
            make_folder(base)
            if controller not in (parent / "cgroup.subtree_control").read_text().split():
                if leaf is None:
                    raise LookupError(f"{parent} does not hand the {controller} controller on")
                _enable(parent, controller, leaf)
            _enable(base, controller, leaf=None)
            usable.append(controller)
        except (OSError, LookupError) as error:
            problems[controller] = _said(error)
    return usable, problems


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _enable(folder: Path, controller: str, leaf: str | None) -> None:
    control = folder / "cgroup.subtree_control"
    try:
        control.write_text(f"+{controller}")
    except OSError:
        # EBUSY: processes live directly in it.
        if leaf is None or not may_move(folder):
            raise
        (folder / leaf).mkdir(exist_ok=True)
        for pid in (folder / "cgroup.procs").read_text().split():
            try:
                (folder / leaf / "cgroup.procs").write_text(pid)
            except ProcessLookupError:
                continue
        control.write_text(f"+{controller}")


def may_move(folder: Path) -> bool:
    """Whether the processes of a cgroup are ours to move: systemd marks what it delegated; without systemd (a container) the
    top of the tree that we see holds only what was started with us."""
    for mark in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(folder, mark) == b"1":
                return True
        except OSError:
            continue
    return not Path("/run/systemd/system").exists() and not (folder.parent / "cgroup.procs").exists()
