"""What the overview says about the ledger's figures, without a browser or a Redis."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from app.console.assets import Assets
from app.console.overview import Overview, Snapshot, figures_of, image_name, overview_of, page_href, row_of
from app.console.pages import Pages
from app.console.settings import ConsoleSettings, ConsoleSettingsError, read_settings
from app.ledger.model import (
    Concurrency,
    OrphanStats,
    PacingStats,
    Page,
    QueueStats,
    Reason,
    Reclaim,
    ReclaimEntry,
    Record,
    SandboxSpec,
    State,
    Stats,
)

NOW = 1_700_000_000_000
HOSTILE = (
    "<img src=x onerror=document.title=1>",
    "</script><script>document.title=1</script>",
    '" autofocus onfocus="document.title=1',
    "{{7*7}}",
    "' hx-get='/logout",
    "\u202eevil\x00",
)


class Seen(HTMLParser):
    """The tags and attributes that a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def record(state: State = State.READY, **changes: object) -> Record:
    base = Record(
        id="sb-" + "a" * 26,
        tenant="acme",
        run=None,
        state=state,
        reason=None,
        detail=None,
        spec=SandboxSpec(image="host", cpu=0.5, memory=512 << 20, disk=1 << 30),
        lease_seconds=60,
        lease_expires_ms=NOW + 30_000,
        deadline_ms=NOW + 10**7,
        claimed=True,
        times={State.QUEUED: NOW - 12_000, State.READY: NOW - 9_500},
        attempts=1,
        address=None,
        enforced={},
        reclaim=None,
        rev=1,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def stats(**changes: object) -> Stats:
    values: dict[str, object] = {
        "live": {"queued": 3, "creating": 1, "starting": 2, "ready": 1200, "deleting": 4},
        "concurrency": Concurrency(1200, 3400),
        "queue": QueueStats(3, 12.4),
        "pacing": PacingStats(48.5, 32, 3, "growing"),
        "orphans": OrphanStats(0, 7),
        "reclaimed": {"lease_expired": 5, "deleted": 80, "of_tomorrow": 1},
        "failed": {"oom_killed": 2, "image_pull": 9},
    }
    return Stats(**(values | changes))  # type: ignore[arg-type]


def overview(page: Page | None = None, *, state: State | None = None, cursor: str | None = None) -> Overview:
    entry = ReclaimEntry(NOW - 4000, "sb-" + "b" * 26, "acme", None, Reclaim.HUNG_UP, "ready", "nobody came")
    return overview_of(
        Snapshot(now_ms=NOW, stats=stats(), samples=[], reclaims=[entry]),
        page or Page([record()], "99"),
        state=state,
        cursor=cursor,
        settings=ConsoleSettings(),
        show_tenant=True,
    )


def test_the_figures_of_the_design_are_all_there() -> None:
    found = {figure.name: (figure.value, *figure.notes) for figure in figures_of(stats())}
    assert found == {
        "Concurrency": ("1,200", "peak 3,400", "3 starting"),
        "Queue": ("3", "oldest 12s"),
        "Pacing": ("48.5/s", "3 of 32 in flight", "backend keeps up, growing"),
        "Orphans": ("0", "7 taken back"),
        "Failed": ("11", "mostly image pull"),
    }


def test_what_needs_a_look_is_marked() -> None:
    calm = figures_of(stats())
    assert not any(figure.alarm for figure in calm)
    pressed = figures_of(stats(pacing=PacingStats(2, 32, 3, "throttled"), orphans=OrphanStats(1, 0)))
    assert [figure.name for figure in pressed if figure.alarm] == ["Pacing", "Orphans"]


def test_an_empty_service_reads_calmly() -> None:
    quiet = stats(live={}, queue=QueueStats(0, 0.0), failed={}, reclaimed={})
    found = {figure.name: figure.notes for figure in figures_of(quiet)}
    assert found["Queue"] == ("nobody waits",) and found["Failed"] == ("none",)


def test_the_present_joins_the_chart_so_that_it_agrees_with_the_figures() -> None:
    assert "Now 1,200 ready, 3 starting, 3 queued" in overview().chart.summary


def test_reasons_come_in_words_most_frequent_first() -> None:
    view = overview()
    assert [(share.label, share.count) for share in view.reclaimed] == [
        ("deleted by caller", "80"),
        ("lease expired", "5"),
        ("of tomorrow", "1"),
    ]
    assert [(share.label, share.note, share.part) for share in view.failures] == [
        ("image pull", "task", 100.0),
        ("oom killed", "task", 22.2),
    ]


@pytest.mark.parametrize(
    ("one", "held", "why"),
    [
        (record(), "30s left", ""),
        (record(lease_expires_ms=None), "by its run", ""),
        (record(claimed=False), "by its waiting caller", ""),
        (record(lease_expires_ms=NOW - 1), "lapsed", ""),
        (record(State.QUEUED, times={State.QUEUED: NOW - 65_000}), "30s left", "for 1m 05s"),
        (
            record(State.CREATING, times={State.CREATING: NOW - 2000}, attempts=2),
            "30s left",
            "for 2.0s, attempt 2",
        ),
        (record(State.FAILED, reason=Reason.OOM_KILLED, detail="137"), "", "oom killed: 137"),
        (record(State.FAILED, reason=Reason.EVICTED), "", "evicted"),
        (record(State.DELETED, reclaim=Reclaim.RUN_ENDED), "", "run ended"),
    ],
)
def test_a_row_says_who_holds_it_or_why_it_is_as_it_is(one: Record, held: str, why: str) -> None:
    row = row_of(one, NOW)
    assert (row.held, row.why) == (held, why)


def test_a_row_has_its_times_and_sizes() -> None:
    row = row_of(record(), NOW)
    assert (row.age, row.to_ready, row.size) == ("12s", "2.5s", "0.5 CPU · 512 MiB")
    assert row_of(record(State.QUEUED, times={State.QUEUED: NOW}), NOW).to_ready == ""


def test_a_digest_is_shortened_and_nothing_else() -> None:
    assert image_name("host") == "host"
    assert image_name("registry.example/a/b:v2") == "registry.example/a/b:v2"
    assert image_name("a@sha256:" + "9f86d081884c" + "7" * 52) == "a@9f86d081884c…"


def test_links_carry_filter_and_cursor() -> None:
    assert page_href(None, None) == "/"
    assert page_href(State.READY, "12") == "/?state=ready&cursor=12"
    view = overview(state=State.READY, cursor="50")
    assert (view.newest_href, view.next_href, view.first_page) == (
        "/?state=ready",
        "/?state=ready&cursor=99",
        False,
    )
    assert [tab.state for tab in view.tabs if tab.current] == ["ready"]


def test_hostile_text_is_text_in_every_place_where_text_of_others_is_shown() -> None:
    """Hard case B133: no tag, attribute or template of a caller comes alive in the page."""
    for text in HOSTILE:
        spec = SandboxSpec(image=text, cpu=1, memory=1 << 30, disk=1 << 30, labels={text: text})
        one = record(
            State.FAILED, id=text, tenant=text, run=text, reason=Reason.EXITED, detail=text, spec=spec
        )
        entry = ReclaimEntry(NOW, text, text, text, Reclaim.FAILED, text, text)
        view = overview_of(
            Snapshot(
                now_ms=NOW, stats=stats(reclaimed={text: 1}, failed={text: 1}), samples=[], reclaims=[entry]
            ),
            Page([one], None),
            state=None,
            cursor=None,
            settings=ConsoleSettings(),
            show_tenant=True,
        )
        html = Pages(Assets()).fragment("overview/moving.html", view=view)
        seen = Seen()
        seen.feed(html)
        assert not seen.tags & {"img", "script", "iframe", "style", "form", "input"}
        assert not {name for name in seen.attributes if name.startswith(("on", "hx-"))}
        assert not seen.attributes & {"autofocus", "style", "src"}
        assert text != "{{7*7}}" or "{{7*7}}" in html
        assert "\u202e" not in html and "\x00" not in html


def test_the_fragment_holds_nothing_that_htmx_or_the_policy_would_refuse() -> None:
    html = Pages(Assets()).fragment("overview/moving.html", view=overview())
    assert "hx-" not in html and "<script" not in html and "style=" not in html


def test_the_vendored_files_are_the_ones_that_are_written_down() -> None:
    vendor = Path(__file__).parents[2] / "static" / "vendor"
    listed = dict(
        re.findall(r"^\| `([^`]+)` .*`([0-9a-f]{64})` \|$", (vendor / "README.md").read_text(), re.M)
    )
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in vendor.glob("*.js")}
    assert listed == found
    assert "Zero-Clause BSD" in (vendor / "htmx-LICENSE.txt").read_text()


def test_an_asset_is_named_by_its_content() -> None:
    assets = Assets()
    sheet = assets.find("console.css")
    assert sheet is not None and sheet.digest in assets.address("console.css")
    assert assets.find("../app/console/assets.py") is None


def test_settings_name_what_is_wrong() -> None:
    found = read_settings({"SANDMAN_CONSOLE_ORIGIN": "https://Sandman.example.org/, http://box:8700"})
    assert found.origins == ("https://sandman.example.org", "http://box:8700")
    assert read_settings({}) == ConsoleSettings()
    for name, value in (
        ("SANDMAN_CONSOLE_ORIGIN", "sandman.example.org"),
        ("SANDMAN_CONSOLE_ORIGIN", "https://a/b"),
        ("SANDMAN_CONSOLE_SESSION_SECONDS", "soon"),
        ("SANDMAN_CONSOLE_LOGIN_ATTEMPTS", "0"),
    ):
        with pytest.raises(ConsoleSettingsError, match=name):
            read_settings({name: value})
