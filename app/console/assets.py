"""The console's few static files, held in memory and named by their content.

Serving from a fixed table instead of a folder leaves nothing to traverse, and the digest in the address lets browsers keep a
file for ever without ever showing an old one after an upgrade.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SERVICE_ROOT: Final = Path(__file__).resolve().parents[2]
"""The folder that holds app/, templates/ and static/, in a checkout as well as in the wheel."""

KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES: Final = (
    "console.css",
    "console.js",
    "mark.svg",
    "vendor/htmx-4.0.1.min.js",
    "vendor/hx-csp-4.0.1.min.js",
)


@dataclass(frozen=True, slots=True)
class Asset:
    name: str
    kind: str
    body: bytes
    packed: bytes
    digest: str

    @property
    def address(self) -> str:
        return f"/static/{self.digest}/{self.name}"


class Assets:
    def __init__(self, root: Path = SERVICE_ROOT) -> None:
        self._by_name: dict[str, Asset] = {}
        for name in FILES:
            body = (root / "static" / name).read_bytes()
            self._by_name[name] = Asset(
                name=name,
                kind=KINDS[Path(name).suffix],
                body=body,
                packed=gzip.compress(body, mtime=0),
                digest=hashlib.sha256(body).hexdigest()[:16],
            )

    def address(self, name: str) -> str:
        return self._by_name[name].address

    def find(self, name: str) -> Asset | None:
        return self._by_name.get(name)
