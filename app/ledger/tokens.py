"""Each sandbox's token: an HMAC of its id, so that nothing about it needs to be stored.

The daemon knows only the token's hash; reading a sandbox's own environment or another's gives nothing away.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path


class SecretUnreadable(Exception):
    """The secret file is missing or is not 32 bytes in hex."""


def read_secret(path: Path) -> bytes:
    try:
        secret = bytes.fromhex(path.read_text("ascii").strip())
    except (OSError, ValueError) as error:
        raise SecretUnreadable(
            f"cannot read the service's secret from {path}: {type(error).__name__}"
        ) from error
    if len(secret) < 32:
        raise SecretUnreadable(f"the service's secret in {path} is shorter than 32 bytes")
    return secret


def sandbox_token(secret: bytes, sandbox_id: str) -> str:
    return hmac.new(secret, sandbox_id.encode("ascii"), hashlib.sha256).hexdigest()


def token_sha256(token: str) -> str:
    """What the daemon is given to check a token against."""
    return hashlib.sha256(token.encode("ascii")).hexdigest()
