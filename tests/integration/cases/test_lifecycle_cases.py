"""The hard cases about a sandbox's life, through the running service: creating, holding, ending.

Creates are made slow by an image with very many small files, whose import takes seconds; a process of the service that does
nothing is one that was stopped by SIGSTOP.
"""

from __future__ import annotations

import io
import os
import random
import signal
import socket
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import sandman
from tests import roots
from tests.fakes.proxy import Fault, FaultProxy
from tests.image_files import Config, write_layout
from tests.integration.cases.box import SLOW, fields, problem
from tests.integration.cases.plain import SMALL, Plain, create, field_of, image, live, sandbox, steps
from tests.service import Service, eventually, eventually_clean
from tests.unit.local_archives import oci_layout

HANG_UPS = int(os.environ.get("SANDMAN_TEST_HANG_UPS", "40"))
"""200 is the case's own count."""
AWAY_SECONDS = float(os.environ.get("SANDMAN_TEST_AWAY_SECONDS", "9"))
"""900 is the case's own; with more than 80 the daemon's own deadline is seen too (daemon/ has tests of it with shorter ones)."""
BACKSTOP_SLACK_SECONDS = 60.0 + 5.0
"""The daemon waits so much longer than the ledger's deadline, which is the one that is told with a reason."""
SLOW_FILES = int(os.environ.get("SANDMAN_TEST_SLOW_FILES", "30000"))


def slow_image(service: Service, name: str, files: int = SLOW_FILES) -> str:
    """An image of busybox and many files; each name is imported anew."""
    folder = service.data_dir / "images" / name
    if not folder.exists():
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.add(roots.root("musl").folder, arcname=".")
            for number in range(files):
                info = tarfile.TarInfo(f"many/{number % 100}/{name}-{number}")
                info.size = 10
                tar.addfile(info, io.BytesIO(b"x" * 10))
        folder.parent.mkdir(exist_ok=True)
        oci_layout(folder, [buffer.getvalue()], {"Env": [roots.PATH_VARIABLE]})
    return name


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def waiting_create(
    service: Service, *, wait: float = 60, **members: Any
) -> Iterator[tuple[Plain, list[httpx.Response]]]:
    """A create whose caller waits in a thread; the sandbox, found by a label, and the answer when it is there."""
    label = uuid.uuid4().hex
    answers: list[httpx.Response] = []

    def ask() -> None:
        with service.http(timeout=wait + 30) as http:
            body = SMALL | members | {"labels": {"waiting": label}}
            answers.append(http.post("/v1/sandboxes", params={"wait": wait}, json=body))

    caller = threading.Thread(target=ask)
    caller.start()
    with service.http() as http:
        found = eventually(lambda: list(live(http, waiting=label)), 10)
        assert found
        yield Plain(http, http.get(f"/v1/sandboxes/{found[0]}").json()), answers
    caller.join(wait + 30)
    assert answers


# B076


def test_b076_one_key_is_one_sandbox(service: Service) -> None:
    key = {"Idempotency-Key": f"b076-{uuid.uuid4()}"}

    def ask(body: dict[str, Any], wait: float = 30) -> httpx.Response:
        with service.http() as http:
            return http.post("/v1/sandboxes", params={"wait": wait}, json=body, headers=key)

    with service.http() as http, ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, [SMALL] * 20))
        answers += [ask(SMALL), ask(dict(reversed(SMALL.items()))), ask(SMALL | {"env": None})]
        assert {answer.status_code for answer in answers} == {201}
        (made,) = {answer.json()["id"] for answer in answers}
        assert list(live(http)) == [made]
        for other in (SMALL | {"cpu": 1}, SMALL | {"env": {"A": "1"}}, SMALL | {"lease_seconds": 33}):
            assert problem(ask(other), 409, "idempotency-conflict")["sandbox_id"] == made
        assert http.delete(f"/v1/sandboxes/{made}", params={"wait": 20}).status_code == 200
        over = problem(ask(SMALL), 410, "gone")
        assert over["reclaim"] == "deleted" and not live(http), "a key that was used up makes nothing new"
        for bad in ("", "x" * 300, "two words", "ünicode"):
            refused = http.post("/v1/sandboxes", json=SMALL, headers={b"Idempotency-Key": bad.encode()})
            assert refused.status_code in (400, 422), bad


