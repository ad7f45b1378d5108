"""What this provider needs to know, taken from the settings once.

`instance` names this installation on the machine (it hashes the storage folder and the namespace): cgroups carry it, so that two
installations never touch each other's sandboxes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.ledger.settings import Settings

SANDBOX_UID_DEFAULT = 400_000
"""Outside every range that distributions give to people, services and containers' sub-uids by default."""
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class LocalOptions:
    storage: Path
    runtime: Path
    data: Path
    daemon: Path | None
    bwrap: Path | None
    uid: int
    """Who sandboxes run as outside."""
    gid: int
    as_root: bool
    """The service is root and gives sandboxes `uid`; else everything is the service's own user."""
    image_roots: tuple[Path, ...]
    """Folders under which callers may name images by path; DIR/images is the first."""
    images_max: int
    image_bytes_max: int
    pids_default: int
    instance: str

    @property
    def named_images(self) -> Path:
        """What lies in here is an image by its bare name."""
        return self.data / "images"


def read_options(settings: Settings, environ: Mapping[str, str] | None = None) -> LocalOptions:
    env = os.environ if environ is None else environ
    paths = settings.paths
    storage = paths.storage_dir.absolute()
    as_root = os.geteuid() == 0
    uid = (settings.sandbox_uid or SANDBOX_UID_DEFAULT) if as_root else os.geteuid()
    listed = [Path(part) for part in env.get("SANDMAN_IMAGE_ROOTS", "").split(os.pathsep) if part]
    return LocalOptions(
        storage=storage,
        runtime=paths.runtime_dir.absolute(),
        data=paths.data_dir.absolute(),
        daemon=paths.daemon,
        bwrap=paths.bwrap,
        uid=uid,
        gid=uid if as_root else os.getegid(),
        as_root=as_root,
        image_roots=(paths.data_dir.absolute() / "images", *listed),
        images_max=int(env.get("SANDMAN_IMAGES_MAX") or 32),
        image_bytes_max=int(env.get("SANDMAN_IMAGE_BYTES_MAX") or 64 * GIB),
        pids_default=settings.limits.pids_default,
        instance=instance_name(settings.redis.namespace, storage),
    )


def instance_name(namespace: str, storage: Path) -> str:
    digest = hashlib.sha256(f"{namespace}\0{storage.resolve()}".encode()).hexdigest()[:8]
    return f"sandman-{re.sub(r'[^A-Za-z0-9-]', '-', namespace)[:40]}-{digest}"
