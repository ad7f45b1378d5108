"""The daemon in images that owe it nothing: no libc, shell, /tmp, /etc/passwd or writable root, another C library, another user,
variables and folders that get in its way. What an image lacks is said in a typed error; everything else works."""

from __future__ import annotations

import dataclasses
import io
import os
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import roots
from tests.bare_daemon import INSIDE, Daemon, bare_daemon
from tests.roots import Root


def shared(name: str) -> Iterator[Daemon]:
    with bare_daemon(roots.root(name)) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def musl() -> Iterator[Daemon]:
    yield from shared("musl")


@pytest.fixture(scope="module")
def empty() -> Iterator[Daemon]:
    yield from shared("empty")


@pytest.fixture(scope="module")
def debian() -> Iterator[Daemon]:
    yield from shared("debian")


@pytest.fixture(scope="module")
def nonroot() -> Iterator[Daemon]:
    yield from shared("nonroot")


@pytest.fixture(scope="module")
def readonly() -> Iterator[Daemon]:
    yield from shared("readonly")


def test_musl_runs_commands_in_its_own_shell(musl: Daemon) -> None:
    assert musl.out("[ 1 = 1 ] && echo ok; echo $FLAVOUR") == "ok\nmusl\n"
    assert musl.out("pwd") == "/root\n"
    assert musl.run("exit 44")["exit_code"] == 44
    assert musl.run("kill -9 $$")["signal"] == 9
    assert musl.out("cat", stdin="typed") == "typed"
    loader = f"/lib/ld-musl-{os.uname().machine}.so.1"
    assert "musl libc" in musl.run([loader])["stderr"]


def test_musl_has_sessions_backgrounds_and_timeouts(musl: Daemon) -> None:
    assert musl.out("cd /tmp; X=1; f() { echo f$X; }", session="s") == ""
    assert musl.out("pwd; f", session="s") == "/tmp\nf1\n"
    begun = time.monotonic()
    result = musl.run("sleep 600 & sleep 600", timeout_seconds=0.3, grace_seconds=0.2)
    assert result["timed_out"] and time.monotonic() - begun < 5
    begun = time.monotonic()
    assert musl.out("sleep 600 & echo started") == "started\n"
    assert time.monotonic() - begun < 3


def test_musl_files(musl: Daemon) -> None:
    assert musl.put("a/b/c.txt", b"\x00\xffcontent").status == 201
    assert musl.out("cat /root/a/b/c.txt | od -An -tx1 | tr -d ' \n'") == "00ff" + b"content".hex()
    musl.out("printf made > made")
    assert musl.get("made").body == b"made"


def test_b067_names_and_owners_are_those_of_the_command_user(nonroot: Daemon) -> None:
    assert nonroot.put("a/b/c.txt", "x\n").status == 201
    command = "id -u; pwd; stat -c %u a a/b a/b/c.txt; echo x >> a/b/c.txt; cat a/b/c.txt; rm -rf a; ls"
    assert nonroot.out(command).split() == ["1000", "/srv/work", "1000", "1000", "1000", "x", "x"]


def test_nonroot_has_a_home_although_none_is_set(nonroot: Daemon) -> None:
    assert nonroot.out("echo ${HOME-unset}") == "/\n"
    assert nonroot.out("whoami 2>&1 || true").strip() != "root"


def test_nonroot_cannot_become_root(nonroot: Daemon) -> None:
    refused = nonroot.exec(command="id -u", user="0")
    assert refused.status == 422 and refused.json()["reason"] == "user", refused.body
    found = nonroot.get("/etc/passwd", user="0").problem("permission-denied")
    assert found["field"] == "user"


def test_nonroot_may_not_write_what_belongs_to_others(nonroot: Daemon) -> None:
    for method, path in (("PUT", "/proc/x"), ("PUT", "/proc/sys/kernel/ostype"), ("DELETE", "/proc")):
        query = {"path": path} if method == "PUT" else {"path": path, "recursive": "true"}
        answer = nonroot.request(method, "/v1/files", query, b"x")
        assert answer.status in (403, 404, 409) and answer.json()["errno"], answer.body


