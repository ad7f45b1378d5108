"""The file of API keys: only hashes in it, so that reading it opens nothing.

    python -m worker.up.keys add NAME [--tenant T] [--role user] --data-dir DIR     prints the new key, once
    python -m worker.up.keys list --data-dir DIR
    python -m worker.up.keys remove NAME --data-dir DIR

The API rereads the file when it changes. Every change is a new file renamed over the old one under a lock, so that a reader
never sees half of it and two writers never lose each other's change.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from worker.up.options import default_data_dir

ROLES = ("operator", "user", "viewer")
FIRST_KEY = "default"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class KeyEntry(TypedDict):
    name: str
    tenant: str
    role: str
    sha256: str


class KeyChangeRefused(Exception):
    """The asked change makes no sense; the text says why."""


def write_private(path: Path, text: str) -> None:
    """Replace `path` in one step; never readable by anybody else, not even for a moment."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def read_keys(data_dir: Path) -> list[KeyEntry]:
    try:
        found: list[KeyEntry] = json.loads((data_dir / "keys.json").read_text())["keys"]
    except FileNotFoundError:
        return []
    return found


def add_key(data_dir: Path, name: str, *, tenant: str, role: str) -> str:
    """Make a key, write down its hash and return it: nobody can learn it again later."""
    for text in (name, tenant):
        if not NAME.fullmatch(text):
            raise KeyChangeRefused(
                f"{text!r} is no name: letters, digits, '.', '_' and '-', at most 63, beginning with a letter or digit"
            )
    key = "sm_" + secrets.token_urlsafe(32)
    with _changing(data_dir) as keys:
        if any(entry["name"] == name for entry in keys):
            raise KeyChangeRefused(f"there is a key {name!r} already; remove it first or choose another name")
        keys.append(
            {"name": name, "tenant": tenant, "role": role, "sha256": hashlib.sha256(key.encode()).hexdigest()}
        )
    return key


def remove_key(data_dir: Path, name: str) -> None:
    with _changing(data_dir) as keys:
        kept = [entry for entry in keys if entry["name"] != name]
        if len(kept) == len(keys):
            raise KeyChangeRefused(f"there is no key {name!r}")
        keys[:] = kept


def ensure_first_key(data_dir: Path) -> str | None:
    """The operator's key of a new data folder, kept plain in DIR/api-key; None when its owner has removed it since."""
    plain = data_dir / "api-key"
    if not (data_dir / "keys.json").exists():
        write_private(plain, add_key(data_dir, FIRST_KEY, tenant=FIRST_KEY, role="operator") + "\n")
    try:
        key = plain.read_text().strip()
    except FileNotFoundError:
        return None
    known = {entry["sha256"] for entry in read_keys(data_dir)}
    return key if hashlib.sha256(key.encode()).hexdigest() in known else None


@contextmanager
def _changing(data_dir: Path) -> Iterator[list[KeyEntry]]:
    lock = os.open(data_dir / "keys.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = read_keys(data_dir)
        yield keys
        write_private(data_dir / "keys.json", json.dumps({"keys": keys}, indent=1) + "\n")
    finally:
        os.close(lock)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sandman keys", description="The API keys of a data folder.")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="make a key and print it once")
    add.add_argument("name")
    add.add_argument("--tenant", help="whose sandboxes it sees (default: NAME)")
    add.add_argument("--role", choices=ROLES, default="user")
    remove = commands.add_parser("remove", help="make a key worthless at once")
    remove.add_argument("name")
    show = commands.add_parser("list", help="names, tenants and roles")
    for command in (add, remove, show):
        command.add_argument(
            "--data-dir", type=Path, default=Path(os.environ.get("SANDMAN_DATA_DIR") or default_data_dir())
        )
    given = parser.parse_args(argv)
    if not given.data_dir.is_dir():
        print(f"sandman: there is no data folder {given.data_dir}; `sandman up` makes it", file=sys.stderr)
        return 1
    try:
        if given.command == "add":
            print(add_key(given.data_dir, given.name, tenant=given.tenant or given.name, role=given.role))
        elif given.command == "remove":
            remove_key(given.data_dir, given.name)
        else:
            found = read_keys(given.data_dir)
            if not found:
                print(
                    f"sandman: no keys in {given.data_dir}; `sandman up` or `sandman keys add` makes one",
                    file=sys.stderr,
                )
            for entry in found:
                print(f"{entry['name']}\t{entry['tenant']}\t{entry['role']}")
    except (KeyChangeRefused, OSError) as error:
        print(f"sandman: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
