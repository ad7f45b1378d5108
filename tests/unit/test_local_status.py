"""What a caller is told of a sandbox whose daemon ended: a sentence, never a stack trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from worker.providers.local.status import SAID_MAX, told

TRACE = """runtime: failed to create new OS thread (have 2 already; errno=11)
runtime: may need to increase max user processes (ulimit -u)
fatal error: newosproc

runtime stack:
runtime.throw({0x7f3a1c, 0x9})
\t/usr/local/go/src/runtime/panic.go:1023 +0x5c fp=0x7ffd3
""" + "".join(f"goroutine {n} [running]:\nmain.main()\n\t/src/main.go:{n} +0x1b\n" for n in range(200))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            TRACE,
            "it crashed (runtime: failed to create new OS thread (have 2 already; errno=11)); "
            "its limits of memory or processes may be too small",
        ),
        ("panic: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n", "it crashed (panic: index out of range)"),
        ("bwrap: Can't mkdir /x: Permission denied\n", "bwrap: Can't mkdir /x: Permission denied"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_crash_is_told_in_a_sentence_and_its_trace_goes_to_the_log(
    tmp_path: Path, said: str, sentence: str
) -> None:
    (tmp_path / "log").write_text(said)
    with capture_logs() as logs:
        assert told(tmp_path / "log", "sb-x") == sentence
    traces = [entry["trace"] for entry in logs]
    assert traces == ([said.strip()] if "goroutine" in said else [])


def test_what_is_said_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x" * 100_000)
    assert len(told(tmp_path / "log", "sb-x")) == SAID_MAX
    assert told(tmp_path / "none", "sb-x") == ""