def test_b076_the_clients_repeats_are_one_create(service: Service) -> None:
    parts = urlsplit(service.url)
    assert parts.hostname and parts.port
    busy = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 0\r\nConnection: close\r\n\r\n"
    with FaultProxy(parts.hostname, parts.port) as proxy:
        # Refused, done but not told, refused, done but cut in the middle of the answer.
        faults = [Fault(answer=busy), Fault(cut_after=0), Fault(refuse=True), Fault(cut_after=200)]
        proxy.faults = lambda number: faults[number] if number < len(faults) else Fault()
        with (
            sandman.Client(proxy.url, service.key) as client,
            client.create() as one,
            service.http() as http,
        ):
            assert proxy.seen.connections > len(faults)
            assert list(live(http)) == [one.id]
            with client.create() as two:
                assert sorted(live(http)) == sorted([one.id, two.id]), (
                    "a create of its own has a key of its own"
                )


# B078, B079


def test_b078_callers_that_hang_up_leave_nothing(own_service: Callable[..., Service]) -> None:
    service = own_service(
        env={
            "SANDMAN_HOLD_SECONDS": "3",
            "SANDMAN_PACING_RATE_INITIAL": "20",
            "SANDMAN_PACING_RATE_MAX": "20",
        }
    )
    dice = random.Random(78)
    address = (urlsplit(service.url).hostname, urlsplit(service.url).port)
    body = b'{"image":"host","cpu":0.5,"memory":67108864,"lease_seconds":4}'
    request = (
        b"POST /v1/sandboxes?wait=60 HTTP/1.1\r\nHost: x\r\nX-API-Key: %b\r\nContent-Length: %d\r\n\r\n%b"
    )

    def hang_up(delay: float) -> None:
        with closing(socket.create_connection(address, timeout=30)) as caller:
            caller.sendall(request % (service.key.encode(), len(body), body))
            time.sleep(delay)
            if delay % 0.02 < 0.01:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with ThreadPoolExecutor(50) as pool, service.http() as http:
        list(pool.map(hang_up, [dice.uniform(0.02, 2.0) for _ in range(HANG_UPS)]))
        assert eventually(lambda: not live(http), (3 + 4 + 5) * SLOW), live(http)
        left = eventually_clean(service.sandbox_leftovers, 10 * SLOW)
        assert not left, left
        reclaimed = http.get("/v1/stats").json()["reclaimed"]
        assert (
            set(reclaimed) <= {"hung_up", "lease_expired", "cancelled"}
            and sum(reclaimed.values()) == HANG_UPS
        )


def test_b079_deleted_while_its_image_is_imported(service: Service) -> None:
    with waiting_create(service, image=slow_image(service, "b079")) as (made, answers):
        assert eventually(lambda: made.look()["state"] == "creating", 10)
        began = time.monotonic()
        assert made.delete().status_code in (200, 202)
        assert eventually(lambda: answers, 5 * SLOW), "the creator is told"
        assert time.monotonic() - began < 5 * SLOW
        told = problem(answers[0], 409, "cancelled")
        assert told["sandbox_id"] == made.id and told["cause"] == "caller"
        states: list[str] = []
        for _ in steps(12, 0.1):
            record = made.look()
            if not states or states[-1] != record["state"]:
                states.append(record["state"])
            assert made.id not in live(made.http)
            if states[-1] == "deleted" and time.monotonic() - began > 3:
                break
        assert states in (["deleting", "deleted"], ["deleted"]), states
        assert record["reclaim"] == "cancelled" and record["reason"] is None
        assert service.sandbox_processes() == []


def test_b079_deleted_while_it_is_queued(service: Service) -> None:
    with (
        stopped(service.children()["worker"]),
        waiting_create(service) as (made, answers),
    ):
        assert made.record["state"] == "queued" and made.look()["queue_position"] is not None
        assert made.delete(wait=5).json()["state"] == "deleted", "nothing was begun, so nothing is waited for"
        assert eventually(lambda: answers, 5 * SLOW)
        problem(answers[0], 409, "cancelled")
    with service.http() as http:
        for _ in steps(2):
            assert made.id not in live(http) and service.sandbox_processes() == []


