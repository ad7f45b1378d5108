"""Whatever is sent as a body is answered with a problem or taken; never with a 500, never with silence."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.ledger.ledger import Ledger
from tests.integration.api.world import World

TEXT = st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
CREATE_FIELDS = [
    "image", "env", "cpu", "memory", "disk", "user", "workdir", "labels", "run", "lease_seconds",
    "lifetime_seconds", "policy", "unknown",
]  # fmt: skip
EXEC_FIELDS = [
    "command", "argv", "cwd", "env", "stdin", "timeout_seconds", "user", "session", "id", "encoding",
    "max_output_bytes", "background", "x",
]  # fmt: skip
PATHS = [
    "/v1/sandboxes",
    "/v1/runs",
    "/v1/sandboxes/{id}/renew",
    "/v1/sandboxes/{id}/exec",
    "/v1/runs/{run}/renew",
]
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def bodies(fields: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    valid: dict[str, Any] = {k: v for k, v in {"image": "host", "command": "true"}.items() if k in fields}
    return st.dictionaries(st.sampled_from(fields), JSON, max_size=5).map(lambda found: {**valid, **found})


@pytest.fixture
async def places(world: World, ledger: Ledger, http: httpx.AsyncClient) -> dict[str, str]:
    record = await world.sandbox(ledger, upto="creating")
    run = (await http.post("/v1/runs")).json()
    return {"id": record.id, "run": run["id"]}


@pytest.mark.parametrize("path", PATHS)
def test_b033_no_bytes_make_a_500(world: World, places: dict[str, str], path: str) -> None:
    with httpx.Client(base_url=world.url, headers=world.auth(), timeout=20) as http:

        @settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
        @given(
            st.one_of(
                st.binary(max_size=60), JSON.map(lambda value: json.dumps(value).encode("utf-8", "replace"))
            )
        )
        def check(body: bytes) -> None:
            answer = http.post(path.format(**places), content=body)
            assert answer.status_code < 500, (body, answer.text)
            if answer.status_code >= 400:
                assert answer.headers["content-type"] == "application/problem+json"

        check()


@pytest.mark.parametrize(
    ("path", "fields"), [("/v1/sandboxes", CREATE_FIELDS), ("/v1/sandboxes/{id}/exec", EXEC_FIELDS)]
)
def test_no_fields_make_a_500(world: World, places: dict[str, str], path: str, fields: list[str]) -> None:
    with httpx.Client(base_url=world.url, headers=world.auth(), timeout=20) as http:

        @settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
        @given(bodies(fields))
        def check(body: dict[str, Any]) -> None:
            answer = http.post(path.format(**places), content=json.dumps(body).encode())
            assert answer.status_code < 500, (body, answer.text)
            if answer.status_code == 422:
                assert answer.json()["errors"]

        check()


@pytest.mark.parametrize("name", ["state", "run", "label", "limit", "cursor", "wait"])
def test_no_query_makes_a_500(world: World, name: str) -> None:
    with httpx.Client(base_url=world.url, headers=world.auth(), timeout=20) as http:

        @settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
        @given(st.binary(max_size=12))
        def check(value: bytes) -> None:
            encoded = "".join(f"%{byte:02X}" for byte in value)
            answer = http.get(f"/v1/sandboxes?{name}={encoded}")
            assert answer.status_code in (200, 422), (value, answer.text)

        check()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"command":"a\\u0000b"}', "command"),
        (b'{"argv":["echo","a\\u0000b"]}', "argv[1]"),
        (b'{"command":"x","cwd":"/a\\u0000"}', "cwd"),
        (b'{"command":"x","env":{"A":"\\u0000"}}', "env.A"),
        (b'{"command":"x","env":{"A\\u0000":"1"}}', "env"),
        (b'{"command":"x","session":"a\\u0000"}', "session"),
        (b'{"command":"x","id":"a\\u0000"}', "id"),
        (b'{"command":"x","user":"a\\u0000"}', "user"),
        (b'{"command":"\\ud800"}', "command"),
        (b'{"argv":["x","\\udfff"]}', "argv[1]"),
        (b'{"command":"x","env":{"A":"\\ud800x"}}', "env.A"),
        (b'{"command":"x","stdin":"\\ud800"}', "stdin"),
        (b'{"command":"x","timeout_seconds":NaN}', "timeout_seconds"),
        (b'{"command":"x","timeout_seconds":0}', "timeout_seconds"),
        (b'{"command":"x","timeout_seconds":-1}', "timeout_seconds"),
        (b'{"command":"x","timeout_seconds":1e12}', "timeout_seconds"),
        (b'{"command":"x","timeout_seconds":"30s"}', "timeout_seconds"),
        (b'{"command":"x","env":{"":"1"}}', "env"),
        (b'{"command":"x","env":{"A=B":"1"}}', "env"),
        (b'{"command":"x","nope":1}', "nope"),
        (b'{"command":"x","argv":["x"]}', "command"),
        (b"{}", "command"),
        (b'{"argv":[]}', "argv"),
        (b'{"command":["x"]}', "command"),
        (b'{"argv":"ls -l"}', "argv"),
        (b'{"command":"x","user":"-u"}', "user"),
        (b'{"command":"x","encoding":"latin-1"}', "encoding"),
    ],
)
async def test_b033_exec_faults_name_their_field(
    http: httpx.AsyncClient, places: dict[str, str], body: bytes, field: str
) -> None:
    answer = await http.post(f"/v1/sandboxes/{places['id']}/exec", content=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["field"] == field


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"image": "UPPER//x"}, "image"),
        ({"image": "--privileged"}, "image"),
        ({"image": "alpine;id"}, "image"),
        ({"image": "$(id)"}, "image"),
        ({"image": "a b"}, "image"),
        ({"image": "/a/../etc"}, "image"),
        ({"image": ""}, "image"),
        ({"image": "x\ny"}, "image"),
        ({"image": "user:secret@registry/x"}, "image"),
        ({"image": "host", "env": {"": "1"}}, "env"),
        ({"image": "host", "env": {"A": "x" * 200_000}}, "env.A"),
        ({"image": "host", "env": {f"K{n}": "x" * 100_000 for n in range(10)}}, "env"),
        ({"image": "host", "env": {"A": 1}}, "env[...]"),
        ({"image": "host", "cpu": 0}, "cpu"),
        ({"image": "host", "cpu": -1}, "cpu"),
        ({"image": "host", "cpu": 1e9}, "cpu"),
        ({"image": "host", "memory": 0}, "memory"),
        ({"image": "host", "memory": "512MX"}, "memory"),
        ({"image": "host", "memory": "1e3"}, "memory"),
        ({"image": "host", "memory": "0.5"}, "memory"),
        ({"image": "host", "memory": 2**70}, "memory"),
        ({"image": "host", "disk": "1Ei"}, "disk"),
        ({"image": "host", "user": "-x"}, "user"),
        ({"image": "host", "user": "a b"}, "user"),
        ({"image": "host", "user": -1}, "user"),
        ({"image": "host", "workdir": "relative"}, "workdir"),
        ({"image": "host", "workdir": "/a\0"}, "workdir"),
        ({"image": "host", "policy": {"network": "all"}}, "policy.network"),
        ({"image": "host", "policy": {"pids": 0}}, "policy.pids"),
        ({"image": "host", "policy": {"x": 0}}, "policy.x"),
        ({"image": "host", "run": "x"}, "run"),
    ],
)
async def test_b014_create_faults_name_their_field(
    http: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    answer = await http.post("/v1/sandboxes", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["field"] == field


async def test_b014_odd_but_good_environments(http: httpx.AsyncClient, ledger: Ledger) -> None:
    env = {
        "A-B": "1",
        "1X": "2",
        "PEM": "-----\nx\n",
        "Q": "'\"$(touch /tmp/pwn)",
        "EMPTY": "",
        "J": "日本語🤣",
        "E": "a=b=c",
        "N": "x\n",
    }
    answer = await http.post("/v1/sandboxes", json={"image": "host", "env": env})
    assert answer.status_code == 202 and answer.json()["env_names"] == sorted(env)
    record = await ledger.get(answer.json()["id"])
    assert record is not None and record.spec.env == env
    await http.delete(f"/v1/sandboxes/{record.id}")


async def test_a_body_over_the_limit_is_413_without_reading_it(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/sandboxes", content=b" " * (9 * 1024 * 1024))
    assert answer.status_code == 413 and answer.json()["type"].endswith("too-large")
