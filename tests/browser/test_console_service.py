"""The console of a whole running service: what it shows is what the API says about real sandboxes."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from tests.browser.conftest import log_in
from tests.service import Service

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_real_sandboxes_come_and_go_before_ones_eyes(service: Service, browser: Browser) -> None:
    context = await browser.new_context(base_url=service.url)
    try:
        page = await context.new_page()
        await page.goto("/")
        await log_in(page, service.key)
        ready = page.locator(".legend dl > div", has_text="Ready").locator("dd")
        before = int((await ready.text_content() or "0").replace(",", ""))
        with service.http() as api:
            made = api.post(
                "/v1/sandboxes", params={"wait": 30}, json={"image": "host", "labels": {"task": "eyes"}}
            )
            assert made.status_code == 201, made.text
            sandbox = made.json()["id"]
            row = page.locator(f"#{sandbox}")
            await expect(row).to_contain_text("Ready", timeout=10_000)
            await expect(row).to_contain_text("task=eyes")
            await expect(ready).to_have_text(f"{before + 1:,}")
            stats = api.get("/v1/stats").json()
            assert stats["live"]["ready"] == before + 1
            assert api.delete(f"/v1/sandboxes/{sandbox}").is_success
        await expect(row).to_contain_text("deleted by caller", timeout=10_000)
        await expect(page.get_by_role("region", name="Recent reclaims")).to_contain_text(sandbox)
        await expect(row).to_contain_text("Deleted", timeout=15_000)
        await expect(ready).to_have_text(f"{before:,}")
    finally:
        await context.close()
