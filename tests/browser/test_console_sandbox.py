"""The page of one sandbox in a real browser: reached from a row, it moves by itself, and is nobody else's."""

from __future__ import annotations

import httpx
import pytest
from playwright.async_api import expect

from app.ledger.model import Reason, State
from tests.browser.conftest import Visit
from tests.browser.test_console_login import browser_like
from tests.browser.test_console_login import log_in as http_log_in
from tests.browser.test_console_overview import AXE, HOSTILE
from tests.browser.world import World, bring, new_sandbox

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_row_leads_to_its_sandbox_and_the_page_follows_it_to_its_end(
    world: World, visit: Visit
) -> None:
    long = "the registry said no " * 60
    async with world.ledger() as ledger:
        (made,) = await bring(ledger, new_sandbox("task:1", labels={"step": "7"}), to=State.READY)
        page = await visit("operator")
        await page.get_by_role("link", name=made.id).first.click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text(made.id)
        await expect(page.get_by_text("step=7")).to_be_visible()
        await expect(page.get_by_text("Unavailable: its daemon")).to_be_visible()
        await page.evaluate("window.stayed = true")
        await ledger.mark_failed(made.id, Reason.OOM_KILLED, long)
        status = page.get_by_role("region", name="State")
        await expect(status).to_contain_text("It ran out of memory and was killed.", timeout=8000)
        await expect(status).to_contain_text(long.strip())
        assert await page.evaluate("window.stayed"), "the page was loaded again"
        await page.goto("/")
        cell = page.locator(f"#{made.id} .clip")
        for width in (1280, 390):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await cell.evaluate("e => e.getBoundingClientRect().height") < 30, "one line in the table"
            ends = (
                "e => e.getBoundingClientRect().right <= e.closest('section').getBoundingClientRect().right"
            )
            assert await cell.evaluate(ends), width


async def test_who_may_see_a_sandbox(shared_world: World) -> None:
    """Another tenant's, one that never was and nonsense are the same to everybody; strangers are led to the login."""
    async with shared_world.ledger() as ledger:
        (made,) = await bring(ledger, new_sandbox("mine"), to=State.READY)
    paths = (f"/console/sandboxes/{made.id}", f"/console/sandboxes/{made.id}/moving")
    with browser_like(shared_world) as http:
        for path in paths:
            answer = http.get(path)
            assert answer.status_code == 303
            assert answer.headers["location"].split("?")[0] == "/login"
            assert "moving" not in answer.headers["location"]
    for role, status in (("operator", 200), ("user", 200), ("viewer", 404)):
        with browser_like(shared_world) as http:
            http_log_in(http, shared_world.keys[role])
            for path in paths:
                answer = http.get(path)
                assert answer.status_code == status, (role, path)
                assert "default-src 'none'" in answer.headers["content-security-policy"]
                assert answer.headers["cache-control"] == "no-store"
            for unknown in ("sb-" + "a" * 26, "nonsense", "sb-" + "A" * 26):
                answer = http.get(f"/console/sandboxes/{unknown}")
                assert answer.status_code == 404 and "No such sandbox" in answer.text


async def test_an_address_that_leads_nowhere_is_told_in_html_to_browsers_only(shared_world: World) -> None:
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with httpx.AsyncClient(base_url=shared_world.url) as http:
        for path in ("/console", "/console/", "/console/nothing/here", "/nowhere"):
            answer = await http.get(path, headers=browser)
            assert answer.status_code == 404, path
            assert answer.headers["content-type"].startswith("text/html") and "Not found" in answer.text
            assert "default-src 'none'" in answer.headers["content-security-policy"]
        for path, headers in (("/nowhere", {"accept": "*/*"}), ("/v1/nowhere", browser)):
            answer = await http.get(path, headers=headers)
            assert answer.headers["content-type"] == "application/problem+json", path


async def test_hostile_text_stays_text_also_when_it_is_over(world: World, visit: Visit) -> None:
    """Hard cases B133 and B138."""
    async with world.ledger() as ledger:
        for place, text in HOSTILE.items():
            (made,) = await bring(ledger, new_sandbox(text, labels={place: text}), to=State.STARTING)
            await ledger.mark_failed(made.id, Reason.EXITED, f"{place}: {text}")
            page = await visit("operator", f"/console/sandboxes/{made.id}")
            await expect(page.get_by_role("region", name="State")).to_contain_text(f"{place}:")
            await page.wait_for_timeout(200)
            assert await page.title() == f"{made.id} · Sandman"


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_usable_for_everybody(world: World, visit: Visit, scheme: str) -> None:
    async with world.ledger() as ledger:
        (ready,) = await bring(ledger, new_sandbox("task:1", labels={"a": "b"}), to=State.READY)
        (failed,) = await bring(ledger, new_sandbox("task:2"), to=State.FAILED)
    for made in (ready, failed):
        page = await visit("operator", f"/console/sandboxes/{made.id}", color_scheme=scheme, bypass_csp=True)
        await expect(page.get_by_role("heading", name="Phases")).to_be_visible()
        await page.evaluate(AXE.read_text() + "; undefined")
        found = await page.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map("
            "one => one.id + ': ' + one.help + ' ' + one.nodes.map(node => node.html).slice(0, 3).join(' ')))"
        )
        assert found == []
        for width in (1280, 390):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
