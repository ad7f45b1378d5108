"""What may be asked of one command. The daemon decides what the fields mean; here they only have to have the right shape, so
that a wrong one is refused before anything is sent."""

from __future__ import annotations

import msgspec


class Terminal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size of a terminal that a command runs on."""

    rows: int = 24
    cols: int = 80


class ExecBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST …/exec: `command` or `argv`, the rest optional."""

    command: str | None = None
    """Shell text."""
    argv: list[str] | None = None
    """A program and its arguments, without a shell."""
    cwd: str | None = None
    """Working directory; a relative one counts from the sandbox's."""
    env: dict[str, str] | None = None
    """Over the sandbox's environment, for this command."""
    stdin: str | None = None
    """Standard input as text. Without it and stdin_base64 it is at its end from the start."""
    stdin_base64: str | None = None
    """Standard input as bytes."""
    timeout_seconds: float | None = None
    """Null or left out: none. Zero is refused."""
    grace_seconds: float | None = None
    """Between TERM and KILL after the time-out."""
    user: str | None = None
    """Name or uid, with an optional ":group". Left out: the sandbox's."""
    session: str | None = None
    """Name of a persistent shell."""
    background: bool | None = None
    """Answer with 202 as soon as it runs."""
    id: str | None = None
    """Chosen by the caller: the same id again attaches and never runs twice."""
    encoding: str | None = None
    """Of the output: "utf-8" or "base64"."""
    max_output_bytes: int | None = None
    """Of each stream in the answer, 0 to 64 MiB; left out: 8 MiB. Of more, half is from the beginning and half from the end."""
    merge_stderr: bool | None = None
    """Both streams are one, in the order written, told as stdout."""
    shell: str | None = None
    """Name or path of the shell for `command`; left out: the sandbox's."""
    pty: Terminal | None = None
    """Run on a terminal; all output is stdout then."""


class Usage(msgspec.Struct, frozen=True):
    wall_seconds: float = 0
    user_seconds: float = 0
    system_seconds: float = 0
    max_rss_bytes: int = 0


class ExecResult(msgspec.Struct, frozen=True):
    """What the daemon answers; here for the API's description and for the counts."""

    id: str = ""
    state: str = ""
    """running or exited."""
    exit_code: int | None = None
    """128 + n when signal n killed it."""
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    stdout: str = ""
    stderr: str = ""
    encoding: str = "utf-8"
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_truncated: int = 0
    stderr_truncated: int = 0
    usage: Usage | None = None
    started_at: float | None = None
    ended_at: float | None = None
    background: bool = False
    session: str | None = None
    created_at: float | None = None
    """When it was accepted. This and what follows: in lists, and when one is looked at by its id."""
    command: str | None = None
    """The first KiB of the shell text."""
    argv: list[str] | None = None
    cwd: str | None = None
    user: str | None = None


class SignalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST …/execs/{eid}/signal."""

    signal: int | str | None = None
    """Name with or without SIG, or number; left out: TERM."""
    scope: str | None = None
    """process, group or tree."""
