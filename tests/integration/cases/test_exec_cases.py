"""How a command starts: its input, terminal, text, environment and folder, each as it was given, or refused before it runs."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

import sandman
from tests.integration.cases.box import SLOW, Box, fields, problem, timed

PEM = "-----BEGIN KEY-----\nMIIB+/=\n-----END KEY-----\n"
PRINT_K = 'import os,sys; sys.stdout.buffer.write(os.environb[b"K"])'


@pytest.mark.parametrize(
    ("command", "code", "stdout"),
    [
        ("cat", 0, ""),
        ("read x; echo $?", 0, "1\n"),
        ("python3 -c 'input()'", 1, ""),
        ("grep foo", 1, ""),
        ("sort | wc -l", 0, "0\n"),
        ("bash", 0, ""),
        ("while read line; do echo $line; done; head -c 1; echo end", 0, "end\n"),
    ],
)
def test_b008_stdin_that_nobody_gave_is_at_its_end(box: Box, command: str, code: int, stdout: str) -> None:
    for more in ({}, {"session": "b008"}, {"background": True}):
        began = time.monotonic()
        answer = box.run(command, timeout_seconds=20, **more)
        answer = box.record(answer["id"], wait=20)
        assert timed(began) < 1 * SLOW
        assert (answer["exit_code"], answer["stdout"], answer["timed_out"]) == (code, stdout, False)
        if "input()" in command:
            assert "EOFError" in answer["stderr"]


def test_b008_a_stdin_that_was_opened_waits_and_can_be_closed(box: Box) -> None:
    with box.channel() as channel:
        seen = channel.start(1, "cat; echo closed", stdin="stream")
        channel.write(1, b"half")
        channel.until(1, b"half")
        assert not channel.step(0.5) or seen.end is None
        channel.say("eof", 1)
        channel.until(1)
        assert bytes(seen.stdout) == b"halfclosed\n" and seen.end and seen.end["exit_code"] == 0
    handle = box.sandbox.start(["cat"], stdin=True)
    handle.write("from the client")
    handle.close_stdin()
    assert handle.wait().stdout == "from the client"


@pytest.mark.parametrize(
    ("command", "prompt"),
    [
        ("""python3 -c "open('/dev/tty')" """, "No such device or address"),
        ("git clone https://127.0.0.1:9/x.git /tmp/b010", ""),
        ("""python3 -c "import getpass; getpass.getpass('PIN? ')" """, "PIN? "),
        ("printf 'Go on? [y/N] '; (read answer </dev/tty) || (exit 3)", "Go on? [y/N] "),
        ("""python3 -c "input('name: ')" """, "name: "),
        ("ssh -o BatchMode=no -o ConnectTimeout=5 nobody@127.0.0.1 true", ""),
    ],
)
def test_b010_there_is_no_terminal_to_ask_on(box: Box, command: str, prompt: str) -> None:
    for more in ({}, {"session": "b010"}):
        began = time.monotonic()
        answer = box.run(command, timeout_seconds=30, **more)
        assert timed(began) < 3 * SLOW and not answer["timed_out"]
        assert answer["exit_code"] not in (0, None), answer
        assert prompt in answer["stdout"] + answer["stderr"]


def test_b010_a_command_leads_a_session_of_its_own_without_a_terminal(box: Box) -> None:
    terminal, session, pid = box.out("ps -o tty= -p $$; ps -o sid= -p $$; echo $$").split()
    assert terminal == "?" and session == pid


@pytest.mark.parametrize("size", [131_071, 131_072, 1_000_000, 1_500_000])
def test_b012_shell_text_of_any_size_up_to_the_bound_runs(box: Box, size: int) -> None:
    text = ": " + "A" * (size - len(": ; echo ran")) + "; echo ran"
    assert len(text) == size
    assert box.out(text) == "ran\n"
    assert box.out(text, session="b012") == "ran\n"
    assert box.sandbox.exec(text).stdout == "ran\n"


def test_b012_a_big_argument_inside_the_text_reaches_its_builtin(box: Box) -> None:
    data = base64.b64encode(bytes(range(256)) * 2637).decode()
    assert len(data) > 900_000
    assert box.out(f"echo {data} | base64 -d | wc -c") == f"{256 * 2637}\n"
    assert box.out(f"cat <<'END' | base64 -d | sha256sum\n{data}\nEND\n")[:64] == (
        hashlib.sha256(bytes(range(256)) * 2637).hexdigest()
    )


def test_b012_an_argument_past_the_kernels_limit_is_told_as_such(box: Box) -> None:
    assert box.out(["printf", "%s", "A" * 131_071]) == "A" * 131_071
    found = box.refused(["printf", "%s", "A" * 131_072], 422, "exec-start-failed")
    assert (found["reason"], found["cause"], found["retryable"]) == (
        "argument_list_too_long",
        "caller",
        False,
    )
    found = box.refused(["true", *["A" * 100_000] * 40], 422, "exec-start-failed")
    assert found["reason"] == "argument_list_too_long"
    with pytest.raises(sandman.ExecStartError) as caught:
        box.sandbox.exec(["true", "A" * 131_072])
    assert caught.value.reason == "argument_list_too_long"
    assert box.refused(": " + "A" * 2_000_000, 422, "invalid")["field"] == "command"
    assert box.out("echo healthy") == "healthy\n"


def test_b013_an_environment_that_no_command_could_carry_is_refused_at_create(box: Box) -> None:
    env = {f"BIG_{number}": "x" * 100_000 for number in range(40)}
    found = problem(box.http.post("/v1/sandboxes", json={"image": "host", "env": env}), 422, "invalid")
    assert "env" in fields(found) and "bytes" in json.dumps(found)
    found = problem(
        box.http.post("/v1/sandboxes", json={"image": "host", "env": {"ONE": "x" * 131_072}}), 422, "invalid"
    )
    assert any(name.startswith("env") for name in fields(found))


def test_b013_an_environment_of_one_command_fails_alone(box: Box) -> None:
    env = {f"BIG_{number}": "x" * 100_000 for number in range(40)}
    answer = box.post("echo hello", env=env)
    assert answer.status_code == 422 and "env" in answer.text
    assert box.out("echo hello") == "hello\n"


def test_b013_a_session_that_exported_too_much_can_undo_it(box: Box) -> None:
    grow = "for n in {1..40}; do printf -v BIG_$n '%0100000d' 0; export BIG_$n; done; echo grown"
    assert box.out(grow, session="b013") == "grown\n"
    answer = box.run("/bin/echo hi", session="b013")
    assert answer["exit_code"] == 126 and "rgument list too long" in answer["stderr"]
    assert box.out("echo builtin", session="b013") == "builtin\n"
    assert box.out("/bin/echo hello") == "hello\n"
    assert box.out("/bin/echo other", session="b013-other") == "other\n"
    assert box.out("for n in {1..40}; do unset BIG_$n; done; /bin/echo hi", session="b013") == "hi\n"
    box.run(grow, session="b013")
    assert box.http.delete(f"{box.path}/sessions/b013").status_code in (200, 204)
    assert box.out("/bin/echo afresh", session="b013") == "afresh\n"


VALUES = [
    PEM,
    "a=b=c",
    "'\"$(touch /tmp/pwn)`touch /tmp/pwn`",
    "",
    "日本語🤣",
    "ends with a newline\n",
    "\n\n",
    "\\n \\x41 %s $HOME ${HOME} !! ~ *",
    "\u2028\x01\x7f\ttab\r\n",
    "; touch /tmp/pwn #",
]


@pytest.mark.parametrize("value", VALUES)
def test_b014_values_reach_the_command_byte_for_byte(box: Box, value: str) -> None:
    expected = base64.b64encode(value.encode()).decode()
    for more in ({}, {"session": f"b014-{VALUES.index(value)}"}, {"session": "b014"}):
        answer = (
            box.run(["python3", "-c", PRINT_K], env={"K": value}, encoding="base64") if not more else None
        )
        if more:
            answer = box.run(f"python3 -c '{PRINT_K}'", env={"K": value}, encoding="base64", **more)
        assert answer and answer["stdout"] == expected, (more, answer)
    assert (
        box.sandbox.exec(["python3", "-c", PRINT_K], env={"K": value}, encoding=None).stdout == value.encode()
    )
    assert box.run("test -e /tmp/pwn")["exit_code"] == 1


def test_b014_the_environment_of_a_create_is_as_exact(own_box: Callable[..., Box]) -> None:
    env = {f"V{number}": value for number, value in enumerate(VALUES)} | {
        "A-B": "minus",
        "1X": "digit",
        "a.b": "dot",
    }
    box = own_box(env=env)
    script = "import os,json; print(json.dumps(dict(os.environ)))"
    for more in ({}, {"session": "s"}):
        found = json.loads(box.out(f"python3 -c '{script}'", **more))
        if more:  # a shell passes on what it can name
            env = {name: value for name, value in env.items() if name.isidentifier()}
        assert {name: found.get(name) for name in env} == env
    assert json.loads(box.out(["python3", "-c", script]))["A-B"] == "minus"
    assert box.run("test -e /tmp/pwn")["exit_code"] == 1


@pytest.mark.parametrize("name", ["", "A=B", "A\0", "=", "\0"])
def test_b014_bad_names_are_refused_before_anything_runs(box: Box, name: str) -> None:
    for more in ({}, {"session": "b014"}):
        answer = box.post("touch /tmp/b014", env={name: "x"}, **more)
        assert answer.status_code == 422 and any(field.startswith("env") for field in fields(answer.json()))
    answer = box.http.post("/v1/sandboxes", json={"image": "host", "env": {name: "x"}})
    assert answer.status_code == 422 and any(field.startswith("env") for field in fields(answer.json()))
    assert box.run("test -e /tmp/b014")["exit_code"] == 1


def test_b014_names_that_only_shells_dislike_are_passed_on(box: Box) -> None:
    script = "import os; print(os.environ['A-B'], os.environ['1X'])"
    assert box.out(["python3", "-c", script], env={"A-B": "minus", "1X": "digit"}) == "minus digit\n"


@pytest.mark.parametrize("cwd", ["/nope", "/etc/passwd", "/tmp/closed", "/nope/../tmp/x", "nowhere"])
def test_b015_nothing_runs_where_the_folder_cannot_be_used(box: Box, cwd: str) -> None:
    box.out("mkdir -p -m 000 /tmp/closed; rm -f /root/marker /marker")
    for command in (
        "true; touch marker",
        "false || touch marker",
        "true & touch marker",
        "true\ntouch marker",
    ):
        for more in ({}, {"session": "b015-bad"}):
            found = box.refused(command, 422, "exec-start-failed", cwd=cwd, **more) if not more else None
            if more:
                answer = box.post(command, cwd=cwd if cwd.startswith("/") else "/nowhere", **more)
                assert answer.status_code == 422, answer.text
                found = answer.json()
            assert found and found["reason"] == "cwd", found
    marker = "find / -xdev -name marker -newermt '-1 minute' -not -path '/proc/*' 2>/dev/null; ls /root/marker /marker /tmp/marker 2>/dev/null; :"
    assert box.out(marker) == ""


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("true & wait; pwd", 1),
        ("pwd\npwd\ncd /; cd - >/dev/null; pwd", 3),
        ("(pwd); pwd & wait; echo $(pwd)", 3),
        ("false || pwd; true && pwd; ! false && pwd", 3),
    ],
)
def test_b015_the_folder_applies_to_every_part(box: Box, command: str, lines: int) -> None:
    assert box.out(command, cwd="/srv") == "/srv\n" * lines


@pytest.mark.parametrize(
    "name", ["/tmp/a b\n-c", "/tmp/-n", "/tmp/$(touch x);&", "/tmp/日本'\"", "/tmp/*?[a]~"]
)
def test_b015_odd_names_are_names(box: Box, name: str) -> None:
    box.out(["mkdir", "-p", "--", name])
    assert (
        json.loads(box.out(["python3", "-c", "import os,json; print(json.dumps(os.getcwd()))"], cwd=name))
        == name
    )
    assert box.out("pwd -P", cwd=name, session="b015-odd") == f"{name}\n"


def test_b015_a_sessions_folder_is_its_own(box: Box) -> None:
    box.out("cd /usr", session="b015")
    assert box.out("pwd", cwd="/srv") == "/srv\n"
    assert box.out("pwd", session="b015") == "/usr\n"


HEREDOC = "cat <<'EOF' > /tmp/t\n$HOME `x` \\ \"q\"\nEOF"
MORE = {
    HEREDOC: "",
    "cat <<EOF\n$((1+1)) \\$x\nEOF\ncat <<-A; cat <<'B'\n\t1\n\tA\n$2\nB": "2 $x\n1\n$2\n",
    "for n in 1 2 3\ndo echo $n\ndone": "1\n2\n3\n",
    "echo 'a'\"b\"$((1+1))": "ab2\n",
    "# only a comment": "",
    "echo one \\\n  two # three": "one two\n",
    "f() {\n  echo in f $1\n}\nf x\n\n\n": "in f x\n",
    "case x in\nx) echo yes;;\nesac; if true; then echo then; fi": "yes\nthen\n",
    "echo 'unclosed\nquote'": "unclosed\nquote\n",
    "cat <<'EOF'\n" + "line of a long heredoc\n" * 8000 + "EOF": "line of a long heredoc\n" * 8000,
}


@pytest.mark.parametrize("number", range(len(MORE)))
@pytest.mark.parametrize("session", [None, "b016"])
def test_b016_scripts_run_as_they_are_written(box: Box, number: int, session: str | None) -> None:
    script, stdout = list(MORE.items())[number]
    began = time.monotonic()
    assert box.out(script, timeout_seconds=20, **({"session": session} if session else {})) == stdout
    assert timed(began) < 1 * SLOW
    if script == HEREDOC:
        assert box.out("cat /tmp/t; rm /tmp/t") == '$HOME `x` \\ "q"\n'


@pytest.mark.parametrize(
    "script", ["echo a\r\necho b\r\n", "for n in 1 2\r\ndo echo $n\r\ndone\r\n", "if true\r\n"]
)
def test_b016_windows_line_ends_are_what_they_are_in_bash(box: Box, script: str) -> None:
    plain = box.run(["bash", "-c", script])
    for more in ({"shell": "bash"}, {"session": "b016-crlf", "shell": "bash"}):
        answer = box.run(script, timeout_seconds=20, **more)
        assert (answer["stdout"], answer["exit_code"], answer["timed_out"]) == (
            plain["stdout"],
            plain["exit_code"],
            False,
        )
        assert bool(answer["stderr"]) == bool(plain["stderr"])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"command": "echo a\0b"}, "command"),
        ({"argv": ["echo", "a\0b"]}, "argv"),
        ({"argv": ["\0"]}, "argv"),
        ({"command": "true", "cwd": "/tmp\0"}, "cwd"),
        ({"command": "true", "env": {"A": "x\0y"}}, "env"),
        ({"command": "true", "session": "s\0"}, "session"),
        ({"command": "true", "id": "i\0"}, "id"),
        ({"command": "true", "user": "root\0"}, "user"),
        ({"command": "true", "shell": "bash\0"}, "shell"),
    ],
)
def test_b033_a_nul_is_refused_by_the_name_of_its_field(box: Box, body: dict[str, Any], field: str) -> None:
    began = time.monotonic()
    found = problem(box.http.post(f"{box.path}/exec", json=body), 422, "invalid")
    assert {name.split("[")[0].split(".")[0] for name in fields(found)} == {field}
    assert timed(began) < 1 * SLOW and not found["retryable"]
    command: Any = body.get("command", body.get("argv"))
    options = {name: value for name, value in body.items() if name not in ("command", "argv")}
    with pytest.raises(sandman.ValidationError):
        box.sandbox.exec(command, **options)
    with box.channel() as channel:
        seen = channel.start(1, command, **options)
        assert (
            channel.until(1).end == seen.end and seen.end and seen.end["status"] == 422 and not seen.started
        )


@pytest.mark.parametrize(
    "body",
    [
        b'{"command":"echo \\ud800"}',
        b'{"argv":["echo","\\udfff"]}',
        b'{"command":"true","env":{"A":"\\ud83d"}}',
        b'{"command":"true","cwd":"/tmp/\\ud800x"}',
        b'{"command":"cat","stdin":"\\ude00\\ud83d"}',
        b'{"command":"echo \xff"}',
    ],
)
def test_b033_half_a_surrogate_is_no_text(box: Box, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = box.http.post(f"{box.path}/exec", content=body, headers=headers)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["type"].startswith("urn:sandman:problem:") and not answer.json()["retryable"]


def test_b033_paths_and_names_with_a_nul_are_refused(box: Box) -> None:
    for method in ("GET", "PUT", "DELETE"):
        answer = box.http.request(
            method, f"{box.path}/files?path=/tmp/a%00b", content=b"x" if method == "PUT" else None
        )
        assert answer.status_code == 422 and fields(answer.json()) == {"path"}, answer.text
    assert box.http.get("/v1/sandboxes/sb%00x").status_code == 404
    assert box.http.delete(f"{box.path}/sessions/a%00b").status_code == 404
    assert box.http.get(f"{box.path}/execs/a%00b").status_code == 404
    for member in ({"labels": {"name": "a\0b"}}, {"image": "host\0"}, {"user": "a\0"}, {"workdir": "/\0"}):
        found = problem(box.http.post("/v1/sandboxes", json={"image": "host", **member}), 422, "invalid")
        assert {name.split(".")[0] for name in fields(found)} == set(member)
    with pytest.raises(sandman.SandmanError):
        box.sandbox.files.write("/tmp/a\0b", "x")


def test_b033_input_and_content_may_hold_nuls(box: Box) -> None:
    data = b"a\0b\0\0" + bytes(range(256))
    assert box.out("wc -c", stdin="a\0b") == "3\n"
    answer = box.run("cat", stdin_base64=base64.b64encode(data).decode(), encoding="base64")
    assert base64.b64decode(answer["stdout"]) == data
    assert box.sandbox.exec("cat", stdin=data, encoding=None).stdout == data
    box.sandbox.files.write("/tmp/nul", data)
    assert box.sandbox.files.read("/tmp/nul") == data
