"""`cp`: files and folders between this machine and a sandbox, with `sb-…:/path` on one side."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from sandman.aio.client import AsyncClient
from sandman.aio.transfer import Progress
from sandman.errors import FileError

PROGRESS_SECONDS = 0.2


def add_commands(commands: Any) -> None:
    cp = commands.add_parser(
        "cp",
        help="copy a file or folder: cp LOCAL SANDBOX:PATH or cp SANDBOX:PATH LOCAL",
        description="A folder is copied as what is at the target; into a target that is a folder already (or ends in /), the "
        "source goes under its own name, as with cp -r. `-` as the local side is stdin or stdout.",
    )
    cp.add_argument("source")
    cp.add_argument("target")
    cp.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    cp.add_argument("--all-links", action="store_true", help="also links that point out of the copied folder")
    cp.set_defaults(action=run_cp)


async def run_cp(client: AsyncClient, options: argparse.Namespace) -> int:
    source, target = remote(options.source), remote(options.target)
    if (source is None) == (target is None):
        print("sandman: cp needs SANDBOX:PATH on exactly one side", file=sys.stderr)
        return 2
    progress = None if options.quiet or not sys.stderr.isatty() else Bar()
    if target is not None:
        await send(client, options.source, target, progress)
    elif source is not None:
        await fetch(client, source, options.target, progress, options.all_links)
    if progress is not None:
        progress.finish()
    return 0


async def send(client: AsyncClient, local: str, target: tuple[str, str], progress: Progress | None) -> None:
    sandbox = await client.sandbox(target[0])
    path = target[1] or "."
    if local == "-":
        await sandbox.files.write(path, sys.stdin.buffer, progress=progress)
        return
    try:
        into_folder = path.endswith("/") or (await sandbox.files.stat(path, follow=True)).is_dir
    except FileError:
        into_folder = path.endswith("/")
    if into_folder:
        path = f"{path.rstrip('/')}/{Path(local).resolve().name}"
    await sandbox.files.upload(local, path, progress=progress)


async def fetch(
    client: AsyncClient, source: tuple[str, str], local: str, progress: Progress | None, all_links: bool
) -> None:
    sandbox = await client.sandbox(source[0])
    path = source[1] or "."
    if local == "-":
        async for chunk in sandbox.files.read_chunks(path):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    target = Path(local)
    if target.is_dir() or local.endswith("/"):
        name = path.rstrip("/").rpartition("/")[2]
        if name in ("", ".", ".."):
            name = sandbox.id
        target.mkdir(parents=True, exist_ok=True)
        target = target / name
    done = await sandbox.files.download(
        path, target, progress=progress, links="all" if all_links else "inside"
    )
    for name in done.skipped:
        print(f"sandman: skipped {name!r}: not a file, or a link out of the folder", file=sys.stderr)


def remote(text: str) -> tuple[str, str] | None:
    """(sandbox, path) when the text names a place in a sandbox; a local name with a colon can be written ./a:b."""
    name, colon, path = text.partition(":")
    return (name, path) if colon and name.startswith("sb-") and "/" not in name else None


class Bar:
    """One line of progress on stderr."""

    def __init__(self) -> None:
        self._shown = 0.0
        self._started = time.monotonic()
        self._bytes = 0

    def __call__(self, done: int, total: int | None) -> None:
        self._bytes = done
        now = time.monotonic()
        if now - self._shown >= PROGRESS_SECONDS:
            self._shown = now
            share = f" of {size(total)} ({done * 100 // max(total, 1)} %)" if total is not None else ""
            print(f"\r{size(done)}{share}\033[K", end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        seconds = max(time.monotonic() - self._started, 1e-6)
        print(
            f"\r{size(self._bytes)} in {seconds:.1f} s ({size(int(self._bytes / seconds))}/s)\033[K",
            file=sys.stderr,
        )


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError
