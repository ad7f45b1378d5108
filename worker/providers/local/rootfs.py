"""Paths inside a root folder that is not ours to trust: every link is followed as if the folder were "/".

Only used on trees that nothing else changes meanwhile (an import's draft, a finished image, the files of a sandbox that does not
run yet), so looking first and acting then is not a race.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from worker.providers.local.errors import ImageInvalid

LINKS_MAX = 40
"""As many as the kernel follows before it says ELOOP."""
COMPONENTS_MAX = 4096


def resolve(root: Path, path: str, *, follow_last: bool = True) -> Path:
    """Where `path` is on the host. The last parts need not exist. Raises ImageInvalid for loops and for passing through a file."""
    todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    done: list[str] = []
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            if done:
                done.pop()
            continue
        here = os.path.join(root, *done, part)  # noqa: PTH118  (once for every part of every file of an image: twice as fast)
        try:
            mode = os.lstat(here).st_mode
        except FileNotFoundError:
            done.append(part)
            continue
        except (NotADirectoryError, OSError) as error:
            raise ImageInvalid(f"{path!r}: {error.strerror}") from error
        if stat.S_ISLNK(mode) and (todo or follow_last):
            links += 1
            target = os.readlink(here)  # noqa: PTH115  (Path would tidy the text)
            if links > LINKS_MAX or len(todo) > COMPONENTS_MAX:
                raise ImageInvalid(f"{path!r}: too many links")
            if target.startswith("/"):
                done.clear()
            todo.extend(p for p in reversed(target.split("/")) if p not in ("", "."))
            continue
        if todo and not stat.S_ISDIR(mode):
            # Links to be followed later may still begin with "..", which leaves a file as little as anything else would.
            raise ImageInvalid(f"{path!r} passes through {part!r}, which is not a folder")
        done.append(part)
    return root.joinpath(*done)


def read_text(root: Path, path: str, limit: int) -> str | None:
    """A small file of the image, or None: it may be missing, a folder, a device, or not be allowed to be read."""
    try:
        found = resolve(root, path)
        if not stat.S_ISREG(found.lstat().st_mode):
            return None
        with found.open("rb") as stream:
            return stream.read(limit).decode(errors="replace")
    except (OSError, ImageInvalid):
        return None


def is_folder(root: Path, path: str) -> bool:
    try:
        return stat.S_ISDIR(resolve(root, path).lstat().st_mode)
    except (OSError, ImageInvalid):
        return False
