"""Debian packages as files, for building image roots: fetched by apt, unpacked here.

No package is installed and no script of one is run, so neither root rights nor a chroot are needed, and the machine's own packages
stay as they are: apt works on a state of its own, in which nothing is installed yet and every dependency is therefore fetched.
"""

from __future__ import annotations

import io
import lzma
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

APT_SECONDS_MAX = 300.0
LISTS_FRESH_SECONDS = 24 * 3600.0
"""A mirror drops old package files a day or more after it lists new ones."""

MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders that are links into /usr in the running system, while packages still carry some as folders."""


class PackagesUnavailable(Exception):
    """The packages cannot be had here; the message says what is missing."""


class Packages:
    """Fetches into `folder`, which only grows: files are kept and found again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fetch(self, wanted: Sequence[str], *, dependencies: bool) -> list[Path]:
        """The .deb files of packages (names or apt patterns). Blocks up to minutes. Raises PackagesUnavailable."""
        if shutil.which("apt-get") is None:
            raise PackagesUnavailable(
                "image roots are made of Debian packages, and this machine has no apt-get"
            )
        archives = self._folder / "archives"
        nothing = self._folder / "nothing"
        for folder in (self._folder / "lists", archives, nothing):
            (folder / "partial").mkdir(parents=True, exist_ok=True)
        (self._folder / "status").write_bytes(b"")
        stamp = self._folder / "updated"
        if not stamp.exists() or time.time() - stamp.stat().st_mtime > LISTS_FRESH_SECONDS:
            self._apt("update")
            stamp.touch()
        # Asked of an empty folder: apt leaves out what it has already.
        command = ["--yes", "--no-install-recommends", "--print-uris", "install", *wanted]
        names = [
            line.split()[1]
            for line in self._apt(*command, archives=nothing).splitlines()
            if line.startswith("'")
        ]
        if not dependencies:
            names = [name for name in names if name.split("_")[0] in wanted]
        if not all((archives / name).is_file() for name in names):
            self._apt("--yes", "--no-install-recommends", "--download-only", "install", *wanted)
        missing = [name for name in names if not (archives / name).is_file()]
        if missing or not names:
            raise PackagesUnavailable(f"apt-get did not bring {missing or list(wanted)}")
        return [archives / name for name in sorted(names)]

    def _apt(self, *arguments: str, archives: Path | None = None) -> str:
        options = {
            "Dir::State::lists": self._folder / "lists",
            "Dir::State::status": self._folder / "status",
            "Dir::Cache::archives": archives or self._folder / "archives",
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "Debug::NoLocking": "1",
            "APT::Sandbox::User": "",
            "Acquire::Retries": "2",
            "Acquire::Languages": "none",
        }
        command = ["apt-get"]
        for name, value in options.items():
            command += ["-o", f"{name}={value}"]
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=APT_SECONDS_MAX,
            check=False,
        )
        # Other sources of the machine may be out of reach; whether ours were is seen by what came.
        if done.returncode != 0 and "update" not in arguments:
            raise PackagesUnavailable(f"apt-get {arguments[-1]}: {done.stderr.strip()[-500:]}")
        return done.stdout


def members(package: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a .deb, which is an `ar` archive."""
    with package.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise PackagesUnavailable(f"{package.name} is no package")
        while len(header := file.read(60)) == 60:
            size = int(header[48:58])
            yield header[:16].decode().strip().rstrip("/"), file.read(size + size % 2)[:size]


def unpack(package: Path, root: Path) -> None:
    """Put what a package holds under root, everything below /usr where the running system has it there."""
    for name, content in members(package):
        if name.startswith("data.tar"):
            plain = lzma.decompress(content) if name.endswith(".xz") else content
            with tarfile.open(fileobj=io.BytesIO(plain), mode="r:*") as archive:
                for member in archive:
                    member.name = merged(member.name)
                    if member.islnk():
                        member.linkname = merged(member.linkname)
                    if member.name != "." and not (root / member.name).is_symlink():
                        archive.extract(member, root, filter=_own)
            return
    raise PackagesUnavailable(f"{package.name} holds no data")


def merged(name: str) -> str:
    path = PurePosixPath(name)
    return str(PurePosixPath("usr") / path if path.parts and path.parts[0] in MERGED else path)


def _own(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """Like the filter "tar", but everything belongs to whoever unpacks it, and can be removed by them again."""
    checked = tarfile.tar_filter(member, path)
    mode = (member.mode | 0o700) if member.isdir() else member.mode
    return checked.replace(uid=None, gid=None, uname=None, gname=None, mode=mode, deep=False)  # type: ignore[arg-type]
