"""What every part of the ledger holds."""

from __future__ import annotations

from app.ledger.connection import Connection
from app.ledger.settings import Settings
from app.ledger.wakeup import Waker


class Concern:
    """Base of the ledger's parts: a connection, the settings, and the way to wake a worker."""

    def __init__(self, connection: Connection, settings: Settings, waker: Waker) -> None:
        self._connection = connection
        self._settings = settings
        self._waker = waker

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def connection(self) -> Connection:
        return self._connection
