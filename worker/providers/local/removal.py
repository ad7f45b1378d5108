"""Removing trees that strangers wrote: any depth, any mode, any number, without following a link.

A tree is first moved into a bin (one rename: from then on it is no sandbox's file any more) and then taken apart there. Deep trees
are flattened on the way: a folder inside is moved up into the bin and becomes an item of its own, so neither recursion nor the
length of a path can run out. Whatever is interrupted lies in its bin and is found by the next sweep.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

BIN_PREFIX = ".bin."


def remove_tree(path: Path, scratch: Path, deadline: float | None = None) -> bool:
    """Remove one tree; idempotent. `scratch`: an own folder on the same file system. False when `deadline` (time.monotonic())
    came first: the tree is away from its place, and `sweep` of the scratch folder removes the rest. Raises OSError."""
    while True:
        try:
            path.lstat()
        except FileNotFoundError:
            return True
        bin_folder = scratch / f"{BIN_PREFIX}{secrets.token_hex(8)}"
        bin_folder.mkdir(mode=0o700)
        # A sweep of the scratch folder may take the bin away while it is still empty: then once more, with another one.
        with contextlib.suppress(FileNotFoundError):
            _move_in(path, bin_folder)
            return _empty(bin_folder, deadline)
        with contextlib.suppress(FileNotFoundError):
            bin_folder.rmdir()


def _move_in(path: Path, bin_folder: Path) -> None:
    try:
        path.rename(bin_folder / "tree")
    except PermissionError:
        # Another parent means another "..", which needs the right to write to the folder itself.
        path.chmod(0o700)
        path.rename(bin_folder / "tree")


def sweep(scratch: Path, deadline: float) -> bool:
    """Finish what others began and could not end; False when `deadline` came first. One tree that cannot be removed does not keep
    the others: its error is raised when all were tried."""
    failed: OSError | None = None
    done = True
    for entry in list(os.scandir(scratch)):
        if not entry.name.startswith(BIN_PREFIX):
            continue
        try:
            done = _empty(scratch / entry.name, deadline)
        except OSError as error:
            failed = error
        if not done:
            break
    if failed is not None:
        raise failed
    return done


def _empty(bin_folder: Path, deadline: float | None) -> bool:
    while True:
        try:
            with os.scandir(bin_folder) as entries:
                items = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            if not items:
                bin_folder.rmdir()
                return True
        except FileNotFoundError:
            return True
        for name, is_folder in items:
            if deadline is not None and time.monotonic() > deadline:
                return False
            if is_folder:
                _take_apart(bin_folder, name, deadline)
            else:
                (bin_folder / name).unlink(missing_ok=True)


def _take_apart(trash: Path, name: str, deadline: float | None) -> None:
    folder = trash / name
    try:
        # Its owner may have taken away even his own rights. Nothing lives that could swap the name for a link meanwhile.
        folder.chmod(0o700)
        trash_fd = os.open(trash, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=trash_fd)
    except FileNotFoundError:
        os.close(trash_fd)
        return
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if deadline is not None and time.monotonic() > deadline:
                    return
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        _move_up(fd, entry.name, trash_fd)
                    else:
                        os.unlink(entry.name, dir_fd=fd)
        with contextlib.suppress(OSError):
            # Not empty: another thread moves things at the same time; the next round sees what is left.
            os.rmdir(name, dir_fd=trash_fd)
    finally:
        os.close(fd)
        os.close(trash_fd)


def _move_up(fd: int, name: str, trash_fd: int) -> None:
    try:
        # Most folders are empty by now or hold files only; an empty one is cheaper to remove than to move.
        os.rmdir(name, dir_fd=fd)
    except FileNotFoundError:
        return
    except OSError:
        os.chmod(name, 0o700, dir_fd=fd)
        os.rename(name, secrets.token_hex(8), src_dir_fd=fd, dst_dir_fd=trash_fd)
