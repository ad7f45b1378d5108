"""Finding cgroups: a table of machines, and version 2 on a folder that behaves like its file system."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from worker.providers.local import cgroups, hierarchy
from worker.providers.local.cgroups import Limits, limit_files
from worker.providers.local.hierarchy import Mount, find_bases, folder_of, parse_membership, parse_mounts

V1 = """\
30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/my\\040pids rw - cgroup cgroup rw,pids
"""


def test_mounts_are_parsed() -> None:
    assert parse_mounts(V1) == [
        Mount(Path("/sys/fs/cgroup/cpu,cpuacct"), "/", "cgroup-v1", frozenset({"cpu"})),
        Mount(Path("/sys/fs/cgroup/memory"), "/docker/abc", "cgroup-v1", frozenset({"memory"})),
        Mount(Path("/sys/fs/cgroup/my pids"), "/", "cgroup-v1", frozenset({"pids"})),
    ]


def test_membership_is_parsed() -> None:
    assert parse_membership("4:memory:/a:b\n1:cpu,cpuacct:/\n0::/user.slice\n") == {
        "memory": "/a:b",
        "cpu": "/",
        "cpuacct": "/",
        "": "/user.slice",
    }


@pytest.mark.parametrize(
    ("root", "path", "found"),
    [
        ("/", "/user/x", "/cg/user/x"),
        ("/docker/abc", "/docker/abc", "/cg"),
        ("/docker/abc", "/docker/abc/sub", "/cg/sub"),
        ("/docker/abc", "/docker/abcd", None),
        ("/docker/abc", "/", None),
    ],
)
def test_a_path_is_seen_through_a_mount(root: str, path: str, found: str | None) -> None:
    mount = Mount(Path("/cg"), root, "cgroup-v2", frozenset())
    assert folder_of(mount, path) == (None if found is None else Path(found))


def test_nothing_mounted_is_no_error() -> None:
    bases = find_bases("sandman-x", "", "0::/\n")
    assert not bases.folders
    assert set(bases.problems) == {"memory", "cpu", "pids"}
    assert bases.sandbox_folders("sb-a") == []


def v2(tree: Path, *, controllers: str = "cpu memory pids", enabled: str = "") -> tuple[str, str]:
    """A service's own cgroup in a stand-in for the file system of version 2."""
    own = tree / "service"
    for folder in (tree, own):
        folder.mkdir()
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text(enabled)
        (folder / "cgroup.procs").write_text("")
    return f"40 1 0:30 / {tree} rw - cgroup2 cgroup2 rw\n", "0::/service\n"


def test_v2_needs_delegated_controllers(tmp_path: Path) -> None:
    mountinfo, membership = v2(tmp_path / "cg", controllers="memory", enabled="memory")
    bases = find_bases("sandman-x", mountinfo, membership)
    assert bases.folders == {"memory": tmp_path / "cg/service/sandman-x"}
    assert bases.versions == {"memory": "cgroup-v2"}
    assert "not delegated" in bases.problems["pids"]


def test_v2_one_folder_a_sandbox(tmp_path: Path) -> None:
    mountinfo, membership = v2(tmp_path / "cg", enabled="cpu memory pids")
    bases = find_bases("sandman-x", mountinfo, membership)
    assert bases.sandbox_folders("sb-a") == [tmp_path / "cg/service/sandman-x/sb-a"]


def test_v2_after_the_move_the_leaf_is_not_the_base(tmp_path: Path) -> None:
    mountinfo, _ = v2(tmp_path / "cg", enabled="cpu memory pids")
    leaf = tmp_path / "cg/service/sandman-x.service"
    leaf.mkdir()
    bases = find_bases("sandman-x", mountinfo, "0::/service/sandman-x.service\n")
    assert bases.folders["memory"] == tmp_path / "cg/service/sandman-x"