# B081, B084, B086


def test_b081_bad_images_fail_soon_and_say_why(service: Service, tmp_path: Path) -> None:
    folder = service.data_dir / "images"
    folder.mkdir(exist_ok=True)
    (folder / "nonsense.tar").write_bytes(b"no archive at all" * 100)
    with tarfile.open(folder / "plain.tar", "w") as tar:
        tar.add(__file__, "etc/file")
    with service.http() as http, sandman.Client(service.url, service.key) as client:
        for name in (
            "UPPER//x",
            "",
            "a b",
            "x:",
            ":tag",
            "a@sha256:1",
            "host:port/UP",
            "-x",
            "../up",
            "/x/../y",
            "x\ny",
        ):
            assert field_of(http.post("/v1/sandboxes", json={"image": name})) == "image", name
        for name, slug in (
            ("registry.invalid/nosuch:1", "image-pull"),
            ("busybox:nosuchtag", "image-pull"),
            ("private.example/team/secret@sha256:" + "0" * 64, "image-pull"),
            ("/etc", "image-pull"),
            (str(tmp_path), "image-pull"),
            ("nonsense", "image-invalid"),
            ("plain", "image-invalid"),
        ):
            began = time.monotonic()
            answer = http.post("/v1/sandboxes", params={"wait": 60}, json={"image": name})
            document = problem(answer, 422, slug)
            assert time.monotonic() - began < 10 * SLOW, name
            assert (
                document["cause"] == "task"
                and document["detail"]
                and document["sandbox"]["state"] == "failed"
            )
            assert document["reason"] == slug.replace("-", "_")
            with pytest.raises(sandman.SandboxFailed) as caught:
                client.create(name)
            assert caught.value.reason == document["reason"] and caught.value.cause == "task"
        assert not live(http)
        assert eventually(lambda: http.get("/v1/stats").json()["pacing"]["in_flight"] == 0, 5), (
            "capacity is given back"
        )


def test_b084_without_bash_there_is_sh(service: Service) -> None:
    with sandbox(service, image=image(service, "musl")) as made:
        assert made.out("echo $0; [ 1 = 1 ] && echo ok").split()[1] == "ok"
        assert made.out("x=1", session="s") == "" and made.out("echo $x", session="s") == "1\n"
        started = made.exec("sleep 0.1; echo later", background=True).json()
        assert (
            made.http.get(f"{made.path}/execs/{started['id']}", params={"wait": 20}).json()["stdout"]
            == "later\n"
        )
        assert made.out("echo $0", shell="/bin/sh").strip().endswith("sh")
        for shell in ("bash", "/bin/bash", "zsh"):
            refused = problem(made.exec("true", shell=shell), 422, "exec-start-failed")
            assert refused["reason"] == "shell_not_found" and shell in refused["detail"]
    with sandbox(service, image=image(service, "empty")) as bare:
        refused = problem(bare.exec("true"), 422, "exec-start-failed")
        assert refused["reason"] == "shell_not_found"
        assert bare.exec(["/busybox", "echo", "argv"]).json()["stdout"] == "argv\n"


class Odd(Config):
    """With parts of a configuration that only other tools use."""

    def document(self, diff_id: str) -> dict[str, Any]:
        found = super().document(diff_id)
        found["config"] |= {
            "OnBuild": ["RUN exit 1"],
            "Healthcheck": {"Test": ["CMD", "false"], "Interval": 10**9},
            "ExposedPorts": {"80/tcp": {}},
            "Volumes": {"/data": {}},
            "Cmd": ["/no/such/program"],
            "StopSignal": "SIGQUIT",
        }
        return found


