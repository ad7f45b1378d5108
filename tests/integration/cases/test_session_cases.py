"""Sessions: a shell that keeps its state, runs one command after the other, and says when it is gone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import sandman
from tests.integration.cases.box import SLOW, Box, timed

SHELLS = ("bash", "sh")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 3", 3),
        ("echo first; exit 3; echo never", 3),
        ("exec sh -c 'exit 4'", 4),
        ("set -e; false; echo never", 1),
        ("trap 'exit 6' EXIT; exit 5", 6),
        ("kill -9 $$", 137),
    ],
)
def test_b018_the_end_of_a_shell_is_told_and_its_name_can_be_used_again(
    box: Box, shell: str, command: str, code: int
) -> None:
    name = f"b018-{shell}-{abs(hash(command))}"
    assert box.out("X=1; echo $X", session=name, shell=shell) == "1\n"
    began = time.monotonic()
    answer = box.run(command, session=name, timeout_seconds=20)
    assert timed(began) < 1 * SLOW
    assert (answer["exit_code"], answer["session_ended"], answer["timed_out"]) == (code, True, False), answer
    assert answer["stdout"] == ("first\n" if "first" in command else "")
    assert box.refused("echo x", 409, "session-terminated", session=name)["cause"] == "task"
    again = box.run("echo x$X", session=name, shell=shell)
    assert (again["stdout"], again["session_new"], again["session_ended"]) == ("x\n", True, False)
    assert box.out("echo fine") == "fine\n"
    assert box.http.delete(f"{box.path}/sessions/{name}").status_code in (200, 204)


def test_b018_deleting_takes_the_notice_away(box: Box) -> None:
    assert box.run("exit 3", session="b018")["session_ended"]
    assert box.http.delete(f"{box.path}/sessions/b018").status_code in (200, 204)
    assert box.out("echo fresh", session="b018") == "fresh\n"
    result = box.sandbox.exec("exit 7", session="b018")
    assert (result.exit_code, result.session_ended) == (7, True)
    with pytest.raises(sandman.Conflict) as caught:
        box.sandbox.exec("echo x", session="b018")
    assert caught.value.slug == "session-terminated"
    assert box.sandbox.exec("echo x", session="b018").session_new


READ = "pwd; echo $X; f; umask; alias hi 2>/dev/null; set | grep -c '^LOCAL=';"


@pytest.mark.parametrize("shell", SHELLS)
def test_b021_a_session_keeps_its_state_to_itself(box: Box, shell: str) -> None:
    a, b = f"b021-a-{shell}", f"b021-b-{shell}"
    for command in (
        "cd /tmp",
        "export X=1",
        "f(){ echo F; }",
        "umask 077",
        "alias hi='echo hello'",
        "LOCAL=2",
    ):
        assert box.out(command, session=a, shell=shell) == ""
    kept = box.run(READ, session=a)["stdout"].splitlines()
    assert kept[:4] == ["/tmp", "1", "F", "0077"] and "hello" in kept[4] and kept[5] == "1"
    assert box.out("hi; sh -c 'echo $X$LOCAL'", session=a) == "hello\n1\n"
    for more in ({"session": b, "shell": shell}, {"shell": shell}):
        answer = box.run(READ, **more)
        assert answer["stdout"].splitlines() == ["/root", "", "0022", "0"], answer
        assert "f:" in answer["stderr"]
    assert box.run(READ, session=a)["stdout"].splitlines() == kept


def test_b021_two_sessions_run_at_the_same_time(box: Box) -> None:
    for name in "ab":
        box.out("true", session=f"b021-{name}")
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        names = list(pool.map(lambda name: box.out(f"sleep 2; echo {name}", session=f"b021-{name}"), "ab"))
    assert names == ["a\n", "b\n"] and 2 <= timed(began) < 3.5


@pytest.mark.parametrize("shell", SHELLS)
def test_b022_commands_of_one_session_do_not_mix(box: Box, shell: str) -> None:
    name = f"b022-{shell}"
    box.out("count=0", session=name, shell=shell)

    def one(number: int) -> tuple[int, str, str]:
        command = f"count=$((count+1)); sleep 0.05; echo {number}; echo e{number} >&2; (exit {number})"
        answer = box.run(command, session=name)
        return answer["exit_code"], answer["stdout"], answer["stderr"]

    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(one, range(20)))
    assert found == [(number, f"{number}\n", f"e{number}\n") for number in range(20)]
    assert box.out("echo $count", session=name) == "20\n"


def test_b022_they_run_in_the_order_they_came_also_over_one_socket_and_the_client(box: Box) -> None:
    with box.channel() as channel:
        for number in range(1, 11):
            channel.start(
                number, f"echo {number} >>/tmp/b022; echo {number}; (exit {number})", session="b022"
            )
        for number in range(1, 11):
            seen = channel.until(number)
            assert seen.end and (bytes(seen.stdout), seen.end["exit_code"]) == (b"%d\n" % number, number)
    assert box.out("cat /tmp/b022; rm /tmp/b022") == "".join(f"{number}\n" for number in range(1, 11))
    with ThreadPoolExecutor(8) as pool:
        results = list(
            pool.map(lambda n: box.sandbox.exec(f"echo {n}; (exit {n})", session="b022"), range(16))
        )
    assert [(each.exit_code, each.stdout) for each in results] == [(n, f"{n}\n") for n in range(16)]


def test_b022_one_that_times_out_costs_the_others_nothing(box: Box) -> None:
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(box.run, "sleep 60; echo never", session="b022-slow", timeout_seconds=0.5)]
        time.sleep(0.2)
        waits += [
            pool.submit(box.run, f"echo {n}; (exit {n})", session="b022-slow", timeout_seconds=5)
            for n in (1, 2)
        ]
        answers = [each.result() for each in waits]
    assert answers[0]["timed_out"] and answers[0]["stdout"] == ""
    assert [(each["exit_code"], each["stdout"], each["timed_out"]) for each in answers[1:]] == [
        (1, "1\n", False),
        (2, "2\n", False),
    ]
