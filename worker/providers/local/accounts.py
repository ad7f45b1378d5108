"""Who the sandbox runs as inside: looked up in the image's own passwd and group files, never in the host's.

One user outside means one user inside: bubblewrap maps exactly one id, and it may be any.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from worker.providers.local.errors import ImageInvalid
from worker.providers.local.rootfs import is_folder, read_text

FILE_BYTES_MAX = 4 * 1024**2
ID_MAX = 2**32 - 2
"""The last one means "no user" to the kernel."""


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int
    name: str | None
    home: str


def look_up(asked: str | None, root: Path) -> Account:
    """`asked`: "name", "uid", "name:group", "uid:gid" or None for root. Raises ImageInvalid when a name is not there."""
    user, _, group = (asked or "0").partition(":")
    users = [fields for fields in _entries(root, "etc/passwd") if len(fields) >= 4]
    if user.isascii() and user.isdigit():
        uid = _number(user)
        found = next((fields for fields in users if fields[2] == str(uid)), None)
        gid = int(found[3]) if found and found[3].isdigit() else uid
    else:
        found = next((fields for fields in users if fields[0] == user), None)
        if found is None or not found[2].isdigit():
            raise ImageInvalid(
                f"user {user!r} is not in the image's /etc/passwd; a number needs no entry there"
            )
        uid = _number(found[2])
        gid = int(found[3]) if found[3].isdigit() else uid
    if group:
        gid = _group(group, root)
    home = found[5] if found and len(found) > 5 and found[5].startswith("/") else ""
    if not home:
        home = "/root" if uid == 0 and is_folder(root, "root") else "/"
    return Account(uid=uid, gid=gid, name=found[0] if found else None, home=home)


def _group(group: str, root: Path) -> int:
    if group.isascii() and group.isdigit():
        return _number(group)
    for fields in _entries(root, "etc/group"):
        if fields[0] == group and fields[2].isdigit():
            return _number(fields[2])
    raise ImageInvalid(f"group {group!r} is not in the image's /etc/group; a number needs no entry there")


def _number(text: str) -> int:
    if len(text) > 10 or int(text) > ID_MAX:
        raise ImageInvalid(f"{text[:20]} is not a user or group id")
    return int(text)


def _entries(root: Path, path: str) -> list[list[str]]:
    text = read_text(root, path, FILE_BYTES_MAX) or ""
    lines = (line.split(":") for line in text.splitlines() if line and not line.startswith("#"))
    return [fields for fields in lines if len(fields) >= 3]
