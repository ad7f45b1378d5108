"""The keyword arguments that the sync and the async client share, and how they become request bodies."""

from __future__ import annotations

import difflib
import inspect
import math
import re
import uuid
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, TypedDict

import msgspec

from sandman.errors import ValidationError

DEFAULT_MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""Per stream. Enough for any log that a person or a model reads; a thousand results still fit into memory."""

REQUEST_BYTES_MAX = 15 * 1024 * 1024
"""Below the 16 MiB at which the service ends a connection."""

Command = str | Sequence[str]
"""Text for the sandbox's shell, or an argument vector that is run as it is."""
Source = bytes | bytearray | memoryview | str | BinaryIO | Iterable[bytes] | AsyncIterable[bytes]
"""Content to send. A str is text in UTF-8, never a path. Iterables and files are read as the transfer goes on."""
Callback = Callable[[Any], Any] | Callable[[Any], Awaitable[Any]]


class CreateOptions(TypedDict, total=False):
    """What a sandbox is made of; what is left out is the service's default."""

    env: Mapping[str, str]
    cpu: float
    """Cores."""
    memory: int | str
    """Bytes, or text such as "512MiB"."""
    disk: int | str
    user: str
    """Who runs commands, unless an exec says otherwise."""
    workdir: str
    labels: Mapping[str, str]
    lease_seconds: float
    """How long it lives unrenewed. The object renews it at a third of that, as long as it is open and this process lives."""
    lifetime_seconds: float
    """The most it ever lives, however it is held."""
    policy: Mapping[str, Any]
    """{"network": "none" | "host", "pids": N}"""
    idempotency_key: str
    """Names this create over several calls; by default each call is one create of its own, whatever it takes to be sent."""


class StartOptions(TypedDict, total=False):
    """How a command runs."""

    cwd: str
    env: Mapping[str, str]
    timeout: float | None
    """Seconds of the command itself, counted and enforced by the daemon over the whole process tree; the result then says
    timed_out. None: no bound but the sandbox's own. No HTTP or connection time-out ever ends a command."""
    grace: float
    """Seconds between TERM and KILL when the time is up."""
    user: str
    session: str
    """Name of a persistent shell that keeps cwd, variables and functions; commands of one session run one after another."""
    shell: str
    merge_stderr: bool
    """stderr into stdout, in the order written."""
    id: str
    """The exec's id, chosen here; the same id again attaches to the same command."""
    max_output_bytes: int
    """Per stream, kept for the result: the first and the last half of it, in the foreground, in the background and in a
    session alike (default 8 MiB). Memory of this process is its only bound: the 64 MiB of the HTTP API's whole answers (and of
    `exec_info`) do not apply, for output comes as a stream. What a background command wrote while nobody read, or any command
    while the connection was down for long, is only there as far as the sandbox's spool keeps it (64 MiB a stream, or a sixteenth
    of its disk); the rest is a Gap and counts as truncated. Live events carry everything."""


class ExecOptions(StartOptions, total=False):
    stdin: Source
    """Sent as it is read, then end of file. Without it, stdin is at its end from the start."""
    on_stdout: Callback
    """Called with each piece in order (text, or bytes with encoding=None). May be a coroutine function in the async client.
    An exception in it kills the command and comes out of exec()."""
    on_stderr: Callback
    on_gap: Callback
    """Called with each Gap: output that was no longer kept when a broken connection was resumed."""
    check: bool
    """True: raise CommandFailed unless the exit code is 0 in time."""


# What people write who know the HTTP API, the command line, or another library.
OTHER_NAMES = {
    "timeout_seconds": "timeout",
    "grace_seconds": "grace",
    "workdir": "cwd",
    "cwd": "workdir",
    "network": "policy={'network': …}",
    "pids": "policy={'pids': …}",
    "lease": "lease_seconds",
    "lifetime": "lifetime_seconds",
    "timeout": "wait",
    "cpus": "cpu",
    "input": "stdin",
    "tty": "pty",
}


def refuse_unknown(call: str, options: Mapping[str, Any], known: Any, *more: str) -> None:
    """TypeError for a keyword that `call` does not have, naming the one that was meant: `**options` alone would swallow it,
    and with it a time-out or a limit that somebody relies on. `more` are the call's own keywords beside those of `known`."""
    names = sorted({*known.__optional_keys__, *more})
    for name in options:
        if name in names:
            continue
        meant = OTHER_NAMES.get(name, "")
        if meant.partition("=")[0] not in names:
            meant = next(iter(difflib.get_close_matches(name, names, n=1)), "")
        hint = f"did you mean {meant!r}?" if meant else f"it takes {', '.join(names)}"
        raise TypeError(f"{call}() got an unexpected keyword {name!r}; {hint}")


