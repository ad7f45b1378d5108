"""From words to a subcommand, and from an exception to a message and an exit code."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

from sandman.aio.client import AsyncClient
from sandman.cli import copying, execute, service, show
from sandman.errors import ConfigError, ConnectError, ExecStartError, SandmanError
from sandman.retry import RetryPolicy
from sandman.version import __version__

EXIT_OUR_FAULT = 125
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
EXIT_INTERRUPTED = 130

RETRY_SECONDS = 10.0
"""Somebody sits in front of it: long enough for a restart of the service, short enough to be told that it is down."""

Action = Callable[[AsyncClient, argparse.Namespace], Awaitable[int]]

DESCRIPTION = "Sandboxes for agentic reinforcement learning."
EPILOG = """\
The service is found by --url or SANDMAN_URL (default http://127.0.0.1:8700), its key by SANDMAN_API_KEY or
SANDMAN_API_KEY_FILE (default: the one that `sandman up` made, api-key in the data folder). The data folder, which `keys`
changes too, is --data-dir of `up` and `keys`, else SANDMAN_DATA_DIR, else /var/lib/sandman for root and
~/.local/share/sandman for others.

exit codes: the command's own for exec and run (128+n after signal n, 124 out of time); 125 Sandman failed,
126/127 the command cannot be run/found; 2 usage; 130 Ctrl-C; 1 anything else
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. `up` and `keys` replace this process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in service.MODULES:
        return service.run(words[0], words[1:])
    options = parse(words)
    try:
        return asyncio.run(with_client(options))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone: no message could reach it. Keep the interpreter's own flush quiet as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ExecStartError as error:
        complain(error)
        return EXIT_NOT_FOUND if error.reason == "not_found" else EXIT_NOT_EXECUTABLE
    except SandmanError as error:
        complain(error)
        return EXIT_OUR_FAULT if options.command in ("exec", "run") else 1
    except OSError as error:
        print(f"sandman: {error}", file=sys.stderr)
        return EXIT_OUR_FAULT if options.command in ("exec", "run") else 1


def parse(words: Sequence[str]) -> argparse.Namespace:
    """All behind `--` is the command to run, whatever it looks like; without it, all behind the sandbox's id."""
    if "--" in words and any(word in execute.TAKE_COMMANDS for word in words[: words.index("--")]):
        cut = words.index("--")
        options = build_parser(with_words=False).parse_args(words[:cut])
        options.words = list(words[cut + 1 :])
    else:
        options = build_parser().parse_args(words)
    if options.command in service.MODULES:
        print(f"sandman: {options.command} comes first, its own options behind it", file=sys.stderr)
        raise SystemExit(2)
    if options.command in execute.TAKE_COMMANDS:
        execute.command_of(options)
    return options


async def with_client(options: argparse.Namespace) -> int:
    retry = RetryPolicy(total_seconds=RETRY_SECONDS)
    async with AsyncClient(options.url, retry=retry) as client:
        action: Action = options.action
        return await action(client, options)


def complain(error: SandmanError) -> None:
    print(f"sandman: {error}", file=sys.stderr)
    if isinstance(error, ConfigError):
        print("sandman: is the service set up? `sandman up` starts one here.", file=sys.stderr)
    if isinstance(error, ConnectError):
        print(
            "sandman: is the service running there? `sandman up` starts one on this machine; --url or SANDMAN_URL names another.",
            file=sys.stderr,
        )
    if error.request_id:
        print(f"sandman: request {error.request_id}", file=sys.stderr)


def build_parser(with_words: bool = True) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandman",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sandman {__version__}")
    parser.add_argument("--url", help="where the service is (default: SANDMAN_URL, or this machine)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, what in service.MODULES.items():
        commands.add_parser(name, help=what.summary, add_help=False)
    execute.add_commands(commands, with_words)
    show.add_commands(commands)
    copying.add_commands(commands)
    return parser
