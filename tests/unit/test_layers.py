"""The layers, checked on the source itself: who may import whom.

app ↛ worker · worker → app.ledger only · client → neither · app.ledger → no web framework, no other part of app.
Imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEB_FRAMEWORKS = {"litestar", "granian", "jinja2", "starlette"}
SUPERVISOR_PROCESSES = {"probe", "drain"}


def imports(text: str, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and full name of each import; `from a import b` counts as a.b, since b may be a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            for name in node.names:
                yield node.lineno, f"{base}.{name.name}"


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, f"no source under {folders}"
    return found


def broken(paths: list[Path], forbidden: Callable[[str], bool]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in paths
        for line, name in imports(path.read_text(), path.relative_to(ROOT).parent.parts)
        if forbidden(name)
    ]


def test_app_never_imports_worker_or_client() -> None:
    assert broken(sources("app"), lambda name: within(name, "worker", "sandman")) == []


def test_worker_knows_of_app_only_the_ledger() -> None:
    assert (
        broken(sources("worker"), lambda name: within(name, "app") and not within(name, "app.ledger")) == []
    )
    assert broken(sources("worker"), lambda name: within(name, "sandman")) == []


def test_the_client_knows_nothing_of_the_service() -> None:
    assert (
        broken(sources("client"), lambda name: within(name, "app", "worker", "redis", "litestar", "rq")) == []
    )


def test_the_ledger_is_a_leaf_without_a_web_framework() -> None:
    def forbidden(name: str) -> bool:
        return within(name, *WEB_FRAMEWORKS) or (within(name, "app") and not within(name, "app.ledger"))

    assert broken(sources("app/ledger"), forbidden) == []


def test_the_supervisor_stays_small() -> None:
    """It lives as long as the service: no Redis client, HTTP library or provider; those run as processes of their own."""
    lean = [path for path in sources("worker/up") if path.stem not in SUPERVISOR_PROCESSES]
    heavy = ("app", "worker.providers", "redis", "aiohttp", "httpx", "rq", "structlog", "msgspec", "litestar")
    assert broken(lean, lambda name: within(name, *heavy)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import worker.loops", "worker.loops"),
        ("from worker import loops", "worker.loops"),
        ("def f():\n    from worker.loops import x", "worker.loops.x"),
        ("from ..worker import x", "app.worker.x"),
    ],
)
def test_the_check_sees_every_form(text: str, expected: str) -> None:
    assert [name for _, name in imports(text, ("app", "execs"))] == [expected]