CALLBACKS = ("on_stdout", "on_stderr", "on_gap")


def check_callbacks(options: Mapping[str, Any], *, blocking: bool = False) -> None:
    """Before the command runs: at its first output it would be killed for it, or, in the blocking client, nobody would await."""
    for name in CALLBACKS:
        callback = options.get(name)
        if callback is None:
            continue
        if not callable(callback):
            raise TypeError(
                f"{name} is to be called with each piece, and a {type(callback).__name__} cannot be"
            )
        if blocking and inspect.iscoroutinefunction(callback):
            raise TypeError(f"{name} is a coroutine function, which only AsyncSandbox.exec awaits")


def refuse_content_as_stdin(call: str, stdin: object) -> None:
    if not isinstance(stdin, bool):
        raise TypeError(
            f"stdin of {call}() is True or False, not {type(stdin).__name__}: write() to what it returns, or use exec()"
        )


def exec_id() -> str:
    return f"ex-{uuid.uuid4().hex}"


def start_body(command: Command, options: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a start request. Raises TypeError for a command that is neither text nor a list of text."""
    body: dict[str, Any] = {}
    if isinstance(command, str):
        body["command"] = command
    elif (
        isinstance(command, bytes | bytearray | memoryview)
        or not isinstance(command, Sequence)
        or not all(isinstance(part, str) for part in command)
    ):
        raise TypeError(
            "a command is a str (for the shell) or a list or tuple of str (an argument vector), "
            f"not {type(command).__name__ if not isinstance(command, Sequence) else repr(command)[:80]}"
        )
    else:
        body["argv"] = list(command)
    for name in ("cwd", "user", "session", "shell", "merge_stderr", "max_output_bytes"):
        if options.get(name) is not None:
            body[name] = options[name]
    if options.get("env") is not None:
        body["env"] = dict(options["env"])
    if options.get("timeout") is not None:
        body["timeout_seconds"] = options["timeout"]
    if options.get("grace") is not None:
        body["grace_seconds"] = options["grace"]
    body["id"] = options.get("id") or exec_id()
    limit = body.get("max_output_bytes", 0)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise ValidationError(
            f"max_output_bytes must be a whole number of 0 or more, not {limit!r}",
            members={"field": "max_output_bytes"},
        )
    check_values(body)
    return body


def create_body(image: str, run: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"image": image}
    if run is not None:
        body["run"] = run
    for name in ("env", "labels", "policy"):
        if options.get(name) is not None:
            body[name] = dict(options[name])
    for name in ("cpu", "user", "workdir", "lease_seconds", "lifetime_seconds"):
        if options.get(name) is not None:
            body[name] = options[name]
    for name in ("memory", "disk"):
        if options.get(name) is not None:
            body[name] = parse_size(options[name])
    check_values(body)
    return body


def check_values(body: Mapping[str, Any]) -> None:
    """Refuse what JSON would carry as something else (NaN becomes null there, and null means "no limit"), and what is more
    than any frame may be: that would end the connection, not just this call."""
    size = 0
    for name, value in body.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValidationError(f"{name} must be a finite number, not {value}", members={"field": name})
        try:
            size += len(msgspec.json.encode(value))
        except UnicodeEncodeError as error:
            raise ValidationError(
                f"{name} holds half a surrogate pair, which is no text", members={"field": name}
            ) from error
        if size > REQUEST_BYTES_MAX:
            raise ValidationError(
                f"with {name} the request is larger than {REQUEST_BYTES_MAX} bytes; write a file instead",
                members={"field": name},
            )


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*\Z", re.IGNORECASE)


def parse_size(value: int | str) -> int:
    """Bytes from a number or from text: "512MiB" and "512Mi" are binary, "512MB" and "512M" decimal."""
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        raise TypeError(f"a size is an int (bytes) or a str such as '512MiB', not {type(value).__name__}")
    found = _SIZE.match(value)
    if found is None:
        raise ValueError(f"not a size: {value!r} (try 512MiB)")
    base = 1024 if found[3] else 1000
    try:
        return int(float(found[1]) * base ** " kmgt".index(found[2].lower() or " "))
    except OverflowError:
        raise ValueError(f"not a size: {value[:20]!r}… is more than any machine has") from None
