"""The idle service: under 1 % of a core and under 400 MB in all. CI's shared machine gets a wider bound for the CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.service import Service

SECONDS = float(os.environ.get("SANDMAN_TEST_IDLE_SECONDS", "10"))
CPU_MAX = float(os.environ.get("SANDMAN_TEST_IDLE_CPU", "0.04"))
MEMORY_MAX = 400e6
TICK = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += tree(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory(pid: int, kind: str) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    return 0


def test_idle_costs_next_to_nothing(own_service: Callable[..., Service]) -> None:
    service = own_service()
    time.sleep(3)
    pids = tree(service.pid)
    before = {pid: cpu_seconds(pid) for pid in pids}
    time.sleep(SECONDS)
    used = {pid: cpu_seconds(pid) - before[pid] for pid in pids}
    rss = {pid: memory(pid, "Rss") for pid in pids}
    for pid in pids:
        name = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[-60:]
        print(f"{100 * used[pid] / SECONDS:5.2f} %  {rss[pid] / 1e6:6.1f} MB  {name}")
    share, total = sum(used.values()) / SECONDS, sum(rss.values())
    print(f"{100 * share:5.2f} % of a core  {total / 1e6:6.1f} MB in all (shared pages counted for each)")
    assert share < CPU_MAX
    assert total < MEMORY_MAX
