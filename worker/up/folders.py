"""The folders of one service: what is kept (DIR), what lives as long as the machine (RUNTIME_DIR), sandboxes' files (STORAGE_DIR).

Two facts force three places. A unix socket's path holds 107 bytes at most, so sockets cannot lie under a DIR of any length.
And a service that runs as root gives its sandboxes an unprivileged user outside, who must reach their files: under a DIR in
somebody's private folder that user cannot. All three follow from DIR alone, so that the next start finds the leftovers of the
last one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from worker.up.errors import StartRefused
from worker.up.keys import write_private

RUNTIME_PATH_MAX = 59
"""Bytes. "/s/<29 bytes of id>.sock" comes after it, and 107 is the kernel's limit; the rest is room for the daemons' own names."""
SANDBOX_UID_DEFAULT = 400000
OLD_CHILDREN_SECONDS = 10.0
"""How long the children of a supervisor that was killed may still be dying when the next one starts."""


@dataclass(frozen=True, kw_only=True)
class Folders:
    data: Path
    runtime: Path
    storage: Path
    lock: int
    """Held by this supervisor alone, as long as it lives."""
    children_lock: int
    """Shared with every child process: free again only when the last one is gone."""

    @property
    def redis(self) -> Path:
        return self.data / "redis"

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    def release(self) -> None:
        """Let go of everything that was only there to run; what is kept stays."""
        shutil.rmtree(self.runtime, ignore_errors=True)
        with suppress(OSError):
            self.runtime.parent.rmdir()  # Fails while another service has its sockets there.
        os.close(self.children_lock)
        os.close(self.lock)

    @property
    def valkey_socket(self) -> Path:
        return self.runtime / "valkey.sock"


class Made:
    """What a start that is refused takes away again: the data folder when there was none before, with all in it, and the folders
    above it that were made for it. A folder that was there keeps everything: it may be somebody's."""

    def __init__(self, data_dir: Path) -> None:
        self._data = data_dir
        self._above = [folder for folder in data_dir.parents if not folder.exists()]
        self._fresh = not data_dir.exists()

    def undo(self, storage: Path | None = None) -> None:
        if not self._fresh:
            return
        shutil.rmtree(self._data, ignore_errors=True)
        if storage is not None and not storage.is_relative_to(self._data):
            shutil.rmtree(storage, ignore_errors=True)
        for folder in self._above:
            with suppress(OSError):
                folder.rmdir()


def in_use(data_dir: Path) -> bool:
    """Whether a supervisor holds this folder now. Makes nothing."""
    try:
        lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def prepare(data_dir: Path, *, sandbox_uid: int) -> Folders:
    """Make and lock the folders. Raises StartRefused; starts nothing, and writes nothing but empty folders and locks."""
    _make_data_dir(data_dir)
    with ExitStack() as undo:
        lock = _lock(data_dir / "lock")
        undo.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartRefused(
                f"Another `sandman up` is running on {data_dir}.",
                "Stop that one, or give this one its own folder with --data-dir.",
            ) from None
        children_lock = _lock(data_dir / "children.lock")
        undo.callback(os.close, children_lock)
        _wait_for_old_children(children_lock, data_dir)
        for name in ("redis", "logs"):
            (data_dir / name).mkdir(mode=0o700, exist_ok=True)
        made = Folders(
            data=data_dir,
            runtime=_make_runtime_dir(data_dir),
            storage=_make_storage_dir(data_dir, sandbox_uid),
            lock=lock,
            children_lock=children_lock,
        )
        undo.pop_all()
        return made


def ensure_secret(data_dir: Path) -> Path:
    """The service's own secret, from which every sandbox's token is derived."""
    path = data_dir / "secret"
    if not path.exists():
        write_private(path, secrets.token_hex(32) + "\n")
    return path


