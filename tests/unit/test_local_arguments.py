"""What is in bubblewrap's argument list, and what must never be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from worker.providers.local.arguments import Overlay, SandboxPlan, bwrap_argv, cgroup_binds

PLAN = SandboxPlan(
    uid=0,
    gid=0,
    hostname="sandbox",
    overlays=(Overlay("/", (Path("/images/a/root"),), Path("/sb/root"), Path("/sb/root.work")),),
    daemon=Path("/bin/sandmand"),
    status_fd=7,
    config_fd=8,
)


def has(argv: list[str], *words: str) -> bool:
    return any(tuple(argv[i : i + len(words)]) == words for i in range(len(argv)))


@pytest.mark.parametrize(
    "words",
    [
        ("--unshare-user", "--uid", "0", "--gid", "0", "--disable-userns"),
        ("--unshare-pid",),
        ("--unshare-ipc",),
        ("--unshare-uts",),
        ("--unshare-cgroup",),
        ("--unshare-net",),
        ("--cap-drop", "ALL"),
        ("--as-pid-1", "--die-with-parent", "--new-session"),
        ("--overlay-src", "/images/a/root", "--overlay", "/sb/root", "/sb/root.work", "/"),
        ("--remount-ro", "/dev"),
        ("--ro-bind", "/bin/sandmand", "/.sandman/sandmand"),
        ("--", "/.sandman/sandmand", "serve", "--config-fd", "8"),
        ("--json-status-fd", "7"),
    ],
)
def test_every_sandbox_has(words: tuple[str, ...]) -> None:
    assert has(bwrap_argv(Path("/bwrap"), PLAN), *words)


@pytest.mark.parametrize("word", ["--bind", "--share-net", "--dev-bind", "--setenv", "--cap-add"])
def test_no_sandbox_has(word: str) -> None:
    assert word not in bwrap_argv(Path("/bwrap"), PLAN)


def test_the_network_is_shared_only_when_asked_for() -> None:
    assert "--unshare-net" not in bwrap_argv(Path("/bwrap"), replace(PLAN, host_network=True))


def test_proc_and_dev_come_after_all_overlays() -> None:
    tree = Overlay("/usr", (Path("/usr"), Path("/skeleton/usr")), Path("/sb/usr"), Path("/sb/usr.work"))
    argv = bwrap_argv(Path("/bwrap"), replace(PLAN, overlays=(*PLAN.overlays, tree)))
    last_overlay = max(i for i, word in enumerate(argv) if word == "--overlay")
    assert last_overlay < argv.index("--proc") < argv.index("--dev")
    # The skeleton is the upper of the two lower layers: bubblewrap takes the last source as the topmost.
    assert has(argv, "--overlay-src", "/usr", "--overlay-src", "/skeleton/usr", "--overlay", "/sb/usr")


def test_another_user_inside_changes_nothing_else() -> None:
    argv = bwrap_argv(Path("/bwrap"), replace(PLAN, uid=1000, gid=100))
    assert has(argv, "--uid", "1000", "--gid", "100")
    assert len(argv) == len(bwrap_argv(Path("/bwrap"), PLAN))


def test_cgroups_are_shown_read_only_where_programs_look_for_them() -> None:
    first = cgroup_binds(
        {"memory": Path("/cg/m/x"), "cpu": Path("/cg/c/x")}, dict.fromkeys(("memory", "cpu"), "cgroup-v1")
    )
    assert first == ((Path("/cg/c/x"), "/sys/fs/cgroup/cpu"), (Path("/cg/m/x"), "/sys/fs/cgroup/memory"))
    second = cgroup_binds(
        {"memory": Path("/cg/x"), "cpu": Path("/cg/x")}, dict.fromkeys(("memory", "cpu"), "cgroup-v2")
    )
    assert second == ((Path("/cg/x"), "/sys/fs/cgroup"),)
    argv = bwrap_argv(Path("/bwrap"), replace(PLAN, read_only=second))
    assert has(argv, "--ro-bind", "/cg/x", "/sys/fs/cgroup")