def test_v2_own_processes_move_to_a_leaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mountinfo, membership = v2(tmp_path / "cg")
    own = tmp_path / "cg/service"
    (own / "cgroup.procs").write_text("11\n12\n")
    write = Path.write_text
    moved: list[str] = []

    def kernel(path: Path, data: str) -> int:
        if path == own / "cgroup.subtree_control" and not moved:
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        if path == own / "sandman-x.service/cgroup.procs":
            moved.append(data)
            return len(data)
        return write(path, data)

    monkeypatch.setattr(Path, "write_text", kernel)
    monkeypatch.setattr(hierarchy, "may_move", lambda folder: True)
    assert set(find_bases("sandman-x", mountinfo, membership).folders) == {"memory", "cpu", "pids"}
    assert moved == ["11", "12"]


def test_v2_processes_of_others_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mountinfo, membership = v2(tmp_path / "cg")
    write = Path.write_text

    def kernel(path: Path, data: str) -> int:
        if path.name == "cgroup.subtree_control":
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        return write(path, data)

    monkeypatch.setattr(Path, "write_text", kernel)
    monkeypatch.setattr(hierarchy, "may_move", lambda folder: False)
    bases = find_bases("sandman-x", mountinfo, membership)
    assert not bases.folders
    assert "busy" in bases.problems["memory"]
    assert not (tmp_path / "cg/service/sandman-x.service").exists()


def test_v2_a_login_session_uses_what_lies_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session's scope holds the user's shell, so nothing can be made below it; the slice above hands controllers on."""
    tree = tmp_path / "cg"
    for name, enabled in (("", "cpu memory pids"), ("user", "cpu memory pids"), ("user/session", "")):
        folder = tree / name
        folder.mkdir()
        (folder / "cgroup.controllers").write_text("cpu memory pids")
        (folder / "cgroup.subtree_control").write_text(enabled)
        (folder / "cgroup.procs").write_text("")
    write = Path.write_text

    def kernel(path: Path, data: str) -> int:
        if path == tree / "user/session/cgroup.subtree_control":
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        if path.name == "cgroup.subtree_control":
            path.touch()
        return write(path, data)

    monkeypatch.setattr(Path, "write_text", kernel)
    monkeypatch.setattr(hierarchy, "may_move", lambda folder: False)
    bases = find_bases("sandman-x", f"40 1 0:30 / {tree} rw - cgroup2 cgroup2 rw\n", "0::/user/session\n")
    assert bases.sandbox_folders("sb-a") == [tree / "user/sandman-x/sb-a"]
    assert set(bases.versions) == {"memory", "cpu", "pids"} and not bases.problems
    assert not (tree / "user/session/sandman-x").exists()


@pytest.mark.parametrize(
    ("controller", "version", "expected"),
    [
        ("pids", "cgroup-v1", {"pids.max": "71"}),
        ("pids", "cgroup-v2", {"pids.max": "71"}),
        ("cpu", "cgroup-v2", {"cpu.max": "50000 100000"}),
        ("cpu", "cgroup-v1", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}),
        ("memory", "cgroup-v2", {"memory.max": "1000", "memory.swap.max": "0"}),
        ("memory", "cgroup-v1", {"memory.limit_in_bytes": "1000", "memory.memsw.limit_in_bytes": "1000"}),
    ],
)
def test_what_is_written_for_a_limit(controller: str, version: str, expected: dict[str, str]) -> None:
    files = limit_files(controller, version, Limits(memory_bytes=1000, cpu=0.5, pids=7, disk_bytes=1))
    assert {name: value for name, value, _ in files} == expected


def test_the_smallest_cpu_share_is_one_that_the_kernel_takes() -> None:
    files = limit_files("cpu", "cgroup-v2", Limits(1, 0.0001, 1, 1))
    assert files == [("cpu.max", "1000 100000", True)]


def test_oom_kills_are_read_in_both_versions(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert cgroups.oom_kills(tmp_path) == 2
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert cgroups.oom_kills(tmp_path) == 5
    assert cgroups.oom_kills(tmp_path / "none") == 0
