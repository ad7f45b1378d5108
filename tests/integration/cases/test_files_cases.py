"""The hard cases about files, through the running service.

What only a daemon of one's own can show is tested there: a daemon that is killed in an upload (tests/integration/test_bare_files.py),
an upload that stalls without being closed, its umask and its own bound of a body (daemon/internal/files/put_test.go).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

import sandman
from tests.integration.cases.box import SLOW, Box, open_files, problem
from tests.integration.cases.plain import Files, Peak, field_of, image, where
from tests.service import Service, eventually

MIB = 1024 * 1024
BIG_BYTES = int(os.environ.get("SANDMAN_TEST_BIG_BYTES", 96 * MIB))
"""2147483648 is the case's own size."""
MANY_BYTES = int(os.environ.get("SANDMAN_TEST_MANY_BYTES", 12 * MIB))
"""Of each of ten files at once; 209715200 is the case's own."""
ENTRIES = int(os.environ.get("SANDMAN_TEST_ENTRIES", "20000"))
"""Of one folder; 100000 is the case's own."""
GROWTH_BYTES = 64 * MIB


@pytest.fixture
def files(box: Box) -> Files:
    return Files(box.http, box.path)


@contextmanager
def upload(service: Service, sandbox: str, path: str, head: str) -> Iterator[socket.socket]:
    """The head of a PUT is sent; the body is the test's."""
    url = httpx.URL(service.url)
    with socket.create_connection((url.host, url.port), timeout=30) as connection:
        request = f"PUT {sandbox}/files?{where(path)} HTTP/1.1\r\nHost: x\r\nX-API-Key: {service.key}\r\n{head}\r\n\r\n"
        connection.sendall(request.encode())
        yield connection


def answer_of(connection: socket.socket) -> int:
    """The status that comes, before or at the end of the connection; 0 when it just ends."""
    got = b""
    while b"\r\n" not in got:
        try:
            more = connection.recv(4096)
        except ConnectionResetError:
            more = b""
        if not more:
            return 0
        got += more
    return int(got.split(b" ")[1])


# B060

SAMPLES = [
    "-rf", "a b", "a\nb", "\u00e9", "e\u0301", "n" * 255, "%2e%2e", "a?b#c&d=e+f", "🤣.txt", "'\"; touch pwn;#", " lead", "tail ",
]  # fmt: skip
OTHERS = [
    "--", "*", "~", "$HOME", "`id`", "a\\b", "...", "%00", "+", "tab\there", "line\r\n", "🤣" * 63, "\u202egnp.exe", "\udcff\udc80",
    "-", "nul\u2400", "a;b", "C:", "\u00a0", "&amp;",
]  # fmt: skip


def test_b060_every_name_goes_round_and_nothing_else_is_touched(box: Box, files: Files) -> None:
    folder = "/srv/b060"
    bystanders = {name: name.encode() for name in ("r", "f", "rf", "a", "b", "pwn", "id")}
    for name, content in bystanders.items():
        assert files("PUT", f"{folder}/{name}", content).status_code == 201
    contents = {name: name.encode("utf-8", "surrogateescape") * 3 for name in (*SAMPLES, *OTHERS)}
    for name, content in contents.items():
        assert files("PUT", f"{folder}/{name}", content).status_code == 201, name
    listed = files.listing(folder, limit="1000").json()["items"]
    seen = sorted(sandman.FileInfo(**item).name for item in listed)
    assert seen == sorted([*contents, *bystanders])
    printed = box.sandbox.exec("find /srv/b060 -type f -printf '%f\\0'", encoding=None).stdout
    inside = set(printed.split(b"\0")[:-1])
    assert inside == {os.fsencode(name) for name in seen}, "the service shows what a program in there sees"
    for name, content in contents.items():
        path = f"{folder}/{name}"
        assert files.stat(path)["size"] == len(content), name
        got = files("GET", path)
        assert (got.status_code, got.content) == (200, content), name
        moved = f"{folder}/moved{name}" if len(os.fsencode(name)) < 200 else f"{folder}/m"
        body = {"from": path, "to": moved} if "\udcff" not in name else _b64(path, moved)
        answer = box.http.post(f"{box.path}/files/move", json=body)
        assert answer.status_code == 200, answer.text
        problem(files("GET", path), 404, "not-found")
        assert files("GET", moved).content == content
        assert files("DELETE", moved).status_code == 200
    for name, content in bystanders.items():
        assert files("GET", f"{folder}/{name}").content == content
    assert sorted(files.names(folder)) == sorted(bystanders)


