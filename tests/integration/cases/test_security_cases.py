"""The hard cases about secrets and ways in, through the running service.

The whole list of routes against the API alone, with a fake backend, is in tests/integration/api/test_api_auth.py; the console's own
pages have tests in tests/browser.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import websockets
from websockets.sync.client import connect

from app.factory import create_app
from app.ledger.settings import Settings
from app.ledger.tokens import read_secret, sandbox_token
from tests.integration.cases.box import problem
from tests.integration.cases.plain import SMALL, Plain, create, descendants, field_of, image, live, sandbox
from tests.service import Service, eventually

OPEN = {"/health/live", "/health/ready", "/schema/openapi.json", "/login", "/static/{digest:str}/{name:path}"}
"""What answers without a key. Nothing of it knows a sandbox."""


# B149


def secrets_of(service: Service, made: Plain) -> dict[str, str]:
    secret = (service.data_dir / "secret").read_text().strip()
    token = sandbox_token(read_secret(service.data_dir / "secret"), made.id)
    return {"token": token, "key": service.key, "secret": secret}


LOOK_AROUND = r"""
env; set; export -p
cat /proc/*/environ /proc/*/cmdline /proc/*/stat /proc/*/mountinfo /proc/*/maps 2>/dev/null
ls -lR /proc/*/fd 2>/dev/null
cat /proc/*/fd/* </dev/null 2>/dev/null & sleep 0.5; kill $! 2>/dev/null
cat /proc/net/unix /proc/cmdline /proc/sys/kernel/random/boot_id 2>/dev/null
"""


@pytest.mark.parametrize("kind", ["host", "musl", "nonroot"])
def test_b149_no_secret_is_to_be_found_inside(service: Service, kind: str) -> None:
    name = kind if kind == "host" else image(service, kind)
    with sandbox(service, image=name, memory=512 * 1024**2) as made:
        hidden = secrets_of(service, made)
        made.exec("true", session="keep-one-open")
        answer = made.exec(LOOK_AROUND, timeout_seconds=60, max_output_bytes=32 * 1024**2).json()
        seen = answer["stdout"] + answer["stderr"]
        assert "PATH=" in seen and "sandmand" in seen
        for what, value in hidden.items():
            assert value not in seen, what
        folders = "/etc /run /tmp /var/tmp /dev/shm /root /home /srv /opt /sandman /.sandman /usr/local/etc"
        where = "/" if kind != "host" else folders
        searched = made.exec(
            ["sh", "-c", f"for f in {where}; do find \"$f\" -xdev -type f -size -2000k 2>/dev/null; done | grep -v ^/proc |"
             f" while read -r f; do grep -l -e {hidden['token']} -e {service.key} -e {hidden['secret']} \"$f\"; done 2>/dev/null"],
            timeout_seconds=120, stdin="",
        ).json()  # fmt: skip
        assert searched["stdout"] == "", searched
        assert made.exec("cat /proc/1/environ; cat /proc/1/mem").json()["stdout"] == "", (
            "not even of its own daemon"
        )


def test_b149_a_token_opens_its_own_sandbox_only(service: Service) -> None:
    with sandbox(service) as one, sandbox(service) as other:
        token = secrets_of(service, one)["token"]

        def status(made: Plain, bearer: str, path: str = "/v1/execs") -> int:
            with httpx.Client(
                transport=httpx.HTTPTransport(uds=made.record["address"].removeprefix("unix:"))
            ) as daemon:
                return daemon.get(
                    f"http://x{path}", headers={"authorization": f"Bearer {bearer}"}
                ).status_code

        assert status(one, token) == 200 and status(other, token) == 401
        for bearer in (
            "x",
            service.key,
            token[:-1],
            token.upper(),
            hashlib.sha256(token.encode()).hexdigest(),
        ):
            assert status(one, bearer) == 401 and status(one, bearer, "/no/such/path") == 401
        with service.http(key=token) as http:
            assert http.get("/v1/stats").status_code == 401, "it is no key of the service"
        inside = one.exec(
            "ls -la /run/sandman /tmp/sandman* "
            + str(service.data_dir)
            + " 2>&1; find / -xdev -name '*.sock' 2>/dev/null"
        )
        assert other.id not in inside.text and "api-key" not in inside.text


# B155


def all_routes() -> list[tuple[str, str]]:
    _, framework = create_app(Settings())
    found = []
    for route in framework.routes:
        found += [(str(method), route.path) for method in getattr(route, "methods", None) or ["WS"]]
    return sorted(found)


def concrete(template: str, made: str, run: str) -> str:
    path = re.sub(r"\{sandbox_id:\w+\}", made, template)
    return re.sub(r"\{\w+:\w+\}", "x", re.sub(r"\{run_id:\w+\}", run, path))


def test_b155_no_route_answers_without_a_key(service: Service) -> None:
    wrong: list[dict[str, str]] = [
        {},
        {"authorization": "Bearer sm_" + "A" * 43},
        {"authorization": f"Basic {service.key}"},
        {"authorization": f"Bearer {service.key[:-1]}"},
        {"authorization": f"Bearer {service.key}x"},
        {"authorization": "Bearer"},
        {"authorization": ""},
        {"authorization": service.key},
        {"x-api-key": service.key.swapcase()},
        {"cookie": f"sandman_session={service.key}; session={service.key}"},
        {"x-forwarded-user": "root", "x-forwarded-for": "127.0.0.1", "x-original-url": "/health/live"},
    ]
    routes = all_routes()
    assert len(routes) > 40
    with sandbox(service) as made:
        begun = made.http.post("/v1/runs", json={"name": "b155"})
        assert begun.status_code == 201, begun.text
        run = begun.json()["id"]
        with httpx.Client(base_url=service.url, timeout=30) as http:
            for method, template in routes:
                if template in OPEN:
                    continue
                path = concrete(template, made.id, run)
                for headers in wrong if method in ("GET", "POST", "WS") else wrong[:2]:
                    if method == "WS":
                        assert socket_status(service, path, headers) == 401, path
                        continue
                    answer = http.request(method, path, headers=headers)
                    ours = not path.startswith("/v1") and path != "/metrics"
                    # The console sends people to its login, and its fragments say 401 or 403; none shows a thing.
                    allowed = (303, 302, 401, 403, 204 if method == "OPTIONS" else 401) if ours else (401,)
                    assert answer.status_code in allowed, (method, path, headers, answer.status_code)
                    assert made.id not in answer.text.replace(path, "")
        assert made.look()["state"] == "ready" and made.http.get(f"/v1/runs/{run}").json()["state"] == "open"
        made.http.delete(f"/v1/runs/{run}")


def socket_status(service: Service, path: str, headers: dict[str, str]) -> int:
    with pytest.raises(websockets.InvalidStatus) as refused:
        connect(
            service.url.replace("http", "ws", 1) + path, additional_headers=headers, compression=None
        ).close()
    return refused.value.response.status_code


def test_b155_no_spelling_and_no_method_gets_past(service: Service) -> None:
    with sandbox(service) as made:
        address = (httpx.URL(service.url).host, httpx.URL(service.url).port or 80)
        for path in (
            "/v1/sandboxes",
            f"/v1/sandboxes/{made.id}",
            f"/v1/sandboxes/{made.id}/execs",
            "/metrics",
            "/v1/stats",
        ):
            for spelled in (
                path, path + "/", "/" + path, path.upper(), path.replace("/v1", "/%76%31"), path.replace("s", "%73", 1), path + "%00",
                "/health/live/.." + "/.." + path, "/static/../" + path[1:], path + ";x", path + "?key=" + service.key, path + "#x",
                "/." + path, path.replace("/", "\\"), "http://evil.test" + path, "/login/../" + path[1:], path + "%2f..", path + ".json",
            ):  # fmt: skip
                for method in ("GET", "HEAD", "OPTIONS", "POST", "TRACE", "CONNECT", "get", "PROPFIND"):
                    status, body = raw(
                        address, f"{method} {spelled} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                    )
                    assert status in (0, 400, 401, 403, 404, 405, 501) or (
                        status in (302, 303) and b"login" in body
                    ), (method, spelled, body)
                    assert b'"items"' not in body and b"sandman_http" not in body and b'"live"' not in body
        assert made.look()["state"] == "ready"


def raw(address: tuple[str, int], request: str) -> tuple[int, bytes]:
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(request.encode())
        got = b""
        with suppress(ConnectionResetError):
            while more := connection.recv(65536):
                got += more
    return (int(got.split(b" ")[1]) if got.startswith(b"HTTP/") else 0), got


def test_b155_unknown_and_foreign_are_told_alike(own_service: Callable[..., Service]) -> None:
    service = own_service()
    key = "sm_" + secrets.token_urlsafe(32)[:43]
    keys = service.data_dir / "keys.json"
    known = json.loads(keys.read_text())
    known["keys"].append(
        {
            "name": "other",
            "tenant": "other",
            "role": "user",
            "sha256": hashlib.sha256(key.encode()).hexdigest(),
        }
    )
    keys.write_text(json.dumps(known))
    with service.http() as http, service.http(key=key) as stranger:
        made = create(http)
        assert eventually(lambda: stranger.get("/v1/stats").status_code == 200, 10)
        for method, path in (
            ("GET", ""), ("DELETE", ""), ("POST", "/renew"), ("POST", "/exec"), ("GET", "/files?path=/"), ("GET", "/execs/x"),
        ):  # fmt: skip
            bodies = []
            for name in (made.id, "sb-" + "a" * 26):
                body = {"command": "true"} if path == "/exec" else None
                answer = stranger.request(method, f"/v1/sandboxes/{name}{path}", json=body)
                document = problem(answer, 404, "not-found")
                bodies.append({member: value for member, value in document.items() if member != "request_id"})
            assert bodies[0] == bodies[1]
        assert not live(stranger) and made.look()["state"] == "ready"
        known["keys"].pop()
        keys.write_text(json.dumps(known))
        assert eventually(lambda: stranger.get("/v1/stats").status_code == 401, 10), (
            "a key that was withdrawn"
        )
        made.delete(wait=20)


# B156


def test_b156_secrets_are_only_where_they_must_be(own_service: Callable[..., Service]) -> None:
    service = own_service("--log-level", "debug", env={"SANDMAN_LOG_LEVEL": "debug"})
    canary = {
        name: f"canary{name}{secrets.token_hex(12)}"
        for name in (
            "env",
            "execenv",
            "stdin",
            "content",
            "output",
            "bad",
            "key",
            "query",
            "registry",
            "header",
        )
    }
    answers: list[str] = []

    def note(answer: httpx.Response) -> httpx.Response:
        answers.append(answer.text + str(answer.headers))
        return answer

    with service.http() as http:
        made = create(http, env={"SECRET": canary["env"]})
        note(http.get(made.path))
        note(http.get("/v1/sandboxes"))
        note(made.exec("cat > /dev/null; sleep 0", stdin=canary["stdin"], env={"B": canary["execenv"]}))
        printed = made.exec("echo " + canary["output"])
        assert canary["output"] in printed.text
        made.files("PUT", "/srv/f", canary["content"].encode())
        for body in (
            {"image": "host", "cpu": canary["bad"]},
            {"image": canary["bad"] + "//UP"},
            {"image": "host", "env": {"A": canary["bad"] + "\0"}},
            {"image": "host", "unknown": canary["bad"]},
            {"image": "host", "user": "- " + canary["bad"]},
            {"image": "host", "labels": {"a": canary["bad"] + " "}},
        ):
            found = note(http.post("/v1/sandboxes", json=body)).json()
            assert found["status"] == 422
        note(http.post("/v1/sandboxes", content=b'{"image": "' + canary["bad"].encode()))
        note(made.exec("true", user=[canary["bad"]]))
        note(made.exec(["/no/" + "such"], env={"X": canary["execenv"]}, stdin=canary["stdin"]))
        note(
            http.post(
                "/v1/sandboxes",
                params={"wait": 30},
                json={"image": f"https://u:{canary['registry']}@reg.invalid/x:1"},
            )
        )
        note(
            http.get(
                "/v1/stats", headers={"authorization": f"Bearer {canary['key']}", "x-api-key": canary["key"]}
            )
        )
        note(http.get("/v1/sandboxes", params={"key": canary["query"], "cursor": canary["query"]}))
        note(
            http.get(
                "/v1/stats", headers={"x-request-id": canary["header"] * 20, "traceparent": canary["header"]}
            )
        )
        note(http.get(f"/{canary['query']}"))
        for path in ("/metrics", "/v1/stats", "/v1/runs"):
            note(http.get(path))
        with httpx.Client(base_url=service.url, headers={"origin": service.url}) as browser:
            token = re.search(r'name="token" value="([^"]+)"', browser.get("/login").text)
            assert token
            browser.post("/login", data={"token": token[1], "key": service.key, "next": "/"})
            pages = [browser.get(path) for path in ("/", "/console/overview")]
            assert made.id in pages[0].text + pages[1].text
            answers += [page.text for page in pages]
        arguments = "".join(
            Path(f"/proc/{pid}/cmdline").read_text()
            for pid in descendants(service.pid)
            if Path(f"/proc/{pid}").exists()
        )
        stored = redis_dump(service)
        hidden = canary | {
            "apikey": service.key,
            "servicesecret": (service.data_dir / "secret").read_text().strip(),
        }
        hidden["token"] = sandbox_token(read_secret(service.data_dir / "secret"), made.id)
        for name, value in hidden.items():
            if (
                name != "header"
            ):  # an id of the caller's own choice is told back and logged, that is its purpose
                assert value not in "\n".join(answers), f"{name} was told"
                # The banner shows the first key to whoever started the service for the first time, as is its purpose.
                assert service.output().count(value) == (name == "apikey"), f"{name} was logged"
            assert value not in arguments, f"{name} is an argument of a process"
            # The environment must be known to start the sandbox; of everything else nothing is kept.
            assert (value in stored) == (name == "env"), f"{name} in Redis"
        made.delete(wait=20)
        assert eventually(lambda: canary["env"] not in redis_dump(service), 10), (
            "kept longer than the sandbox"
        )
    for name in ("keys.json", "api-key", "secret"):
        assert (service.data_dir / name).stat().st_mode & 0o077 == 0
    assert service.key not in (service.data_dir / "keys.json").read_text()


def redis_dump(service: Service) -> str:
    """Every value there is, as far as it can be printed."""
    with redis.Redis(unix_socket_path=str(service.runtime_dir_of_data() / "valkey.sock")) as client:
        readers: dict[bytes, Callable[[bytes], Any]] = {
            b"string": client.get,
            b"hash": client.hgetall,
            b"list": lambda key: client.lrange(key, 0, -1),
            b"set": client.smembers,
            b"zset": lambda key: client.zrange(key, 0, -1),
            b"stream": client.xrange,
        }
        found = []
        for key in client.scan_iter(count=1000):
            kind = client.type(key)
            with suppress(redis.ResponseError):
                found.append(f"{key!r} {readers[kind](key)!r}")
        return "\n".join(found)


# B160


def test_b160_text_of_callers_is_never_an_option_or_a_script(service: Service, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    evil = f"$(touch {marker})"
    with service.http() as http:
        for name in (
            "--privileged", "alpine;id", "$(id)", "`id`", "-v/:/host", "a|b", "a b", "x\n--privileged", evil, "../../etc", "host --x",
            "https://user:pass@reg.invalid/x", "dir:relative", "oci:-x", "x" * 5000, "\0", "HOST",
        ):  # fmt: skip
            assert field_of(http.post("/v1/sandboxes", json={"image": name})) == "image", name
        for field, value in (
            ("user", "-u0"), ("user", "root\nx"), ("user", "a;b"), ("user", "0:-1"), ("user", ""), ("user", evil),
            ("workdir", "-x"), ("workdir", "relative"), ("workdir", "/a\0b"), ("workdir", "~"),
        ):  # fmt: skip
            assert field_of(http.post("/v1/sandboxes", json=SMALL | {field: value})) == field, value
        for labels in ({"-x": "1"}, {"a": "--rm"}, {"a": "x\ny"}, {"a": evil}):
            assert field_of(http.post("/v1/sandboxes", json=SMALL | {"labels": labels})).startswith("labels")
        made = create(http)
        commands: tuple[dict[str, Any], ...] = (
            {"command": ["sh", "-c", "id"]}, {"argv": "id"}, {"command": "a", "argv": ["b"]}, {}, {"argv": []}, {"argv": [1]},
        )  # fmt: skip
        for command in commands:
            answer = http.post(f"{made.path}/exec", json=command)
            assert answer.status_code == 422, command
            assert answer.headers["content-type"] == "application/problem+json"
        made.delete(wait=20)
    assert not marker.exists(), "something ran on the service's own machine"


def test_b160_odd_but_legal_text_is_data(service: Service, tmp_path: Path) -> None:
    """A workdir that looks like an option, variables that steer loaders: they reach commands as they are, and the daemon never."""
    marker = tmp_path / "ran"
    workdir = f"/srv/--rw $(touch {marker})\n-x"
    env = {
        "LD_PRELOAD": "/nosuch/evil.so", "LD_LIBRARY_PATH": "/nosuch", "GODEBUG": "gctrace=1", "GOMAXPROCS": "1", "GOMEMLIMIT": "1",
        "BASH_ENV": "/nosuch/env", "ENV": "/nosuch/env", "SANDMAND_CONFIG": "{}", "PATH": "/usr/bin:/bin", "A-B": "--x", "IFS": "x",
        "SANDMAN_DAEMON_PATH": "/nosuch",
    }  # fmt: skip
    with sandbox(service, workdir=workdir, env=env) as made:
        assert made.exec(["pwd"]).json()["stdout"] == workdir + "\n"
        seen = made.exec(["env", "-0"]).json()
        variables = dict(one.split("=", 1) for one in seen["stdout"].split("\0") if one)
        assert {name: variables.get(name) for name in env} == env
        assert "evil.so" in seen["stderr"], "the loader of the command has tried, as it would anywhere"
        environ = [
            Path(f"/proc/{pid}/environ").read_text()
            for pid in descendants(service.pid)
            if made.id in Path(f"/proc/{pid}/cgroup").read_text()
        ]
        assert environ and not any("nosuch" in text or "gctrace" in text for text in environ)
        arguments = ["--help", "-rf", "$(id)", "a b", "", "'\"", evil_name(marker), "é\n"]
        printed = made.exec(["printf", "%s\\0", *arguments]).json()["stdout"]
        assert printed.split("\0")[:-1] == arguments
        for cwd in ("/srv/-x; touch y", f"/srv/$(touch {marker})"):
            made.files.mkdir(path=cwd)
            assert made.exec("pwd", cwd=cwd).json()["stdout"] == cwd + "\n"
        assert made.out("ls /srv | grep -c '^y$' || :") == "0\n"
    assert not marker.exists()


def evil_name(marker: Path) -> str:
    return f"`touch {marker}`"
