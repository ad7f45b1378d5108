"""The local provider with the real bubblewrap and the real daemon: what a sandbox is, and what it cannot reach."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.ledger.model import Policy, Reason, new_sandbox_id
from tests.integration.local_world import (
    MIB,
    TOKEN_SHA256,
    Client,
    Installation,
    eventually,
    new_installation,
    provider_at,
    record,
    shared_installation,
)
from worker.providers.base import Observed, ProviderError, ProviderUnavailable
from worker.providers.local.folders import folders_of
from worker.providers.local.options import read_options
from worker.providers.local.provider import LocalProvider
from worker.providers.local.state import load


@pytest.fixture
def installation() -> Installation:
    return shared_installation()


@pytest.fixture
async def provider(installation: Installation) -> AsyncIterator[LocalProvider]:
    async with provider_at(installation) as found:
        yield found


async def test_a_sandbox_runs_commands_and_is_taken_away(
    provider: LocalProvider, installation: Installation
) -> None:
    asked = record(env={"A": "1", "LD_PRELOAD": "/nowhere.so"})
    placement = await provider.create(asked, TOKEN_SHA256)
    client = Client(placement.address)
    assert client.request("GET", "/health")[0] == 200
    assert client.request("POST", "/v1/exec", {"command": "true"}, token="x" * 64)[0] == 401
    assert client.out("echo $A $LD_PRELOAD; pwd; echo $HOME; id -u", env={"X": "y"}).split() == [
        "1",
        "/nowhere.so",
        "/root",
        "/root",
        "0",
    ]
    seen = await provider.list()
    assert [(o.id, o.phase, o.address) for o in seen] == [(asked.id, "running", placement.address)]
    await provider.delete(asked.id)
    await provider.delete(asked.id)
    assert await provider.list() == [] and installation.leftovers() == []
    with pytest.raises(OSError):
        client.request("GET", "/health")


async def test_create_again_is_the_same_create(provider: LocalProvider, installation: Installation) -> None:
    asked = record()
    placements = await asyncio.gather(*(provider.create(asked, TOKEN_SHA256) for _ in range(4)))
    assert len({placement.address for placement in placements}) == 1
    Client(placements[0].address).out("echo kept > /root/f")
    again = LocalProvider(installation.settings())
    assert (await again.create(asked, TOKEN_SHA256)).address == placements[0].address
    await again.close()
    assert Client(placements[0].address).out("cat /root/f") == "kept\n"
    assert len(await provider.list()) == 1


async def test_a_deleted_sandbox_is_not_made_by_a_late_create(provider: LocalProvider) -> None:
    asked = record()
    await provider.delete(asked.id)
    with pytest.raises(ProviderError) as caught:
        await provider.create(asked, TOKEN_SHA256)
    assert not caught.value.retryable
    assert await provider.list() == []


async def test_every_folder_of_the_machine_can_be_written_and_nothing_reaches_it(
    provider: LocalProvider,
) -> None:
    first, second = record(), record()
    one = Client((await provider.create(first, TOKEN_SHA256)).address)
    two = Client((await provider.create(second, TOKEN_SHA256)).address)
    name = f"canary-{first.id}"
    folders = "/ /usr/bin /usr/local/lib /etc /opt /var/lib /root /home /srv /mnt /media /workspace /tmp /var/tmp /run /dev/shm"
    one.out(
        f"for d in {folders}; do echo x > $d/{name} || exit 1; done; rm /usr/bin/env; echo '# more' >> /etc/passwd"
    )
    assert two.run(f"ls -d {' '.join(f'{d}/{name}' for d in folders.split())} 2>/dev/null")["stdout"] == ""
    assert two.out("test -x /usr/bin/env && tail -1 /etc/passwd") != "# more\n"
    assert Path("/usr/bin/env").exists()
    assert not [d for d in folders.split() if Path(d, name).exists()]


async def test_the_usual_programs_are_found(provider: LocalProvider) -> None:
    client = Client((await provider.create(record(), TOKEN_SHA256)).address)
    out = client.out(
        "for p in sh bash python3 git; do command -v $p; done; python3 -c 'import ssl, sqlite3; print(\"py\")'; "
        "stat -c '%a %n' /tmp /var/tmp /dev/shm; hostname; getent hosts localhost; whoami; git init -q /root/r && echo git"
    )
    assert out.split("\n") == [
        "/usr/bin/sh",
        "/usr/bin/bash",
        "/usr/bin/python3",
        "/usr/bin/git",
        "py",
        "1777 /tmp",
        "1777 /var/tmp",
        "1777 /dev/shm",
        "sandbox",
        "::1             localhost ip6-localhost ip6-loopback",
        "root",
        "git",
        "",
    ]


async def test_what_a_sandbox_cannot_see(provider: LocalProvider, installation: Installation) -> None:
    canary = installation.base / "data" / "canary"
    canary.write_text("secret")
    canary.chmod(0o644)
    other = await provider.create(record(), TOKEN_SHA256)
    client = Client((await provider.create(record(), TOKEN_SHA256)).address)
    for path in (
        canary,
        installation.base,
        installation.runtime,
        Path(other.address[5:]),
        Path("/root/.bashrc"),
        Path.home(),
    ):
        if path != Path("/root"):
            assert client.run(f"test -e '{path}'")["exit_code"] == 1, path
    # Nothing of the service in the environment, arguments or descriptors of its processes.
    seen = client.out(
        "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; ls -la /root /home /srv /run /tmp"
    )
    assert TOKEN_SHA256 not in seen and "SANDMAN" not in seen and str(installation.base) not in seen
    assert set(client.out("ps -e -o comm=").split()) <= {"sandmand", "sh", "bash", "ps"}
    # The secrets of the machine's accounts.
    assert client.out("cut -d: -f2 /etc/shadow | sort -u") == "*\n"
    assert client.out("ls /etc/ssh | grep -c ssh_host_ || true").strip() == "0"
    assert client.run("grep -rsl 'PRIVATE KEY-----' /etc")["stdout"] == ""
    # Mounts: only of the sandbox itself.
    targets = client.out("cut -d' ' -f5 /proc/self/mountinfo").split()
    allowed = (
        "/",
        "/usr",
        "/opt",
        "/run",
        "/proc",
        "/dev",
        "/.sandman/sandmand",
        "/sys/fs/cgroup",
        "/bin",
        "/sbin",
        "/lib",
    )
    assert [
        t
        for t in targets
        if t not in allowed and not t.startswith(("/dev/", "/proc/", "/sys/fs/cgroup/", "/lib"))
    ] == []


async def test_what_a_sandbox_cannot_do(provider: LocalProvider) -> None:
    client = Client((await provider.create(record(), TOKEN_SHA256)).address)
    status = client.out("cat /proc/self/status")
    assert (
        "CapEff:\t0000000000000000" in status
        and "CapBnd:\t0000000000000000" in status
        and "NoNewPrivs:\t1" in status
    )
    for command in (
        "unshare -U true",
        "unshare -m true",
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw /sys/fs/cgroup/memory",
        "umount /.sandman/sandmand",
        "echo x > /.sandman/sandmand",
        "mknod /tmp/sda b 8 0 && cat /tmp/sda",
        "echo 1 > /proc/sys/kernel/panic",
        "mkdir /sys/fs/cgroup/memory/x",
        "hostname other",
        "chroot / true",
        "echo c > /proc/sysrq-trigger",
        "dmesg",
    ):
        assert client.run(command)["exit_code"] != 0, command
    # The daemon is the first process; a command cannot end it, and it is still there afterwards.
    client.run("kill -9 1; kill -9 -1")
    assert client.out("echo alive") == "alive\n"


async def test_no_network_unless_asked_for(provider: LocalProvider) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        probe = f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('connected')\""
        none = Client((await provider.create(record(), TOKEN_SHA256)).address)
        assert none.run(probe)["exit_code"] == 1
        assert none.out("cut -d: -f1 /proc/net/dev | tail -n +3").split() == ["lo"]
        assert (
            none.out(
                "python3 -c \"import socket; s = socket.create_server(('127.0.0.1', 8000)); print('own')\""
            )
            == "own\n"
        )
        shared = Client((await provider.create(record(policy=Policy(network="host")), TOKEN_SHA256)).address)
        assert shared.out(probe) == "connected\n"


@pytest.mark.parametrize(
    ("user", "ids"), [("1000", "1000 1000"), ("1000:1234", "1000 1234"), ("daemon", "1 1"), (None, "0 0")]
)
async def test_users(provider: LocalProvider, user: str | None, ids: str) -> None:
    client = Client((await provider.create(record(user=user), TOKEN_SHA256)).address)
    assert client.out("echo $(id -u) $(id -g)") == ids + "\n"
    client.out("touch /tmp/x /usr/local/x && test -O /tmp/x")


async def test_a_user_that_is_not_there(provider: LocalProvider) -> None:
    with pytest.raises(ProviderError) as caught:
        await provider.create(record(user="nosuchuser"), TOKEN_SHA256)
    assert caught.value.reason is Reason.IMAGE_INVALID and not caught.value.retryable
    assert await provider.list() == []


async def test_the_working_folder_is_made(provider: LocalProvider) -> None:
    client = Client(
        (await provider.create(record(workdir="/usr/src/app/deep", user="1000"), TOKEN_SHA256)).address
    )
    assert (
        client.out("pwd; touch x && stat -c %u . x; stat -c %a /usr/src")
        == "/usr/src/app/deep\n1000\n1000\n755\n"
    )


async def test_a_daemon_that_was_killed_is_noticed_and_explained(
    provider: LocalProvider, installation: Installation
) -> None:
    kept, killed, outer = record(), record(), record()
    for asked in (kept, killed, outer):
        await provider.create(asked, TOKEN_SHA256)
    changes: list[tuple[float, Observed]] = []

    async def watch() -> None:
        async for found in provider.watch():
            changes.append((time.monotonic(), found))

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.6)
    folders = folders_of(read_options(installation.settings()))
    first, second = load(folders, killed.id), load(folders, outer.id)
    assert first is not None and second is not None
    began = time.monotonic()
    os.kill(first.init_pid, signal.SIGKILL)
    os.kill(second.pid, signal.SIGKILL)
    late = record()
    await provider.create(late, TOKEN_SHA256)
    for _ in range(40):
        await asyncio.sleep(0.05)
        if {found.id for _, found in changes} >= {killed.id, outer.id, late.id}:
            break
    await provider.delete(kept.id)
    await asyncio.sleep(0.6)
    watching.cancel()
    gone = {found.id: (at, found) for at, found in changes if found.phase == "gone"}
    assert set(gone) == {killed.id, outer.id}, "what was deleted is no news"
    assert max(at for at, _ in gone.values()) - began < 1.0
    assert gone[killed.id][1].reason is Reason.EXITED and "signal 9" in gone[killed.id][1].detail
    assert gone[outer.id][1].reason is Reason.NODE_LOST
    assert any(found.id == late.id and found.phase == "running" for _, found in changes)
    listed = {found.id: found for found in await provider.list()}
    assert listed[killed.id].reason is Reason.EXITED and kept.id not in listed
    # The killed outer process takes all inner ones along.
    assert eventually(lambda: not Path(f"/proc/{second.init_pid}").exists(), 2)


async def test_traces_without_a_state_are_found_and_taken_away(
    provider: LocalProvider, installation: Installation
) -> None:
    folders = folders_of(read_options(installation.settings()))
    stray = [new_sandbox_id() for _ in range(3)]
    (folders.sandboxes / stray[0] / "root").mkdir(parents=True)
    folders.socket(stray[1]).touch()
    sandboxes = provider._start()
    places = sandboxes._bases.sandbox_folders(stray[2]) or [folders.sandboxes / stray[2]]
    for place in places:
        place.mkdir()
    (folders.sandboxes / "not-an-id").mkdir()
    try:
        found = await provider.list()
        assert {o.id for o in found} == set(stray) and {o.phase for o in found} == {"gone"}
        assert all(o.created_ms > 1_600_000_000_000 for o in found)
        for o in found:
            await provider.delete(o.id)
        assert await provider.list() == []
    finally:
        (folders.sandboxes / "not-an-id").rmdir()


async def test_a_big_and_ugly_tree_goes_with_its_sandbox(
    provider: LocalProvider, installation: Installation
) -> None:
    asked = record()
    client = Client((await provider.create(asked, TOKEN_SHA256)).address)
    client.out(
        "cd /root; python3 -c \"import os\nfor i in range(600):\n os.mkdir('d' * 40); os.chdir('d' * 40)\"; "
        "mkdir -p m/a; touch m/a/f; chmod 0 m/a m; rm -rf /usr/share/doc /usr/bin/git; "
        "for i in $(seq 40); do mkdir -p w/$i; (cd w/$i; touch $(seq 100)); done"
    )
    began = time.monotonic()
    await provider.delete(asked.id)
    assert time.monotonic() - began < 10
    assert installation.leftovers() == []


async def test_many_at_once(provider: LocalProvider, installation: Installation) -> None:
    asked = [record(memory=64 * MIB) for _ in range(int(os.environ.get("SANDMAN_TEST_MANY", "100")))]
    began = time.monotonic()
    placements = await asyncio.gather(*(provider.create(one, TOKEN_SHA256) for one in asked))
    created = time.monotonic() - began
    answers = await asyncio.gather(
        *(asyncio.to_thread(Client(p.address).out, "echo $((6*7))") for p in placements)
    )
    assert set(answers) == {"42\n"}
    assert {o.phase for o in await provider.list()} == {"running"}
    began = time.monotonic()
    await asyncio.gather(*(provider.delete(one.id) for one in asked))
    deleted = time.monotonic() - began
    assert installation.leftovers() == []
    print(
        json.dumps({"sandboxes": len(asked), "created_s": round(created, 2), "deleted_s": round(deleted, 2)})
    )


async def test_check_says_what_is_missing(tmp_path: Path) -> None:
    cases = {
        "SANDMAN_DAEMON_PATH": ({"SANDMAN_DAEMON_PATH": str(tmp_path / "none")}, "SANDMAN_DAEMON_PATH"),
        "SANDMAN_BWRAP_PATH": ({"SANDMAN_BWRAP_PATH": str(tmp_path / "none")}, "SANDMAN_BWRAP_PATH"),
        "a bwrap that fails": ({"SANDMAN_BWRAP_PATH": "/bin/false"}, "trial"),
    }
    for name, (more, word) in cases.items():
        own = new_installation(**more)
        provider = LocalProvider(own.settings())
        with pytest.raises(ProviderUnavailable, match=word):
            await provider.check()
        await provider.close()
        assert own.leftovers() == [], name
        own.remove()


async def test_storage_that_cannot_be_used(tmp_path: Path) -> None:
    own = new_installation()
    (own.base / "storage").write_text("a file")
    provider = LocalProvider(own.settings())
    with pytest.raises(ProviderUnavailable, match="storage"):
        await provider.check()
    await provider.close()
    own.remove()


async def test_two_installations_do_not_see_each_other(
    provider: LocalProvider, installation: Installation
) -> None:
    own = new_installation()
    try:
        async with provider_at(own) as other:
            asked = record()
            placement = await provider.create(asked, TOKEN_SHA256)
            assert await other.list() == []
            await other.delete(asked.id)
            assert Client(placement.address).out("echo alive") == "alive\n"
    finally:
        own.remove()
