"""The supervisor with stand-in children, real processes all: restarts, giving up, stopping, dying.

The service's own processes are tested in tests/integration/test_up_*.py; here each child is a few lines, so that it can be made
to behave badly.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service import dying_with_us, eventually
from worker.up.folders import runtime_dir

APP = """
import http.server, json, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *args): pass
open(os.environ["MARKS"] + "/app.%d" % os.getpid(), "w").close()
http.server.HTTPServer(("127.0.0.1", int(os.environ["SANDMAN_PORT"])), Handler).serve_forever()
"""
SLEEPER = """
import os, sys, time
open(os.environ["MARKS"] + "/" + sys.argv[1] + ".%d" % os.getpid(), "w").close()
time.sleep(600)
"""
MAIN = """
import asyncio, os, sys
from pathlib import Path
from worker.up import drainer, folders as places, preflight, supervisor
from worker.up.children import ChildPlan, make_environment
from worker.up.report import Report
from worker.up.spawn import become_subreaper
data, scripts = Path(sys.argv[1]), Path(sys.argv[2])
drainer.python = lambda module: (sys.executable, str(scripts / "drain.py"))
folders = places.prepare(data, sandbox_uid=400000)
_, port = preflight.choose_address("127.0.0.1", 0)
env = make_environment({"SANDMAN_PORT": str(port)}, preflight.SERVICE_ROOT, os.environ)
def plan(name, owns_group=False):
    script = scripts / (name + ".py")
    return ChildPlan(name=name, argv=(sys.executable, str(script), name), owns_group=owns_group)
become_subreaper()
plans = [plan("worker"), plan("loops"), plan("app", True)]
sys.exit(asyncio.run(supervisor.Supervisor(folders, plans, env, host="127.0.0.1", port=port, key=None, report=Report("text")).run()))
"""


class Bench:
    """One supervisor over the scripts of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks = folder / "marks"
        self.marks.mkdir()
        for name, text in {"worker": SLEEPER, "loops": SLEEPER, "app": APP, "drain": ""}.items():
            self.script(name, text)
        self.process: subprocess.Popen[str] | None = None
        self.log = folder / "log"

    def script(self, name: str, text: str) -> None:
        (self.folder / f"{name}.py").write_text(textwrap.dedent(text))

    def start(self) -> subprocess.Popen[str]:
        command = dying_with_us([sys.executable, "-c", MAIN, str(self.folder / "data"), str(self.folder)])
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, env=os.environ | {"MARKS": str(self.marks)}, stdout=log, stderr=log, text=True
            )
        return self.process

    def pids(self, name: str) -> list[int]:
        """In the order of starting: every process that ever ran as `name`."""
        marks = sorted(self.marks.glob(f"{name}.*"), key=lambda mark: mark.stat().st_mtime_ns)
        return [int(mark.name.rpartition(".")[2]) for mark in marks]

    def wait_log(self, text: str, seconds: float = 20.0) -> None:
        assert eventually(lambda: text in self.log.read_text(), seconds), self.log.read_text()

    def alive(self) -> list[int]:
        pids = [pid for name in ("app", "worker", "loops", "grandchild") for pid in self.pids(name)]
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path)
    yield one
    if one.process is not None and one.process.poll() is None:
        one.process.kill()
        one.process.wait()
    record = tmp_path / "data" / "storage.json"
    shutil.rmtree(runtime_dir(tmp_path / "data"), ignore_errors=True)
    if record.exists():
        shutil.rmtree(record.read_text().split('"')[3], ignore_errors=True)


def test_a_stop_ends_every_child_and_removes_the_sockets_folder(bench: Bench) -> None:
    process = bench.start()
    bench.wait_log("ready at")
    assert len(bench.alive()) == 3
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert bench.alive() == []
    assert not (bench.folder / "data" / "service.json").exists()


def test_a_dead_child_is_started_again_and_said_so(bench: Bench) -> None:
    bench.start()
    bench.wait_log("ready at")
    os.kill(bench.pids("worker")[0], signal.SIGKILL)
    bench.wait_log("worker was killed by SIGKILL")
    assert eventually(lambda: len(bench.pids("worker")) == 2, 5)
    assert len(bench.alive()) == 3


def test_what_the_api_left_behind_dies_with_it(bench: Bench) -> None:
    """A web server's own worker processes would keep the port from its successor."""
    fork = "import os\nif os.fork() == 0:\n    open(os.environ['MARKS'] + '/grandchild.%d' % os.getpid(), 'w').close()\n    __import__('time').sleep(600)\n"
    bench.script("app", fork + APP)
    bench.start()
    bench.wait_log("ready at")
    orphan = bench.pids("grandchild")[0]
    os.kill(bench.pids("app")[0], signal.SIGKILL)
    assert eventually(lambda: not Path(f"/proc/{orphan}").exists(), 5)


def test_a_child_that_never_lives_ends_the_start_with_a_message(bench: Bench) -> None:
    bench.script("loops", "import sys; sys.exit('broken on purpose')")
    bench.script("app", SLEEPER)
    process = bench.start()
    assert process.wait(30) == 1
    assert "loops died 5 times before the service was ready" in bench.log.read_text()
    assert "broken on purpose" in bench.log.read_text()
    assert bench.alive() == []


def test_a_child_that_ignores_sigterm_is_killed_in_time(bench: Bench) -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    bench.script("app", stubborn + APP)
    bench.script("loops", stubborn + SLEEPER)
    process = bench.start()
    bench.wait_log("ready at")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(15)
    assert time.monotonic() - began < 10
    assert bench.alive() == []


def test_a_drain_that_dies_is_started_again(bench: Bench) -> None:
    """It is killed twice by its own hand; the third one is let through."""
    bench.script(
        "drain",
        """
        import os, sys
        marks = os.environ["MARKS"]
        open(marks + "/drain.%d" % os.getpid(), "w").close()
        if len([name for name in os.listdir(marks) if name.startswith("drain.")]) < 3:
            os.kill(os.getpid(), 9)
        """,
    )
    process = bench.start()
    bench.wait_log("ready at")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert len(bench.pids("drain")) == 3
    assert "every sandbox is taken back" in bench.log.read_text()


def test_a_second_ctrl_c_ends_everything_at_once(bench: Bench) -> None:
    bench.script("app", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + APP)
    process = bench.start()
    bench.wait_log("ready at")
    process.send_signal(signal.SIGINT)
    bench.wait_log("stopping")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert time.monotonic() - began < 1.5
    assert bench.alive() == []


def test_the_kernel_ends_the_children_of_a_killed_supervisor(bench: Bench) -> None:
    process = bench.start()
    bench.wait_log("ready at")
    process.kill()
    process.wait()
    assert eventually(lambda: bench.alive() == [], 3), bench.alive()
