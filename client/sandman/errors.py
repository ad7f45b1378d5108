"""Everything this package raises, in one tree; foreign exceptions (httpx, websockets, OSError) are chained as the cause.

    SandmanError                        one base: .retryable, .cause (caller | task | infra), .request_id
    ├── ConfigError                     no key, bad URL: nothing was sent
    ├── StdinClosed                     also a BrokenPipeError: the command has ended or closed its stdin
    ├── MisuseError                     the object is used where it cannot work
    │   ├── ClosedError                 … after close()
    │   ├── ForkError                   … in a child made by os.fork()
    │   └── LoopError                   … from another event loop, or a sync call inside the background loop
    ├── ProblemError                    the service answered with an error: .status, .type, .title, .detail, .members
    │   ├── ValidationError             400, 413, 422: the request is wrong (.field says where)
    │   │   └── ExecStartError          the command could not be started: .reason (not_found, permission, cwd, user, …)
    │   ├── AuthError                   401, 403: the key is missing, wrong or not allowed to
    │   ├── NotFound                    404
    │   ├── Gone                        410: it was there and has ended
    │   ├── Conflict                    409
    │   │   └── NotReady                the sandbox is not ready yet
    │   ├── QuotaExceeded               a tenant's limit is reached
    │   ├── FileError                   .errno (the name, "EACCES") and .path of what failed inside the sandbox
    │   │   ├── FileMissing             … also a NotFound
    │   │   └── IsADirectory
    │   └── ServiceUnavailable          429, 5xx: try later (.retry_after seconds, when it said so)
    ├── SandboxError                    .sandbox, .reason, .detail
    │   ├── SandboxFailed               it never became ready
    │   └── SandboxLost                 it was ready and is gone
    ├── TransportError                  the service was not reached or did not make sense
    │   ├── ConnectError                no connection (DNS, refused, TLS)
    │   ├── ConnectionLost              it broke, and could not be resumed in time
    │   ├── BadAnswer                   an answer that is not ours: HTML, cut JSON, empty (.status, .excerpt)
    │   └── ConnectionLimit             this process has no socket left: says which limit to raise
    ├── TimedOut                        also a builtin TimeoutError
    │   ├── RequestTimeout              one HTTP request took longer than `request_timeout`
    │   └── CreateTimeout               not ready within `wait` (.sandbox)
    ├── CommandFailed                   only with check=True: .result tells exit code and output
    └── ArchiveError                    a tar stream with a member that leaves its folder, or a source that changed under us

A command that fails, times out or is killed is none of these: it is a result.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sandman.models import ExecResult

Cause = Literal["caller", "task", "infra"]


class SandmanError(Exception):
    """Base of all. Survives pickling, so that it may cross a process pool."""

    retryable: bool = False
    """Whether the same call may succeed when it is made again later."""
    cause: Cause = "infra"
    """Whose fault: `infra` failures should be masked from an RL reward, `task` and `caller` ones should not."""
    request_id: str | None = None
    """The service's id of the failed request, to be found in its logs."""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        cause: Cause | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable
        if cause is not None:
            self.cause = cause
        if request_id is not None:
            self.request_id = request_id

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[SandmanError], args: tuple[Any, ...], state: dict[str, Any]) -> SandmanError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(SandmanError):
    cause: Cause = "caller"


class StdinClosed(SandmanError, BrokenPipeError):
    cause: Cause = "task"


class MisuseError(SandmanError):
    cause: Cause = "caller"


class ClosedError(MisuseError):
    pass


class ForkError(MisuseError):
    pass


class LoopError(MisuseError):
    pass


