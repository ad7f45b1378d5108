"""What the service says, as values: structs at the border (unknown members are ignored, so that an older client lives with a
newer service), frozen dataclasses for what the client makes itself.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, AnyStr, Generic, Literal

import msgspec

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")


def from_base64(text: str) -> str:
    return base64.b64decode(text).decode("utf-8", "surrogateescape")


ENDED_STATES = frozenset({"failed", "deleting", "deleted"})


class SandboxInfo(msgspec.Struct, kw_only=True):
    """A sandbox's record as the service keeps it."""

    id: str
    state: str
    """queued, creating, starting, ready, deleting, deleted or failed."""
    reason: str | None = None
    """Why it failed; None unless state is failed."""
    detail: str | None = None
    cause: str | None = None
    retryable: bool | None = None
    reclaim: str | None = None
    """Why it was taken back."""
    run: str | None = None
    image: str | None = None
    cpu: float | None = None
    memory: int | None = None
    disk: int | None = None
    user: str | None = None
    workdir: str | None = None
    labels: dict[str, str] = {}
    queue_position: int | None = None
    lease_seconds: float | None = None
    lease_expires_at: float | None = None
    """Unix seconds; None when its run holds it."""
    deadline_at: float | None = None
    created_at: float | None = None
    timings: dict[str, float] = {}
    """Unix seconds at which each state was reached."""
    address: str | None = None
    enforced: dict[str, Any] = {}
    """How each limit is enforced on this backend."""


class RunInfo(msgspec.Struct, kw_only=True):
    id: str
    state: str = "active"
    name: str | None = None
    labels: dict[str, str] = {}
    lease_seconds: float | None = None
    lease_expires_at: float | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What the command itself used; waiting, queueing and the network are not in it."""

    wall_seconds: float = 0.0
    user_seconds: float | None = None
    """None when it could not be told from that of others in the same session."""
    system_seconds: float | None = None
    max_rss_bytes: int | None = None


class ExecRecord(msgspec.Struct, kw_only=True):
    """One exec as the daemon tells it."""

    id: str
    state: str = "running"
    command: str | None = None
    argv: list[str] | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_truncated: int = 0
    stderr_truncated: int = 0
    usage: Usage | None = None
    created_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    background: bool = False
    session: str | None = None
    session_new: bool = False
    session_ended: bool = False
    cwd: str | None = None
    user: str | None = None
    stdout: str = ""
    stderr: str = ""
    encoding: str = "utf-8"
    failure: dict[str, Any] | None = None
    """The problem that kept it from starting."""

    def total(self, stream: Stream) -> int:
        return self.stdout_bytes if stream == "stdout" else self.stderr_bytes


@dataclass(frozen=True)
class ExecResult(Generic[AnyStr]):
    """How a command ended. Whatever it ended with, this is a value and not an exception."""

    id: str
    exit_code: int | None
    """As the shell says it: 128+n after signal n. None only while state is not "exited"."""
    signal: int | None
    """The number of the signal that ended the command itself."""
    timed_out: bool
    oom_killed: bool
    stdout: AnyStr
    stderr: AnyStr
    stdout_bytes: int
    """How many bytes it wrote in all; more than `stdout` holds when it was truncated."""
    stderr_bytes: int
    stdout_truncated: int
    """Bytes that are not in `stdout`: the middle, the first and last half of max_output_bytes are kept."""
    stderr_truncated: int
    usage: Usage
    started_at: float | None = None
    ended_at: float | None = None
    session_new: bool = False
    """The command began a fresh shell for its session."""
    session_ended: bool = False
    """The command ended its session's shell (`exit`, `exec`)."""

    @property
    def ok(self) -> bool:
        """Exit code 0 in time."""
        return self.exit_code == 0 and not self.timed_out and not self.oom_killed

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class Output(Generic[AnyStr]):
    """A piece of output, as soon as it came."""

    stream: Stream
    data: AnyStr
    offset: int
    """Of its first byte in the stream, in bytes even in text mode; to resume behind it, attach with the next one's."""


@dataclass(frozen=True)
class Gap:
    """Output that the service no longer had when it was asked for: bytes `start` to `end` of the stream are lost."""

    stream: Stream
    start: int
    end: int

    @property
    def lost_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Exit(Generic[AnyStr]):
    """The last event of every command that ended, exactly once."""

    result: ExecResult[AnyStr]


class FileInfo(msgspec.Struct, kw_only=True):
    """One directory entry or file inside the sandbox."""

    path: str = ""
    name: str = ""
    type: str = "file"
    """file, directory, symlink, fifo, socket, block_device, char_device."""
    size: int = 0
    mode: str | None = None
    """Permission bits in octal, as "0644"."""
    uid: int | None = None
    gid: int | None = None
    mtime: float | None = None
    """Unix seconds."""
    links: int | None = None
    target: str | None = None
    """Where a symlink points."""
    error: str | None = None
    """The errno's name when a folder could not be read on the way."""
    name_b64: str | None = None
    path_b64: str | None = None
    target_b64: str | None = None

    def __post_init__(self) -> None:
        # A name that is not UTF-8 comes as bytes too; as a str it carries them the way os.fsdecode does, and goes back so.
        if self.name_b64 is not None:
            self.name = from_base64(self.name_b64)
        if self.path_b64 is not None:
            self.path = from_base64(self.path_b64)
        if self.target_b64 is not None:
            self.target = from_base64(self.target_b64)

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"
