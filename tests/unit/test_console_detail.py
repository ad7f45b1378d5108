"""What the page of one sandbox says, without a browser, a daemon or a Redis."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from app.console.assets import Assets
from app.console.detail import REASON_WORDS, Detail, detail_of
from app.console.execs import ExecLine, ExecReader, exec_row
from app.console.pages import Pages
from app.gateway.pool import Pool
from app.gateway.routes import Routes
from app.ledger.model import Policy, Reason, Reclaim, SandboxSpec, State
from tests.unit.test_console_overview import HOSTILE, NOW, Seen, record


def html(view: Detail) -> str:
    return Pages(Assets()).fragment("sandbox/moving.html", view=view)


def test_phases_have_their_times_and_what_goes_on_is_still_counted() -> None:
    times = {State.QUEUED: NOW - 12_000, State.CREATING: NOW - 10_000, State.READY: NOW - 9_500}
    phases = detail_of(record(times=times), NOW, []).phases
    assert [(phase.name, phase.lasted, phase.going_on) for phase in phases] == [
        ("Queued", "2.0s", False),
        ("Creating", "0.5s", False),
        ("Ready", "9.5s", True),
    ]
    assert phases[2].part == 100.0


def test_what_is_over_lasts_no_longer() -> None:
    times = {State.QUEUED: NOW - 60_000, State.FAILED: NOW - 50_000, "cleaned": NOW - 49_000}
    one = record(State.FAILED, times=times, reason=Reason.EXITED)
    assert [(p.name, p.lasted, p.going_on) for p in detail_of(one, NOW, None).phases] == [
        ("Queued", "10s", False),
        ("Failed", "1.0s", False),
        ("Cleaned", "", False),
    ]


def test_every_reason_is_said_in_full_and_whether_trying_again_helps() -> None:
    assert set(REASON_WORDS) == set(Reason)
    one = record(State.FAILED, reason=Reason.IMAGE_PULL, detail="x" * 1500)
    view = detail_of(one, NOW, None)
    assert (view.headline, view.cause) == (
        "The image could not be fetched.",
        "Caused by the task; the same create may succeed later.",
    )
    assert "x" * 1500 in html(view)
    assert "would fail again" in detail_of(replace(one, final=True), NOW, None).cause


def test_holder_spec_and_limits_are_all_there() -> None:
    spec = SandboxSpec(
        image="host", cpu=2, memory=1 << 30, disk=1 << 30, user="nobody", env={"TOKEN": "hidden-word"},
        policy=Policy(pids=64), labels={"task": "one"},
    )  # fmt: skip
    one = record(spec=spec, run="run-1", reclaim=Reclaim.RUN_ENDED, enforced={"memory": "cgroup"}, attempts=2)
    view = detail_of(one, NOW, [])
    facts = {fact.name: fact.value for fact in (*view.holding, *view.spec, *view.enforced)}
    assert facts["Run"] == "run-1" and facts["Reclaim"] == "run ended" and facts["Attempts"] == "2"
    assert facts["Held"] == "30s left" and facts["Lifetime"] == "2h 46m left" and facts["Lease"] == "1m 00s"
    assert (
        facts["Processes"] == "at most 64" and facts["User"] == "nobody" and facts["Environment"] == "TOKEN"
    )
    assert facts["memory"] == "cgroup" and view.labels == ("task=one",)
    assert "hidden-word" not in html(view)


def test_commands_say_how_they_ended_or_why_there_are_none() -> None:
    line = ExecLine(id="e", state="exited", exit_code=0, command="true", created_at=NOW / 1000, started_at=NOW / 1000 - 2, ended_at=NOW / 1000)  # fmt: skip
    assert (exec_row(line, NOW).outcome, exec_row(line, NOW).lasted) == ("exit 0", "2.0s")
    assert exec_row(ExecLine(id="e", state="exited"), NOW).outcome == "never began"
    assert exec_row(ExecLine(id="e", state="running", argv=["a", "b"]), NOW).command == "a b"
    for absurd in (1e300, -1e300, float("inf")):
        exec_row(ExecLine(id="e", state="running", created_at=absurd, started_at=absurd), NOW)
    assert "Unavailable" in detail_of(record(), NOW, None).execs_note
    assert detail_of(record(), NOW, []).execs_note == "None yet."
    assert "while it is ready" in detail_of(record(State.FAILED, reason=Reason.EXITED), NOW, None).execs_note


def test_hostile_text_is_text_on_the_page_of_one_sandbox_too() -> None:
    """Hard cases B133, and B138 for one that is over."""
    for text in HOSTILE:
        spec = SandboxSpec(
            image=text, cpu=1, memory=1 << 30, disk=1 << 30, user=text, workdir=text, labels={text: text}, env={text: text}
        )  # fmt: skip
        line = ExecLine(id=text, state=text, command=text)
        for state in (State.FAILED, State.READY, State.DELETED):
            one = record(
                state, id=text, tenant=text, run=text, reason=Reason.EXITED, detail=text, spec=spec, enforced={text: text}
            )  # fmt: skip
            page = html(detail_of(one, NOW, [line]))
            seen = Seen()
            seen.feed(page)
            assert not seen.tags & {"img", "script", "iframe", "style", "form", "input", "a"}
            assert not {name for name in seen.attributes if name.startswith(("on", "hx-"))}
            assert not seen.attributes & {"autofocus", "style", "src"}
            assert "\u202e" not in page and "\x00" not in page


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{"items":[{"id": 1.5}]}',
        b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
async def test_a_daemon_that_is_silent_or_lies_costs_a_second_at_most(
    answer: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("d") / "s"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    pool = Pool()
    reader = ExecReader(Routes(cast("object", None), b"secret"), pool)  # type: ignore[arg-type]
    one = record(id="sb-" + "a" * 26, address=f"unix:{path}")
    async with asyncio.timeout(3):
        assert await reader.latest(one) is None
    assert pool.busy == 0
    server.close()
    await pool.close()
