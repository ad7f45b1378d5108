"""What goes wrong inside this provider, before it is told to the worker in the worker's own words.

LocalError
├── ImageNotFound      no such image here, or not one that callers may name      → image_pull, final
├── ImageInvalid       it is there and is not an image, or asks for the impossible → image_invalid
├── Interrupted        a wait ran into its bound; the same call may succeed later → backend_error, retryable
└── LaunchFailed       the sandbox's first process ended before it was the daemon → backend_error
"""

from __future__ import annotations

from app.ledger.model import Reason
from worker.providers.base import ProviderError


class LocalError(Exception):
    reason: Reason = Reason.BACKEND_ERROR
    retryable: bool = False
    final: bool = False


class ImageNotFound(LocalError):
    """Final: there is no registry whose network could come back. Somebody must put the image here first."""

    reason = Reason.IMAGE_PULL
    final = True


class ImageInvalid(LocalError):
    reason = Reason.IMAGE_INVALID


class Interrupted(LocalError):
    retryable = True


class LaunchFailed(LocalError):
    """Retryable: what stops a launch on a machine that passed `check` is most often a passing shortage."""

    retryable = True


def as_provider_error(error: LocalError | OSError) -> ProviderError:
    """The one border where this package's errors, and those of the kernel, become the worker's."""
    if isinstance(error, LocalError):
        return ProviderError(error.reason, str(error), retryable=error.retryable, final=error.final)
    name = f" ({error.filename})" if isinstance(error.filename, str) else ""
    return ProviderError(Reason.BACKEND_ERROR, f"{error.strerror or error}{name}", retryable=True)
