"""The rules for a command's fields that can be checked before anything is sent; the daemon checks the rest."""

from __future__ import annotations

import math
import re
from typing import Final

from app.execs.schemas import ExecBody
from app.sandboxes.fields import Faults, check_env, check_user

# The daemon's own bound; more input than this is a stream (WebSocket) or a file.
EXEC_BODY_BYTES_MAX: Final = 16 * 1024 * 1024
TIMEOUT_SECONDS_MAX: Final = 7 * 86_400
# Also the rule for session names; both end up in paths.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")
_ENCODINGS: Final = ("utf-8", "base64")


def is_exec_id(text: str) -> bool:
    return _ID.match(text) is not None


def check_exec(body: ExecBody) -> None:
    """Raises the `invalid` problem that names every broken rule."""
    faults = Faults()
    if (body.command is None) == (body.argv is None):
        faults.add("command", "give either command or argv")
    _no_nul("command", body.command, faults)
    if body.argv is not None:
        if not body.argv or not body.argv[0]:
            faults.add("argv", "needs a program")
        for index, argument in enumerate(body.argv):
            if "\0" in argument:
                faults.add(f"argv[{index}]", "must not hold NUL")
    if body.cwd == "":
        faults.add("cwd", "must not be empty")
    _no_nul("cwd", body.cwd, faults)
    if body.env:
        check_env("env", body.env, faults)
    if body.stdin is not None and body.stdin_base64 is not None:
        faults.add("stdin", "give either stdin or stdin_base64")
    _seconds("timeout_seconds", body.timeout_seconds, faults, zero=False)
    _seconds("grace_seconds", body.grace_seconds, faults, zero=True)
    check_user(body.user, faults)
    for field, value in (("id", body.id), ("session", body.session)):
        if value is not None and not _ID.match(value):
            faults.add(field, "has 1 to 128 letters, digits, . _ : -, and begins with a letter or digit")
    if body.encoding is not None and body.encoding not in _ENCODINGS:
        faults.add("encoding", "is utf-8 or base64")
    if body.max_output_bytes is not None and body.max_output_bytes < 0:
        faults.add("max_output_bytes", "must not be negative")
    if body.shell is not None and (not body.shell or "\0" in body.shell):
        faults.add("shell", "must be a name or path")
    faults.raise_any()


def _no_nul(field: str, value: str | None, faults: Faults) -> None:
    if value is not None and "\0" in value:
        faults.add(field, "must not hold NUL")


def _seconds(field: str, value: float | None, faults: Faults, *, zero: bool) -> None:
    if value is None:
        return
    low_enough = value >= 0 if zero else value > 0
    if not (math.isfinite(value) and low_enough and value <= TIMEOUT_SECONDS_MAX):
        faults.add(
            field, f"must be {'from' if zero else 'above'} 0 and at most {TIMEOUT_SECONDS_MAX} seconds"
        )
