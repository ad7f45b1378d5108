"""Fixtures of the console's tests: a real API process, and a real Chromium driven by playwright."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

from tests.browser.world import World
from tests.conftest import Valkey

# The last three keep a browser that only ever talks to loopback from trying to reach anything else.
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def running_world(valkey: Valkey, env: dict[str, str] | None = None) -> Iterator[World]:
    one = World(
        redis_url=valkey.url, folder=Path(tempfile.mkdtemp(prefix="sm-console-")), extra_env=env or {}
    )
    try:
        one.start()
        yield one
    finally:
        one.stop()
        shutil.rmtree(one.folder, ignore_errors=True)


@pytest.fixture
def world(valkey: Valkey) -> Iterator[World]:
    """A fresh one for the test: its own namespace, keys and process."""
    with running_world(valkey) as one:
        yield one


@pytest.fixture(scope="module")
def shared_world(valkey: Valkey) -> Iterator[World]:
    """For tests that leave it as it was; many of them log in, so that the bound on attempts is out of the way."""
    with running_world(valkey, {"SANDMAN_CONSOLE_LOGIN_ATTEMPTS": "10000"}) as one:
        yield one


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    path = next((found for name in CHROMIUM_NAMES if (found := shutil.which(name))), None)
    assert path, "these tests need Chromium: apt-get install chromium"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        await browser.close()


class Visit:
    """`await visit(role, path, **options)`: a page of a browser profile of its own, logged in unless the role is None."""

    def __init__(self, browser: Browser, world: World) -> None:
        self._browser = browser
        self._world = world
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []
        """Script errors and breaches of the policy that pages reported; a test fails if any are left at its end."""

    async def __call__(self, role: str | None = "operator", path: str = "/", **options: Any) -> Page:
        context = await self._browser.new_context(base_url=self._world.url, **options)
        self._contexts.append(context)
        page = await context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._listen)
        await page.goto(path)
        if role is not None:
            await log_in(page, self._world.keys[role])
        return page

    def _listen(self, message: ConsoleMessage) -> None:
        # Chromium reports each answer of 400 and above like this; the tests look at those themselves.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    async def end(self) -> None:
        for context in self._contexts:
            await context.close()
        assert not self.complaints, self.complaints


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser, world: World) -> AsyncIterator[Visit]:
    visits = Visit(browser, world)
    yield visits
    await visits.end()


async def log_in(page: Page, key: str) -> None:
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Log in").click()
