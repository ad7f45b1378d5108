"""An unpacked root and its configuration, written as the image files that people have: an OCI layout, the same in a tar, and
what `docker save` writes. One layer, the same bytes for the same root: an image's name is its digest."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True, slots=True)
class Config:
    """What an image says of how to run it. None: the image does not say."""

    env: tuple[str, ...] = ()
    user: str | None = None
    workdir: str | None = None
    entrypoint: tuple[str, ...] | None = None
    owners: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Not of the image's configuration but of its layer: path in the root → uid and gid, for it and all below; others are 0:0."""

    def document(self, diff_id: str) -> dict[str, Any]:
        run: dict[str, Any] = {"Env": list(self.env)}
        if self.user is not None:
            run["User"] = self.user
        if self.workdir is not None:
            run["WorkingDir"] = self.workdir
        if self.entrypoint is not None:
            run["Entrypoint"] = list(self.entrypoint)
        return {
            "architecture": "arm64" if os.uname().machine == "aarch64" else "amd64",
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        }


def write_layer(root: Path, config: Config, target: Path) -> str:
    """The root as one layer; returns its digest."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            member = archive.gettarinfo(path, name)
            if member is None or stat.S_ISSOCK(path.lstat().st_mode):
                continue
            member.uid, member.gid = owner_of(name, config)
            member.uname = member.gname = ""
            member.mtime = 0
            if member.isreg():
                with path.open("rb") as content:
                    archive.addfile(member, content)
            else:
                archive.addfile(member)
    with target.open("rb") as layer:
        return "sha256:" + hashlib.file_digest(layer, "sha256").hexdigest()


def owner_of(name: str, config: Config) -> tuple[int, int]:
    for path, owner in config.owners.items():
        if name == path or name.startswith(path + "/"):
            return owner
    return 0, 0


def write_layout(root: Path, config: Config, target: Path) -> None:
    """An OCI image layout folder."""
    blobs = target / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    draft = blobs / "layer"
    layer = write_layer(root, config, draft)
    size = draft.stat().st_size
    draft.rename(blobs / layer.removeprefix("sha256:"))

    def blob(document: dict[str, Any], media_type: str) -> dict[str, Any]:
        content = encode(document)
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": "sha256:" + digest, "size": len(content)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(config.document(layer), CONFIG),
        "layers": [{"mediaType": LAYER, "digest": layer, "size": size}],
    }
    (target / "oci-layout").write_bytes(encode({"imageLayoutVersion": "1.0.0"}))
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [blob(manifest, MANIFEST)]}
    (target / "index.json").write_bytes(encode(index))


def write_oci_archive(layout: Path, target: Path) -> None:
    """A layout in one tar."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(layout.rglob("*")):
            archive.add(path, path.relative_to(layout).as_posix(), recursive=False)


def write_docker_archive(root: Path, config: Config, target: Path, tag: str) -> None:
    """What `docker save` writes."""
    draft = target.with_name(target.name + ".layer")
    try:
        layer = write_layer(root, config, draft)
        document = encode(config.document(layer))
        names = (hashlib.sha256(document).hexdigest() + ".json", layer.removeprefix("sha256:") + "/layer.tar")
        manifest = encode([{"Config": names[0], "RepoTags": [tag], "Layers": [names[1]]}])
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
            archive.add(draft, names[1], filter=_plain)
            for name, content in ((names[0], document), ("manifest.json", manifest)):
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o644
                archive.addfile(member, io.BytesIO(content))
    finally:
        draft.unlink(missing_ok=True)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member


def encode(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
