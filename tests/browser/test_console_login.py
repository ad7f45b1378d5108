"""Login, logout and the rules around the session, over HTTP as an attacker or a script would come (B135, B136, B138, B155)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx
import pytest
import redis
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from app.ledger.model import State
from tests.browser.conftest import running_world
from tests.browser.world import World, bring, new_sandbox
from tests.conftest import Valkey
from tests.service import eventually


def browser_like(world: World) -> httpx.Client:
    """A browser's manners without a browser: own Origin on every change, cookies kept, redirects shown."""
    return httpx.Client(base_url=world.url, headers={"origin": world.url}, timeout=10)


@pytest.fixture
def http(world: World) -> Iterator[httpx.Client]:
    with browser_like(world) as client:
        yield client


@pytest.fixture
def shared_http(shared_world: World) -> Iterator[httpx.Client]:
    with browser_like(shared_world) as client:
        yield client


def form_token(html: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', html)
    assert found, html[:2000]
    return found[1]


def log_in(http: httpx.Client, key: str, **fields: str) -> httpx.Response:
    token = form_token(http.get("/login").text)
    return http.post("/login", data={"token": token, "key": key, "next": "/", **fields})


def session_cookie(http: httpx.Client) -> str:
    return next((value for name, value in http.cookies.items() if name.startswith("sandman_session")), "")


def test_the_key_is_exchanged_for_a_session_that_says_nothing_about_it(
    world: World, http: httpx.Client
) -> None:
    key = world.keys["operator"]
    assert http.get("/").headers["location"] == "/login"
    answer = log_in(http, key)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie
    page = http.get("/")
    assert page.status_code == 200 and "Concurrency" in page.text
    with redis.Redis.from_url(world.redis_url) as store:
        stored = [
            (name, store.get(name), store.ttl(name))
            for name in store.scan_iter(f"{world.folder.name}:console:session:*")
        ]
    assert len(stored) == 1 and 0 < stored[0][2] <= 12 * 3600
    for text in (page.text, str(page.headers), str(answer.headers), str(stored)):
        assert key not in text
    assert session_cookie(http) not in str(stored), "who reads Redis could log in with what is stored"
    assert key not in (world.folder / "log").read_text()


def test_a_wrong_key_opens_nothing(shared_world: World, shared_http: httpx.Client) -> None:
    for key in ("", "sm_wrong", "sm_" + "A" * 43, "\x00", "é" * 60):
        answer = log_in(shared_http, key)
        assert answer.status_code == 401 and "This key is not known here." in answer.text
        assert not session_cookie(shared_http)
    assert shared_http.get("/").status_code == 303


def test_logging_out_ends_the_session_on_the_server_too(
    shared_world: World, shared_http: httpx.Client
) -> None:
    log_in(shared_http, shared_world.keys["user"])
    old = dict(shared_http.cookies)
    token = form_token(shared_http.get("/").text)
    answer = shared_http.post("/logout", data={"token": token})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert httpx.get(f"{shared_world.url}/", cookies=old).headers["location"] == "/login?ended=true"


def test_a_withdrawn_key_ends_its_sessions(world: World, http: httpx.Client) -> None:
    log_in(http, world.keys["user"])
    assert http.get("/").status_code == 200
    world.write_keys({"operator": "acme"})
    assert eventually(lambda: http.get("/").status_code == 303, 5)
    assert log_in(http, world.keys["user"]).status_code == 401


def test_too_many_attempts_are_told_when_to_come_back(world: World, http: httpx.Client) -> None:
    answers = [log_in(http, "sm_wrong") for _ in range(21)]
    assert [answer.status_code for answer in answers] == [401] * 20 + [429]
    assert 0 < int(answers[-1].headers["retry-after"]) <= 300
    assert log_in(http, world.keys["operator"]).status_code == 429


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.test"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_forms_of_other_sites_change_nothing(
    shared_world: World, shared_http: httpx.Client, headers: dict[str, str]
) -> None:
    """B135: refused before the form is even read, with a valid cookie and a valid token."""
    log_in(shared_http, shared_world.keys["operator"])
    token = form_token(shared_http.get("/").text)
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"):
        answer = shared_http.post(
            "/logout", content=f"token={token}", headers={"content-type": kind, **headers}
        )
        assert answer.status_code == 403, (kind, answer.status_code)
    assert shared_http.get("/").status_code == 200, "the session must still be there"


