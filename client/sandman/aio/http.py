"""HTTP to the service: one pool, three lanes, typed errors, and repeats only where a repeat is the same call.

Long polls and transfers have lanes of their own, so that a thousand creates that wait cannot hold up the renewals that keep
their leases. Callers queue here, in order, and not in the pool, whose own queue has a time-out that would look like a fault.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar
from urllib.parse import quote as percent
from urllib.parse import urlencode

import httpx
import msgspec

from sandman import problem
from sandman.config import Settings
from sandman.errors import (
    BadAnswer,
    ClosedError,
    ConnectError,
    ConnectionLost,
    ProblemError,
    RequestTimeout,
    SandmanError,
    TransportError,
    ValidationError,
)
from sandman.options import check_values
from sandman.retry import Backoff, RetryPolicy

T = TypeVar("T")
Lane = Literal["calls", "waits", "transfers"]
Params = Mapping[str, Any] | list[tuple[str, Any]]
"""Query parameters; text may carry bytes that are not UTF-8, as os.fsdecode leaves them."""

KEEPALIVE_SECONDS = 60.0
"""Below the service's own (over 75 s), so that no request is sent into a connection that is just being closed."""


class Answer:
    """A whole answer with a status below 300."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def decode(self, kind: type[T]) -> T:
        return problem.decode(kind, self.status, self.headers, self.body)


class Http:
    def __init__(self, settings: Settings, user_agent: str) -> None:
        self.settings = settings
        limits = settings.limits
        self._lanes = {
            "calls": asyncio.Semaphore(limits.calls),
            "waits": asyncio.Semaphore(limits.waits),
            "transfers": asyncio.Semaphore(limits.transfers),
        }
        total = limits.calls + limits.waits + limits.transfers
        self._client = httpx.AsyncClient(
            base_url=settings.url,
            headers={
                "authorization": f"Bearer {settings.api_key}",
                "user-agent": user_agent,
                # A file that is a .gz must arrive as it is.
                "accept-encoding": "identity",
            },
            timeout=None,
            limits=httpx.Limits(
                max_connections=total, max_keepalive_connections=total, keepalive_expiry=KEEPALIVE_SECONDS
            ),
            # A proxy of the environment has no way to this machine's own loopback.
            trust_env=not settings.is_loopback,
        )

    def lane_is_full(self, lane: Lane) -> bool:
        return self._lanes[lane].locked()

    @property
    def closed(self) -> bool:
        return self._client.is_closed

    async def close(self) -> None:
        await self._client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        lane: Lane = "calls",
        wait_seconds: float = 0.0,
        repeatable: bool | None = None,
        retry: RetryPolicy | None = None,
        expect: type[Any] | None = None,
    ) -> Answer:
        """One call with its repeats. Cancellable. Raises the typed error of the last try.

        `repeatable` says that doing it twice is doing it once (default: GET, HEAD, PUT, DELETE); others are repeated only
        when the first try surely did nothing. `wait_seconds` is what the service was asked to wait before it answers.
        `expect` is what the answer must decode to: one that does not is a fault like any other, and tried again. A `retry` of the
        caller's own may be long, for a service that answers "later"; one that is not there at all is given up as everywhere.
        """
        if repeatable is None:
            repeatable = method in ("GET", "HEAD", "PUT", "DELETE")
        if isinstance(json, Mapping):
            check_values(json)
        body = None if json is None else msgspec.json.encode(json)
        sent = dict(headers or {})
        if body is not None:
            sent["content-type"] = "application/json"
        backoff = (retry or self.settings.retry).start()
        outage: Backoff | None = None
        while True:
            try:
                async with self._lanes[lane]:
                    answer = await self._once(method, path, params, body, sent, wait_seconds)
                if expect is not None:
                    answer.decode(expect)
                return answer
            except SandmanError as error:
                if not may_repeat(error, repeatable):
                    raise
                delay = backoff.next_delay(error.retry_after if isinstance(error, ProblemError) else None)
                if isinstance(error, ConnectError):
                    outage = outage or self.settings.retry.start()
                    if outage.next_delay() is None:
                        raise
                else:
                    outage = None
                if delay is None:
                    raise
            await asyncio.sleep(delay)

    async def _once(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: bytes | None,
        headers: Mapping[str, str],
        wait_seconds: float,
    ) -> Answer:
        with translated(method, path, self):
            response = await self._client.request(
                method,
                target(path, params),
                content=body,
                headers=headers,
                timeout=self.timeout(wait_seconds),
            )
            content = response.content
        if response.status_code >= 300:
            raise problem.error_from(response.status_code, response.headers, content)
        return Answer(response.status_code, response.headers, content)

    @asynccontextmanager
    async def download(
        self, path: str, *, params: Params | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """A streamed GET: the response with its body unread. The lane and the connection are held until the block is left.

        Connecting is repeated; once the body flows, a break is a ConnectionLost (see `chunks`).
        """
        async with self._lanes["transfers"]:
            backoff = self.settings.retry.start()
            while True:
                request = self._client.build_request(
                    "GET", target(path, params), headers=headers, timeout=self.timeout()
                )
                try:
                    response = await self._open(request)
                    break
                except SandmanError as error:
                    if not may_repeat(error, True):
                        raise
                    delay = backoff.next_delay(error.retry_after if isinstance(error, ProblemError) else None)
                    if delay is None:
                        raise
                await asyncio.sleep(delay)
            try:
                yield response
            finally:
                await response.aclose()

    async def _open(self, request: httpx.Request) -> httpx.Response:
        with translated(request.method, request.url.path, self):
            response = await self._client.send(request, stream=True)
            if response.status_code < 300:
                return response
            try:
                content = await response.aread()
            finally:
                await response.aclose()
        raise problem.error_from(response.status_code, response.headers, content)

    async def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The body as it comes, undecoded. Raises ConnectionLost when it ends before its announced end."""
        with translated("GET", response.request.url.path, self):
            async for chunk in response.aiter_raw():
                yield chunk

    async def upload(
        self,
        path: str,
        content: AsyncIterator[bytes],
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """A streamed PUT, one try: the caller knows whether its source can be read again."""
        async with self._lanes["transfers"]:
            with translated("PUT", path, self):
                response = await self._client.request(
                    "PUT",
                    target(path, params),
                    content=content,
                    headers={"content-type": "application/octet-stream", **(headers or {})},
                    timeout=self.timeout(),
                )
        if response.status_code >= 300:
            raise problem.error_from(response.status_code, response.headers, response.content)
        return Answer(response.status_code, response.headers, response.content)

    def timeout(self, wait_seconds: float = 0.0) -> httpx.Timeout:
        timeouts = self.settings.timeouts
        return httpx.Timeout(
            connect=timeouts.connect,
            read=timeouts.request + wait_seconds,
            write=timeouts.request,
            pool=None,
        )


def target(path: str, params: Params | None) -> str:
    if not params:
        return path
    try:
        return f"{path}?{urlencode(params, quote_via=percent, safe='', encoding='utf-8', errors='surrogateescape')}"
    except UnicodeEncodeError as error:
        raise ValidationError(f"{error.object!r} holds half a surrogate pair, which is no text") from error


def segment(name: str) -> str:
    """A name as one part of a path. Empty or made of dots it would be another address, and get another thing's answer."""
    if not isinstance(name, str):
        raise TypeError(f"an id is a str, not {type(name).__name__}")
    try:
        quoted = percent(name, safe="", errors="surrogateescape")
    except UnicodeEncodeError:
        quoted = ""
    if not quoted.strip("."):
        raise ValidationError(f"{name!r} is no id")
    return quoted


class translated:  # noqa: N801 - reads as a clause: `with translated(...)`
    """The one border where httpx's exceptions become ours."""

    def __init__(self, method: str, path: str, http: Http) -> None:
        self._what = f"{method} {path}"
        self._http = http

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, httpx.TransportError | httpx.InvalidURL | httpx.DecodingError):
            raise translate(self._what, self._http.settings.url, error) from error
        if isinstance(error, RuntimeError) and self._http.closed:
            # httpx has no type of its own for it.
            raise ClosedError(f"{self._what}: the client was closed meanwhile") from error


