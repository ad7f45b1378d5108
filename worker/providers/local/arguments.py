"""From a plan of one sandbox to bubblewrap's argv: pure, so that a table of tests can say what is in it.

bubblewrap performs mounts in the order of its arguments, so the order here is part of the meaning: the root first, what lies over
it next, /proc and /dev after all overlays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

DAEMON_INSIDE = "/.sandman/sandmand"
DEV_TMPFS_BYTES = 64 * 1024**2
"""Size of /dev/shm at least, and Docker's value for it; a memory cgroup counts what is used of it."""
RUN_TMPFS_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Overlay:
    target: str
    lowers: tuple[Path, ...]
    """Lowest first."""
    upper: Path
    work: Path


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    uid: int
    gid: int
    """Inside; outside it is always the sandboxes' own uid."""
    hostname: str
    overlays: tuple[Overlay, ...]
    """The first is the root."""
    daemon: Path
    status_fd: int
    config_fd: int
    shm_bytes: int = DEV_TMPFS_BYTES
    host_network: bool = False
    run_tmpfs: bool = False
    read_only: tuple[tuple[Path, str], ...] = field(default=())
    """(host's path, path inside)."""


def bwrap_argv(bwrap: Path, plan: SandboxPlan) -> list[str]:
    argv = [str(bwrap), "--json-status-fd", str(plan.status_fd)]
    argv += ["--unshare-user", "--uid", str(plan.uid), "--gid", str(plan.gid), "--disable-userns"]
    argv += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup"]
    if not plan.host_network:
        argv.append("--unshare-net")
    argv += ["--hostname", plan.hostname, "--cap-drop", "ALL"]
    # --as-pid-1: the daemon reaps. --die-with-parent: with the supervisor. --new-session: no terminal of the service.
    argv += ["--as-pid-1", "--die-with-parent", "--new-session"]
    for overlay in plan.overlays:
        for lower in overlay.lowers:
            argv += ["--overlay-src", str(lower)]
        argv += ["--overlay", str(overlay.upper), str(overlay.work), overlay.target]
    if plan.run_tmpfs:
        argv += ["--perms", "0755", "--size", str(RUN_TMPFS_BYTES), "--tmpfs", "/run"]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    argv += ["--perms", "1777", "--size", str(plan.shm_bytes), "--tmpfs", "/dev/shm"]
    # /dev itself is a tmpfs without a bound; devices, pts and shm stay writable.
    argv += ["--remount-ro", "/dev"]
    # Parents that bubblewrap makes by itself are 0700, which another user inside could not pass.
    argv += ["--perms", "0755", "--dir", "/.sandman", "--ro-bind", str(plan.daemon), DAEMON_INSIDE]
    if plan.read_only:
        for folder in ("/sys", "/sys/fs", "/sys/fs/cgroup"):
            argv += ["--perms", "0755", "--dir", folder]
    for source, target in plan.read_only:
        argv += ["--ro-bind", str(source), target]
    # "/" always exists; the daemon goes to each command's own folder.
    argv += ["--chdir", "/", "--", DAEMON_INSIDE, "serve", "--config-fd", str(plan.config_fd)]
    return argv


def cgroup_binds(folders: dict[str, Path], versions: dict[str, str]) -> tuple[tuple[Path, str], ...]:
    """A sandbox sees its own cgroups read-only at the usual places: the daemon reads out-of-memory kills there, and runtimes that
    size themselves by their limits find them."""
    binds: dict[str, Path] = {}
    for controller, folder in folders.items():
        target = "/sys/fs/cgroup" if versions[controller] == "cgroup-v2" else f"/sys/fs/cgroup/{controller}"
        binds[target] = folder
    return tuple((folder, target) for target, folder in sorted(binds.items()))
