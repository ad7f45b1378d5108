"""Limits as a command meets them: bombs end the command, never the daemon, the neighbour or the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.ledger.model import Policy
from tests.integration.local_world import MIB, TOKEN_SHA256, Client, provider_at, record, shared_installation
from worker.providers.base import Placement
from worker.providers.local.cgroups import DAEMON_PIDS, members
from worker.providers.local.folders import folders_of
from worker.providers.local.options import read_options
from worker.providers.local.provider import LocalProvider
from worker.providers.local.state import load


@pytest.fixture
async def provider() -> AsyncIterator[LocalProvider]:
    async with provider_at(shared_installation()) as found:
        yield found


def needs_cgroup(placement: Placement, limit: str) -> None:
    if not placement.enforced[limit].startswith("cgroup"):
        pytest.skip(
            f"this machine gives no {limit} cgroup; what holds without is tested in test_local_provider_unprivileged.py"
        )


async def test_a_memory_bomb_ends_the_command_and_not_the_daemon(provider: LocalProvider) -> None:
    placement = await provider.create(record(memory=128 * MIB), TOKEN_SHA256)
    needs_cgroup(placement, "memory")
    client = Client(placement.address)
    answer = await asyncio.to_thread(
        client.run, "python3 -c 'x = bytearray(1 << 30); print(len(x))'", timeout_seconds=30
    )
    assert answer["exit_code"] == 137 and answer["oom_killed"] is True and answer["stdout"] == ""
    assert client.out("echo alive") == "alive\n"
    many = (
        "for i in $(seq 40); do python3 -c 'x = bytearray(16 << 20); import time; time.sleep(3)' & done; wait"
    )
    await asyncio.to_thread(client.run, many, timeout_seconds=30)
    assert client.out("echo alive") == "alive\n"


async def test_shared_memory_and_devices_are_bounded(provider: LocalProvider) -> None:
    placement = await provider.create(record(memory=128 * MIB), TOKEN_SHA256)
    client = Client(placement.address)
    answer = await asyncio.to_thread(client.run, "head -c 1G /dev/zero > /dev/shm/x", timeout_seconds=30)
    assert answer["exit_code"] != 0
    assert client.run("echo x > /dev/x")["exit_code"] != 0
    assert client.out("echo alive") == "alive\n"


async def test_a_fork_bomb_is_bounded(provider: LocalProvider) -> None:
    asked = record(policy=Policy(pids=64))
    placement = await provider.create(asked, TOKEN_SHA256)
    needs_cgroup(placement, "pids")
    neighbour = Client((await provider.create(record(), TOKEN_SHA256)).address)
    client = Client(placement.address)
    state = load(folders_of(read_options(shared_installation().settings())), asked.id)
    assert state is not None
    began = time.monotonic()
    await asyncio.to_thread(client.run, "b() { b | b & }; b; sleep 60", timeout_seconds=2)
    assert time.monotonic() - began < 20
    assert all(len(members(Path(folder))) <= 64 + DAEMON_PIDS for folder in state.cgroups)
    assert neighbour.out("echo fine") == "fine\n"
    assert client.out("ulimit -u; echo alive") == "64\nalive\n"
    # Again, by a program that does not wait and that nobody ends: the daemon has threads of its own left.
    await asyncio.to_thread(client.run, "b() { b | b & }; b", timeout_seconds=5)
    assert client.request("GET", "/health")[0] == 200


async def test_the_cpu_quota_is_what_was_asked_for(provider: LocalProvider) -> None:
    placement = await provider.create(record(cpu=0.2), TOKEN_SHA256)
    needs_cgroup(placement, "cpu")
    answer = await asyncio.to_thread(
        Client(placement.address).run, "timeout 2 sh -c 'while :; do :; done'", timeout_seconds=30
    )
    usage = answer["usage"]
    spent = usage["user_seconds"] + usage["system_seconds"]
    # One fifth of a CPU, and one period more for each end.
    assert spent <= 0.2 * usage["wall_seconds"] + 0.25, usage


async def test_a_file_ends_at_the_disk_limit(provider: LocalProvider) -> None:
    placement = await provider.create(record(disk=32 * MIB), TOKEN_SHA256)
    assert placement.enforced["disk"] == "rlimit"
    client = Client(placement.address)
    assert (await asyncio.to_thread(client.run, "head -c 64M /dev/zero > /root/x"))["exit_code"] != 0
    assert int(client.out("stat -c %s /root/x")) <= 32 * MIB


async def test_commands_start_with_default_signals(provider: LocalProvider) -> None:
    client = Client((await provider.create(record(), TOKEN_SHA256)).address)
    status = client.out("grep -E 'SigIgn|SigBlk' /proc/self/status").split()
    assert status == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16]