def test_our_own_origin_without_the_forms_token_changes_nothing(
    shared_world: World, shared_http: httpx.Client
) -> None:
    log_in(shared_http, shared_world.keys["operator"])
    for data in ({"other": "x"}, {"token": ""}, {"token": "x" * 43}, {"token": session_cookie(shared_http)}):
        assert shared_http.post("/logout", data=data).status_code == 403
    assert shared_http.post("/logout", json={"token": "x"}).status_code == 415
    assert shared_http.get("/").status_code == 200
    with httpx.Client(base_url=shared_world.url, headers={"origin": shared_world.url}) as fresh:
        answer = fresh.post("/login", data={"token": "x" * 43, "key": shared_world.keys["operator"]})
        assert answer.status_code == 403 and not session_cookie(fresh)


def test_reading_changes_nothing_and_cannot_be_made_to(
    shared_world: World, shared_http: httpx.Client
) -> None:
    log_in(shared_http, shared_world.keys["operator"])
    assert shared_http.get("/logout").status_code == 405
    assert shared_http.get("/logout", headers={"x-http-method-override": "POST"}).status_code == 405
    assert shared_http.get("/?_method=POST").status_code == 200
    assert shared_http.get("/").status_code == 200


def test_only_our_own_host_names_are_answered(shared_world: World, shared_http: httpx.Client) -> None:
    """B136: a rebound name gets nothing, with or without a cookie, not even the stylesheet."""
    log_in(shared_http, shared_world.keys["operator"])
    for path in ("/", "/login", "/console/overview", "/static/x/console.css"):
        answer = shared_http.get(path, headers={"host": f"evil.test:{shared_world.port}"})
        assert answer.status_code == 403 and "SANDMAN_CONSOLE_ORIGIN" in answer.text
    assert shared_http.get("/", headers={"host": f"localhost:{shared_world.port}"}).status_code == 200


def test_another_site_cannot_embed_or_fetch_a_page(shared_world: World, shared_http: httpx.Client) -> None:
    log_in(shared_http, shared_world.keys["operator"])
    for dest, mode in (("iframe", "navigate"), ("empty", "no-cors"), ("script", "no-cors")):
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-dest": dest, "sec-fetch-mode": mode}
        assert shared_http.get("/", headers=headers).status_code == 403


def test_every_answer_carries_the_policy(shared_world: World, shared_http: httpx.Client) -> None:
    log_in(shared_http, shared_world.keys["operator"])
    answers = [
        shared_http.get("/"),
        shared_http.get("/login"),
        shared_http.get("/console/overview"),
        shared_http.get("/?state=nope"),
    ]
    answers += [shared_http.get("/", headers={"host": "evil.test"}), shared_http.post("/logout", data={})]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "same-origin"
    for answer in answers:
        if answer.status_code == 303:
            continue
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http:" not in policy and "*" not in policy
        assert answer.headers["cache-control"] == "no-store"
    assert (
        len(
            {
                answers[0].headers["content-security-policy"],
                shared_http.get("/").headers["content-security-policy"],
            }
        )
        == 2
    )


def test_pages_hold_nothing_inline_and_nothing_foreign(
    shared_world: World, shared_http: httpx.Client
) -> None:
    login = shared_http.get("/login").text
    log_in(shared_http, shared_world.keys["operator"])
    for html in (login, shared_http.get("/").text):
        assert not re.search(r"<script(?![^>]*\bsrc=)", html) and "<style" not in html
        assert not re.search(r"\s(style|on[a-z]+)=", html)
        for address in re.findall(r'(?:src|href|action)="([^"]*)"', html):
            assert re.match(r"/(?!/)|#main$", address), address


def test_a_fragment_without_a_session_leads_the_whole_page_to_the_login(
    shared_world: World, shared_http: httpx.Client
) -> None:
    """B138: never a login form inside a table."""
    answer = shared_http.get("/console/overview?state=ready", headers={"hx-request": "true"})
    assert answer.status_code == 401 and answer.content == b""
    assert answer.headers["hx-redirect"] == "/login?next=%2F%3Fstate%3Dready"
    shared_http.cookies.set(f"sandman_session_{shared_world.port}", "x" * 43)
    answer = shared_http.get("/console/overview", headers={"hx-request": "true"})
    assert answer.headers["hx-redirect"] == "/login?ended=true"
    assert "Your session has ended" in shared_http.get("/login?ended=true").text


def test_after_the_login_one_is_where_one_wanted_to_be(
    shared_world: World, shared_http: httpx.Client
) -> None:
    assert shared_http.get("/?state=ready").headers["location"] == "/login?next=%2F%3Fstate%3Dready"
    assert 'value="/?state=ready"' in shared_http.get("/login?next=%2F%3Fstate%3Dready").text
    assert (
        log_in(shared_http, shared_world.keys["user"], next="/?state=ready").headers["location"]
        == "/?state=ready"
    )
    with httpx.Client(base_url=shared_world.url, headers={"origin": shared_world.url}) as fresh:
        assert log_in(fresh, shared_world.keys["user"], next="https://evil.test/").headers["location"] == "/"


