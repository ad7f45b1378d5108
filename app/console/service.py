"""What the console's handlers work with, put together once per process and kept in the application's state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from litestar import Litestar, MediaType, Response

from app.console.assets import Assets
from app.console.chart import Sample
from app.console.detail import detail_of
from app.console.execs import ExecReader
from app.console.overview import Snapshot, overview_of, sample_of
from app.console.pages import Pages
from app.console.samples import Sampler, SampleRing
from app.console.sessions import Attempts, SessionStore
from app.console.settings import ConsoleSettings
from app.console.shared import Shared
from app.ledger.model import Page, State, is_sandbox_id

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from app.auth.keys import KeyRing
    from app.ledger.model import ReclaimPage, Record, Stats

RECLAIMS_SHOWN: Final = 15
# One look of the ledger is bounded, and a filter for a rare state may find nothing in it: look on, but not for ever.
LOOKS_MAX: Final = 3
STATE_KEY: Final = "console"


class LedgerReader(Protocol):
    """The part of the ledger that the console reads; it never writes a record."""

    async def get(self, sandbox_id: str) -> Record | None: ...
    async def stats(self, tenant: str | None = None) -> Stats: ...
    async def list(
        self,
        tenant: str | None = None,
        *,
        states: Iterable[State] = (),
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page: ...
    async def reclaims(
        self, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> ReclaimPage: ...


class View(NamedTuple):
    """One question that open pages ask; equal questions share an answer."""

    tenant: str | None
    """None: everything (operators)."""
    state: State | None
    cursor: str | None


class Subject(NamedTuple):
    """One sandbox that open pages show."""

    tenant: str | None
    id: str


class NoSuchSandbox(Exception):
    """Never was, has been forgotten, or is another tenant's: nobody learns which."""


class Console:
    def __init__(
        self,
        *,
        ledger: LedgerReader,
        keys: KeyRing,
        execs: ExecReader,
        redis: Redis,
        namespace: str,
        settings: ConsoleSettings,
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.assets = Assets()
        self.pages = Pages(self.assets)
        self.sessions = SessionStore(redis, namespace, settings.session_seconds)
        self.attempts = Attempts(redis, namespace, settings.login_attempts, settings.login_window_seconds)
        self._ledger = ledger
        self._execs = execs
        self._redis = redis
        self._ring = SampleRing(
            redis,
            namespace,
            interval_seconds=settings.sample_seconds,
            span_seconds=settings.chart_seconds,
        )
        self._sampler = Sampler(
            self._ring,
            self._sample,
            interval_seconds=settings.sample_seconds,
            span_seconds=settings.chart_seconds,
        )
        self._snapshots: Shared[str | None, Snapshot] = Shared(
            self._snapshot, age_seconds=settings.snapshot_seconds
        )
        self._fragments: Shared[View, str] = Shared(self._fragment, age_seconds=settings.snapshot_seconds)
        self._subjects: Shared[Subject, str] = Shared(
            self._sandbox_fragment, age_seconds=settings.snapshot_seconds
        )

    async def start(self) -> None:
        await self._sampler.start()

    async def stop(self) -> None:
        await self._sampler.stop()
        await self._subjects.close()
        await self._fragments.close()
        await self._snapshots.close()

    async def fragment(self, view: View) -> str:
        """The moving part of the overview as HTML. It depends on nothing but the view, so all its viewers share it."""
        self._sampler.watch(view.tenant)
        return await self._fragments.get(view)

    async def sandbox_fragment(self, subject: Subject) -> str:
        """The moving part of one sandbox's page, shared as the overview's is. Raises NoSuchSandbox."""
        if not is_sandbox_id(subject.id):
            raise NoSuchSandbox
        return await self._subjects.get(subject)

    def problem_answer(self, status: int, title: str, text: str) -> Response[str]:
        body, headers = self.pages.page("problem.html", status=status, title=title, text=text)
        return Response(body, status_code=status, headers=headers, media_type=MediaType.HTML)

    async def _fragment(self, view: View) -> str:
        snapshot = await self._snapshots.get(view.tenant)
        page = await self._page(view)
        overview = overview_of(
            snapshot,
            page,
            state=view.state,
            cursor=view.cursor,
            settings=self.settings,
            show_tenant=view.tenant is None,
        )
        return self.pages.fragment("overview/moving.html", view=overview)

    async def _sandbox_fragment(self, subject: Subject) -> str:
        record = await self._ledger.get(subject.id)
        if record is None or subject.tenant not in (None, record.tenant):
            raise NoSuchSandbox
        execs = await self._execs.latest(record) if record.state is State.READY else None
        return self.pages.fragment("sandbox/moving.html", view=detail_of(record, await self._now_ms(), execs))

    async def _page(self, view: View) -> Page:
        """One page of records, put together from at most a few looks."""
        found: list[Record] = []
        cursor = view.cursor
        for _ in range(LOOKS_MAX):
            page = await self._ledger.list(
                view.tenant,
                states=(view.state,) if view.state else (),
                limit=self.settings.page_size - len(found),
                cursor=cursor,
            )
            found += page.items
            cursor = page.next
            if cursor is None or len(found) >= self.settings.page_size:
                break
        return Page(found, cursor)

    async def _snapshot(self, tenant: str | None) -> Snapshot:
        stats = await self._ledger.stats(tenant)
        reclaims = await self._ledger.reclaims(tenant, limit=RECLAIMS_SHOWN)
        return Snapshot(
            now_ms=await self._now_ms(),
            stats=stats,
            samples=await self._ring.recent(tenant),
            reclaims=reclaims.items,
        )

    async def _sample(self, tenant: str | None) -> Sample:
        stats = await self._ledger.stats(tenant)
        return sample_of(stats, await self._now_ms())

    async def _now_ms(self) -> int:
        seconds, micros = await self._redis.time()
        return int(seconds) * 1000 + int(micros) // 1000


def console_in(app: Litestar) -> Console:
    return cast("Console", app.state[STATE_KEY])
