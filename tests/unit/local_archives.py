"""Makes images as other tools would, small enough for tests: layers, OCI layouts and archives, `docker save` archives."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from worker.providers.local.folders import Folders

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())

Entry = tuple[str, str, Any]
"""(kind, name, content): dir (mode), file (bytes), link (target), hard (target), fifo, device."""


def layer(entries: Iterable[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for kind, name, content in entries:
            info = tarfile.TarInfo(name)
            info.mtime, info.mode = 1_700_000_000, 0o644
            data = b""
            if kind == "dir":
                info.type, info.mode = tarfile.DIRTYPE, content
            elif kind == "file":
                data = content
                info.size = len(data)
            elif kind == "link":
                info.type, info.linkname = tarfile.SYMTYPE, content
            elif kind == "hard":
                info.type, info.linkname = tarfile.LNKTYPE, content
            elif kind == "fifo":
                info.type = tarfile.FIFOTYPE
            else:
                info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 3
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def oci_layout(
    folder: Path, layers: list[bytes], config: dict[str, Any] | None = None, *, nested: bool = False
) -> Path:
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    described = put(
        json.dumps({"architecture": ARCHITECTURE, "os": "linux", "config": config or {}}).encode(), "config"
    )
    manifest = put(
        json.dumps(
            {"schemaVersion": 2, "config": described, "layers": [put(one, "layer") for one in layers]}
        ).encode(),
        "application/vnd.oci.image.manifest.v1+json",
    )
    manifests = [
        {**manifest, "platform": {"architecture": "riscv64", "os": "linux"}, "digest": "sha256:" + "0" * 64},
        {**manifest, "platform": {"architecture": ARCHITECTURE, "os": "linux"}},
    ]
    if nested:
        index = put(json.dumps({"schemaVersion": 2, "manifests": manifests}).encode(), "index")
        manifests = [index]
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def archive_of(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as tar:
        for member in sorted(folder.iterdir()):
            tar.add(member, arcname=member.name)
    return path


def docker_archive(path: Path, layers: list[bytes], config: dict[str, Any] | None = None) -> Path:
    members = {f"{index}/layer.tar": content for index, content in enumerate(layers)}
    members["config.json"] = json.dumps({"architecture": ARCHITECTURE, "config": config or {}}).encode()
    members["manifest.json"] = json.dumps(
        [
            {
                "Config": "config.json",
                "RepoTags": ["t:1"],
                "Layers": [name for name in members if name.endswith("layer.tar")],
            }
        ]
    ).encode()
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def gz(content: bytes) -> bytes:
    return gzip.compress(content, 1)


def own_folders(base: Path) -> Folders:
    """Folders of the test's own user: nothing is given away, so that any user can run the tests."""
    folders = Folders(base / "storage", base / "run", os.geteuid(), os.getegid(), as_root=False)
    folders.make()
    return folders