@pytest.mark.parametrize(
    ("name", "config", "user", "workdir"),
    [
        ("false", Config(entrypoint=("/bin/false",)), "0", "/"),
        ("server", Config(entrypoint=("/bin/sleep", "1")), "0", "/"),
        ("user", Config(user="1000"), "1000", "/"),
        ("group", Config(user="1000:1001"), "1000", "/"),
        ("named", Config(user="nobody"), "65534", "/"),
        ("no-folder", Config(workdir="/not/there yet"), "0", "/not/there yet"),
        ("odd", Odd(workdir="/tmp"), "0", "/tmp"),
    ],
)
def test_b086_what_an_image_would_run_is_not_run(
    service: Service, name: str, config: Config, user: str, workdir: str
) -> None:
    folder = service.data_dir / "images" / f"b086-{name}"
    config = type(config)(
        **{field: getattr(config, field) for field in config.__slots__} | {"env": (roots.PATH_VARIABLE,)}
    )
    write_layout(roots.root("musl").folder, config, folder)
    with sandbox(service, image=folder.name) as made:
        assert made.out("id -u; pwd").split("\n")[:2] == [user, workdir]
        time.sleep(1.2 if name == "server" else 0)
        assert made.out('echo "${HOME:-unset}"').startswith("/"), "HOME is set, from the account or to /"
        assert made.look()["state"] == "ready"
        assert "sleep" not in made.out("ps"), "the entry point is not run"


def test_b086_a_user_that_the_image_does_not_know(service: Service) -> None:
    folder = service.data_dir / "images" / "b086-unknown"
    write_layout(roots.root("musl").folder, Config(user="ghost", env=(roots.PATH_VARIABLE,)), folder)
    with service.http() as http:
        answer = http.post("/v1/sandboxes", params={"wait": 30}, json={"image": folder.name})
        document = problem(answer, 422, "image-invalid")
        assert "ghost" in document["detail"] and document["cause"] == "task"


# B088


def test_b088_times_mean_what_they_say(service: Service) -> None:
    def post(path: str, text: str) -> httpx.Response:
        return http.post(path, content=text.encode(), headers={"content-type": "application/json"})

    with service.http() as http, sandbox(service) as made:
        for value in ("0", "-1", "1e12", '"30s"', "NaN", "Infinity", "1e400", "true", "[]"):
            for name in ("lease_seconds", "lifetime_seconds"):
                answer = post("/v1/sandboxes", f'{{"image":"host","{name}":{value}}}')
                assert answer.status_code in (400, 422) and (
                    answer.status_code == 400 or fields(answer.json()) == {name}
                )
            assert post(f"{made.path}/renew", f'{{"lease_seconds":{value}}}').status_code in (400, 422)
            if value not in ("1e12",):
                assert post(
                    f"{made.path}/exec", f'{{"command":"true","timeout_seconds":{value}}}'
                ).status_code in (400, 422), value
        assert post(f"{made.path}/exec", '{"command":"true","timeout_seconds":1e12}').status_code == 422
        for given, lease in (
            ('"lease_seconds":null', 60),
            ('"lease_seconds":2.5', 2.5),
            ('"lifetime_seconds":null', 60),
        ):
            answer = post("/v1/sandboxes?wait=30", f'{{"image":"host",{given}}}')
            assert answer.status_code == 201 and answer.json()["lease_seconds"] == lease
            left = answer.json()["lease_expires_at"] - time.time()
            assert lease - 3 * SLOW < left <= lease + 1, "the effective value is echoed"
            assert answer.json()["deadline_at"] - time.time() == pytest.approx(86_400, abs=60)
            time.sleep(0.5)
            assert http.get(f"/v1/sandboxes/{answer.json()['id']}").json()["state"] == "ready", (
                "no instant death"
            )
            http.delete(f"/v1/sandboxes/{answer.json()['id']}")
        assert made.exec("sleep 0.2; echo x", timeout_seconds=None).json()["exit_code"] == 0
        assert made.exec("sleep 5", timeout_seconds=0.25).json()["timed_out"]
        assert (
            made.http.post(f"{made.path}/renew", json={"lease_seconds": 500}).json()["lease_seconds"] == 500
        )
        short = create(http, lifetime_seconds=2.5)
        assert eventually(lambda: short.look()["state"] in ("deleting", "deleted"), 3 * SLOW)
        assert short.look()["reclaim"] == "lifetime"


# B090, B091