def test_empty_runs_its_one_program(empty: Daemon) -> None:
    assert empty.out(["/busybox", "echo", "hello"]) == "hello\n"
    assert empty.out(["/busybox", "sh", "-c", "echo $0 $((1+1))", "x"]) == "x 2\n"


def test_empty_says_what_is_missing(empty: Daemon) -> None:
    for fields, reason in (
        ({"command": "true"}, "shell_not_found"),
        ({"command": "true", "session": "s"}, "shell_not_found"),
        ({"argv": ["nosuch"]}, "not_found"),
        ({"argv": ["/busybox", "true"], "cwd": "/nowhere"}, "cwd"),
        ({"argv": ["/busybox", "true"], "user": "app"}, "user"),
    ):
        answer = empty.exec(**fields)
        assert answer.status == 422, answer.body
        assert answer.problem("exec-start-failed")["reason"] == reason, answer.body


def test_empty_files_make_what_they_need(empty: Daemon) -> None:
    assert empty.put("/tmp/deep/f", "x").status == 201
    assert empty.get("/tmp/deep/f").body == b"x"
    listed = empty.request("GET", "/v1/files/list", {"path": "/", "depth": "1"}).json()
    assert {"busybox", "tmp", ".sandman"} <= {entry["name"] for entry in listed["items"]}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("d/f")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"y"))
    assert empty.request("PUT", "/v1/archive", {"path": "/new"}, packed.getvalue()).status == 200
    with tarfile.open(
        fileobj=io.BytesIO(empty.request("GET", "/v1/archive", {"path": "/new"}).body)
    ) as archive:
        assert archive.getnames() == ["d", "d/f"]


@pytest.mark.parametrize(("proc", "dev"), [(False, True), (True, False), (False, False)])
def test_no_proc_and_no_dev(proc: bool, dev: bool) -> None:
    with bare_daemon(roots.root("empty"), proc=proc, dev=dev) as daemon:
        assert daemon.put("/f", "v1").status == 201
        assert daemon.put("/f", "v2").status == 200
        assert daemon.put("/f", "+", append="true").status == 200
        assert daemon.get("/f").body == b"v2+"
        names = [
            entry["name"] for entry in daemon.request("GET", "/v1/files/list", {"path": "/"}).json()["items"]
        ]
        assert "f" in names and not any(name.endswith(".part") for name in names)
        assert daemon.out(["/busybox", "cat"], stdin="x") == "x"
        assert daemon.out(["/busybox", "cat"]) == ""
        assert daemon.run(["/busybox", "sleep", "60"], timeout_seconds=0.2, grace_seconds=0.1)["timed_out"]


def test_readonly_runs_and_says_why_it_cannot_write(readonly: Daemon) -> None:
    assert readonly.out("echo ok; pwd") == "ok\n/\n"
    assert readonly.out("seq 1 200000 | tail -n 1") == "200000\n"
    result = readonly.run("seq 1 300000")
    assert result["exit_code"] == 0 and result["stdout_bytes"] > 1_000_000
    assert "Read-only" in readonly.run("echo x > /f")["stderr"]
    for path in ("/f", "/etc/passwd", "/new/f"):
        assert readonly.put(path, "x").problem("read-only")["errno"] == "EROFS"
    made = readonly.request("POST", "/v1/files/mkdir", body={"path": "/new"})
    assert made.problem("read-only")["path"] == "/new"
    assert readonly.request("DELETE", "/v1/files", {"path": "/etc/group"}).problem("read-only")
    assert readonly.get("/etc/group").status == 200


def test_readonly_sessions_need_no_folder(readonly: Daemon) -> None:
    assert readonly.out("X=5", session="r") == ""
    assert readonly.out("echo $X", session="r") == "5\n"
    long = ": " + "x" * (1 << 20) + "\necho end"
    assert readonly.out(long) == "end\n"


