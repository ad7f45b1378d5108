"""`create`, `exec` and `run`: a sandbox, a command in one, or both in one go."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import msgspec

from sandman.aio.client import AsyncClient
from sandman.aio.sandbox import AsyncSandbox
from sandman.cli import create_options
from sandman.cli.create_options import amount, pair
from sandman.cli.session import Session

TAKE_COMMANDS = ("exec", "run")

LEASE_OF_CREATE_SECONDS = 3600.0
"""A sandbox made by hand has nobody who renews it: an hour of looking around, then it goes by itself."""


def add_commands(commands: Any, with_words: bool) -> None:
    create = commands.add_parser("create", help="make a sandbox and print its id; it lives for its lease")
    create_options.add(create)
    create.add_argument(
        "--lease",
        type=amount,
        default=LEASE_OF_CREATE_SECONDS,
        metavar="SECONDS",
        help="how long it lives (3600)",
    )
    create.add_argument("--json", action="store_true", help="print the whole record")
    create.set_defaults(action=run_create)

    execute = commands.add_parser("exec", help="run a command in a sandbox")
    execute.add_argument("sandbox", help="its id")
    add_exec_options(execute, with_words)
    execute.set_defaults(action=run_exec)

    both = commands.add_parser("run", help="make a sandbox, run a command in it, delete it")
    create_options.add(both)
    add_exec_options(both, with_words)
    both.set_defaults(action=run_run)


def add_exec_options(parser: argparse.ArgumentParser, with_words: bool) -> None:
    parser.add_argument(
        "-t", "--tty", action="store_true", help="give it a terminal, with this one's size and keys"
    )
    parser.add_argument("-n", "--no-stdin", action="store_true", help="do not pass stdin on")
    parser.add_argument("-w", "--cwd", metavar="DIR")
    parser.add_argument("-e", "--env", action="append", default=[], type=pair, metavar="NAME=VALUE")
    parser.add_argument("-u", "--user")
    parser.add_argument("--session", metavar="NAME", help="run it in a shell that keeps its state")
    parser.add_argument("--shell")
    parser.add_argument(
        "--timeout", type=amount, metavar="SECONDS", help="of the command; then exit code 124"
    )
    parser.add_argument("-d", "--detach", action="store_true", help="only start it, and print its exec id")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object when it has ended, output included"
    )
    if with_words:
        parser.add_argument(
            "words",
            nargs=argparse.REMAINDER,
            metavar="-- COMMAND [ARGUMENT …]",
            help="one word is text for the sandbox's shell, several are a program and its arguments",
        )


async def run_create(client: AsyncClient, options: argparse.Namespace) -> int:
    sandbox = await client.create(
        options.image,
        run=options.in_run,
        wait=options.wait,
        **create_options.read(options),
    )
    await sandbox.detach()
    if options.json:
        print(json.dumps(msgspec.to_builtins(sandbox.info), indent=2))
    else:
        print(sandbox.id)
    return 0


async def run_exec(client: AsyncClient, options: argparse.Namespace) -> int:
    return await execute_in(await client.sandbox(options.sandbox), options)


async def run_run(client: AsyncClient, options: argparse.Namespace) -> int:
    if options.detach:
        print(
            "sandman: run deletes its sandbox at the end, so -d makes no sense; use create and exec -d",
            file=sys.stderr,
        )
        return 2
    async with client.create(
        options.image, run=options.in_run, wait=options.wait, **create_options.read(options)
    ) as sandbox:
        return await execute_in(sandbox, options)


async def execute_in(sandbox: AsyncSandbox, options: argparse.Namespace) -> int:
    how = {
        "cwd": options.cwd,
        "env": dict(options.env) or None,
        "user": options.user,
        "session": options.session,
        "shell": options.shell,
        "timeout": options.timeout,
    }
    how = {name: value for name, value in how.items() if value is not None}
    command = command_of(options)
    if options.detach:
        handle = await sandbox.start(command, background=True, **how)
        print(handle.id)
        await handle.detach()
        return 0
    takes_stdin = not options.no_stdin and (options.tty or not os.isatty(0))
    session = Session(sandbox, command, how, tty=options.tty, stdin=takes_stdin, as_json=options.json)
    return await session.run()


def command_of(options: argparse.Namespace) -> str | list[str]:
    words: list[str] = options.words
    if not words:
        print(f"sandman: {options.command} needs a command, after --", file=sys.stderr)
        raise SystemExit(2)
    return words[0] if len(words) == 1 else words
