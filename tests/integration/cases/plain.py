"""Sandboxes and their files by plain HTTP: nothing renews a lease here, repeats a call or smooths an answer over.

Where a sandbox that is merely used is enough, tests take a `box` (see conftest). Images are put where the service takes them
from, `DIR/images`; each is one archive of a root of `tests.roots`.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import httpx

from tests import roots
from tests.integration.cases.box import Answer, fields, problem, resident_bytes
from tests.service import Service

LIVE = "queued,creating,starting,ready"
SMALL: Answer = {"image": "host", "cpu": 0.5, "memory": 64 * 1024**2}


@dataclass(frozen=True)
class Plain:
    """One sandbox, by its record."""

    http: httpx.Client
    record: Answer

    @property
    def id(self) -> str:
        return str(self.record["id"])

    @property
    def path(self) -> str:
        return f"/v1/sandboxes/{self.id}"

    @property
    def files(self) -> Files:
        return Files(self.http, self.path)

    def look(self, wait: float = 0) -> Answer:
        found: Answer = self.http.get(self.path, params={"wait": wait}).json()
        return found

    def exec(self, command: str | list[str], **members: Any) -> httpx.Response:
        body = {"command" if isinstance(command, str) else "argv": command, **members}
        return self.http.post(f"{self.path}/exec", json=body)

    def out(self, command: str, **members: Any) -> str:
        result = self.exec(command, **members).json()
        assert result.get("exit_code") == 0, result
        return str(result["stdout"])

    def delete(self, wait: float = 0) -> httpx.Response:
        return self.http.delete(self.path, params={"wait": wait})


@dataclass(frozen=True)
class Files:
    http: httpx.Client
    prefix: str

    def __call__(self, method: str, path: str | bytes, content: Any = b"", **query: str) -> httpx.Response:
        return self.http.request(method, f"{self.prefix}/files?{where(path, query)}", content=content)

    def stat(self, path: str | bytes) -> Answer:
        answer = self.http.get(f"{self.prefix}/files/stat?{where(path)}")
        assert answer.status_code == 200, answer.text
        found: Answer = answer.json()
        return found

    def listing(self, path: str | bytes, **query: str) -> httpx.Response:
        return self.http.get(f"{self.prefix}/files/list?{where(path, query)}", timeout=120)

    def names(self, path: str | bytes) -> list[str]:
        answer = self.listing(path, limit="10000")
        assert answer.status_code == 200, answer.text
        return [entry["name"] for entry in answer.json()["items"]]

    def move(self, source: str, target: str) -> httpx.Response:
        return self.http.post(f"{self.prefix}/files/move", json={"from": source, "to": target})

    def mkdir(self, **members: Any) -> httpx.Response:
        return self.http.post(f"{self.prefix}/files/mkdir", json=members)


def where(path: str | bytes, query: dict[str, str] | None = None) -> str:
    """A path and more as a query; of the path every byte that is not plain is encoded."""
    raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
    more = [f"{key}={value}" for key, value in (query or {}).items()]
    return "&".join([f"path={quote_from_bytes(raw, safe='/')}", *more])


def create(http: httpx.Client, *, wait: float = 60, **members: Any) -> Plain:
    answer = http.post("/v1/sandboxes", params={"wait": wait}, json=SMALL | members, timeout=wait + 30)
    assert answer.status_code in (201, 202), answer.text
    return Plain(http, answer.json())


@contextmanager
def sandbox(service: Service, **members: Any) -> Iterator[Plain]:
    """A ready sandbox that is deleted at the end."""
    with service.http() as http:
        made = create(http, **members)
        assert made.record["state"] == "ready", made.record
        try:
            yield made
        finally:
            made.delete(wait=20)


def image(service: Service, name: str) -> str:
    """A root of `tests.roots`, as an image that this service knows by its bare name."""
    target = service.data_dir / "images" / f"{name}.tar"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        draft = target.with_suffix(".draft")
        shutil.copy(roots.oci_archive(roots.root(name)), draft)
        draft.rename(target)
    return name


def field_of(answer: httpx.Response, slug: str = "invalid") -> str:
    """The one field that a 422 names."""
    (name,) = fields(problem(answer, 422, slug))
    return name


def live(http: httpx.Client, **labels: str) -> dict[str, str]:
    """Id → state of all that is alive and carries these labels."""
    found: dict[str, str] = {}
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"state": LIVE, "limit": 500, **({"cursor": cursor} if cursor else {})}
        params["label"] = [f"{key}={value}" for key, value in labels.items()]
        page = http.get("/v1/sandboxes", params=params).json()
        found |= {item["id"]: item["state"] for item in page["items"]}
        cursor = page["next"]
        if cursor is None:
            return found


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


class Peak:
    """How much more memory each process held resident, at the most, than when it began to be watched."""

    def __init__(self, *pids: int) -> None:
        self.grown = dict.fromkeys(pids, 0)
        self._before: dict[int, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._before = {pid: resident_bytes(pid) for pid in self.grown}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            for pid, before in self._before.items():
                self.grown[pid] = max(self.grown[pid], resident_bytes(pid) - before)


def descendants(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for one in found:
        for listed in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += [int(child) for child in listed.read_text().split()]
            except OSError:
                continue
    return found


def steps(seconds: float, pause: float = 0.05) -> Iterator[float]:
    """The time that has passed, again and again for so long."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        yield passed
        time.sleep(pause)
