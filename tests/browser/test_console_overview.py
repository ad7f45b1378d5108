"""The overview in a real browser: it moves by itself, shows foreign text as text, and stays usable for everybody."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import redis
from playwright.async_api import Page, Route, expect

from app.ledger.model import Reason, State
from tests.browser.conftest import Visit, log_in
from tests.browser.test_console_login import browser_like
from tests.browser.test_console_login import log_in as http_log_in
from tests.browser.world import World, bring, new_sandbox

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE = Path(__file__).parent / "vendor" / "axe-4.14.1.min.js"
HOSTILE = {
    "image": "<img src=x onerror=document.title=1>",
    "script": "</script><script>document.title=1</script>",
    "quote": '" autofocus onfocus="document.title=1" x=\'',
    "template": "{{7*7}}",
    "htmx": "' hx-get='/logout' hx-trigger='load",
    "bidi": "\u202etxt.exe",
}


async def test_the_page_moves_by_itself_while_sandboxes_come_and_go(world: World, visit: Visit) -> None:
    page = await visit("operator")
    concurrency = page.locator(".figures > div", has_text="Concurrency").locator(".value")
    await expect(concurrency).to_have_text("0")
    await page.evaluate("window.stayed = true")
    async with world.ledger() as ledger:
        made = await bring(ledger, *(new_sandbox(f"image-{n}") for n in range(7)), to=State.READY)
        await expect(concurrency).to_have_text("7", timeout=8000)
        row = page.locator(f"#{made[0].id}")
        await expect(row).to_contain_text("Ready")
        for record in made[:3]:
            await ledger.request_delete(record.id)
        await expect(concurrency).to_have_text("4", timeout=8000)
        await expect(row).to_contain_text("Deleting")
        await ledger.mark_failed(made[4].id, Reason.OOM_KILLED, "the kernel killed it")
        await expect(page.locator(f"#{made[4].id}")).to_contain_text(
            "oom killed: the kernel killed it", timeout=8000
        )
        await expect(page.get_by_role("region", name="Failed")).to_contain_text("oom killed")
    assert await page.evaluate("window.stayed"), "the page was loaded again"


async def test_moving_leaves_alone_what_the_reader_does(world: World, visit: Visit) -> None:
    """Focus, opened details and selected text survive every poll."""
    async with world.ledger() as ledger:
        await bring(ledger, new_sandbox("chosen-image"), to=State.READY)
    page = await visit("operator")
    await page.get_by_text("Readings as a table").click()
    link = page.get_by_role("link", name="Failed")
    await link.focus()
    await page.get_by_text("chosen-image").select_text()
    before = await page.locator("#stamp").text_content()
    async with world.ledger() as ledger:
        await bring(ledger, new_sandbox("other-image"), to=State.READY)
    await expect(page.get_by_text("other-image")).to_be_visible(timeout=8000)
    assert await page.locator("#stamp").text_content() != before
    assert await page.evaluate("document.querySelector('details').open")
    assert await page.evaluate("String(getSelection())") == "chosen-image"


async def test_a_page_can_be_held_and_a_hidden_one_asks_nothing(world: World, visit: Visit) -> None:
    page = await visit("operator")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.get_by_role("button", name="Pause").click()
    await page.wait_for_timeout(300)
    asked.clear()
    await page.wait_for_timeout(3000)
    assert asked == []
    await page.get_by_role("button", name="Resume").click()
    await page.wait_for_timeout(500)
    assert len(asked) == 1
    await page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => window.pretendHidden, configurable: true});"
        "window.pretendHidden = true; document.dispatchEvent(new Event('visibilitychange'))"
    )
    await page.wait_for_timeout(300)
    asked.clear()
    await page.wait_for_timeout(3000)
    assert asked == []
    await page.evaluate("window.pretendHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    await page.wait_for_timeout(500)
    assert len(asked) == 1


async def test_trouble_slows_the_page_down_and_is_said(world: World, visit: Visit) -> None:
    page = await visit("operator")
    asked: list[float] = []
    broken = True

    async def answer(route: Route) -> None:
        asked.append(time.monotonic())
        if broken:
            await route.fulfill(status=503, body="<p>away</p>")
        else:
            await route.continue_()

    await page.route("**/console/overview*", answer)
    await expect(page.get_by_role("status")).to_contain_text("Not updating since", timeout=8000)
    await expect(page.get_by_text("Concurrency")).to_be_visible()
    await page.wait_for_timeout(7000)
    gaps = [later - sooner for sooner, later in pairwise(asked)]
    assert gaps[0] > 3 and (len(gaps) < 2 or gaps[1] > 6), gaps
    broken = False
    await expect(page.get_by_role("status")).to_have_text("", timeout=12_000)


async def test_foreign_text_stays_text(world: World, visit: Visit) -> None:
    """B133, in the page and in what polls bring."""
    async with world.ledger() as ledger:
        for place, text in HOSTILE.items():
            (made,) = await bring(ledger, new_sandbox(text, labels={text: text}), to=State.READY)
            await ledger.mark_failed(made.id, Reason.EXITED, f"{place}: {text}")
    page = await visit("operator")
    title = await page.title()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await page.wait_for_timeout(2800)
    assert await page.title() == title
    for text in HOSTILE.values():
        shown = text.replace("\u202e", "\\u202e")
        assert await page.get_by_text(shown).count() >= 3, text
    assert (
        await page.evaluate(
            "document.querySelectorAll('#moving img, #moving script, #moving [hx-get]').length"
        )
        == 0
    )
    assert not [url for url in requests if not re.search(r"/console/overview$|/static/", url)], requests


async def test_smuggled_html_would_be_dead_all_the_same(world: World, visit: Visit) -> None:
    """The second line behind escaping: the policy runs no foreign script, and htmx obeys no element without the nonce."""
    page = await visit("operator")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    html = (
        '<p>x</p><script>document.title="owned"</script><img src=x onerror=\'document.title="owned"\'>'
        '<b hx-get="/login" hx-trigger="load">y</b><form action="https://evil.test/"></form>'
    )
    await page.route(
        "**/console/overview*", lambda route: route.fulfill(status=200, content_type="text/html", body=html)
    )
    await page.wait_for_timeout(3500)
    assert "owned" not in await page.title()
    assert not [url for url in asked if "/login" in url]
    refused = " ".join(visit.complaints)
    assert "Content Security Policy" in refused and "[hx-csp] blocked <b>" in refused
    visit.complaints.clear()


async def test_a_session_that_ends_takes_the_whole_page_to_the_login(world: World, visit: Visit) -> None:
    """B138: by its own poll, without a click, and back to where it was."""
    page = await visit("user", "/?state=ready")
    await expect(page.get_by_text("Concurrency")).to_be_visible()
    with redis.Redis.from_url(world.redis_url) as store:
        for name in store.scan_iter(f"{world.folder.name}:console:session:*"):
            store.delete(name)
    await page.wait_for_url("**/login?*", timeout=8000)
    await expect(page.get_by_text("Your session has ended.")).to_be_visible()
    assert await page.locator("form").count() == 1
    await log_in(page, world.keys["user"])
    await page.wait_for_url("**/?state=ready")


async def test_a_wrong_key_is_refused_in_words_and_forgotten(world: World, visit: Visit) -> None:
    page = await visit(None, "/")
    await log_in(page, "sm_wrong")
    await expect(page.get_by_role("alert")).to_have_text("This key is not known here.")
    assert await page.get_by_label("API key").input_value() == ""
    await log_in(page, world.keys["operator"])
    await expect(page.get_by_text("Concurrency")).to_be_visible()
    kept = await page.evaluate(
        "JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}, location.href,"
        " document.documentElement.outerHTML])"
    )
    assert world.keys["operator"] not in kept and "sandman_session" not in kept
    await page.get_by_role("button", name="Log out").click()
    await page.wait_for_url("**/login")


async def test_forms_and_sockets_of_another_site_do_nothing(world: World, visit: Visit) -> None:
    """B135, B136 as a browser does it: another origin, the victim logged in."""
    page = await visit("operator")
    await expect(page.get_by_text("Concurrency")).to_be_visible()
    other = await page.context.new_page()
    forms = "".join(
        f'<form id="f{number}" method="post" enctype="{kind}" action="{world.url}/logout" target="_blank">'
        '<input name="token" value="x"></form>'
        for number, kind in enumerate(
            ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data")
        )
    )
    await other.route(
        "http://evil.test/",
        lambda route: route.fulfill(content_type="text/html", body=forms + "<title>evil</title>"),
    )
    await other.goto("http://evil.test/")
    for number in range(3):
        async with page.context.expect_page() as opened:
            await other.evaluate(f"document.getElementById('f{number}').submit()")
        landed = await opened.value
        await landed.wait_for_load_state()
        assert "Another site made this request." in (await landed.text_content("body") or "") or (
            "Log in" in await landed.title()
        )
        await landed.close()
    await other.evaluate(
        f"fetch('{world.url}/logout', {{method: 'POST', mode: 'no-cors', credentials: 'include'}}).catch(() => 0)"
    )
    await page.reload()
    await expect(page.get_by_text("Concurrency")).to_be_visible()


async def test_reading_works_without_javascript(world: World, visit: Visit) -> None:
    async with world.ledger() as ledger:
        made = await bring(ledger, *(new_sandbox(f"image-{n}") for n in range(30)), to=State.READY)
    page = await visit("operator", java_script_enabled=False)
    await expect(page.get_by_role("link", name="Reload")).to_be_visible()
    await expect(page.get_by_role("button", name="Pause")).to_be_hidden()
    assert made[-1].id in await page.content() and made[0].id not in await page.content()
    await page.get_by_role("link", name="Older").click()
    assert made[0].id in await page.content()
    await page.get_by_role("link", name="Newest").click()
    await page.get_by_role("link", name=re.compile("^Queued")).click()
    await expect(page.get_by_text("None now.")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
async def test_nobody_is_shut_out(world: World, visit: Visit, scheme: str, width: int) -> None:
    """axe finds nothing, nothing runs out of the page sideways, and the keyboard reaches everything visibly."""
    async with world.ledger() as ledger:
        await bring(
            ledger, *(new_sandbox(text, labels={"task": text}) for text in HOSTILE.values()), to=State.READY
        )
        await bring(ledger, new_sandbox("registry.example/" + "long/" * 30 + "image:tag"), to=State.FAILED)
        await bring(ledger, new_sandbox("waiting"), to=State.QUEUED)
    page = await visit(
        None, color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
    )
    await check(page)
    await log_in(page, "sm_wrong")
    await check(page)
    await log_in(page, world.keys["operator"])
    await page.get_by_text("Readings as a table").click()
    await check(page)
    for _ in range(6):
        await page.keyboard.press("Tab")
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", await page.evaluate("document.activeElement.outerHTML")


async def check(page: Page) -> None:
    await page.wait_for_load_state()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # Into the page's own world by the debugging protocol: the page's policy would (rightly) refuse a script element.
    await page.evaluate(AXE.read_text() + "; undefined")
    found = await page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map("
        "one => one.id + ': ' + one.help + ' ' + one.nodes.map(node => node.html).slice(0, 3).join(' ')))"
    )
    assert found == []


async def test_five_thousand_sandboxes_and_twenty_open_pages(world: World, visit: Visit) -> None:
    """B139: each page answers in under half a second, and the browser stays quick with it."""
    async with world.ledger() as ledger:
        await bring(ledger, *(new_sandbox(f"image-{n % 7}") for n in range(5000)), to=State.READY)
    page = await visit("operator")
    await expect(page.locator(".figures .value").first).to_have_text("5,000")
    with browser_like(world) as http:
        http_log_in(http, world.keys["operator"])
        cookies = dict(http.cookies)
    took: list[float] = []
    async with httpx.AsyncClient(base_url=world.url, cookies=cookies, timeout=10) as client:

        async def poll(number: int) -> None:
            address = "/console/overview" + ("?state=ready", "?state=queued", "", "?state=failed")[number % 4]
            await asyncio.sleep(number / 10)
            for _ in range(5):
                started = time.perf_counter()
                answer = await client.get(address, headers={"hx-request": "true"})
                took.append(time.perf_counter() - started)
                assert answer.status_code == 200 and len(answer.content) < 120_000
                await asyncio.sleep(2)

        await asyncio.gather(*(poll(number) for number in range(20)))
        started = time.perf_counter()
        assert (await client.get("/?state=ready&cursor=2500")).status_code == 200
        took.append(time.perf_counter() - started)
    took.sort()
    print(f"{len(took)} polls: p50 {took[len(took) // 2] * 1000:.0f} ms, worst {took[-1] * 1000:.0f} ms")
    assert took[-1] < 0.5, took[-5:]
    rows = await page.locator("#sandboxes-title >> xpath=../.. >> css=tbody tr").count()
    assert rows == 25
