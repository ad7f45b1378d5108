"""Sessions: what a key is exchanged for at login.

The browser holds a random id in an HttpOnly cookie; Redis holds who that is, under a *hash* of the id, so that reading Redis
gives nobody a login. The key itself is kept nowhere; its digest is, so that a key taken out of the key file ends the sessions
that were opened with it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from redis.asyncio import Redis

ID_BYTES: Final = 32
# A token of 32 bytes has 43 characters; anything else is not looked up at all.
ID_CHARACTERS: Final = 43


class Session(msgspec.Struct, frozen=True):
    name: str
    """Name of the key that was shown."""
    tenant: str
    role: str
    key_sha256: str
    csrf: str
    """Proof that a form was drawn for this session."""
    opened_ms: int

    @property
    def sees_all(self) -> bool:
        return self.role == "operator"

    def owns_form(self, token: str) -> bool:
        return hmac.compare_digest(self.csrf.encode(), token.encode(errors="replace"))


def new_token() -> str:
    return secrets.token_urlsafe(ID_BYTES)


class SessionStore:
    def __init__(self, redis: Redis, namespace: str, lifetime_seconds: int) -> None:
        self._redis = redis
        self._prefix = f"{namespace}:console:session:"
        self._lifetime_seconds = lifetime_seconds
        self._decoder = msgspec.json.Decoder(Session)

    async def open(self, *, name: str, tenant: str, role: str, key_sha256: str) -> tuple[str, Session]:
        """Store a new session; the first value is the id for the cookie and is returned only here."""
        token = new_token()
        session = Session(
            name=name,
            tenant=tenant,
            role=role,
            key_sha256=key_sha256,
            csrf=new_token(),
            opened_ms=int(time.time() * 1000),
        )
        await self._redis.set(self._key(token), msgspec.json.encode(session), ex=self._lifetime_seconds)
        return token, session

    async def find(self, token: str) -> Session | None:
        if len(token) != ID_CHARACTERS:
            return None
        value = await self._redis.get(self._key(token))
        if value is None:
            return None
        try:
            return self._decoder.decode(value)
        except msgspec.DecodeError:
            return None  # written by another version: log in again

    async def close(self, token: str) -> None:
        if len(token) == ID_CHARACTERS:
            await self._redis.delete(self._key(token))

    def _key(self, token: str) -> str:
        return self._prefix + hashlib.sha256(token.encode(errors="replace")).hexdigest()


class Attempts:
    """Counts logins tried from one address within a fixed window. Atomic: the count and its expiry are set in one transaction."""

    def __init__(self, redis: Redis, namespace: str, limit: int, window_seconds: int) -> None:
        self._redis = redis
        self._prefix = f"{namespace}:console:attempts:"
        self._limit = limit
        self._window_seconds = window_seconds

    async def refused_for(self, address: str) -> int:
        """Note one attempt; seconds to wait when there were too many, else 0."""
        key = self._prefix + hashlib.sha256(address.encode(errors="replace")).hexdigest()[:32]
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.incr(key)
            pipe.expire(key, self._window_seconds, nx=True)
            pipe.ttl(key)
            tried, _, left = await pipe.execute()
        return max(1, int(left)) if int(tried) > self._limit else 0
