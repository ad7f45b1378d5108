"""What callers and typists get wrong: keywords that do not exist, values that are none, a service that is not there.

A keyword that is swallowed is worse than an error: the time-out or limit that it meant is then silently not there.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sandman
from sandman.aio.client import AsyncClient
from sandman.aio.http import segment, target
from sandman.cli import main
from sandman.cli.main import parse
from sandman.config import check_key, check_url
from sandman.problem import error_from_problem
from tests.fakes.scripted_http import HANG, ScriptedHttp, json_answer, problem_answer

NOWHERE = "http://127.0.0.1:9"
OPTIONS: dict[str, Any] = {"retry": sandman.RetryPolicy(total_seconds=0)}


@pytest.mark.parametrize(
    "name, meant",
    [
        ("timeout_seconds", "'timeout'"),
        ("timout", "'timeout'"),
        ("workdir", "'cwd'"),
        ("foo", "it takes check, cwd, encoding"),
    ],
)
def test_an_unknown_keyword_of_exec_is_refused_with_the_right_name(name: str, meant: str) -> None:
    wrong: dict[str, Any] = {name: 1}
    with sandman.Client(NOWHERE, "k") as client:
        for call in (client.direct().exec, client.direct().start, client.direct().stream):
            with pytest.raises(TypeError, match=f"unexpected keyword '{name}'") as caught:
                call("true", **wrong)
            if call.__name__ == "exec":
                assert meant in str(caught.value)
        with pytest.raises(TypeError, match="unexpected keyword"):
            client.direct().exec("true", on_stdout=print, **wrong)


@pytest.mark.parametrize(
    "name, meant",
    [("foo", "it takes cpu, disk"), ("network", "policy="), ("pids", "policy="), ("mem", "'memory'")],
)
async def test_an_unknown_keyword_of_create_is_refused_before_anything_is_sent(name: str, meant: str) -> None:
    wrong: dict[str, Any] = {name: "x"}
    async with AsyncClient(NOWHERE, "k") as client:
        with pytest.raises(TypeError, match=f"unexpected keyword '{name}'") as caught:
            client.create(**wrong)
        assert meant in str(caught.value)


@pytest.mark.parametrize("command", [5, None, {"a"}, (part for part in "ab"), b"x", ["a", 1]])
async def test_what_is_no_command_is_told_what_is(command: Any) -> None:
    async with AsyncClient(NOWHERE, "k") as client:
        with pytest.raises(TypeError, match=r"a command is a str .* or a list or tuple of str"):
            await client.direct().exec(command)


def test_a_callback_that_nobody_could_call_or_await_is_refused_before_the_command_runs() -> None:
    async def awaited(data: str) -> None: ...

    wrong: Any = 5
    with sandman.Client(NOWHERE, "k") as client:
        with pytest.raises(TypeError, match="coroutine function"):
            client.direct().exec("true", on_stdout=awaited)
        with pytest.raises(TypeError, match="int cannot be"):
            client.direct().exec("true", on_gap=wrong)


async def test_content_given_to_start_is_not_taken_for_true() -> None:
    content: Any = "text"
    async with AsyncClient(NOWHERE, "k") as client:
        with pytest.raises(TypeError, match="stdin of start"):
            await client.direct().start("cat", stdin=content)
        with pytest.raises(TypeError, match="stdin of stream"):
            client.direct().stream("cat", stdin=content)


@pytest.mark.parametrize("name", ["", ".", "..", "\ud800"])
async def test_what_is_no_id_never_becomes_another_address(name: str) -> None:
    with pytest.raises(sandman.ValidationError):
        segment(name)
    assert segment("a/b?c#d") == "a%2Fb%3Fc%23d"


async def test_senseless_values_are_typed_errors_wherever_they_are_given() -> None:
    async with AsyncClient(NOWHERE, "k", **OPTIONS) as client:
        for work in (
            client.direct().renew(float("nan")),
            client.direct().files.read("\ud800"),
            client.direct().files.mkdir("\ud800"),
            client.sandbox(""),
        ):
            with pytest.raises(sandman.ValidationError):
                await work
        with pytest.raises(sandman.ValidationError):
            await client.run(labels={"a": "\ud800"})
    assert target("/p", {"path": "\udcff"}) == "/p?path=%FF"


@pytest.mark.parametrize("limit", [-1, 1.5, "1000", True])
async def test_b148_a_senseless_limit_of_output_is_refused_as_the_service_does(limit: Any) -> None:
    async with AsyncClient(NOWHERE, "k") as client:
        with pytest.raises(sandman.ValidationError) as caught:
            await client.direct().exec("true", max_output_bytes=limit)
        assert caught.value.field == "max_output_bytes"


# The address


async def test_no_service_is_told_with_its_address() -> None:
    async with AsyncClient(NOWHERE, "sm_secret", **OPTIONS) as client:
        for work in (client.stats(), client.direct().exec("true"), client.direct().files.read("x")):
            with pytest.raises(sandman.ConnectError, match=NOWHERE) as caught:
                await work
            assert "sm_secret" not in str(caught.value)


@pytest.mark.parametrize(
    "words", [["stats"], ["ls"], ["rm", "sb-1", "sb-2"], ["exec", "sb-1", "true"], ["doctor"]]
)
def test_the_command_line_says_where_it_looked_and_what_to_do(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDMAN_API_KEY", "sm_secret")
    monkeypatch.setattr(sys.modules["sandman.cli.main"], "RETRY_SECONDS", 0.0)
    assert main(["--url", NOWHERE, *words]) in (1, 125)
    said = capsys.readouterr().err
    assert NOWHERE in said and "`sandman up`" in said and "sm_secret" not in said


@pytest.mark.parametrize(
    "url",
    [
        "ftp://me:hunter2@host",
        "http://:hunter2@host",
        "http://me:hunter2@host:x",
        "me:hunter2@host",
        "http://h?k=hunter2",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(sandman.ConfigError) as caught:
        check_url(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["sm_ключ", "sm_a\nb", "a b", "\udcff"])
def test_a_key_that_is_none_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(sandman.ConfigError) as caught:
        check_key(key)
    assert key not in str(caught.value)


async def test_a_call_under_way_when_the_client_is_closed_gets_a_typed_error() -> None:
    with ScriptedHttp(lambda request, number: HANG) as server:
        client = AsyncClient(server.url, "k")
        calls = [asyncio.create_task(client.stats()), asyncio.create_task(client.sandbox("sb-1"))]
        await asyncio.sleep(0.2)
        await client.aclose()
        done = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
        assert all(isinstance(error, sandman.ClosedError) for error in done), done


# Files


def test_a_file_error_names_its_path_once() -> None:
    members = {"type": "urn:sandman:problem:not-found", "title": "No such file or directory", "status": 404}
    error = error_from_problem(
        {**members, "detail": "no such file or directory", "errno": "ENOENT", "path": "/a/b"}
    )
    assert str(error) == "No such file or directory: '/a/b'"
    error = error_from_problem({**members, "detail": "/a/b is not there", "errno": "ENOENT", "path": "/a/b"})
    assert str(error).count("/a/b") == 1


@pytest.mark.parametrize("errno", ["EISDIR", "ENOTEMPTY"])
def test_rm_of_a_folder_speaks_of_recursion(
    errno: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDMAN_API_KEY", "sm_x")

    def script(request: Any, number: int) -> bytes:
        if request.method == "GET":
            return json_answer(200, {"id": "sb-1", "state": "ready"})
        return problem_answer(409, "directory-not-empty", errno=errno, path="/d")

    with ScriptedHttp(script) as server:
        assert main(["--url", server.url, "rm", "sb-1:/d"]) == 1
        assert "-r" in capsys.readouterr().err
        assert main(["--url", server.url, "rm", "-r", "sb-1:/d"]) == 1
        assert "-r " not in capsys.readouterr().err


# Words


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--memory", "100Z", "--", "true"],
        ["run", "--disk", "9" * 400, "--", "true"],
        ["create", "--cpu", "nan"],
        ["create", "--wait", "inf"],
        ["create", "--lease", "-1"],
        ["exec", "sb-1", "--timeout", "soon", "--", "true"],
        ["renew", "sb-1", "--lease", "nan"],
        ["ls", "--label", "x"],
        ["--url", NOWHERE, "up"],
        ["--url", NOWHERE, "keys"],
    ],
)
def test_senseless_values_are_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert capsys.readouterr().err


WORDS = [
    *(
        "run",
        "create",
        "exec",
        "ls",
        "rm",
        "renew",
        "stats",
        "doctor",
        "cp",
        "--",
        "-",
        "sb-1",
        "sb-1:/x",
        "run-1",
    ),
    *(
        "--url",
        "--memory",
        "--cpu",
        "--disk",
        "--label",
        "--env",
        "-e",
        "-t",
        "-d",
        "-n",
        "--json",
        "--wait",
        "--lease",
    ),
    *("--lifetime", "--timeout", "--depth", "--state", "--run", "--network", "-r"),
    *("none", "host", "nan", "inf", "-1", "1e999", "1KiB", "true"),
]


def words_of_a_terminal() -> st.SearchStrategy[str]:
    """What argv can hold: any text without NUL, and bytes that are no UTF-8 as surrogate escapes."""
    letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    known = st.sampled_from(WORDS)
    return st.one_of(known, known, st.text(letters, max_size=8), st.just("\udcff"), st.just("http://[::1"))


@settings(max_examples=300, deadline=None)
@given(st.lists(words_of_a_terminal(), max_size=7))
def test_no_words_bring_a_traceback(words: list[str]) -> None:
    """Nothing but an exit code or argparse's own end; nothing is sent, for what is behind it has tests of its own."""

    async def nothing(client: AsyncClient, options: Any) -> int:
        return 0

    if words and words[0] in ("up", "keys"):
        return
    with (
        mock.patch.dict("os.environ", {"SANDMAN_API_KEY": "sm_x"}),
        mock.patch("sandman.cli.main.RETRY_SECONDS", 0.0),
        mock.patch("sys.stdin.isatty", return_value=False, create=True),
        mock.patch("sandman.config.DEFAULT_URL", NOWHERE),
    ):
        try:
            options = parse(words)
        except SystemExit as end:
            assert end.code in (0, 2)
            return
        if options.url is None or options.command == "cp":
            options.url = NOWHERE
        with mock.patch("sandman.cli.main.parse", return_value=options):
            started = time.monotonic()
            assert main(words) in (0, 1, 2, 125)
            assert time.monotonic() - started < 15


def test_every_error_of_an_unknown_command_is_two() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["stat"])
    assert caught.value.code == 2
