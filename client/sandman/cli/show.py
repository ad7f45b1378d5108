"""`ls`, `rm`, `renew`, `stats` and `doctor`: looking at sandboxes and ending them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import msgspec

from sandman.aio.client import AsyncClient
from sandman.aio.http import segment
from sandman.cli.create_options import amount, pair
from sandman.errors import AuthError, ConnectError, FileError, SandmanError
from sandman.models import FileInfo, SandboxInfo

DELETES_AT_ONCE = 16


def add_commands(commands: Any) -> None:
    ls = commands.add_parser("ls", help="list sandboxes, or files: ls SANDBOX:PATH")
    ls.add_argument("what", nargs="?", metavar="SANDBOX:PATH")
    ls.add_argument("--state")
    ls.add_argument("--run")
    ls.add_argument("--label", action="append", default=[], type=pair, metavar="NAME=VALUE")
    ls.add_argument("--depth", type=int, default=1, help="of a listing of files (1)")
    ls.add_argument("--json", action="store_true", help="one JSON object a line")
    ls.set_defaults(action=run_ls)

    rm = commands.add_parser(
        "rm", help="delete sandboxes (sb-…), runs with all they own (run-…), or files: SANDBOX:PATH"
    )
    rm.add_argument("names", nargs="+", metavar="ID")
    rm.add_argument("-r", "--recursive", action="store_true", help="folders with what is in them")
    rm.set_defaults(action=run_rm)

    renew = commands.add_parser("renew", help="renew a sandbox's lease")
    renew.add_argument("sandbox")
    renew.add_argument("--lease", type=amount, metavar="SECONDS")
    renew.set_defaults(action=run_renew)

    stats = commands.add_parser("stats", help="what is live, queued, in flight and taken back")
    stats.add_argument("--json", action="store_true")
    stats.set_defaults(action=run_stats)

    doctor = commands.add_parser("doctor", help="check that the service can be used from here")
    doctor.set_defaults(action=run_doctor)


async def run_ls(client: AsyncClient, options: argparse.Namespace) -> int:
    if options.what is not None:
        return await list_files(client, options)
    rows: list[list[str]] = []
    async for sandbox in client.sandboxes(state=options.state, run=options.run, labels=dict(options.label)):
        if options.json:
            print(json.dumps(msgspec.to_builtins(sandbox.info)))
        else:
            rows.append(row_of(sandbox.info))
    if not options.json:
        print_table(["ID", "STATE", "AGE", "IMAGE", "RUN", "DETAIL"], rows)
    return 0


async def list_files(client: AsyncClient, options: argparse.Namespace) -> int:
    name, colon, path = options.what.partition(":")
    if not colon:
        print("sandman: to list files, give SANDBOX:PATH", file=sys.stderr)
        return 2
    sandbox = await client.sandbox(name)
    async for info in sandbox.files.iterate(path or ".", options.depth):
        print(json.dumps(msgspec.to_builtins(info)) if options.json else line_of(info))
    return 0


async def run_rm(client: AsyncClient, options: argparse.Namespace) -> int:
    gate = asyncio.Semaphore(DELETES_AT_ONCE)

    async def remove(name: str) -> bool:
        async with gate:
            try:
                await remove_one(client, name, options.recursive)
            except ConnectError:
                raise  # of all of them, and said once
            except SandmanError as error:
                print(f"sandman: {name}: {error}{what_helps(error, options.recursive)}", file=sys.stderr)
                return False
            return True

    done = await asyncio.gather(*(remove(name) for name in options.names))
    return 0 if all(done) else 1


async def remove_one(client: AsyncClient, name: str, recursive: bool) -> None:
    sandbox_id, colon, path = name.partition(":")
    if colon:
        await (await client.sandbox(sandbox_id)).files.remove(path, recursive=recursive)
    else:
        kind = "runs" if name.startswith("run-") else "sandboxes"
        await client._call("DELETE", f"/v1/{kind}/{segment(name)}")


def what_helps(error: SandmanError, recursive: bool) -> str:
    folder = isinstance(error, FileError) and error.errno in ("EISDIR", "ENOTEMPTY")
    return " (it is a folder: -r removes it with what is in it)" if folder and not recursive else ""


async def run_renew(client: AsyncClient, options: argparse.Namespace) -> int:
    info = await (await client.sandbox(options.sandbox)).renew(options.lease)
    if info.lease_expires_at is not None:
        print(f"{info.id} is held for {max(0.0, info.lease_expires_at - time.time()):.0f} s")
    return 0


async def run_stats(client: AsyncClient, options: argparse.Namespace) -> int:
    stats = await client.stats()
    if options.json:
        print(json.dumps(stats))
        return 0
    for name, value in stats.items():
        if isinstance(value, dict):
            shown = "  ".join(f"{key} {number(item)}" for key, item in value.items()) or "none"
        else:
            shown = number(value)
        print(f"{name:<12} {shown}")
    return 0


async def run_doctor(client: AsyncClient, options: argparse.Namespace) -> int:
    """Each step tells what it needs; the first that fails is the one to look at."""
    settings = client.settings
    print(f"service      {settings.url}")
    try:
        await client._call("GET", "/health/ready")
        print("ready        yes")
        await client.stats()
        print("key          accepted")
    except AuthError:
        print("key          refused: set SANDMAN_API_KEY or SANDMAN_API_KEY_FILE", file=sys.stderr)
        return 1
    started = time.monotonic()
    async with client.create() as sandbox:
        ready = time.monotonic()
        result = await sandbox.exec("echo ok")
        print(f"create       {ready - started:.2f} s")
        print(f"exec         {time.monotonic() - ready:.3f} s, exit code {result.exit_code}")
    print("delete       accepted")
    return 0 if result.ok else 1


def row_of(info: SandboxInfo) -> list[str]:
    age = "" if info.created_at is None else duration(max(0.0, time.time() - info.created_at))
    detail = (
        info.reason
        or info.reclaim
        or ("" if info.queue_position is None else f"position {info.queue_position}")
    )
    return [info.id, info.state, age, info.image or "", info.run or "", detail]


def line_of(info: FileInfo) -> str:
    target = f" -> {info.target}" if info.target else ""
    when = "" if info.mtime is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(info.mtime))
    return f"{info.type[:9]:<9} {info.mode or '':>5} {info.uid or 0:>6} {info.size:>12} {when} {printable(info.path)}{target}"


def printable(name: str) -> str:
    """A name that cannot turn the terminal's colours or forge a second line."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in name
    )


def print_table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def number(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
