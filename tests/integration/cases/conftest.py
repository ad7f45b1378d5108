"""The sandboxes of the cases: one for all tests of a file, which leave nothing running in it, and own ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import sandman
from tests.conftest import CLEAN_SECONDS
from tests.integration.cases.box import Box
from tests.service import Service, eventually_clean


@pytest.fixture(scope="module")
def module_boxes(session_service: Service) -> Iterator[Callable[..., Box]]:
    """Not `service`: that one looks for leftovers after each test, and these sandboxes live for a file's tests."""
    with ExitStack() as stack:

        def make(**options: Any) -> Box:
            http = stack.enter_context(session_service.http(timeout=120))
            client = stack.enter_context(sandman.Client(session_service.url, session_service.key))
            return Box(session_service, http, client, stack.enter_context(client.create(**options)))

        yield make
    left = eventually_clean(session_service.sandbox_leftovers, CLEAN_SECONDS)
    assert not left, f"the tests left something behind: {left}"


@pytest.fixture(scope="module")
def shared_box(module_boxes: Callable[..., Box]) -> Box:
    return module_boxes()


@pytest.fixture
def box(shared_box: Box) -> Iterator[Box]:
    yield shared_box
    left = [item.get("command") or item.get("argv") for item in shared_box.running()]
    assert not left, f"the test left commands running: {left}"


@pytest.fixture
def own_box(module_boxes: Callable[..., Box], session_service: Service) -> Iterator[Callable[..., Box]]:
    """A sandbox of the test's own: `own_box(env={…}, disk="128MiB")`."""
    made: list[Box] = []

    def make(**options: Any) -> Box:
        made.append(module_boxes(**options))
        return made[-1]

    yield make
    for one in made:
        one.sandbox.close()
