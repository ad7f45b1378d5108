"""The checks that need the service's own libraries, run once as a process of their own before anything is started.

Prints one line of JSON: null when all is well, else {"problem": …, "remedy": …}. It is stdout that counts, never the exit status.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any
from urllib.parse import urlsplit

from worker.up.errors import StartRefused
from worker.up.spawn import die_with_parent

REDIS_MINIMUM = (7, 0)


def shown(url: str) -> str:
    """The URL without its password."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


async def check_redis(url: str, *, allow_volatile: bool) -> None:
    import redis.asyncio as redis
    from redis.exceptions import AuthenticationError, RedisError, ResponseError

    where = shown(url)
    try:
        client: Any = redis.Redis.from_url(
            url, socket_timeout=5, socket_connect_timeout=5, decode_responses=True
        )
    except ValueError as error:
        raise StartRefused(
            f"SANDMAN_REDIS_URL is no Redis address: {error}.",
            "It looks like redis://HOST:PORT/0 or unix:///PATH.",
        ) from error
    try:
        info = await client.info("server")
        version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
        if version < REDIS_MINIMUM:
            raise StartRefused(
                f"The Redis at {where} is version {info['redis_version']}; Sandman needs 7.0 or newer.",
                "Upgrade it, or unset SANDMAN_REDIS_URL to use the bundled Valkey.",
            )
        try:
            append_only = (await client.config_get("appendonly")).get("appendonly")
        except ResponseError:
            append_only = None  # A managed Redis hides CONFIG; INFO tells the same.
        if append_only is None:
            append_only = "yes" if int((await client.info("persistence")).get("aof_enabled", 0)) else "no"
        if append_only != "yes" and not allow_volatile:
            raise StartRefused(
                f"The Redis at {where} keeps no append-only file, so its restart would lose every record.",
                "Run `CONFIG SET appendonly yes` there and set it in its configuration too, or accept the loss with "
                "--allow-volatile-redis.",
            )
    except AuthenticationError as error:
        raise StartRefused(
            f"The Redis at {where} refuses the password.", "Correct SANDMAN_REDIS_URL."
        ) from error
    except (RedisError, OSError) as error:
        raise StartRefused(
            f"The Redis at {where} cannot be reached: {str(error).rstrip('.')}.",
            "Start it, correct SANDMAN_REDIS_URL, or unset it to use the bundled Valkey.",
        ) from error
    finally:
        await client.aclose()


async def check_provider() -> None:
    from app.ledger.settings import SettingsError, get_settings
    from worker.providers.base import ProviderUnavailable
    from worker.providers.choose import open_provider

    try:
        await open_provider(get_settings()).check()
    except SettingsError as error:
        raise StartRefused("A setting cannot be read.", f"{error}.") from error
    except ProviderUnavailable as error:
        raise StartRefused("Sandboxes cannot be made here.", str(error)) from error


async def probe() -> dict[str, str] | None:
    try:
        if url := os.environ.get("SANDMAN_UP_REDIS_URL"):
            await check_redis(url, allow_volatile=os.environ.get("SANDMAN_UP_ALLOW_VOLATILE") == "1")
        await check_provider()
    except StartRefused as refused:
        return {"problem": refused.problem, "remedy": refused.remedy}
    return None


if __name__ == "__main__":
    die_with_parent()
    print(json.dumps(asyncio.run(probe())))
    sys.exit(0)