def translate(what: str, url: str, error: Exception) -> SandmanError:
    """`url` is the service's, which holds no secret (see `config.check_url`)."""
    text = str(error) or type(error).__name__
    what = f"{url}: {what}"
    if isinstance(error, httpx.ConnectTimeout):
        return ConnectError(f"{what}: no connection in time ({text})")
    if isinstance(error, httpx.TimeoutException):
        return RequestTimeout(f"{what}: no answer within the request time-out")
    if isinstance(error, httpx.ConnectError | httpx.ProxyError | httpx.UnsupportedProtocol):
        lasting = caused_by(error, ssl.SSLError)
        result = ConnectError(f"{what}: cannot connect ({text})", retryable=not lasting)
        return out_of_files(error) or result
    if isinstance(error, httpx.DecodingError | httpx.InvalidURL | httpx.LocalProtocolError):
        return BadAnswer(f"{what}: no usable answer ({text})")
    return ConnectionLost(f"{what}: the connection broke before a whole answer came ({text})")


def out_of_files(error: BaseException) -> ConnectError | None:
    """EMFILE is this process's own limit; said so, and worth a wait, for other calls give their sockets back."""
    if caused_by(error, OSError, errno_is=24):
        return ConnectError(
            "too many open files in this process: raise `ulimit -n`, or lower Limits of the client",
            cause="caller",
        )
    return None


def caused_by(error: BaseException, kind: type[BaseException], errno_is: int | None = None) -> bool:
    seen: BaseException | None = error
    for _ in range(16):
        if seen is None:
            return False
        if isinstance(seen, kind) and (errno_is is None or getattr(seen, "errno", None) == errno_is):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def may_repeat(error: SandmanError, repeatable: bool) -> bool:
    """By the error's type alone, never by its text."""
    if not error.retryable:
        return False
    if isinstance(error, ConnectError):
        return True
    if isinstance(error, ProblemError):
        if "sandbox_id" in error.members and "reason" in error.members:
            return False  # it tells how a sandbox ended, and that does not change
        # 429 says that nothing was done, and so does an error of the service's own that calls itself retryable; an answer
        # of something in between tells nothing about what happened behind it.
        return repeatable or error.status == 429 or (error.status == 503 and error.type != "about:blank")
    return repeatable and isinstance(error, TransportError | RequestTimeout)