def test_a_writable_file_in_a_readonly_root(tmp_path: Path) -> None:
    mounted = tmp_path / "hosts"
    mounted.write_text("old and longer")
    with bare_daemon(roots.root("readonly"), bwrap=["--bind", str(mounted), "/etc/hosts"]) as daemon:
        assert daemon.put("/etc/hosts", "new").status == 200
        assert daemon.get("/etc/hosts").body == b"new"
    assert mounted.read_text() == "new"


def test_debian_has_bash(debian: Daemon) -> None:
    assert debian.out("echo ${BASH_VERSION%%.*}; [[ a == a ]] && echo yes").split()[1:] == ["yes"]
    assert debian.out("perl -e 'print 6*7'") == "42"
    assert debian.out("id -un") == "root\n"
    assert debian.out("x=(1 2 3)", session="b") == ""
    assert debian.out("echo ${#x[@]}", session="b") == "3\n"


def test_debian_ld_preload_reaches_commands_and_not_the_daemon() -> None:
    root = roots.root("debian")
    library = next(root.folder.glob("usr/lib/*-linux-gnu/libm.so.6"))
    inside = "/" + library.relative_to(root.folder).as_posix()
    loaded = dataclasses.replace(root.config, env=(*root.config.env, f"LD_PRELOAD={inside}"))
    with bare_daemon(dataclasses.replace(root, config=loaded)) as daemon:
        assert inside in daemon.out("echo $LD_PRELOAD; cat /proc/self/maps")
        assert b"libm" not in daemon.get("/proc/self/maps").body
    broken = dataclasses.replace(root.config, env=(*root.config.env, "LD_PRELOAD=/no/such.so", "LD_AUDIT=x"))
    with bare_daemon(dataclasses.replace(root, config=broken)) as daemon:
        result = daemon.run("echo fine")
        assert result["stdout"] == "fine\n" and "/no/such.so" in result["stderr"]
        assert daemon.put("/f", "x").status == 201


def test_go_and_shell_variables_of_the_image_do_not_reach_the_daemon() -> None:
    root = roots.root("musl")
    variables = (
        "GODEBUG=netdns=nonsense",
        "GOTRACEBACK=crash",
        "GOGC=1",
        "ENV=/no/such",
        "BASH_ENV=/no/such",
        "IFS=x",
    )
    odd = dataclasses.replace(root.config, env=(*root.config.env, *variables, "LANG=xx_YY.nonsense"))
    with bare_daemon(dataclasses.replace(root, config=odd)) as daemon:
        assert daemon.out("echo $GOGC; set -- a b; echo $#") == "1\n2\n"


@pytest.fixture
def changed(tmp_path: Path) -> Root:
    return roots.copy_of(roots.root("musl"), tmp_path)


def test_no_tmp_and_no_passwd(changed: Root) -> None:
    (changed.folder / "tmp").rmdir()
    for name in ("passwd", "group"):
        (changed.folder / "etc" / name).unlink()
    with bare_daemon(changed) as daemon:
        assert daemon.out("id -u; echo $HOME; ls /tmp 2>&1 | wc -l").split()[0] == "0"
        assert daemon.out("seq 1 500000 | wc -l").strip() == "500000"
        assert daemon.run("seq 1 500000")["stdout_bytes"] == 3388895
        assert daemon.out("cat <<E\nhere\nE", session="s") == "here\n"
        assert daemon.put("/f", "x").status == 201
        assert daemon.exec(command="true", user="root").json()["reason"] == "user"


def test_the_images_own_sandman_folder(changed: Root) -> None:
    for folder in ("sandman", ".sandman"):
        (changed.folder / folder).mkdir()
        (changed.folder / folder / "own").write_text("the image's")
        (changed.folder / folder / "sandmand").write_text("#!/bin/sh\nexit 99\n")
    with bare_daemon(changed) as daemon:
        assert daemon.out("cat /sandman/own /.sandman/own") == "the image's" * 2
        assert daemon.out("tail -n 1 /sandman/sandmand") == "exit 99\n"
        assert daemon.get("/sandman/own").body == b"the image's"
        assert daemon.out([INSIDE, "version"]).strip()