def _make_data_dir(data_dir: Path) -> None:
    try:
        data_dir.parent.mkdir(parents=True, exist_ok=True)
        _make_passable(data_dir)
        probe = data_dir / f".probe.{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except FileExistsError:
        raise StartRefused(
            f"{data_dir} is not a folder.", "Name a folder with --data-dir; it is made when it is missing."
        ) from None
    except OSError as error:
        raise StartRefused(
            f"The data folder {data_dir} cannot be written: {error.strerror}.",
            f"Make it writable for this user (now: {_who()}), or name another folder with --data-dir.",
        ) from error


def _make_passable(folder: Path) -> None:
    """Make it, when it is missing, private but for root's: through that the sandboxes' user can pass without listing it. Every
    secret in there is a file of mode 0600."""
    if folder.is_dir():
        return
    folder.mkdir()
    # Not by mkdir's mode: the umask takes bits away there.
    folder.chmod(0o711 if os.geteuid() == 0 else 0o700)


def _lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _wait_for_old_children(lock: int, data_dir: Path) -> None:
    deadline = time.monotonic() + OLD_CHILDREN_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StartRefused(
                    f"Processes of an earlier service on {data_dir} are still alive.",
                    f"`fuser {data_dir / 'children.lock'}` shows them; end them and try again.",
                ) from None
            time.sleep(0.05)


def runtime_dir(data_dir: Path) -> Path:
    """Where the sockets of this data folder's service lie."""
    name = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:12]
    base = os.environ.get("XDG_RUNTIME_DIR")
    if os.geteuid() == 0:
        parent = Path("/run/sandman")
    elif (
        base
        and len(os.fsencode(base)) <= RUNTIME_PATH_MAX - len(f"/sandman/{name}")
        and os.access(base, os.W_OK)
    ):
        parent = Path(base) / "sandman"
    else:
        parent = Path(f"/tmp/sandman-{os.geteuid()}")
    return parent / name


def _make_runtime_dir(data_dir: Path) -> Path:
    folder = runtime_dir(data_dir)
    _make_own(folder.parent)
    _make_own(folder)
    return folder


def _make_own(folder: Path) -> None:
    """A folder in a place where others can write may be a trap that somebody laid; only our own is used."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise StartRefused(
            f"The folder {folder} for sockets cannot be made: {error.strerror}.",
            "Make its parent writable, or set XDG_RUNTIME_DIR to a folder of your own.",
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise StartRefused(
            f"{folder} exists and does not belong to {_who()}.", "Remove it, or set XDG_RUNTIME_DIR."
        )
    folder.chmod(0o700)


def _make_storage_dir(data_dir: Path, sandbox_uid: int) -> Path:
    """DIR/storage where the sandboxes' user can go there, else a folder in /var/lib; the choice is written down once."""
    record = data_dir / "storage.json"
    if record.exists():
        storage = Path(json.loads(record.read_text())["storage"])
    elif os.geteuid() != 0 or _can_enter(data_dir, sandbox_uid):
        storage = data_dir / "storage"
    else:
        storage = Path("/var/lib/sandman") / hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:16]
    try:
        _make_passable(storage.parent)
        _make_passable(storage)
    except OSError as error:
        raise StartRefused(
            f"The folder {storage} for sandboxes' files cannot be made: {error.strerror}.",
            "Make its parent writable.",
        ) from error
    if os.geteuid() == 0 and not _can_enter(storage, sandbox_uid):
        raise StartRefused(
            f"The sandboxes' user (uid {sandbox_uid}) cannot reach {storage}.",
            "Allow others to pass through its parent folders (chmod o+x), or remove "
            f"{record} together with the folder that it names, so that another place is chosen.",
        )
    if not record.exists():
        write_private(record, json.dumps({"storage": str(storage)}) + "\n")
    return storage


def _can_enter(folder: Path, uid: int) -> bool:
    """Tried by a child that becomes that user: mode bits alone would miss ACLs and security modules."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            status = 1
            os.chdir(folder)
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 2:
        raise StartRefused(
            f"Root cannot become the sandboxes' user (uid {uid}) here, as in a container that maps few users.",
            "Set SANDMAN_SANDBOX_UID to an unprivileged uid that exists here, or start as another user than root.",
        )
    return status == 0


def _who() -> str:
    return "root" if os.geteuid() == 0 else f"uid {os.geteuid()}"