class ProblemError(SandmanError):
    """An error answer of the service (RFC 9457), or of something in between (then `type` is `about:blank`)."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        type: str = "about:blank",  # noqa: A002 - the RFC's own word
        title: str = "",
        detail: str = "",
        members: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
        retryable: bool | None = None,
        cause: Cause | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable, cause=cause, request_id=request_id)
        self.status = status
        self.type = type
        self.title = title
        self.detail = detail
        self.members: dict[str, Any] = dict(members or {})
        self.retry_after = retry_after
        """Seconds the answer asked to wait; None when it did not say."""

    @property
    def slug(self) -> str:
        """The last part of `type`: stable, to be compared in code."""
        return self.type.rsplit(":", 1)[-1]

    @property
    def field(self) -> str | None:
        """The request's field that is wrong, when the service names one."""
        value = self.members.get("field")
        return value if isinstance(value, str) else None


class ValidationError(ProblemError):
    cause: Cause = "caller"


class ExecStartError(ValidationError):
    cause: Cause = "task"

    @property
    def reason(self) -> str:
        """not_found, permission, argument_list_too_long, cwd, user, shell_not_found, …"""
        return str(self.members.get("reason", "unknown"))


class AuthError(ProblemError):
    cause: Cause = "caller"


class NotFound(ProblemError):
    cause: Cause = "caller"


class Gone(ProblemError):
    cause: Cause = "caller"


class Conflict(ProblemError):
    cause: Cause = "caller"


class NotReady(Conflict):
    retryable = True


class QuotaExceeded(ProblemError):
    cause: Cause = "caller"
    retryable = True


class FileError(ProblemError):
    cause: Cause = "task"

    @property
    def errno(self) -> str | None:
        """The error's name in C, such as "EACCES"."""
        value = self.members.get("errno")
        return value if isinstance(value, str) else None

    @property
    def path(self) -> str | None:
        value = self.members.get("path")
        return value if isinstance(value, str) else None


class FileMissing(FileError, NotFound):
    pass


class IsADirectory(FileError):
    pass


class ServiceUnavailable(ProblemError):
    retryable = True


class SandboxError(SandmanError):
    def __init__(
        self,
        message: str,
        *,
        sandbox: str | None = None,
        reason: str | None = None,
        detail: str | None = None,
        retryable: bool | None = None,
        cause: Cause | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable, cause=cause, request_id=request_id)
        self.sandbox = sandbox
        self.reason = reason
        self.detail = detail


class SandboxFailed(SandboxError):
    pass


class SandboxLost(SandboxError):
    pass


class TransportError(SandmanError):
    retryable = True


class ConnectError(TransportError):
    pass


class ConnectionLost(TransportError):
    pass


class BadAnswer(TransportError):
    def __init__(
        self, message: str, *, status: int | None = None, excerpt: str = "", request_id: str | None = None
    ) -> None:
        super().__init__(message, request_id=request_id)
        self.status = status
        self.excerpt = excerpt


class ConnectionLimit(TransportError):
    cause: Cause = "caller"


class TimedOut(SandmanError, builtins.TimeoutError):
    retryable = True


class RequestTimeout(TimedOut):
    pass


class CreateTimeout(TimedOut):
    def __init__(self, message: str, *, sandbox: str | None = None, request_id: str | None = None) -> None:
        super().__init__(message, request_id=request_id)
        self.sandbox = sandbox


class CommandFailed(SandmanError):
    """Raised only when asked for by `check=True`."""

    cause: Cause = "task"

    def __init__(self, message: str, *, result: ExecResult[Any]) -> None:
        super().__init__(message)
        self.result = result


class ArchiveError(SandmanError):
    cause: Cause = "task"


# The one table from the ledger's failure reasons to whose fault they are; an unknown reason counts as infrastructure.
REASON_CAUSES: dict[str, Cause] = {
    "image_pull": "task",
    "image_invalid": "task",
    "oom_killed": "task",
    "exited": "task",
    "quota": "caller",
}
NOT_RETRYABLE_REASONS = frozenset({"image_invalid", "oom_killed", "exited", "deadline"})


def cause_of(reason: str | None) -> Cause:
    return REASON_CAUSES.get(reason or "", "infra")


def retryable_of(reason: str | None) -> bool:
    return reason is not None and reason not in NOT_RETRYABLE_REASONS
