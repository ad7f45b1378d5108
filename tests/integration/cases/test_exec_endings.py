"""How a command ends: at once when its shell ends, in time with all of its tree, and with the truth about why."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.integration.cases.box import SLOW, Answer, Box, problem, timed
from tests.service import eventually


@pytest.fixture(autouse=True)
def nothing_left(box: Box) -> Iterator[None]:
    yield
    box.run("pkill -KILL -x 'sleep|python3|tail|cat'; sleep 0.05")


@pytest.mark.parametrize(
    "command",
    [
        "sleep 600 & echo started",
        "(sleep 600 &); echo started",
        "setsid sleep 600 & echo started",
        "nohup sleep 600 & echo started",
        "sleep 600 </dev/null & disown; echo started",
        'python3 -c \'import os; os.fork() or os.execvp("sleep", ["sleep", "600"])\'; echo started',
        "{ sleep 600; echo late; } 2>&1 | cat & echo started",
    ],
)
def test_b001_a_child_in_the_background_does_not_hold_the_answer(box: Box, command: str) -> None:
    for more in ({}, {"session": "b001"}):
        before = len(box.alive("sleep"))
        began = time.monotonic()
        answer = box.run(command, timeout_seconds=30, **more)
        assert timed(began) < 1 * SLOW
        assert (answer["exit_code"], answer["stdout"], answer["timed_out"]) == (0, "started\n", False)
        began = time.monotonic()
        # A fork may not have become its program yet.
        assert len(eventually(partial(alive_beyond, box, before), 5)) == before + 1
        assert timed(began) < 1 * SLOW
    result = box.sandbox.exec(command, timeout=30)
    assert (result.exit_code, result.stdout) == (0, "started\n")


def alive_beyond(box: Box, count: int) -> list[int]:
    found = box.alive("sleep")
    return found if len(found) > count else []


@pytest.mark.parametrize(
    "command",
    [
        "sleep 300 & sleep 300",
        "setsid sleep 300 & sleep 300",
        "env -i setsid nohup sleep 300 >/dev/null 2>&1 & sleep 300",
        "(sleep 300; sleep 300) | (trap '' TERM; sleep 300; sleep 300)",
        'python3 -c \'import os,time; os.fork(); os.setsid() if os.getpid() != os.getpgid(0) else 0; os.execvp("sleep", ["sleep", "300"])\'',
    ],
)
def test_b003_a_timeout_takes_the_whole_tree(box: Box, command: str) -> None:
    box.run("setsid sleep 777 & :")
    for more in ({}, {"session": "b003"}):
        began = time.monotonic()
        answer = box.run(command, timeout_seconds=0.5, grace_seconds=0.3, **more)
        assert 0.5 <= timed(began) < 1 + SLOW
        assert answer["timed_out"] and answer["exit_code"] != 0, answer
        assert box.out("pgrep -a -x sleep | cut -d' ' -f2-") == "sleep 777\n"


def test_b003_it_does_not_pile_up(box: Box) -> None:
    baseline = int(box.out("ls -d /proc/[0-9]* | wc -l"))
    for _ in range(20):
        assert box.run("sleep 300 & sleep 300", timeout_seconds=0.1)["timed_out"]
    assert box.alive("sleep") == [] and int(box.out("ls -d /proc/[0-9]* | wc -l")) <= baseline + 2
    assert not box.sandbox.exec("sleep 300 & sleep 300", timeout=0.2).ok


@pytest.mark.parametrize(
    "command",
    [
        "trap '' TERM INT HUP; echo go; while :; do :; done",
        "python3 -uc 'import signal; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]\nprint(\"go\")\nwhile 1: pass'",
        "trap 'echo no >/dev/null' TERM; echo go; while :; do sleep 1; done",
    ],
)
def test_b005_a_command_that_ignores_term_is_killed(box: Box, command: str) -> None:
    for more in ({}, {"session": f"b005-{len(command)}"}):
        began = time.monotonic()
        answer = box.run(command, timeout_seconds=0.7, grace_seconds=0.4, **more)
        assert timed(began) <= 1.1 + SLOW
        assert (answer["timed_out"], answer["stdout"]) == (True, "go\n") and answer["exit_code"] != 0, answer
    began = time.monotonic()
    result = box.sandbox.exec(command, timeout=0.5, grace=0.5)
    assert result.timed_out and result.stdout == "go\n" and timed(began) <= 7
    before = cpu_seconds(box)
    time.sleep(0.5)
    assert cpu_seconds(box) - before < 0.2


def cpu_seconds(box: Box) -> float:
    return float(box.out("awk '{ n += $14 + $15 } END { print n / 100 }' /proc/[0-9]*/stat"))


@pytest.mark.parametrize(
    ("command", "stdout"),
    [
        ("echo before; sleep 8; echo after", "before\n"),
        ("printf half; sleep 8; echo after", "half"),
        ("seq 100000; sleep 8; echo after", "".join(f"{n}\n" for n in range(1, 100_001))),
        ("echo before; (sleep 8; echo after) & wait", "before\n"),
    ],
)
def test_b006_a_timeout_comes_in_time_with_what_was_written(box: Box, command: str, stdout: str) -> None:
    for seconds, more in ((2 if "echo before; sleep" in command else 0.7, {}), (0.7, {"session": "b006"})):
        began = time.monotonic()
        answer = box.run(command, timeout_seconds=seconds, **more)
        assert seconds - 0.1 <= timed(began) < seconds + 0.5 * SLOW
        assert (answer["timed_out"], answer["stdout"]) == (True, stdout)
    result = box.sandbox.exec(f"{{ {command}; }} | tee /tmp/b006", timeout=0.7)
    assert result.timed_out and result.stdout == stdout
    assert box.out("cat /tmp/b006") == stdout


ENDINGS: list[tuple[str | list[str], int, int | None, str]] = [
    ("kill -9 $$", 137, 9, ""),
    ("kill -TERM $$", 143, 15, ""),
    ("sh -c 'kill -SEGV $$'; echo $?", 0, None, "139\n"),
    ("exit 300", 44, None, ""),
    ("nosuchcmd", 127, None, ""),
    ("/etc/passwd", 126, None, ""),
    ("kill -HUP $$; sleep 5", 129, 1, ""),
    ("exit 255", 255, None, ""),
    ("exit 137", 137, None, ""),
    (["python3", "-c", "import os; os.abort()"], 134, 6, ""),
    (["sh", "-c", "kill -USR1 $$"], 138, 10, ""),
]


@pytest.mark.parametrize("number", range(len(ENDINGS)))
def test_b024_how_it_ended_is_told_alike_everywhere(box: Box, number: int) -> None:
    command, code, signal, stdout = ENDINGS[number]
    answers = [box.run(command), box.record(box.run(command, background=True)["id"], wait=20)]
    with box.channel() as channel:
        channel.start(1, command)
        seen = channel.until(1)
        assert seen.end
        answers.append({**seen.end, "stdout": seen.stdout.decode()})
    for answer in answers:
        assert (answer["exit_code"], answer["signal"], answer["stdout"]) == (code, signal, stdout), answer
        assert answer["state"] == "exited" and not answer["timed_out"] and not answer["oom_killed"]
    result = box.sandbox.exec(command)
    assert (result.exit_code, result.signal, result.ok, bool(result)) == (code, signal, code == 0, code == 0)
    if isinstance(command, str) and ("$$" not in command or "sh -c" in command):
        answer = box.run(command, session=f"b024-{number}")
        assert (answer["exit_code"], answer["signal"], answer["stdout"]) == (code, signal, stdout)


def test_b024_a_session_whose_shell_is_killed_says_so(box: Box) -> None:
    for name, code in (("9", 137), ("HUP", 129)):
        answer = box.run(f"kill -{name} $$; sleep 1", session=f"b024-{name}")
        assert (answer["exit_code"], answer["session_ended"]) == (code, True), answer
    answer = box.run("sh -c 'kill -9 $$'", session="b024")
    assert (answer["exit_code"], answer["session_ended"]) == (137, False)


@pytest.mark.parametrize("argv", [["/no/such/bin"], ["no-such-program"], ["/etc/passwd"], ["/etc"]])
def test_b024_what_never_started_is_no_exit_code(box: Box, argv: list[str]) -> None:
    found = box.refused(argv, 422, "exec-start-failed", id=f"b024-{argv[0].replace('/', '.')[1:]}")
    assert found["reason"] == ("permission" if argv[0].startswith("/etc") else "not_found")
    again = box.http.get(f"{box.path}/execs/{found['id']}")
    assert problem(again, 422, "exec-start-failed")["reason"] == found["reason"]
    listed: list[Answer] = box.http.get(f"{box.path}/execs?limit=1000").json()["items"]
    (kept,) = [item for item in listed if item["id"] == found["id"]]
    assert kept["failure"]["reason"] == found["reason"] and kept["exit_code"] is None


def test_b027_orphans_are_reaped(box: Box) -> None:
    baseline = int(box.out("ls -d /proc/[0-9]* | wc -l"))
    with ThreadPoolExecutor(4) as pool:
        commands = ["(setsid sh -c 'sleep 0.3' &)", "(sh -c 'exec setsid sleep 0.2' & exec true)"]
        for answer in pool.map(lambda n: box.run(commands[n % 2]), range(300)):
            assert answer["exit_code"] == 0
    count = "n=0; for s in /proc/[0-9]*/stat; do read -r l <$s; case ${l##*) } in Z*) n=$((n+1));; esac; done 2>/dev/null; echo $n"
    assert eventually(lambda: int(box.out("ls -d /proc/[0-9]* | wc -l")) <= baseline, 10)
    assert box.out(count) == "0\n"


def test_b030_a_short_command_has_no_fixed_delay(box: Box, module_boxes: Callable[..., Box]) -> None:
    box.out("true")
    alone = [elapsed(lambda: box.out("true")) for _ in range(100)]
    check_latency(alone)
    others = [box, *(module_boxes() for _ in range(9))]
    with ThreadPoolExecutor(10) as pool:
        for other in others:
            other.out("true")
        began = time.monotonic()
        list(pool.map(lambda n: others[n % 10].out("true"), range(100)))
        assert timed(began) < 100 * 0.05 * SLOW / 2
    client = [elapsed(lambda: box.sandbox.exec(["true"])) for _ in range(50)]
    check_latency(client)
    for other in others[1:]:
        other.sandbox.close()


def check_latency(seconds: list[float]) -> None:
    ordered = sorted(seconds)
    assert statistics.median(ordered) < 0.05 * SLOW, ordered
    assert ordered[int(len(ordered) * 0.95)] < 0.15 * SLOW, ordered
    # A pause that every command pays would be the least of them; what this takes without one is far below any such pause.
    assert ordered[len(ordered) // 10] < 0.02 * SLOW, ordered


def elapsed(call: Callable[[], Any]) -> float:
    began = time.monotonic()
    call()
    return timed(began)


def test_b031_a_server_in_the_background_stays(box: Box) -> None:
    serve = "cd /tmp && exec python3 -m http.server {port} --bind 127.0.0.1"
    handle = box.run(serve.format(port=8000), background=True, id="b031-server")
    assert (handle["state"], handle["exit_code"]) == ("running", None)
    box.out(f"nohup sh -c '{serve.format(port=8001)}' >/dev/null 2>&1 &")
    box.out(f"({serve.format(port=8002)}) >/dev/null 2>&1 &", session="b031")
    box.out(f"setsid sh -c '{serve.format(port=8003)}' & :", session="b031-own")
    box.out("true", session="b031-unrelated")
    assert box.http.delete(f"{box.path}/sessions/b031-unrelated").status_code in (200, 204)
    # There is no default time-out; what else might end them does so when a call, a connection or their session ends.
    box.run("sleep 300", timeout_seconds=0.5)
    assert box.http.delete(f"{box.path}/sessions/b031").status_code in (200, 204)
    box.run("exit 0", session="b031-own")
    time.sleep(2)
    for port in range(8000, 8004):
        curl = (
            f"curl -s -o /dev/null --retry 5 --retry-connrefused -w '%{{http_code}}' http://127.0.0.1:{port}/"
        )
        assert box.out(curl) == "200", port
    record = box.record("b031-server")
    assert record["state"] == "running" and "GET / HTTP" in record["stderr"]
    answer = box.signal("b031-server", "TERM")
    assert answer.json()["signalled"] >= 1
    assert box.record("b031-server", wait=10)["exit_code"] == 143


def test_b032_a_lost_command_is_found_and_ended_by_its_id(box: Box) -> None:
    began = time.time()
    started = [box.run(f"sleep 30{n} & sleep 30{n}", background=True)["id"] for n in range(3)]
    # Two more whose callers go away while they wait.
    names = ["b032-fore-0", "b032-fore-1"]
    for name in names:
        with box.service.http(timeout=0.3) as short, pytest.raises(Exception, match="timed out"):
            short.post(f"{box.path}/exec", json={"command": f"sleep 309; echo {name}", "id": name})
    ended = box.run("true", id="b032-ended")["id"]

    with box.service.http() as other:
        listed: list[Answer] = other.get(f"{box.path}/execs?state=running").json()["items"]
        assert {item["id"] for item in listed} == {*started, *names}
        for item in listed:
            assert (
                item["command"].startswith("sleep 30") and began - 1 <= item["started_at"] <= time.time() + 1
            )
        assert box.signal(started[0], "TERM").json()["signalled"] == 3
        assert box.record(started[0], wait=10)["signal"] == 15
        assert box.signal(names[0], "KILL").json()["signalled"] >= 1
        assert box.record(names[0], wait=10)["exit_code"] == 137
        bystander = box.alive("sleep")
        for _ in range(2):
            for name in (ended, started[0], names[0]):
                for signal in ("TERM", "KILL"):
                    answer = box.signal(name, signal)
                    assert answer.status_code == 200
                    assert (answer.json()["signalled"], answer.json()["state"]) == (0, "exited")
        assert box.alive("sleep") == bystander and len(bystander) == 5
        problem(box.signal("never-was", "KILL"), 404, "exec-not-found")
    assert box.sandbox.signal(ended, "KILL") is False
    for record in box.sandbox.execs():
        if record.state == "running":
            assert box.sandbox.signal(record.id, "KILL")
    assert box.alive("sleep") == []


def test_b032_a_pid_that_is_used_again_is_not_signalled(box: Box) -> None:
    """Thousands of processes later, a signal to an exec that ended finds nobody."""
    first = box.run("echo $$")
    box.run("sleep 333 & :")
    box.out("for n in $(seq 2000); do /bin/true; done")
    for name in ("TERM", "KILL"):
        for scope in ("process", "group", "tree"):
            assert box.signal(first["id"], name, scope).json()["signalled"] == 0
    assert len(box.alive("sleep")) == 1
