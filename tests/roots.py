"""Image roots of the kinds that task images come in, made here from Debian packages: nothing is pulled from a registry.

    musl      busybox and the musl loader: no glibc, /bin/sh is ash
    empty     one static program, and nothing else: no shell, libc, /tmp, /etc
    debian    the packages of a minimal Debian, with bash and glibc
    nonroot   USER 1000 without an entry in /etc/passwd, HOME unset, a working directory of its own
    readonly  made to be mounted read-only; it has no folder that a program could write to

Each is a folder, in which all belongs to who built it, and by `layout`, `oci_archive` and `docker_archive` an image file, in which
owners are as they should be. They are built once and kept under ~/.cache/sandman/roots; a change of a recipe is a new VERSION and so a
new folder. Tests share them and must not change them: a root to be changed comes from `copy_of`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.debian_packages import MERGED, Packages, unpack
from tests.image_files import Config, write_docker_archive, write_layout, write_oci_archive

VERSION: Final = "2"
PATH_VARIABLE: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NAMES: Final = ("musl", "empty", "debian", "nonroot", "readonly")

MINIMAL: Final = ("?essential", "?priority(required)")
"""What `debootstrap --variant=minbase` installs, without apt itself."""


@dataclass(frozen=True, slots=True)
class Root:
    name: str
    folder: Path
    config: Config
    read_only: bool = False

    @property
    def place(self) -> Path:
        return self.folder.parent


def root(name: str) -> Root:
    """The root of that name, built now if need be (seconds; `debian` up to a minute). Raises PackagesUnavailable."""
    build, config = RECIPES[name]
    place = cache() / f"{name}-{VERSION}-{os.uname().machine}"
    made_once(place / "root", build)
    return Root(name, place / "root", config, read_only=name == "readonly")


def layout(of: Root) -> Path:
    """The root as an OCI layout folder."""
    return made_once(of.place / "layout", lambda draft: write_layout(of.folder, of.config, draft))


def oci_archive(of: Root) -> Path:
    """The layout in one tar file."""
    return made_once(of.place / "oci.tar", lambda draft: write_oci_archive(layout(of), draft))


def docker_archive(of: Root) -> Path:
    """What `docker save` would write, tagged sandman-test/NAME:latest."""
    tag = f"sandman-test/{of.name}:latest"
    return made_once(
        of.place / "docker.tar", lambda draft: write_docker_archive(of.folder, of.config, draft, tag)
    )


def copy_of(of: Root, target: Path) -> Root:
    """A copy to be changed. Its image files are made beside it."""
    shutil.copytree(of.folder, target / "root", symlinks=True)
    return Root(of.name, target / "root", of.config, of.read_only)


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sandman" / "roots"


def made_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Build beside the target and move it in whole; of many processes one builds and the others wait."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with one_builder(target.with_name(f".{target.name}.lock")):
        if target.exists():
            return target
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=target.parent) as folder:
            draft = Path(folder) / target.name
            build(draft)
            draft.rename(target)
    return target


@contextmanager
def one_builder(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _packages() -> Packages:
    return Packages(cache() / "packages")


def _tool(target: Path, *, name: str) -> None:
    """busybox, which is static."""
    with tempfile.TemporaryDirectory() as folder:
        for package in _packages().fetch(["busybox-static"], dependencies=False):
            unpack(package, Path(folder))
        target.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(folder) / "usr/bin/busybox", target / name)
    (target / name).chmod(0o755)


APPLETS: Final = """
    [ ash awk base64 basename cat chmod chown cp cut date dd df dirname du echo env expr false find grep head hostname id kill
    ln ls mkdir mkfifo mknod mktemp mount mv nc od printf ps pwd readlink realpath rm rmdir sed seq setsid sh sha256sum sleep
    sort stat stty sync tail tar tee test timeout touch tr true tty uname uniq vi wc which whoami xargs yes
"""


def _busybox(target: Path) -> None:
    _tool(target, name="bin/busybox")
    for applet in APPLETS.split():
        (target / "bin" / applet).symlink_to("busybox")
    for folder in ("dev", "proc", "sys", "etc", "root", "usr/bin", "var", "lib"):
        (target / folder).mkdir(parents=True)
    (target / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
    )
    (target / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")


def _musl(target: Path) -> None:
    _busybox(target)
    (target / "tmp").mkdir()
    (target / "tmp").chmod(0o1777)
    with tempfile.TemporaryDirectory() as folder:
        for package in _packages().fetch(["musl"], dependencies=False):
            unpack(package, Path(folder))
        machine = os.uname().machine
        libc = next(Path(folder).glob(f"usr/lib/{machine}-linux-musl/libc.so"))
        shutil.copy(libc, target / "lib" / f"ld-musl-{machine}.so.1")
    (target / "lib" / f"ld-musl-{machine}.so.1").chmod(0o755)


def _empty(target: Path) -> None:
    _tool(target, name="busybox")


def _debian(target: Path) -> None:
    target.mkdir()
    for name in MERGED[:3] if os.uname().machine == "aarch64" else MERGED:
        (target / "usr" / name).mkdir(parents=True)
        (target / name).symlink_to(f"usr/{name}")
    for package in _packages().fetch(MINIMAL, dependencies=True):
        unpack(package, target)
    for database in ("passwd", "group"):
        shutil.copy(target / f"usr/share/base-passwd/{database}.master", target / "etc" / database)
    for link, program in (("awk", "mawk"), ("which", "which.debianutils")):
        if not (target / "usr/bin" / link).exists():
            (target / "usr/bin" / link).symlink_to(program)
    for folder in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(target / folder, ignore_errors=True)
    (target / "tmp").chmod(0o1777)


def _nonroot(target: Path) -> None:
    _busybox(target)
    (target / "tmp").mkdir()
    (target / "tmp").chmod(0o1777)
    (target / "srv/work").mkdir(parents=True)


def _readonly(target: Path) -> None:
    _busybox(target)
    shutil.rmtree(target / "root")


RECIPES: Final[dict[str, tuple[Callable[[Path], None], Config]]] = {
    "musl": (_musl, Config(env=(PATH_VARIABLE, "FLAVOUR=musl"), workdir="/root")),
    "empty": (_empty, Config(entrypoint=("/busybox", "true"))),
    "debian": (_debian, Config(env=(PATH_VARIABLE,))),
    "nonroot": (
        _nonroot,
        Config(env=(PATH_VARIABLE,), user="1000", workdir="/srv/work", owners={"srv/work": (1000, 1000)}),
    ),
    "readonly": (_readonly, Config(env=(PATH_VARIABLE,))),
}
