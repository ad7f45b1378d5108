"""The rules for each field of a create, the same for every provider.

Pure: a body and the limits in, a spec or every broken rule out. What one backend could not do (a label that Kubernetes
refuses, a name that a shell would read as an option) is refused for all, so that a task that works on a laptop works on a
cluster.
"""

from __future__ import annotations

import math
import re
from typing import Final

from app.ledger.model import Policy, SandboxSpec, is_run_id
from app.ledger.settings import LeaseSettings, LimitSettings
from app.problems import FieldError, invalid
from app.sandboxes.schemas import CreateSandbox

ENV_KEYS_MAX: Final = 1024
ENV_KEY_BYTES_MAX: Final = 256
# The kernel refuses a longer "NAME=value" in execve (MAX_ARG_STRLEN, its NUL included), so no command could ever start.
ENV_PAIR_BYTES_MAX: Final = 131_071
# Of the kernel's 2 MiB for arguments and environment together; the rest is left to what single commands bring along. Also
# well below the 1.5 MB that a Kubernetes object may have.
ENV_BYTES_MAX: Final = 512 * 1024
PATH_BYTES_MAX: Final = 4095
IMAGE_BYTES_MAX: Final = 4096
LABELS_MAX: Final = 64
# Ours, and those that Kubernetes keeps for itself.
RESERVED_LABEL_DOMAINS: Final = ("kubernetes.io", "k8s.io", "sandman.dev", "sandman.io")
IDEMPOTENCY_KEY_MAX: Final = 255

_ENV_KEY: Final = re.compile(r"[ -<>-~]+\Z")
_QUANTITY: Final = re.compile(r"(\d{1,15})(?:\.(\d{1,9}))?(?:(Ki|Mi|Gi|Ti|k|M|G|T)B?)?\Z", re.ASCII)
_UNITS: Final = {
    None: 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_ACCOUNT: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_USER: Final = re.compile(rf"{_ACCOUNT}(?::{_ACCOUNT})?\Z")
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
_DOMAIN: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*\Z"
)
_IDEMPOTENCY_KEY: Final = re.compile(r"[!-~]+\Z")

# The grammar of image references, as registries and runtimes read it.
_NAME_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST_PART: Final = r"(?:[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-]*[A-Za-z0-9])"
_HOST: Final = rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?"
_REFERENCE: Final = re.compile(
    rf"(?:{_HOST}/)?{_NAME_PART}(?:/{_NAME_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?\Z"
)
_LOCAL_SCHEMES: Final = ("dir:", "oci:", "oci-archive:", "docker-archive:")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class Faults:
    """Broken rules, collected so that one answer names them all."""

    def __init__(self) -> None:
        self.listed: list[FieldError] = []

    def add(self, field: str, message: str) -> None:
        if len(self.listed) < 50:
            self.listed.append(FieldError(field, message))

    def raise_any(self) -> None:
        if self.listed:
            raise invalid(*self.listed)


def to_spec(body: CreateSandbox, limits: LimitSettings) -> SandboxSpec:
    """The spec with all defaults filled in. Raises the `invalid` problem that names every broken rule."""
    faults = Faults()
    check_image(body.image, faults)
    env = body.env or {}
    check_env("env", env, faults)
    cpu = _cpu(body.cpu, limits, faults)
    memory = _bytes(
        "memory",
        body.memory,
        limits.memory_bytes_default,
        limits.memory_bytes_min,
        limits.memory_bytes_max,
        faults,
    )
    disk = _bytes(
        "disk", body.disk, limits.disk_bytes_default, limits.disk_bytes_min, limits.disk_bytes_max, faults
    )
    user = check_user(body.user, faults)
    check_workdir("workdir", body.workdir, faults)
    labels = body.labels or {}
    check_labels(labels, faults)
    if body.run is not None and not is_run_id(body.run):
        faults.add("run", "is not the id of a run")
    policy = body.policy
    pids = limits.pids_default if policy is None or policy.pids is None else policy.pids
    if not 1 <= pids <= limits.pids_max:
        faults.add("policy.pids", f"must be from 1 to {limits.pids_max}")
    network = "none" if policy is None or policy.network is None else policy.network
    faults.raise_any()
    return SandboxSpec(
        image=body.image,
        cpu=cpu,
        memory=memory,
        disk=disk,
        env=env,
        user=user,
        workdir=body.workdir,
        labels=labels,
        policy=Policy(network=network, pids=pids),
    )


def check_image(image: str, faults: Faults) -> None:
    path = image
    for scheme in _LOCAL_SCHEMES:
        if image.startswith(scheme):
            path = image.removeprefix(scheme)
            if not path.startswith("/"):
                faults.add("image", f"{scheme} needs an absolute path")
                return
    if not image or len(image.encode()) > IMAGE_BYTES_MAX:
        faults.add("image", f"must have 1 to {IMAGE_BYTES_MAX} bytes")
    elif _CONTROL.search(image):
        faults.add("image", "must not hold control characters")
    elif path.startswith("/"):
        if ".." in path.split("/"):
            faults.add("image", "must be a path without ..")
    elif len(image) > 512 or not _REFERENCE.match(image):
        faults.add("image", 'is neither "host", an absolute path nor an image reference such as debian:12')