def test_b090_the_service_is_away_for_longer_than_the_first_lease(
    own_service: Callable[..., Service],
) -> None:
    """The supervisor is stopped, so nothing is started again: every other process of the service is killed. Sandboxes live on.
    Then all comes back: what was renewed is there, what was not expires, and what had outlived itself is gone."""
    service = own_service(env={"SANDMAN_OUTAGE_GRACE_SECONDS": "2"})
    with service.http() as http:
        renewed, forgotten = create(http, lease_seconds=3), create(http, lease_seconds=3)
        mortal = create(http, lease_seconds=600, lifetime_seconds=8)
        assert http.post(f"{renewed.path}/renew", json={"lease_seconds": 600}).status_code == 200
        renewed.out("echo kept > /srv/file")
        time.sleep(1.2)  # the append-only file is written every second
    with stopped(service.pid):
        for pid in service.children().values():
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()

        def alive(made: Plain) -> bool:
            return any(made.id in _cgroups(pid) for pid in _pids())

        assert alive(renewed) and alive(mortal)
        time.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - began)))
        if AWAY_SECONDS > 8 + BACKSTOP_SLACK_SECONDS:
            assert not alive(mortal), "the daemon's own deadline is the backstop"
        assert alive(renewed), "nobody reaps it by the lease of its creation"
    for name in ("valkey", "worker", "loops", "app"):
        service.wait_child(name)
    service.wait_health()
    with service.http() as http:
        assert eventually(lambda: http.get(forgotten.path).json()["state"] == "deleted", 10 * SLOW)
        assert http.get(forgotten.path).json()["reclaim"] == "lease_expired"
        assert http.get(renewed.path).json()["state"] == "ready"
        assert Plain(http, renewed.record).out("cat /srv/file") == "kept\n"
        assert http.get(mortal.path).json()["state"] in ("failed", "deleting", "deleted")
        http.delete(renewed.path)
        left = eventually_clean(service.sandbox_leftovers, 10 * SLOW)
        assert not left, left


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _cgroups(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


def test_b091_work_and_transfers_hold_the_lease(service: Service) -> None:
    """Four sandboxes with a lease of 2 s and no renewal: what is busy lives, what is idle goes."""
    with service.http() as http, ThreadPoolExecutor(4) as pool:
        working, uploading, starved, idle = (create(http, lease_seconds=2) for _ in range(4))

        def drip() -> Iterator[bytes]:
            for _ in range(16):
                yield b"x" * 1000
                time.sleep(0.5)

        busy = [
            pool.submit(working.exec, "sleep 8; echo done"),
            pool.submit(uploading.files, "PUT", "/srv/slow", drip()),
            pool.submit(
                starved.exec,
                "for i in 1 2 3 4; do while :; do :; done & done; sleep 8; kill $(jobs -p); echo done",
            ),
        ]
        assert eventually(lambda: idle.look()["state"] == "deleted", 6 * SLOW)
        assert idle.look()["reclaim"] == "lease_expired"
        answers = [one.result(timeout=60) for one in busy]
        assert answers[0].json()["stdout"] == "done\n" and answers[2].json()["stdout"] == "done\n"
        assert answers[1].status_code == 201 and answers[1].json()["size"] == 16000
        for made in (working, uploading, starved):
            assert eventually(lambda made=made: made.look()["state"] == "deleted", 6 * SLOW)  # type: ignore[misc]


# B093, B094


def test_b093_what_is_over_is_told_at_once(service: Service) -> None:
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "", {}),
        ("POST", "/exec", {"json": {"command": "true"}}),
        ("PUT", "/files?path=/x", {"content": b"x" * 1000}),
        ("GET", "/files?path=/x", {}),
        ("POST", "/renew", {}),
        ("GET", "/execs/x/output?stream=stdout&follow=true", {}),
        ("GET", "/archive?path=/", {}),
        ("DELETE", "", {}),
        ("DELETE", "", {}),
    ]
    with service.http() as http:
        deleted, expired = create(http), create(http, lease_seconds=1)
        failed = create(http)
        deleted.delete(wait=20)
        kill_daemon(failed)
        assert eventually(lambda: failed.look()["state"] == "failed", 20)
        assert eventually(lambda: expired.look()["state"] == "deleted", 10)
        unknown = f"sb-{'b' * 26}"
        for name, statuses in (
            (unknown, {404}), ("sb-short", {404}), ("%2e%2e", {404}), ("%F0%9F%A4%A3", {404}),
            (deleted.id, {410, 200}), (expired.id, {410, 200}), (failed.id, {410, 200}),
        ):  # fmt: skip
            for method, path, options in calls:
                began = time.monotonic()
                answer = http.request(method, f"/v1/sandboxes/{name}{path}", **options)
                assert time.monotonic() - began < 0.2 * SLOW * 2, (name, method, path)
                assert answer.status_code in statuses, (name, method, path, answer.text)
                if answer.status_code == 200:
                    assert path == "" and answer.json()["id"] == name, (
                        "the record stays readable, and deletable again"
                    )