def test_the_images_own_init_is_not_run(changed: Root) -> None:
    marker = changed.folder / "bin/init"
    marker.write_text("#!/bin/sh\ntouch /init-ran\nexit 1\n")
    marker.chmod(0o755)
    with_init = dataclasses.replace(changed.config, entrypoint=("/bin/init",))
    with bare_daemon(dataclasses.replace(changed, config=with_init)) as daemon:
        assert daemon.run("ls /init-ran")["exit_code"] != 0
        # PID 1 is the daemon, and reaps what is left to it.
        daemon.out("(sleep 0.2 &) ; (setsid sleep 0.2 &)")
        time.sleep(0.6)
        assert "Z" not in daemon.out("for s in /proc/[0-9]*/stat; do cut -d' ' -f3 $s; done").split()


def test_a_working_directory_that_is_missing(changed: Root) -> None:
    lost = dataclasses.replace(changed.config, workdir="/no/such/place")
    with bare_daemon(dataclasses.replace(changed, config=lost)) as daemon:
        assert daemon.exec(command="pwd").json()["reason"] == "cwd"
        assert daemon.out("pwd", cwd="/") == "/\n"
        assert daemon.put("made/f", "x").status == 201  # relative to it, made on the way
        assert daemon.out("pwd") == "/no/such/place\n"


def test_a_shell_that_is_no_program(changed: Root) -> None:
    (changed.folder / "bin/sh").unlink()
    (changed.folder / "bin/sh").write_text("not a program")
    (changed.folder / "bin/sh").chmod(0o644)
    with bare_daemon(changed) as daemon:
        answer = daemon.exec(command="true")
        assert answer.status == 422 and answer.json()["type"].endswith(":exec-start-failed"), answer.body
        assert daemon.out(["/bin/busybox", "echo", "x"]) == "x\n"


@pytest.mark.skipif(
    os.geteuid() != 0, reason="a daemon that may become other users needs the tests to be root"
)
def test_one_daemon_many_users(changed: Root) -> None:
    (changed.folder / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n"
    )
    (changed.folder / "etc/group").write_text("root:x:0:\napp:x:1001:\nextra:x:2000:app\n")
    (changed.folder / "home/app").mkdir(parents=True)
    os.chown(changed.folder / "home/app", 1000, 1001)
    (changed.folder / "etc/secret").write_text("root's")
    (changed.folder / "etc/secret").chmod(0o600)
    group = changed.folder / "srv/group"
    group.mkdir(parents=True)
    os.chown(group, 0, 2000)
    group.chmod(0o770)
    for folder in (changed.folder, *changed.folder.rglob("*")):
        if folder.is_dir() and folder != group:
            folder.chmod(0o755)
    with bare_daemon(changed, users=True, config={"user": "app"}) as daemon:
        assert daemon.out("id -u; id -g; id -G").split() == ["1000", "1001", "1001", "2000"]
        assert daemon.put("/home/app/x/f", "mine").status == 201
        assert daemon.put("/srv/group/f", "by group").status == 201
        assert daemon.out("stat -c %u:%g /home/app/x /home/app/x/f /srv/group/f").split() == ["1000:1001"] * 3
        daemon.out("echo more >> /home/app/x/f; rm -rf /home/app/x")
        assert daemon.get("/etc/secret").problem("permission-denied")["errno"] == "EACCES"
        assert daemon.put("/etc/x", "x").problem("permission-denied")["errno"] == "EACCES"
        assert daemon.get("/proc/1/environ").problem("permission-denied")
        assert daemon.get("/etc/secret", user="root").body == b"root's"
        assert daemon.put("/etc/x", "x", user="0", owner="app").status == 201
        assert daemon.out("stat -c %U /etc/x") == "app\n"
        assert daemon.get("/etc/secret", user="ghost").problem("invalid")["field"] == "user"