def check_env(field: str, env: dict[str, str], faults: Faults) -> None:
    if len(env) > ENV_KEYS_MAX:
        faults.add(field, f"at most {ENV_KEYS_MAX} variables")
        return
    total = 0
    for name, value in env.items():
        place = f"{field}.{name[:64]}" if _ENV_KEY.match(name) else field
        if not name:
            faults.add(field, "a name must not be empty")
        elif "=" in name or "\0" in name:
            faults.add(field, "a name must not hold = or NUL")
        elif not _ENV_KEY.match(name) or len(name) > ENV_KEY_BYTES_MAX:
            faults.add(field, f"a name is printable ASCII without =, at most {ENV_KEY_BYTES_MAX} characters")
        if "\0" in value:
            faults.add(place, "must not hold NUL")
        size = len(name.encode()) + len(value.encode()) + 1
        if size > ENV_PAIR_BYTES_MAX:
            faults.add(place, f"name and value together have more than {ENV_PAIR_BYTES_MAX - 1} bytes")
        total += size + 1
    if total > ENV_BYTES_MAX:
        faults.add(field, f"all variables together have more than {ENV_BYTES_MAX} bytes")


def check_user(user: int | str | None, faults: Faults) -> str | None:
    """A name or number, never something that a command line could take for an option."""
    if user is None:
        return None
    if isinstance(user, int):
        if not 0 <= user < 2**31:
            faults.add("user", "a uid is from 0 to 2147483647")
        return str(user)
    if not _USER.match(user):
        faults.add("user", "must be a name or uid of letters, digits, _ . -, with an optional :group")
    return user


def check_workdir(field: str, path: str | None, faults: Faults) -> None:
    if path is None:
        return
    if not path.startswith("/"):
        faults.add(field, "must be an absolute path")
    if "\0" in path:
        faults.add(field, "must not hold NUL")
    if len(path.encode()) > PATH_BYTES_MAX:
        faults.add(field, f"at most {PATH_BYTES_MAX} bytes")


def check_labels(labels: dict[str, str], faults: Faults, field: str = "labels") -> None:
    """Kubernetes' own rule for labels, so that both backends can carry them as they are."""
    if len(labels) > LABELS_MAX:
        faults.add(field, f"at most {LABELS_MAX} labels")
        return
    for key, value in labels.items():
        domain, slash, name = key.rpartition("/")
        if not _LABEL_NAME.match(name) or (slash and not _DOMAIN.match(domain)):
            faults.add(
                field,
                "a key has up to 63 letters, digits, _ . -, begins and ends with a letter or digit, "
                "and may have a DNS name and / before it",
            )
            continue
        if any(domain == reserved or domain.endswith(f".{reserved}") for reserved in RESERVED_LABEL_DOMAINS):
            faults.add(f"{field}.{key}", "is under a reserved domain")
        if value and not _LABEL_NAME.match(value):
            faults.add(
                f"{field}.{key}",
                "a value has up to 63 letters, digits, _ . -, and begins and ends with a letter or digit",
            )


def lease_seconds(value: float | None, lease: LeaseSettings, field: str = "lease_seconds") -> float:
    """The length of a lease; null or absent is the default. Raises `invalid`."""
    if value is None:
        return min(max(lease.seconds_default, lease.seconds_min), lease.seconds_max)
    if not (math.isfinite(value) and lease.seconds_min <= value <= lease.seconds_max):
        raise invalid((field, f"must be from {lease.seconds_min:g} to {lease.seconds_max:g} seconds"))
    return value


def lifetime_seconds(value: float | None, lease: LeaseSettings) -> float:
    """How long it lives at most; null or absent is the default. Raises `invalid`."""
    if value is None:
        return min(lease.lifetime_seconds_default, lease.lifetime_seconds_max)
    if not (math.isfinite(value) and lease.seconds_min <= value <= lease.lifetime_seconds_max):
        raise invalid(
            (
                "lifetime_seconds",
                f"must be from {lease.seconds_min:g} to {lease.lifetime_seconds_max:g} seconds",
            )
        )
    return value


def check_idempotency_key(key: str | None) -> str | None:
    if key is None:
        return None
    if len(key) > IDEMPOTENCY_KEY_MAX or not _IDEMPOTENCY_KEY.match(key):
        raise invalid(
            ("Idempotency-Key", f"has 1 to {IDEMPOTENCY_KEY_MAX} visible ASCII characters without spaces")
        )
    return key


def _cpu(value: float | None, limits: LimitSettings, faults: Faults) -> float:
    if value is None:
        return limits.cpu_default
    if not (math.isfinite(value) and 0 < value <= limits.cpu_max):
        faults.add("cpu", f"must be above 0 and at most {limits.cpu_max:g} cores")
    return value


def _bytes(field: str, value: int | str | None, default: int, low: int, high: int, faults: Faults) -> int:
    if value is None:
        return default
    size = value if isinstance(value, int) else quantity(value)
    if size is None:
        faults.add(field, "must be whole bytes or a quantity such as 512MiB, 2Gi or 1.5G")
        return default
    if not low <= size <= high:
        faults.add(field, f"must be from {low} to {high} bytes")
    return size


def quantity(text: str) -> int | None:
    """Bytes of "512MiB", "1.5Gi", "2G" or "1048576"; None for anything else, fractions of a byte included."""
    found = _QUANTITY.match(text)
    if not found:
        return None
    whole, fraction, unit = found.groups()
    factor = _UNITS[unit]
    size = int(whole) * factor
    if fraction:
        part, rest = divmod(int(fraction) * factor, 10 ** len(fraction))
        if rest:
            return None
        size += part
    return size