def _b64(source: str, target: str) -> dict[str, str]:
    return {
        "from_b64": base64.b64encode(os.fsencode(source)).decode(),
        "to_b64": base64.b64encode(os.fsencode(target)).decode(),
    }


def test_b060_names_that_are_paths_stay_where_they_point(box: Box, files: Files) -> None:
    """`%2e%2e` once encoded is a name; a real `..` is the folder above, as everywhere, and no way out of the sandbox."""
    assert files("PUT", "/srv/up/in/%2e%2e", b"name").status_code == 201
    assert files("PUT", "/srv/up/in/../x", b"above").status_code == 201
    assert box.out("cd /srv/up && find . -type f | sort").split() == ["./in/%2e%2e", "./x"]
    assert files("PUT", "/../../../srv/up/y", b"root").status_code == 201
    assert box.out("cat /srv/up/y") == "root"
    assert not Path("/srv/up").exists()


# B063


def content_of(seed: int, size: int) -> Iterator[bytes]:
    """Bytes that no hop can compress or mix up, made without holding them."""
    state = hashlib.sha256(str(seed).encode()).digest()
    for start in range(0, size, MIB):
        block = hashlib.shake_256(state + start.to_bytes(8)).digest(64 * 1024) * 16
        yield block[: min(MIB, size - start)]


def test_b063_a_big_file_leaves_memory_flat_at_every_hop(own_box: Callable[..., Box], tmp_path: Path) -> None:
    box = own_box(memory="128MiB")
    local = tmp_path / "big"
    with local.open("wb") as out:
        out.writelines(content_of(1, BIG_BYTES))
    digest = hashlib.file_digest(local.open("rb"), "sha256").hexdigest()
    done: list[int] = []
    with Peak(box.app_pid(), box.daemon_pid(), os.getpid()) as peak:
        with local.open("rb") as source:
            box.sandbox.files.write("/srv/object", source, progress=lambda moved, total: done.append(moved))
        box.sandbox.files.write("/srv/generated", content_of(1, BIG_BYTES))
        assert box.out("cd /srv && sha256sum object generated | cut -c1-64").split() == [digest] * 2
        found = hashlib.sha256()
        for chunk in box.sandbox.files.read_chunks("/srv/object"):
            found.update(chunk)
        box.sandbox.files.download("/srv/generated", tmp_path / "back")
    assert found.hexdigest() == digest
    assert hashlib.file_digest((tmp_path / "back").open("rb"), "sha256").hexdigest() == digest
    assert done == sorted(done) and done[-1] == BIG_BYTES and len(done) > BIG_BYTES // (8 * MIB)
    print({pid: f"{grown / MIB:.1f} MiB" for pid, grown in peak.grown.items()})
    assert all(grown < GROWTH_BYTES for grown in peak.grown.values()), peak.grown


def test_b063_ten_at_once(own_box: Callable[..., Box]) -> None:
    box = own_box(memory="128MiB")

    def there_and_back(number: int) -> None:
        expected = hashlib.sha256()
        for block in content_of(number, MANY_BYTES):
            expected.update(block)
        source = content_of(number, MANY_BYTES) if number % 2 else b"".join(content_of(number, MANY_BYTES))
        box.sandbox.files.write(f"/srv/{number}", source)
        found = hashlib.sha256()
        for chunk in box.sandbox.files.read_chunks(f"/srv/{number}"):
            found.update(chunk)
        assert found.hexdigest() == expected.hexdigest()

    with Peak(box.app_pid(), box.daemon_pid()) as peak, ThreadPoolExecutor(10) as pool:
        list(pool.map(there_and_back, range(10)))
    print({pid: f"{grown / MIB:.1f} MiB" for pid, grown in peak.grown.items()})
    # Ten transfers may hold ten times the bound; more than two would mean that something grows with the size.
    assert all(grown < 2 * GROWTH_BYTES for grown in peak.grown.values()), peak.grown


