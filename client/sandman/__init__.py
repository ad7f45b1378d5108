"""Sandman's client: sandboxes for agentic reinforcement learning, from Python.

    import sandman

    with sandman.Client() as client, client.create() as sandbox:
        result = sandbox.exec("echo hello")
        print(result.exit_code, result.stdout)

`AsyncClient` has the same names with `await`. Everything that can go wrong is in `sandman.errors`, under `SandmanError`; a
command that fails is not among it but a result.
"""

from sandman.aio.client import AsyncClient
from sandman.aio.execution import AsyncExec
from sandman.aio.files import AsyncFiles
from sandman.aio.run import AsyncRun
from sandman.aio.sandbox import AsyncSandbox
from sandman.config import Limits, Timeouts
from sandman.errors import (
    ArchiveError,
    AuthError,
    BadAnswer,
    ClosedError,
    CommandFailed,
    ConfigError,
    Conflict,
    ConnectError,
    ConnectionLimit,
    ConnectionLost,
    CreateTimeout,
    ExecStartError,
    FileError,
    FileMissing,
    ForkError,
    Gone,
    IsADirectory,
    LoopError,
    MisuseError,
    NotFound,
    NotReady,
    ProblemError,
    QuotaExceeded,
    RequestTimeout,
    SandboxError,
    SandboxFailed,
    SandboxLost,
    SandmanError,
    ServiceUnavailable,
    StdinClosed,
    TimedOut,
    TransportError,
    ValidationError,
)
from sandman.models import ExecRecord, ExecResult, Exit, FileInfo, Gap, Output, RunInfo, SandboxInfo, Usage
from sandman.options import CreateOptions, ExecOptions, StartOptions
from sandman.retry import RetryPolicy
from sandman.sync.client import Client
from sandman.sync.execution import Exec
from sandman.sync.files import Files
from sandman.sync.run import Run
from sandman.sync.sandbox import Sandbox
from sandman.tarball import Unpacked
from sandman.version import __version__

__all__ = [
    "ArchiveError",
    "AsyncClient",
    "AsyncExec",
    "AsyncFiles",
    "AsyncRun",
    "AsyncSandbox",
    "AuthError",
    "BadAnswer",
    "Client",
    "ClosedError",
    "CommandFailed",
    "ConfigError",
    "Conflict",
    "ConnectError",
    "ConnectionLimit",
    "ConnectionLost",
    "CreateOptions",
    "CreateTimeout",
    "Exec",
    "ExecOptions",
    "ExecRecord",
    "ExecResult",
    "ExecStartError",
    "Exit",
    "FileError",
    "FileInfo",
    "FileMissing",
    "Files",
    "ForkError",
    "Gap",
    "Gone",
    "IsADirectory",
    "Limits",
    "LoopError",
    "MisuseError",
    "NotFound",
    "NotReady",
    "Output",
    "ProblemError",
    "QuotaExceeded",
    "RequestTimeout",
    "RetryPolicy",
    "Run",
    "RunInfo",
    "Sandbox",
    "SandboxError",
    "SandboxFailed",
    "SandboxInfo",
    "SandboxLost",
    "SandmanError",
    "ServiceUnavailable",
    "StartOptions",
    "StdinClosed",
    "TimedOut",
    "Timeouts",
    "TransportError",
    "Unpacked",
    "Usage",
    "ValidationError",
    "__version__",
]
