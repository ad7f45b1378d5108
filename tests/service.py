"""A real `sandman up` for tests, and the eyes to see whether anything of it is left behind.

Leftovers are looked for from outside, by what the kernel shows, never by asking the service: processes by the marker in their
environment or by a mount of the storage folder in their namespace (every process in a sandbox has one), sockets by the kernel's
own table, cgroups and mounts by the paths that hold the sandbox id.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx

ROOT = Path(__file__).resolve().parents[1]
T = TypeVar("T")
SANDBOX_ID = re.compile(r"sb-[a-z2-7]{26}")
START_SECONDS = 60.0
PDEATHSIG_EXEC = (
    "import ctypes,os,signal,sys;ctypes.CDLL(None).prctl(1,signal.SIGKILL,0,0,0);"
    "os.getppid()==int(sys.argv[1]) or os._exit(1);os.execv(sys.argv[2],sys.argv[2:])"
)


def dying_with_us(argv: Iterable[str]) -> list[str]:
    """`argv`, started so that the kernel kills it when this test process ends in whatever way."""
    return [sys.executable, "-c", PDEATHSIG_EXEC, str(os.getpid()), *argv]


def eventually(look: Callable[[], T], seconds: float, *, pause: float = 0.05) -> T:
    """Look until the answer is true; answers the last one, so that a failed assertion shows it."""
    deadline = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(pause)
    return found


def eventually_clean(look: Callable[[], T], seconds: float) -> T:
    """Look until there is nothing left; answers what is left at the end."""
    last: list[T] = []

    def clean() -> bool:
        last[:] = [look()]
        return not last[0]

    eventually(clean, seconds, pause=0.1)
    return last[0]


@dataclass
class Leftovers:
    processes: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)
    sockets: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any((self.processes, self.mounts, self.cgroups, self.sockets, self.files))


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _program(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except OSError:
        return ""


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def describe(pid: int) -> str:
    return f"{pid} {_read(f'/proc/{pid}/cmdline').replace(chr(0), ' ').strip()[:160]}"


def is_zombie(pid: int) -> bool:
    return _read(f"/proc/{pid}/stat").rpartition(") ")[2][:1] in {"Z", "X", ""}


@dataclass
class Service:
    """One running service. `stop` and `kill` may be called more than once."""

    process: subprocess.Popen[bytes]
    data_dir: Path
    env: Mapping[str, str]
    options: tuple[str, ...]
    log: Path
    url: str = ""
    key: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def storage(self) -> Path:
        return Path(json.loads((self.data_dir / "storage.json").read_text())["storage"])

    @property
    def runtime(self) -> Path:
        name = [arg for arg in self.child_argv("valkey") if arg.endswith("/valkey.sock")]
        return Path(name[0]).parent

    def http(self, *, key: str | None = None, timeout: float = 60.0) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {key or self.key}"}, timeout=timeout
        )

    def output(self) -> str:
        return _read(self.log)

    # The service's own processes

    def children(self) -> dict[str, int]:
        """Name → pid of the service's processes that are alive."""
        marks = {
            "valkey": "valkey-server",
            "worker": "worker.rq_worker",
            "loops": "worker.loops",
            "app": "app.serve",
        }
        found = {}
        for pid in _all_pids():
            stat = _read(f"/proc/{pid}/stat").rpartition(") ")[2].split()
            if len(stat) > 1 and int(stat[1]) == self.pid and stat[0] != "Z":
                command = _read(f"/proc/{pid}/cmdline")
                for name, mark in marks.items():
                    if mark in command:
                        found[name] = pid
        return found

    def child_argv(self, name: str) -> list[str]:
        return _read(f"/proc/{self.children()[name]}/cmdline").split("\0")

    def wait_child(self, name: str, *, other_than: int | None = None, seconds: float = 15.0) -> int:
        def look() -> int | None:
            pid = self.children().get(name)
            return pid if pid != other_than else None

        found = eventually(look, seconds)
        assert found, f"no {name} process:\n{self.output()[-3000:]}"
        return found

    # Starting and stopping

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Until the service says that the first create can be taken."""
        deadline = time.monotonic() + seconds
        record = self.data_dir / "service.json"
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"`sandman up` ended with {self.process.returncode}:\n{self.output()[-6000:]}"
                )
            if record.exists() and json.loads(record.read_text())["pid"] == self.pid:
                self.url = json.loads(record.read_text())["url"]
                self.key = (self.data_dir / "api-key").read_text().strip()
                return
            time.sleep(0.02)
        raise AssertionError(f"not ready after {seconds} s:\n{self.output()[-6000:]}")

    def wait_health(self, seconds: float = 30.0) -> None:
        """Until /health/ready answers 200 (again)."""

        def look() -> bool:
            try:
                return httpx.get(f"{self.url}/health/ready", timeout=2).status_code == 200
            except httpx.HTTPError:
                return False

        assert eventually(look, seconds), f"/health/ready is not 200:\n{self.output()[-4000:]}"

    def stop(self, *, number: signal.Signals = signal.SIGTERM, seconds: float = 20.0) -> float:
        """Ask it to stop and wait; answers how long it took."""
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"did not stop within {seconds} s:\n{self.output()[-6000:]}") from None
        return time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL of the supervisor."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    # Leftovers

    def service_processes(self) -> list[str]:
        """Processes that the service started for itself, found by the data folder in their environment."""
        mark = f"SANDMAN_DATA_DIR={self.data_dir}\0"
        return [
            describe(pid)
            for pid in _all_pids()
            if pid not in (os.getpid(), self.pid)
            and mark in _read(f"/proc/{pid}/environ") + "\0"
            and not is_zombie(pid)
        ]

    def sandbox_processes(self) -> list[str]:
        """Processes inside sandboxes, whose mount namespace shows the storage folder, and the bwraps outside that hold them."""
        storage = str(self.storage)
        host = _read("/proc/self/mountinfo")
        found = []
        for pid in _all_pids():
            seen = _read(f"/proc/{pid}/mountinfo")
            if ((storage in seen and seen != host) or _program(pid).startswith(storage)) and not is_zombie(
                pid
            ):
                found.append(describe(pid))
        return found

    def sandbox_leftovers(self) -> Leftovers:
        """What would be wrong when the ledger holds no sandbox, with the service still running."""
        left = Leftovers(processes=self.sandbox_processes())
        storage = self.storage
        left.mounts = [
            line for line in _read("/proc/self/mountinfo").splitlines() if f"{storage}/sandboxes" in line
        ]
        sandboxes = storage / "sandboxes"
        left.files = sorted(str(path) for path in sandboxes.iterdir()) if sandboxes.is_dir() else []
        prefix = self.runtime_dir_of_data()
        left.sockets = sorted(
            {line.split()[-1] for line in _read("/proc/net/unix").splitlines() if f"{prefix}/s/" in line}
            | {str(path) for path in prefix.glob("s/*")}
        )
        left.cgroups = self.cgroups()
        return left

    def runtime_dir_of_data(self) -> Path:
        from worker.up.folders import runtime_dir

        return runtime_dir(self.data_dir)

    def cgroups(self, *, shared: bool = False) -> list[str]:
        """Cgroups of this service's sandboxes, with `shared` also those around them; other services' carry another name."""
        from worker.providers.local.options import instance_name

        instance = instance_name(self.env.get("SANDMAN_NAMESPACE", "sandman"), self.storage)
        found = []
        for folder, names, _ in os.walk("/sys/fs/cgroup"):
            paths = [f"{folder}/{name}" for name in names]
            found += [path for path in paths if instance in path and (shared or SANDBOX_ID.search(path))]
        return found

    def leftovers(self) -> Leftovers:
        """What would be wrong after the service has stopped."""
        left = self.sandbox_leftovers()
        left.processes += self.service_processes()
        left.cgroups = self.cgroups(shared=True)
        runtime = self.runtime_dir_of_data()
        left.files += [str(path) for path in [runtime, *runtime.rglob("*")] if path.exists()]
        return left

    def remove(self) -> None:
        """The last thing: stop it and remove what it keeps outside the data folder."""
        if self.process.poll() is None:
            try:
                self.stop()
            except AssertionError:
                self.kill()
        shutil.rmtree(self.runtime_dir_of_data(), ignore_errors=True)
        if not (self.data_dir / "storage.json").exists():
            return
        for folder in reversed(self.cgroups(shared=True)):
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # noqa: PTH106
        if not self.storage.is_relative_to(self.data_dir):
            shutil.rmtree(self.storage, ignore_errors=True)


def start_service(
    data_dir: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    wait: bool = True,
    log: Path | None = None,
) -> Service:
    """`sandman up` on a free port with its data in `data_dir`; its output goes to a file beside it."""
    log = log or data_dir.with_name(data_dir.name + ".log")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SANDMAN_")}
    environment.update({"SANDMAN_LOG_LEVEL": "info", **(env or {})})
    command = [sys.executable, "-m", "worker.up", "--port", "0", "--data-dir", str(data_dir), *options]
    with log.open("ab") as output:
        process = subprocess.Popen(
            dying_with_us(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=ROOT,
        )
    service = Service(process=process, data_dir=data_dir, env=environment, options=options, log=log)
    if wait:
        try:
            service.wait_ready()
        except BaseException:
            service.remove()
            raise
    return service