# B064


@pytest.mark.parametrize("how", ["closed", "reset", "half closed", "chunked"])
def test_b064_a_cut_upload_leaves_the_old_file(
    box: Box, files: Files, session_service: Service, how: str
) -> None:
    path = f"/srv/b064-{how.replace(' ', '-')}/data.bin"
    old, new = b"1" * MIB, b"2" * 10 * MIB
    assert files("PUT", path, old).status_code == 201
    seen: set[bytes] = set()
    over = threading.Event()

    def look() -> None:
        with session_service.http() as http:
            while not over.is_set():
                seen.add(hashlib.sha256(Files(http, box.path)("GET", path).content).digest())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        head = "Transfer-Encoding: chunked" if how == "chunked" else f"Content-Length: {len(new)}"
        with upload(session_service, box.path, path, head) as connection:
            sent = new[: len(new) * 6 // 10]
            connection.sendall(b"%x\r\n%b\r\n" % (len(sent), sent) if how == "chunked" else sent)
            time.sleep(0.2)
            if how == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if how == "half closed":
                connection.shutdown(socket.SHUT_WR)
                assert answer_of(connection) in (0, 400)
        time.sleep(0.2)
        assert files("GET", path).content == old
        assert files.names(os.path.dirname(path)) == ["data.bin"]  # noqa: PTH120
        assert files("PUT", path, new).status_code == 200
        assert files("GET", path).content == new
    finally:
        over.set()
        watcher.join(30)
    assert seen <= {hashlib.sha256(old).digest(), hashlib.sha256(new).digest()}, "a part of v2 was visible"
    pid = box.daemon_pid()
    assert eventually(
        lambda: not any(" (deleted)" in name and "/srv" in name for name in open_files(pid)), 10
    )


def test_b064_the_daemon_is_killed_in_an_upload(
    own_box: Callable[..., Box], session_service: Service
) -> None:
    """Here the daemon is the sandbox's first process, so the sandbox ends with it: the caller gets a typed error in time."""
    box = own_box()
    with upload(session_service, box.path, "/srv/data.bin", f"Content-Length: {100 * MIB}") as connection:
        connection.sendall(b"2" * 6 * MIB)
        os.kill(box.daemon_pid(), 9)
        began = time.monotonic()
        try:
            while time.monotonic() - began < 20:
                connection.sendall(b"2" * MIB)
        except OSError:
            pass
        assert time.monotonic() - began < 20 and answer_of(connection) in (0, 410, 502)
    with pytest.raises(sandman.SandboxLost):
        box.sandbox.files.write("/srv/data.bin", b"again")
    assert eventually(lambda: box.http.get(box.path).json()["state"] == "failed", 15)


# B065


def test_b065_lengths_are_exact_or_nothing_is_stored(
    box: Box, files: Files, session_service: Service
) -> None:
    for name, head, body, statuses in (
        ("short", f"Content-Length: {10 * MIB}", b"x" * 5 * MIB, (0, 400)),
        ("no-end", "Transfer-Encoding: chunked", b"5\r\nhello\r\n", (0, 400)),
        ("bad-chunk", "Transfer-Encoding: chunked", b"zz\r\nhello\r\n0\r\n\r\n", (0, 400)),
        ("negative", "Content-Length: -1", b"hello", (0, 400)),
        ("two", "Content-Length: 3\r\nContent-Length: 5", b"hello", (0, 400)),
    ):
        began = time.monotonic()
        with upload(session_service, box.path, f"/srv/b065/{name}", head) as connection:
            with suppress(OSError):  # it may have been refused and closed already
                connection.sendall(body)
                connection.shutdown(socket.SHUT_WR)
            status = answer_of(connection)
        assert status in statuses, (name, status)
        assert time.monotonic() - began < 5 * SLOW
        assert files("GET", f"/srv/b065/{name}").status_code == 404, name
    assert files("PUT", "/srv/b065/empty", b"").status_code == 201
    assert files.stat("/srv/b065/empty")["size"] == 0
    with upload(
        session_service, box.path, "/srv/b065/expected", "Content-Length: 5\r\nExpect: 100-continue"
    ) as connection:
        assert answer_of(connection) == 100
        connection.sendall(b"hello")
        assert answer_of(connection) == 201
    with upload(
        session_service, box.path, "/srv/b065", f"Content-Length: {10**12}\r\nExpect: 100-continue"
    ) as connection:
        # The service asks as soon as the sandbox is there; the refusal of a path comes from inside, without waiting for a body.
        assert answer_of(connection) == 100
        assert answer_of(connection) == 409
    nowhere = f"/v1/sandboxes/sb-{'a' * 26}"
    with upload(session_service, nowhere, "/x", "Content-Length: 5\r\nExpect: 100-continue") as connection:
        assert answer_of(connection) == 404


def test_b065_a_body_over_the_limit_ends_at_the_limit(own_box: Callable[..., Box]) -> None:
    """The limit of a file is the sandbox's disk."""
    limit = 16 * MIB
    box = own_box(disk=limit)
    files = Files(box.http, box.path)
    for size, status in ((limit - 1, 201), (limit, 201), (limit + 1, 0), (8 * limit, 0)):
        for shape in ("known", "chunked"):
            path = f"/srv/{shape}-{size}"
            content = b"x" * size if shape == "known" else content_of(size, size)
            with Peak(box.app_pid(), box.daemon_pid()) as peak:
                answer = files("PUT", path, content)
            if status:
                assert answer.status_code == status, answer.text
                assert files.stat(path)["size"] == size
            else:
                assert answer.status_code in (413, 507), answer.text
                assert not answer.json()["retryable"] and not box.sandbox.files.exists(path)
            assert all(grown < GROWTH_BYTES for grown in peak.grown.values()), peak.grown
    assert box.out("echo alive") == "alive\n"


def test_b065_a_form_is_content_like_any_other(files: Files) -> None:
    """The body is the file: a multipart form is stored as it came, never taken apart, so two parts of one name do not meet."""
    form = (
        b'--b\r\nContent-Disposition: form-data; name="f"; filename="same"\r\n\r\none\r\n'
        b'--b\r\nContent-Disposition: form-data; name="f"; filename="same"\r\n\r\ntwo\r\n--b--\r\n'
    )
    url = f"{files.prefix}/files?{where('/srv/form')}"
    sent = files.http.put(url, content=form, headers={"content-type": "multipart/form-data; boundary=b"})
    assert sent.status_code == 201 and files("GET", "/srv/form").content == form


# B067, B068, B069


def test_b067_files_and_their_new_folders_belong_to_the_command_user(
    own_box: Callable[..., Box], session_service: Service
) -> None:
    for options, uid in (
        ({"image": image(session_service, "nonroot")}, "1000"),
        ({"user": "1234:1234"}, "1234"),
    ):
        box = own_box(**options)
        files = Files(box.http, box.path)
        assert files("PUT", "a/b/c.txt", b"x").status_code == 201
        script = "id -u; stat -c %u a a/b a/b/c.txt; echo x >> a/b/c.txt; cat a/b/c.txt; rm -rf a; ls -d a 2>&1 || :"
        found = box.out(script).split()
        assert found[:5] == [uid] * 4 + ["xx"] and "No" in found, options
        assert files.mkdir(path="d/e").status_code == 201
        assert box.out("stat -c %u d d/e; rmdir d/e d").split() == [uid] * 2
    root = own_box()
    asked = Files(root.http, root.path)("PUT", "/srv/o/f", b"x", owner="0:0")
    assert asked.status_code == 201 and root.out("stat -c %u:%g /srv/o /srv/o/f").split() == ["0:0"] * 2


def test_b068_modes_are_octal_and_exact(box: Box, files: Files) -> None:
    for mode, kept in (
        ("0755", "755"), ("755", "755"), ("4755", "4755"), ("2750", "2750"), ("1777", "1777"), ("0", "0"), ("7777", "7777"),
    ):  # fmt: skip
        assert files("PUT", f"/srv/b068/f{mode}", b"x", mode=mode).status_code == 201
        assert box.out(f"stat -c %a /srv/b068/f{mode}") == f"{kept}\n"
        assert files.mkdir(path=f"/srv/b068/d{mode}", mode=mode).status_code == 201
        assert box.out(f"stat -c %a /srv/b068/d{mode}") == f"{kept}\n"
        # Root in here has no power over files beyond owning them: a file without the right to write is not written.
        replaced = files("PUT", f"/srv/b068/f{mode}", b"other").status_code
        assert replaced == (403 if mode == "0" else 200)
        assert box.out(f"stat -c %a /srv/b068/f{mode}") == f"{kept}\n", "replacing keeps the mode"
    for bad in ("493", "0o755", "999", "-1", "", "rwxr-xr-x", "17777", "0x1ed", "7 5"):
        url = f"{files.prefix}/files"
        answer = files.http.put(url, params={"path": "/srv/b068/bad", "mode": bad}, content=b"x")
        assert field_of(answer, "invalid") == "mode", bad
        assert field_of(files.mkdir(path="/srv/b068/bad", mode=bad), "invalid") == "mode", bad
    assert field_of(files.mkdir(path="/srv/b068/bad", mode=493), "invalid") == "mode"
    assert "bad" not in files.names("/srv/b068")


def test_b069_the_rights_are_those_of_the_command_user(own_box: Callable[..., Box]) -> None:
    """The user of a sandbox is the only one that its user namespace knows: what the image's root owned, folders apart, is
    nobody's there. So the rule is one of equality: the call may what a command may, and says with errno and path what not."""
    box = own_box(user="1000")
    files = Files(box.http, box.path)
    assert (
        box.out(
            "mkdir -p /srv/closed/in && chmod 500 /srv/closed && touch /srv/locked && chmod 0 /srv/locked"
        )
        == ""
    )
    for path in (
        "/proc/x",
        "/srv/closed/x",
        "/proc/1/mem",
        "/sys/fs/cgroup/memory/x",
        "/etc/passwd/x",
        "/srv/locked",
    ):
        command = box.run(["sh", "-c", 'printf x >> "$0"', path])
        answer = files("PUT", path, b"x", append="true")
        assert command["exit_code"] != 0, path
        document = answer.json()
        assert answer.status_code in (403, 404, 409), (path, document)
        assert document["errno"] in ("EACCES", "EPERM", "EROFS", "ENOENT", "ENOTDIR", "ENXIO", "EINVAL"), (
            document
        )
        assert document["path"].startswith("/"), document
    for path in ("/proc/1/environ", "/srv/locked", "/srv/../srv/locked"):
        assert box.run(["cat", path])["exit_code"] != 0, path
        document = problem(files("GET", path), 403, "permission-denied")
        assert document["errno"] in ("EACCES", "EPERM") and document["path"] == path
    problem(files("DELETE", "/srv/closed/in", recursive="true"), 403, "permission-denied")
    problem(files.move("/srv/closed/in", "/srv/out"), 403, "permission-denied")
    assert box.out("ls /srv/closed") == "in\n"
    denied = files("PUT", "/srv/mine", b"x", user="0")
    assert denied.status_code == 403 and denied.json()["field"] == "user"


# B073, B075


def test_b073_a_folder_of_every_kind_is_listed(own_box: Callable[..., Box]) -> None:
    box = own_box(user="1000")
    files = Files(box.http, box.path)
    box.out(
        "mkdir -p /srv/l/sub/deep /srv/l/closed && cd /srv/l && ln -s nowhere dangling && ln -s loop loop && ln -s .. up &&"
        " ln -s sub here && mkfifo fifo && touch sub/deep/f closed/hidden && chmod 0 closed"
    )
    answer = files.listing("/srv/l", depth="20")
    assert answer.status_code == 200, answer.text
    entries = {item["path"].removeprefix("/srv/l/"): item for item in answer.json()["items"]}
    assert set(entries) == {
        "closed", "dangling", "fifo", "here", "loop", "sub", "sub/deep", "sub/deep/f", "up",
    }  # fmt: skip
    targets = {name: item["target"] for name, item in entries.items() if item["type"] == "symlink"}
    assert targets == {"dangling": "nowhere", "loop": "loop", "up": "..", "here": "sub"}
    assert entries["closed"]["error"] == "EACCES" and entries["fifo"]["type"] == "fifo"
    problem(files.listing("/srv/l/closed"), 403, "permission-denied")
    problem(files.listing("/srv/l/loop"), 409, "link-loop")
    box.out("chmod 700 /srv/l/closed")


def test_b073_a_huge_folder_has_pages(box: Box, files: Files) -> None:
    box.out(f"mkdir -p /srv/huge && cd /srv/huge && seq -f 'f%06.0f' {ENTRIES} | xargs touch")
    with Peak(box.app_pid(), box.daemon_pid()) as peak:
        names: list[str] = []
        query = {"limit": "3000"}
        while True:
            page = files.listing("/srv/huge", **query).json()
            assert len(page["items"]) <= 3000 and page["truncated"] == (page["next"] is not None)
            names += [item["name"] for item in page["items"]]
            if page["next"] is None:
                break
            query["cursor"] = page["next"]
        assert files.listing("/srv/huge").json()["truncated"]
    assert names == [f"f{number:06}" for number in range(1, ENTRIES + 1)]
    assert all(grown < GROWTH_BYTES for grown in peak.grown.values()), peak.grown


def test_b073_files_that_come_and_go_and_everything_there_is(box: Box, files: Files) -> None:
    churn = "mkdir -p /srv/churn && cd /srv/churn && touch stay1 zstay && while :; do for i in 1 2 3 4 5 6 7 8 9; do : > m$i; done; rm -f m*; done"
    running = box.run(churn, background=True)
    try:
        assert eventually(lambda: "zstay" in box.out("ls /srv/churn 2>&1 || :"), 10)
        for _ in range(60):
            answer = files.listing("/srv/churn")
            assert answer.status_code == 200, answer.text
            names = [item["name"] for item in answer.json()["items"]]
            assert len(names) == len(set(names)) and {"stay1", "zstay"} <= set(names)
    finally:
        box.signal(running["id"], "KILL")
    began, pages, query = time.monotonic(), 0, {"depth": "256", "limit": "10000"}
    while pages < 6:
        answer = files.listing("/", **query)
        assert answer.status_code == 200, answer.text
        pages += 1
        if answer.json()["next"] is None:
            break
        query["cursor"] = answer.json()["next"]
    assert time.monotonic() - began < pages * 6 * SLOW


def test_b075_what_is_no_file_is_told_and_content_is_never_changed(box: Box, files: Files) -> None:
    document = problem(files("GET", "/srv/b075/nope"), 404, "not-found")
    assert document["errno"] == "ENOENT"
    assert files.mkdir(path="/srv/b075").status_code == 201
    problem(files("GET", "/srv/b075"), 409, "is-a-directory")
    zipped = io.BytesIO()
    with gzip.GzipFile(fileobj=zipped, mode="wb") as out:
        out.write(b"inside" * 1000)
    for name, content in {
        "empty": b"", "random": os.urandom(10 * MIB), "x.gz": zipped.getvalue(), "crlf.txt": b"a\r\nb\rc\n\r\n", "nuls": bytes(5000),
        "bom.txt": b"\xef\xbb\xbfhi", "page.html": b"<p>&amp;\xff", "data.json": b'{"a": 1}\n', "no-newline": b"x",
    }.items():  # fmt: skip
        assert files("PUT", f"/srv/b075/{name}", content).status_code == 201
        for accept in ("gzip, br", "identity", "text/plain;q=0.1"):
            headers = {"accept-encoding": accept, "accept": accept}
            url = f"{files.prefix}/files?{where(f'/srv/b075/{name}')}"
            with files.http.stream("GET", url, headers=headers) as answer:
                raw = b"".join(answer.iter_raw())
            assert answer.status_code == 200 and raw == content, name
            assert "content-encoding" not in answer.headers
            assert answer.headers["content-length"] == str(len(content))
            assert answer.headers["content-type"] == "application/octet-stream"
        assert box.out(f"sha256sum < /srv/b075/{name}").split()[0] == hashlib.sha256(content).hexdigest()
