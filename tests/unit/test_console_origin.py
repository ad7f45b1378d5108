"""Host and source rules (hard cases B135, B136): who may speak to the console with a cookie."""

from __future__ import annotations

import pytest

from app.console.origin import Refused, check_host, check_source, local_path, public_scheme

PUBLIC = ("https://sandman.example.org",)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8700",
        "localhost",
        "LOCALHOST:8700",
        "box.localhost",
        "[::1]:8700",
        "10.0.0.7:80",
        "localhost.",
    ],
)
def test_addresses_and_localhost_are_always_good(host: str) -> None:
    check_host(host, ())


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.test",
        "evil.test:8700",
        "localhost.evil.test",
        "127.0.0.1.evil.test",
        "127.0.0.1@evil.test",
        "evil.test#localhost",
        "sandman.example.org",
        "localhost, evil.test",
        "localhost:port",
    ],
)
def test_other_names_are_refused_because_of_rebinding(host: str) -> None:
    with pytest.raises(Refused):
        check_host(host, ())


def test_a_configured_name_is_good() -> None:
    check_host("sandman.example.org", PUBLIC)
    check_host("Sandman.Example.org:443", PUBLIC)
    with pytest.raises(Refused):
        check_host("sub.sandman.example.org", PUBLIC)


def post(headers: dict[str, str], host: str = "127.0.0.1:8700", origins: tuple[str, ...] = ()) -> None:
    check_source("POST", {"host": host, **headers}, scheme="http", public_origins=origins)


def test_our_own_forms_pass() -> None:
    post({"origin": "http://127.0.0.1:8700"})
    post({"origin": "http://127.0.0.1:8700", "sec-fetch-site": "same-origin"})
    post({"sec-fetch-site": "same-origin"})
    post({"origin": "http://localhost"}, "localhost")
    post({"origin": "https://sandman.example.org"}, "sandman.example.org", PUBLIC)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.test"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "https://127.0.0.1:8700"},
        {"origin": "http://127.0.0.1:8700.evil.test"},
        {"origin": "http://127.0.0.1:8700@evil.test"},
        {"origin": "http://localhost:8700"},
        {"origin": "file://"},
        {"origin": "http://127.0.0.1:8700", "sec-fetch-site": "cross-site"},
        {"origin": "http://127.0.0.1:8700", "sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_changes_from_elsewhere_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(Refused):
        post(headers)


def test_a_plain_page_of_a_host_that_is_public_by_https_is_elsewhere() -> None:
    with pytest.raises(Refused):
        post({"origin": "http://sandman.example.org"}, "sandman.example.org", PUBLIC)


def get(**headers: str) -> None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    check_source("GET", {"host": "localhost", **named}, scheme="http", public_origins=())


def test_pages_are_read_by_people_and_by_themselves_only() -> None:
    get()
    get(sec_fetch_site="same-origin", sec_fetch_mode="cors")
    get(sec_fetch_site="none", sec_fetch_mode="navigate", sec_fetch_dest="document")
    get(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document")
    for dest, mode in (
        ("iframe", "navigate"),
        ("image", "no-cors"),
        ("script", "no-cors"),
        ("empty", "cors"),
    ):
        with pytest.raises(Refused):
            get(sec_fetch_site="cross-site", sec_fetch_mode=mode, sec_fetch_dest=dest)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/?state=ready&cursor=12", "/?state=ready&cursor=12"),
        ("/", "/"),
        ("", "/"),
        ("https://evil.test", "/"),
        ("//evil.test", "/"),
        ("/\\evil.test", "/"),
        ("/a\\b", "/"),
        ("/\tx", "/"),
        ("/x\r\nset-cookie: a=b", "/"),
        ("javascript:alert(1)", "/"),
        ("/login?next=/", "/"),
        ("/logout", "/"),
        ("/" + "a" * 700, "/"),
    ],
)
def test_after_the_login_one_lands_in_the_console_only(target: str, path: str) -> None:
    assert local_path(target) == path


def test_the_scheme_people_see_decides_about_secure_cookies() -> None:
    assert public_scheme("sandman.example.org", "http", PUBLIC) == "https"
    assert public_scheme("127.0.0.1:8700", "http", PUBLIC) == "http"
