"""From the setting `provider` to the object: the only place that knows the backends by name.

Imported when asked for, so that a process pays for the one backend that it uses.
"""

from __future__ import annotations

from app.ledger.settings import Settings
from worker.providers.base import Provider, ProviderUnavailable


def open_provider(settings: Settings) -> Provider:
    """Not started yet. Raises ProviderUnavailable for a name that nobody knows."""
    if settings.provider == "local":
        from worker.providers.local.provider import LocalProvider

        return LocalProvider(settings)
    raise ProviderUnavailable(f"There is no provider {settings.provider!r}; SANDMAN_PROVIDER can be: local.")
