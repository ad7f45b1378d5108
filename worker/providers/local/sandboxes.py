"""Making, removing and observing sandboxes: the calls that block, each safe to be killed in at any line.

One lock a sandbox orders what processes of the service do to it; the state file says how far somebody came who was killed. Nothing is
kept in memory that another process would need.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time

import msgspec

from app.ledger.model import Reason, Record, is_sandbox_id
from worker.providers.base import Observed, Placement, ProviderError
from worker.providers.local import cgroups, host, launch, rlimits
from worker.providers.local.accounts import look_up
from worker.providers.local.archives import ImageConfig
from worker.providers.local.arguments import SandboxPlan, cgroup_binds
from worker.providers.local.cgroups import Limits
from worker.providers.local.errors import LocalError
from worker.providers.local.folders import Folders
from worker.providers.local.hierarchy import Bases
from worker.providers.local.options import LocalOptions
from worker.providers.local.programs import Programs
from worker.providers.local.removal import sweep
from worker.providers.local.state import (
    SandboxState,
    bury,
    draft_of,
    ids_with_state,
    is_buried,
    load,
    locked,
    new_state,
    prune_locks,
    prune_tombstones,
    save,
)
from worker.providers.local.status import why_gone
from worker.providers.local.teardown import tear_down
from worker.providers.local.workspace import HOSTNAME, Base, Workspace

MIB = 1024**2
SPOOL_INSIDE = "/.sandman/spool"
LOCK_SECONDS = 45.0
"""Above what one create or delete of the same sandbox takes at worst."""
SWEEP_SECONDS = 30.0
ABANDONED_SECONDS = 60.0
"""A create that wrote nothing down for so long is nobody's any more."""
DEADLINE_SLACK_SECONDS = 60.0
"""The daemon's own deadline is a backstop for a service that is gone, so it comes later than the ledger's."""


