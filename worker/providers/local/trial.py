"""A sandbox in miniature, run once by `check`: every kernel feature that a real one needs, and nothing that stays."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from worker.providers.local.folders import Folders, make_given, make_passable
from worker.providers.local.removal import remove_tree


def trial_argv(bwrap: Path, folders: Folders, stack: contextlib.ExitStack) -> list[str]:
    """bubblewrap's arguments; its folders are removed when `stack` is closed. Raises OSError."""
    place = folders.storage / f".trial.{secrets.token_hex(6)}"
    make_passable(place, folders)
    stack.callback(remove_tree, place, folders.trash)
    for name in ("lower", "upper", "work"):
        make_given(place / name, folders)
    argv = [str(bwrap), "--unshare-user", "--uid", "0", "--gid", "0", "--disable-userns"]
    argv += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup", "--unshare-net"]
    argv += ["--cap-drop", "ALL", "--as-pid-1", "--die-with-parent", "--new-session"]
    argv += [
        "--overlay-src",
        str(place / "lower"),
        "--overlay",
        str(place / "upper"),
        str(place / "work"),
        "/",
    ]
    # The host's own /bin/true stands in for a daemon: a static one might be missing yet.
    for name in ("usr", "bin", "lib", "lib64"):
        if Path("/", name).is_dir():
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    return [*argv, "--proc", "/proc", "--dev", "/dev", "--chdir", "/", "--", "/bin/true"]