def test_the_cookie_is_no_key_for_the_api(shared_world: World, shared_http: httpx.Client) -> None:
    log_in(shared_http, shared_world.keys["operator"])
    assert shared_http.get("/v1/sandboxes").status_code == 401
    assert shared_http.delete("/v1/sandboxes/sb-" + "a" * 26).status_code == 401


async def test_the_cookie_opens_no_socket(shared_world: World, shared_http: httpx.Client) -> None:
    """B136: sockets take keys only, so that there is no session to ride on, whatever the Origin."""
    log_in(shared_http, shared_world.keys["operator"])
    cookie = "; ".join(f"{name}={value}" for name, value in shared_http.cookies.items())
    address = shared_world.url.replace("http", "ws") + "/v1/sandboxes/sb-" + "a" * 26 + "/connect"
    for origin in (shared_world.url, "http://evil.test", "http://127.0.0.1:1", "null", None):
        headers = {"cookie": cookie} | ({"origin": origin} if origin else {})
        with pytest.raises(InvalidStatus) as refused:
            await connect(address, additional_headers=headers, subprotocols=[Subprotocol("sandman.v1")])
        assert refused.value.response.status_code == 401


def test_odd_requests_are_refused_in_words(shared_world: World, shared_http: httpx.Client) -> None:
    log_in(shared_http, shared_world.keys["operator"])
    assert shared_http.get("/?state=nope").status_code == 400
    assert shared_http.get("/?cursor=" + "9" * 600).status_code == 400
    assert shared_http.get("/?cursor=';DROP").status_code == 200
    token = (
        form_token(shared_http.get("/login").text) if shared_http.get("/login").status_code == 200 else "x"
    )
    assert shared_http.post("/login", data={"token": token, "key": "k" * 20_000}).status_code == 413
    assert shared_http.get("/static/x/../../app/asgi.py").status_code in (401, 403, 404)
    assert shared_http.get("/static/x/%2e%2e/%2e%2e/app/serve.py").status_code in (401, 403, 404)


def test_files_are_kept_by_browsers_until_they_change(shared_world: World, shared_http: httpx.Client) -> None:
    address = re.findall(r'href="([^"]+console\.css)"', shared_http.get("/login").text)[0]
    answer = shared_http.get(address)
    assert "immutable" in answer.headers["cache-control"] and answer.headers["content-type"].startswith(
        "text/css"
    )
    assert answer.headers["content-encoding"] == "gzip"
    plain = shared_http.get(address, headers={"accept-encoding": "identity"})
    assert plain.content == answer.content
    assert shared_http.get("/static/0000000000000000/console.css").headers["cache-control"] == "no-cache"


def test_a_tenants_key_shows_its_own_tenant_only(world: World, http: httpx.Client) -> None:
    async def fill() -> str:
        async with world.ledger() as ledger:
            made = await bring(ledger, new_sandbox("secret-image", tenant="acme"), to=State.READY)
            return made[0].id

    made = asyncio.run(fill())
    log_in(http, world.keys["viewer"])
    page = http.get("/")
    assert page.status_code == 200 and made not in page.text and "secret-image" not in page.text
    with browser_like(world) as other:
        log_in(other, world.keys["operator"])
        assert made in other.get("/").text


def test_without_redis_the_page_says_so(world: World, http: httpx.Client) -> None:
    log_in(http, world.keys["operator"])
    with redis.Redis.from_url(world.redis_url) as store:
        store.execute_command("CLIENT", "PAUSE", "8000", "ALL")
        try:
            answer = http.get("/console/overview", timeout=30)
        finally:
            store.close()
    assert answer.status_code == 503 and "ledger cannot be reached" in answer.text


def test_behind_a_proxy_the_public_address_counts(valkey: Valkey) -> None:
    """B136: with an https origin configured, that origin is ours, its cookies are Secure, and its plain twin is a stranger."""
    with running_world(valkey, {"SANDMAN_CONSOLE_ORIGIN": "https://sandman.example.org"}) as world:
        origin = {"host": "sandman.example.org", "origin": "https://sandman.example.org"}
        with httpx.Client(base_url=world.url, headers=origin, timeout=10) as http:
            page = http.get("/login")
            cookie = page.headers["set-cookie"]
            assert "Secure" in cookie
            fields = {"token": form_token(page.text), "key": world.keys["operator"]}
            manner = {"cookie": cookie.split(";")[0]}
            plain = http.post(
                "/login", data=fields, headers={**manner, "origin": "http://sandman.example.org"}
            )
            assert plain.status_code == 403
            answer = http.post("/login", data=fields, headers=manner)
            assert answer.status_code == 303 and "Secure" in answer.headers["set-cookie"]
            assert http.get("/login", headers={"host": "other.example.org"}).status_code == 403