class Sandboxes:
    """Raises ProviderError, LocalError, OSError."""

    def __init__(self, options: LocalOptions, folders: Folders, programs: Programs, bases: Bases) -> None:
        self._options = options
        self._folders = folders
        self._programs = programs
        self._bases = bases
        self._node = os.uname().nodename
        self._parent = (os.getpid(), os.getppid())

    def create(self, record: Record, token_sha256: str, base: Base, config: ImageConfig) -> Placement:
        if not is_sandbox_id(record.id):
            raise ProviderError(Reason.BACKEND_ERROR, "not a sandbox id")
        bases = self._bases
        folders = self._folders
        with locked(folders.locks / record.id, LOCK_SECONDS):
            if is_buried(folders, record.id):
                raise ProviderError(Reason.BACKEND_ERROR, "this sandbox was deleted before it was made")
            state = load(folders, record.id)
            limits = self._limits(record)
            if state is not None and state.phase == "running" and state.process.alive():
                return Placement(state.address, state.enforced, self._node)
            if state is not None:
                # Somebody was killed half way, or what was made has died since: nobody was told its address. Begin again.
                tear_down(folders, bases, record.id, state)
            try:
                state = self._launch(record, token_sha256, base, config, limits)
            except BaseException:
                with contextlib.suppress(LocalError, OSError):
                    tear_down(folders, bases, record.id, load(folders, record.id))
                raise
        return Placement(state.address, state.enforced, self._node)

    def _launch(
        self, record: Record, token_sha256: str, base: Base, config: ImageConfig, limits: Limits
    ) -> SandboxState:
        programs, bases = self._programs, self._bases
        spec, folders = record.spec, self._folders
        places = {controller: folder / record.id for controller, folder in bases.folders.items()}
        socket_path = folders.socket(record.id)
        state = msgspec.structs.replace(
            new_state(record.id),
            layer=base.key,
            address=f"unix:{socket_path}",
            enforced=rlimits.enforcement(bases),
            cgroups=[str(folder) for folder in bases.sandbox_folders(record.id)],
            memory_cgroup=str(places["memory"]) if "memory" in places else "",
        )
        save(folders, state)
        account = look_up(spec.user or config.user, base.root)
        workspace = Workspace(folders, record.id, base)
        overlays = workspace.make()
        host_network = spec.policy.network == "host"
        workspace.write_network_files(host_network=host_network)
        workdir = spec.workdir or config.workdir or (account.home if base.is_host else None)
        if workdir is not None:
            # Images may name it without the slash.
            workdir = "/" + workdir.lstrip("/")
            workspace.folder(workdir)
        workspace.folder(SPOOL_INSIDE)
        joined = cgroups.make(bases, record.id, limits)
        running = launch.start(
            launch.Launch(
                workspace=workspace,
                plan=SandboxPlan(
                    uid=account.uid,
                    gid=account.gid,
                    hostname=HOSTNAME,
                    overlays=overlays,
                    daemon=programs.daemon,
                    status_fd=-1,
                    config_fd=-1,
                    shm_bytes=max(1024**2, limits.memory_bytes // 2),
                    host_network=host_network,
                    run_tmpfs=base.is_host,
                    read_only=workspace.read_only() + cgroup_binds(places, dict(bases.versions)),
                ),
                bwrap=programs.bwrap,
                socket_path=socket_path,
                config={
                    "token_sha256": token_sha256,
                    "sandbox": record.id,
                    "deadline_seconds": lifetime_seconds(record),
                    "env": environment(base, config, account.home, spec.env),
                    "workdir": workdir,
                    "max_processes": limits.pids if rlimits.counts_per_namespace() else 0,
                    **spool(limits),
                },
                limits=limits,
                cgroups=joined,
                service_parent=self._service_parent(),
                user=(self._options.uid, self._options.gid) if self._options.as_root else None,
            ),
            functools.partial(save, folders),
            state,
        )
        save(folders, running)
        return running

    def _service_parent(self) -> int:
        """This process's parent when it began; another one now means that the service around it is gone."""
        if self._parent[0] != os.getpid():
            self._parent = (os.getpid(), os.getppid())
        return self._parent[1]

    def _limits(self, record: Record) -> Limits:
        spec = record.spec
        return Limits(spec.memory, spec.cpu, spec.policy.pids or self._options.pids_default, spec.disk)

    def delete(self, sandbox_id: str) -> None:
        if not is_sandbox_id(sandbox_id):
            return
        bases = self._bases
        folders = self._folders
        bury(folders, sandbox_id)
        with locked(folders.locks / sandbox_id, LOCK_SECONDS):
            state = load(folders, sandbox_id)
            if state is not None and state.phase != "deleting":
                # For watchers: what ends from here on was meant to.
                save(folders, msgspec.structs.replace(state, phase="deleting"))
            tear_down(folders, bases, sandbox_id, state)

    def observe_all(self) -> list[Observed]:
        found = (self.observe(sandbox_id) for sandbox_id in sorted(self._known_ids()))
        return [observed for observed in found if observed is not None]

    def _known_ids(self) -> set[str]:
        """By any trace: state, files, socket or cgroup."""
        bases = self._bases
        folders = self._folders
        traces = {entry.name for entry in os.scandir(folders.sandboxes)}
        traces |= {entry.name.removesuffix(".sock") for entry in os.scandir(folders.sockets)}
        traces |= cgroups.leftovers(bases)
        # States last: a create that begins meanwhile has one by the time its other traces are seen.
        return {name for name in traces | ids_with_state(folders) if is_sandbox_id(name)}

    def observe(self, sandbox_id: str) -> Observed | None:
        state = load(self._folders, sandbox_id)
        if state is None:
            created = self._trace_time(sandbox_id)
            if created is None:
                return None
            return Observed(
                sandbox_id, "gone", created, reason=Reason.NODE_LOST, detail="a leftover without a state"
            )
        if state.phase in ("launching", "running") and state.process.alive():
            phase = "running" if state.phase == "running" else "starting"
            return Observed(
                sandbox_id,
                "running" if phase == "running" else "starting",
                state.created_ms,
                address=state.address,
                enforced=state.enforced,
            )
        age = time.time() - state.created_ms / 1000
        if state.phase in ("preparing", "launching") and 0 <= age < ABANDONED_SECONDS:
            return Observed(sandbox_id, "starting", state.created_ms)
        reason, detail = why_gone(state, self._folders.sandbox(sandbox_id))
        return Observed(
            sandbox_id, "gone", state.created_ms, address=state.address or None, reason=reason, detail=detail
        )

    def _trace_time(self, sandbox_id: str) -> int | None:
        bases = self._bases
        places = [
            self._folders.sandbox(sandbox_id),
            self._folders.socket(sandbox_id),
            # A state that was being written for the first time.
            draft_of(self._folders, sandbox_id),
            *bases.sandbox_folders(sandbox_id),
        ]
        for path in places:
            with contextlib.suppress(OSError):
                return path.lstat().st_mtime_ns // 1_000_000
        return None

    def sweep(self) -> None:
        """Unlink what deletes left in the trash (and killed processes among images), forget marks that are old enough, and locks whose
        holders were killed."""
        prune_tombstones(self._folders)
        prune_locks(self._folders)
        deadline = time.monotonic() + SWEEP_SECONDS
        for scratch in (self._folders.images, self._folders.host, self._folders.trash):
            sweep(scratch, deadline)


def spool(limits: Limits) -> dict[str, object]:
    """How much of commands' output the daemon keeps: it is paid from the sandbox's own memory and disk."""
    return {
        "spool_dir": SPOOL_INSIDE,
        "memory_bytes": min(32 * MIB, limits.memory_bytes // 16),
        "spool_bytes": min(64 * MIB, limits.disk_bytes // 16),
        "spool_total_bytes": min(1024 * MIB, limits.disk_bytes // 4),
    }


def environment(base: Base, config: ImageConfig, home: str, asked: dict[str, str]) -> dict[str, str]:
    """Of the commands in the sandbox, not of the daemon: lowest the defaults, over them the image's, over them the caller's."""
    defaults = {"PATH": host.PATH, "HOME": home}
    if base.is_host:
        defaults["LANG"] = "C.UTF-8"
    return {**defaults, **config.env, **asked}


def lifetime_seconds(record: Record) -> float:
    """From now to the record's deadline, by the ledger's clock alone: the difference of two of its times."""
    now = max((at for at in record.times.values()), default=None)
    left = 0.0 if now is None else max(0.0, (record.deadline_ms - now) / 1000)
    return left + DEADLINE_SLACK_SECONDS
