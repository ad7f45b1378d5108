"""Nobody gets in without a key, nobody sees another tenant's, and no secret gets out."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from app.factory import create_app
from app.ledger.ledger import Ledger
from app.ledger.settings import Settings
from tests.integration.api.test_api_sandboxes import problem
from tests.integration.api.world import World, raw_request

# Everything that answers without a key. The console's routes know people by their session and have tests of their own.
OPEN = {
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("GET", "/schema/openapi.json"),
    ("OPTIONS", "/health/live"),
    ("OPTIONS", "/health/ready"),
    ("OPTIONS", "/schema/openapi.json"),
}
CONSOLE = ("/", "/login", "/logout", "/console", "/static")


def routes() -> list[tuple[str, str]]:
    """(method, path template) of every route of the application; WS for sockets."""
    _, framework = create_app(Settings())
    found = []
    for route in framework.routes:
        for method in getattr(route, "methods", None) or ["WS"]:
            found.append((str(method), route.path))
    return sorted(found)


def concrete(template: str) -> str:
    path = re.sub(r"\{sandbox_id:\w+\}", "sb-" + "a" * 26, template)
    path = re.sub(r"\{run_id:\w+\}", "run-" + "a" * 26, path)
    return re.sub(r"\{\w+:\w+\}", "x", path)


def is_console(path: str) -> bool:
    return path == "/" or path.startswith(CONSOLE[1:])


CLOSED = [
    (method, concrete(path))
    for method, path in routes()
    if (method, path) not in OPEN and not is_console(path)
]
WRONG_KEYS: list[dict[str, str]] = [
    {},
    {"authorization": "Bearer sm_" + "A" * 43},
    {"authorization": "Bearer"},
    {"authorization": ""},
    {"authorization": "Basic YWxpY2U6eA=="},
    {"x-api-key": ""},
    {"x-api-key": "sm_wrong"},
    {"authorization": "Bearer " + "x" * 5000},
]


def test_b155_the_list_of_routes_is_not_empty() -> None:
    assert len(CLOSED) > 40 and ("POST", "/v1/sandboxes") in CLOSED


@pytest.mark.parametrize("headers", WRONG_KEYS)
async def test_b155_every_route_is_closed(world: World, headers: dict[str, str]) -> None:
    async with httpx.AsyncClient(base_url=world.url) as http:
        for method, path in CLOSED:
            if method == "WS":
                await refuses_socket(world, path, headers, 401)
                continue
            answer = await http.request(method, path, headers=headers)
            assert answer.status_code == 401, (method, path, answer.text)
            assert answer.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                problem(answer, 401, "unauthenticated")


async def refuses_socket(world: World, path: str, headers: dict[str, str], status: int) -> None:
    url = f"ws://127.0.0.1:{world.port}{path}"
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with websockets.connect(url, additional_headers=headers, compression=None):
            pass
    assert refused.value.response.status_code == status
    document = json.loads(refused.value.response.body or b"{}")
    assert document["type"].startswith("urn:sandman:problem:")


@pytest.mark.parametrize(
    "path",
    [
        "//v1/sandboxes",
        "/v1//sandboxes",
        "/v1/sandboxes/",
        "/v1/sandboxes//",
        "/health/../v1/sandboxes",
        "/static/../v1/sandboxes",
        "/V1/sandboxes",
        "/%76%31/sandboxes",
        "/v1%2fsandboxes",
        "/v1/./sandboxes",
        "/health/live/../../v1/sandboxes",
        "/v1/sandboxes;x=1",
        "/v1/sandboxes%00",
        "/schema/openapi.json/../../metrics",
        "/metrics/",
        "//metrics",
    ],
)
async def test_b155_no_spelling_of_a_path_gets_past(world: World, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert answer.split(b" ")[1] in (b"401", b"404", b"400"), answer
    assert b'"items"' not in answer and b"sandman_http" not in answer


async def test_keys_in_both_headers_and_withdrawn_keys(own_world: Any) -> None:
    world = own_world()
    key = world.keys["alice"]
    async with httpx.AsyncClient(base_url=world.url) as http:
        for headers in (
            {"authorization": f"Bearer {key}"},
            {"authorization": f"bearer {key}"},
            {"x-api-key": key},
        ):
            assert (await http.get("/v1/stats", headers=headers)).status_code == 200
        assert (await http.get("/v1/stats", params={"key": key, "api_key": key})).status_code == 401
        del world.keys["alice"]
        world.write_keys()
        await asyncio.sleep(1.2)
        assert (await http.get("/v1/stats", headers={"x-api-key": key})).status_code == 401
        assert (await http.get("/v1/stats", headers=world.auth("bob"))).status_code == 200
        (world.folder / "keys.json").write_text("{ not json")
        await asyncio.sleep(1.2)
        assert (await http.get("/v1/stats", headers=world.auth("bob"))).status_code == 200, (
            "the last good file counts"
        )


async def test_a_viewer_looks_and_changes_nothing(world: World, ledger: Ledger) -> None:
    record = await world.sandbox(ledger)
    async with httpx.AsyncClient(base_url=world.url, headers=world.auth("vera")) as http:
        assert (await http.get(f"/v1/sandboxes/{record.id}")).status_code == 200
        for method, path in CLOSED:
            if method == "WS":
                await refuses_socket(world, path, world.auth("vera"), 403)
            elif method not in ("GET", "HEAD", "OPTIONS"):
                problem(await http.request(method, path), 403, "forbidden")
        assert (await http.get("/metrics")).status_code == 403


async def test_tenants_do_not_see_each_other(world: World, ledger: Ledger) -> None:
    record = await world.sandbox(ledger)
    async with httpx.AsyncClient(base_url=world.url, headers=world.auth("bob")) as http:
        run = (await http.post("/v1/runs")).json()
        listed = (await http.get("/v1/sandboxes")).json()["items"]
        assert record.id not in {item["id"] for item in listed}
    async with httpx.AsyncClient(base_url=world.url, headers=world.auth()) as http:
        problem(await http.get(f"/v1/runs/{run['id']}"), 404, "not-found")
        problem(await http.get(f"/v1/runs/{run['id']}/report"), 404, "not-found")
        problem(await http.delete(f"/v1/runs/{run['id']}"), 404, "not-found")
        problem(await http.post("/v1/sandboxes", json={"image": "host", "run": run["id"]}), 404, "not-found")


async def test_b156_secrets_are_in_no_log_answer_or_count(own_world: Any) -> None:
    """Canaries go in wherever a caller can put something; they come out nowhere."""
    world = own_world()
    canaries = {
        name: f"canary{name}{secrets.token_hex(8)}"
        for name in ("env", "bad", "stdin", "key", "query", "file")
    }
    answers = []
    async with (
        world.ledger() as ledger,
        httpx.AsyncClient(base_url=world.url, headers=world.auth("root")) as http,
    ):
        good = await http.post("/v1/sandboxes", json={"image": "host", "env": {"TOKEN": canaries["env"]}})
        record = await world.sandbox(ledger)
        for method, path, content in (
            ("GET", good.headers["location"], b""),
            ("GET", "/v1/sandboxes", b""),
            ("POST", "/v1/sandboxes", json.dumps({"image": "host", "cpu": canaries["bad"]}).encode()),
            (
                "POST",
                "/v1/sandboxes",
                json.dumps({"image": canaries["bad"] + "//X", "env": {"A": canaries["bad"] + "\0"}}).encode(),
            ),
            ("POST", "/v1/sandboxes", canaries["bad"].encode()),
            (
                "POST",
                f"/v1/sandboxes/{record.id}/exec",
                json.dumps({"command": "x", "stdin": canaries["stdin"], "user": []}).encode(),
            ),
            (
                "POST",
                f"/v1/sandboxes/{record.id}/exec",
                json.dumps({"command": "x", "stdin": canaries["stdin"]}).encode(),
            ),
            ("PUT", f"/v1/sandboxes/{record.id}/files?path=/{canaries['query']}", canaries["file"].encode()),
            ("GET", f"/v1/sandboxes?cursor={canaries['query']}", b""),
        ):
            answers.append((await http.request(method, path, content=content, timeout=60)).text)
        answers.append(
            (await http.get("/v1/stats", headers={"authorization": f"Bearer {canaries['key']}"})).text
        )
        answers.append((await http.get("/metrics")).text)
        answers.append((await http.get("/v1/stats")).text)
        seen = "\n".join([*answers, world.log])
        for name, canary in canaries.items():
            assert canary not in seen, name
        for key in world.keys.values():
            assert key not in seen
        secret = (world.folder / "secret").read_text()
        assert secret not in seen
        for pid in world.server_pids():
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
            assert not any(key in arguments for key in world.keys.values()) and secret not in arguments


async def test_openapi_is_complete_and_readable_offline(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.url) as http:
        document = (await http.get("/schema/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    described = {
        (method.upper(), path) for path, operations in document["paths"].items() for method in operations
    }
    for method, template in routes():
        if method in ("OPTIONS", "WS") or is_console(template):
            continue
        assert (method, re.sub(r"\{(\w+):\w+\}", r"{\1}", template)) in described
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))
    for operation in operations:
        assert "application/problem+json" in operation["responses"]["default"]["content"]
    text = json.dumps(document)
    assert "http://" not in text and "https://" not in text.replace("https://json-schema.org", "")
    for reference in re.findall(r'"#/components/schemas/([^"]+)"', text):
        assert reference in document["components"]["schemas"]


def test_a_bare_request_line_is_not_a_500(world: World) -> None:
    with raw_request(world, "GET", "/v1/stats") as client:
        assert client.recv(100).startswith(b"HTTP/1.1 200")
