"""The provider itself: the worker's calls as coroutines over blocking parts.

Everything that blocks runs in threads of its own, in two pools, so that an import of a large image never keeps a delete waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import resource
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from app.ledger.model import Record
from app.ledger.settings import Settings
from worker.providers.base import Observed, Placement, ProviderError, ProviderUnavailable
from worker.providers.local.archives import ImageConfig
from worker.providers.local.catalogue import HOST
from worker.providers.local.errors import LocalError, as_provider_error
from worker.providers.local.folders import folders_of
from worker.providers.local.hierarchy import Bases, read_bases
from worker.providers.local.host import HostImage
from worker.providers.local.images import ImageStore, layers_in_use, sweep_drafts
from worker.providers.local.options import read_options
from worker.providers.local.programs import Programs, run_trial, stage
from worker.providers.local.sandboxes import LOCK_SECONDS, SWEEP_SECONDS, Sandboxes
from worker.providers.local.state import locked, prune_locks
from worker.providers.local.trial import trial_argv
from worker.providers.local.watching import Watch
from worker.providers.local.workspace import Base, host_base, image_base

THREADS = 16
IMAGE_THREADS = 4
"""Imports that run at once; more would only share the same disk."""

P = ParamSpec("P")
T = TypeVar("T")


class LocalProvider:
    name = "local"

    def __init__(self, settings: Settings) -> None:
        self._options = read_options(settings)
        self._folders = folders_of(self._options)
        self._images = ImageStore(self._options, self._folders)
        self._host = HostImage(
            self._folders, (self._options.storage, self._options.data, self._options.runtime)
        )
        self._threads = ThreadPoolExecutor(THREADS, "local-provider")
        self._image_threads = ThreadPoolExecutor(IMAGE_THREADS, "local-images")
        self._imports: dict[str, Future[tuple[Base, ImageConfig]]] = {}
        self._programs: Programs | None = None
        self._sandboxes: Sandboxes | None = None
        self._bases: Bases | None = None

    async def start(self) -> None:
        """Idempotent. Raises ProviderUnavailable."""
        if self._sandboxes is None:
            await self._run(self._start)

    async def close(self) -> None:
        """Calls that still run in threads end by their own bounds; their sandboxes are in the state files."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._image_threads.shutdown(wait=False, cancel_futures=True)

    async def check(self) -> None:
        await self._run(self._check)

    async def create(self, record: Record, token_sha256: str) -> Placement:
        base, config = await self._base_for(record.spec.image)
        started = time.monotonic()
        placement = await self._run(self._start().create, record, token_sha256, base, config)
        return dataclasses.replace(placement, latency_seconds=time.monotonic() - started)

    async def delete(self, sandbox_id: str) -> None:
        await self.start()
        await self._run(self._start().delete, sandbox_id)

    async def list(self) -> list[Observed]:
        await self.start()
        return await self._run(self._start().observe_all)

    async def withdraw(self) -> None:
        """Cgroups go, images and the host's skeleton stay. A cgroup with somebody in it cannot be removed, so this harms nobody."""
        if self._bases is not None:
            await self._run(self._bases.remove)

    async def watch(self) -> AsyncIterator[Observed]:
        raise_open_files()
        await self.start()
        sandboxes = self._start()
        sweeper = asyncio.create_task(self._sweep_now_and_then(sandboxes))
        try:
            async with contextlib.aclosing(Watch(self._folders, sandboxes.observe).changes()) as changes:
                async for found in changes:
                    yield found
        finally:
            sweeper.cancel()

    def _start(self) -> Sandboxes:
        """Blocks the first time only."""
        if self._sandboxes is not None:
            return self._sandboxes
        try:
            self._folders.make()
            self._options.named_images.mkdir(mode=0o700, parents=True, exist_ok=True)
            programs = stage(self._options, self._folders)
            with locked(self._folders.locks / "cgroups", LOCK_SECONDS):
                bases = read_bases(self._options.instance)
        except (OSError, LocalError) as error:
            raise ProviderUnavailable(
                f"The folders of the local provider cannot be used: {error}. Make {self._folders.storage} and {self._folders.runtime} "
                f"writable for uid {os.geteuid()}, or use another folder with --data-dir."
            ) from error
        self._programs, self._bases = programs, bases
        self._sandboxes = Sandboxes(self._options, self._folders, programs, bases)
        return self._sandboxes

    def _check(self) -> None:
        self._start()
        assert self._programs is not None
        try:
            with contextlib.ExitStack() as stack:
                run_trial(trial_argv(self._programs.bwrap, self._folders, stack), self._options)
            self._find_base(HOST)
            sweep_drafts(self._folders)
            prune_locks(self._folders)
        except LocalError as error:
            raise ProviderUnavailable(
                f"{error}. Another service may be using {self._folders.storage}."
            ) from error
        except OSError as error:
            raise ProviderUnavailable(
                f"The storage folder {self._folders.storage} cannot be used: {error.strerror} ({error.filename})."
            ) from error

    async def _base_for(self, image: str) -> tuple[Base, ImageConfig]:
        """The layers to stand on. Callers that ask for the same image at once wait for one import, without holding a thread each."""
        await self.start()
        if image == HOST:
            layers = self._host.fresh()
            if layers is not None:
                return host_base(layers), ImageConfig()
        future = self._imports.get(image)
        if future is None or future.done():
            future = self._image_threads.submit(self._find_base, image)
            self._imports[image] = future
            future.add_done_callback(functools.partial(self._forget_import, image))
        try:
            # Shielded: one caller that goes away must not end the import for the others.
            return await asyncio.shield(asyncio.wrap_future(future))
        except (LocalError, OSError) as error:
            raise as_provider_error(error) from error

    def _forget_import(self, image: str, done: Future[tuple[Base, ImageConfig]]) -> None:
        if self._imports.get(image) is done:
            self._imports.pop(image, None)

    def _find_base(self, image: str) -> tuple[Base, ImageConfig]:
        if image == HOST:
            with locked(self._folders.locks / "host", LOCK_SECONDS):
                return host_base(self._host.current(layers_in_use(self._folders))), ImageConfig()
        found = self._images.get(image)
        return image_base(found), found.config

    async def _sweep_now_and_then(self, sandboxes: Sandboxes) -> None:
        while True:
            with contextlib.suppress(ProviderError):
                await self._run(sandboxes.sweep)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread. When the caller is cancelled the thread goes on to its end; what it made is found by `list`."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, functools.partial(call, *args, **kwargs))
        except (LocalError, OSError) as error:
            raise as_provider_error(error) from error


def raise_open_files() -> None:
    """One descriptor a sandbox is watched through; the usual soft limit of 1,024 is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