def kill_daemon(made: Plain) -> None:
    for pid in _pids():
        comm = Path(f"/proc/{pid}/comm")
        if made.id in _cgroups(pid) and comm.exists() and comm.read_text() == "sandmand\n":
            os.kill(pid, signal.SIGKILL)


def test_b094_a_stop_that_takes_long_is_finished_by_whoever_comes_next(
    own_service: Callable[..., Service],
) -> None:
    service = own_service()
    key = {"Idempotency-Key": "the-same-name"}
    with service.http() as http:
        made = create(http, labels={"name": "b094"})
        made.out(
            "mkdir -p /srv/many && cd /srv/many && seq 4000 | xargs touch;"
            " for i in 1 2 3; do setsid sh -c \"trap '' TERM INT HUP; while :; do sleep 1; done\" & done; sleep 0.2"
        )
        loops = service.children()["loops"]
        with stopped(loops, service.children()["worker"]), service.http(timeout=10) as hasty:
            began = time.monotonic()
            assert hasty.delete(made.path).status_code == 202
            with pytest.raises(httpx.ReadTimeout):
                hasty.delete(made.path, params={"wait": 60}, timeout=1)
            assert time.monotonic() - began < 5 * SLOW
            assert made.look()["state"] == "deleting" and service.sandbox_processes()
            again = http.post("/v1/sandboxes", json=SMALL | {"labels": {"name": "b094"}}, headers=key)
            assert again.status_code == 202 and again.json()["id"] != made.id
            os.kill(loops, signal.SIGKILL)
        service.wait_child("loops", other_than=loops)
        assert eventually(lambda: made.look()["state"] == "deleted", 15 * SLOW)
        other = Plain(http, http.get(f"/v1/sandboxes/{again.json()['id']}", params={"wait": 30}).json())
        assert other.out("ls -A /srv") == "", "the new one has nothing of the old"
        other.delete(wait=20)
        left = eventually_clean(service.sandbox_leftovers, 5 * SLOW)
        assert not left, left


# B121


def test_b121_names_that_kubernetes_would_refuse_are_refused_here(service: Service) -> None:
    with service.http() as http:
        for labels, named in (
            ({"ü 🤣/x": "1"}, "labels"), ({"a" * 300: "1"}, "labels"), ({"-lead": "1"}, "labels"), ({"": "1"}, "labels"),
            ({"name": "v" * 64}, "labels.name"), ({"name": "has space"}, "labels.name"), ({"name": "ü"}, "labels.name"),
            ({"kubernetes.io/x": "1"}, "labels.kubernetes.io/x"), ({"a.k8s.io/x": "1"}, "labels.a.k8s.io/x"),
            ({"sandman.dev/sandbox": "1"}, "labels.sandman.dev/sandbox"), ({"name": "line\n"}, "labels.name"),
            ({f"k{number}": "" for number in range(2000)}, "labels"), ({"A.B/x": "1"}, "labels"), ({"x/": "1"}, "labels"),
        ):  # fmt: skip
            answer = http.post("/v1/sandboxes", json=SMALL | {"labels": labels})
            assert field_of(answer) == named, labels
            assert problem(answer, 422, "invalid")["errors"][0]["message"]
        fine = {"My_Sandbox": "1abc", "example.org/a.b-c_d": "", "n" * 63: "V" * 63, "0": "0"}
        with sandbox(service, labels=fine) as made:
            assert made.record["labels"] == fine and list(live(http, My_Sandbox="1abc")) == [made.id]
        for name in ("My_Sandbox", "ü 🤣/x", "-", "1abc"):
            run = http.post("/v1/runs", json={"name": name})
            assert run.status_code in (200, 201, 422), run.text
            if run.status_code != 422:
                assert run.json()["name"] == name and run.json()["id"] != name, (
                    "shown apart from the name it is kept under"
                )
                http.delete(f"/v1/runs/{run.json()['id']}")
