"""Everything the ledger raises, as one tree.

LedgerError
├── LedgerUnavailable     Redis cannot be reached or does not answer in time; retryable
├── LedgerCorrupt         what is stored cannot be read, or a script was refused; smaller contradictions are mended and counted
├── NotFound              no such sandbox (never was, or its record has been forgotten)
├── Ended                 the sandbox is deleting, deleted or failed: its lease cannot be changed any more
├── IdempotencyConflict   the same key came with another body
├── QueueFull             the bound on waiting sandboxes is reached; retryable
├── TooManyRuns           a tenant's bound on open runs is reached; retryable
├── RunNotFound           no such run of this tenant
└── RunEnded              the run is over and owns nothing new

Errors of the Redis client never leave this package: they are chained as the cause of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.ledger.model import Record


class LedgerError(Exception):
    """Base of all; `retryable` says whether the same call may succeed a little later."""

    retryable: bool = False


class LedgerUnavailable(LedgerError):
    retryable = True


class LedgerCorrupt(LedgerError):
    pass


class NotFound(LedgerError):
    pass


class Ended(LedgerError):
    """Carries the record as it is, so that the caller can say when and why it ended."""

    def __init__(self, record: Record) -> None:
        super().__init__(f"{record.id} is {record.state}")
        self.record = record


class IdempotencyConflict(LedgerError):
    """Carries the id of the sandbox that the key already made."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(f"this idempotency key made {sandbox_id} from another body")
        self.sandbox_id = sandbox_id


class QueueFull(LedgerError):
    """`scope` is "service" or "tenant": whose bound was reached."""

    retryable = True

    def __init__(self, scope: str, bound: int) -> None:
        super().__init__(f"{bound} sandboxes are waiting already ({scope} bound)")
        self.scope = scope
        self.bound = bound


class TooManyRuns(LedgerError):
    retryable = True

    def __init__(self, bound: int) -> None:
        super().__init__(f"{bound} runs are open already; end those that are over")
        self.bound = bound


class RunNotFound(LedgerError):
    pass


class RunEnded(LedgerError):
    pass
