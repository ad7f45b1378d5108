"""Log lines for people: everything named is shown, on one line, with the exception's own lines below."""

from __future__ import annotations

from app.ledger.logline import text_line, text_wanted


def test_a_line_shows_process_level_event_and_fields() -> None:
    event = {
        "event": "worker.no_redis",
        "level": "warning",
        "process": "worker",
        "error": "Connection Error",
        "n": 3,
    }
    line = text_line(event)
    assert line[8:] == " worker   warning: worker.no_redis error='Connection Error' n=3"


def test_info_is_not_said_and_line_breaks_cannot_forge_a_line() -> None:
    line = text_line({"event": "x", "level": "info", "value": "a\n12:00:00 up  ready"}, process="app")
    assert "\n" not in line and "info" not in line and " app      x " in line


def test_an_exception_follows_below() -> None:
    assert text_line({"event": "x", "exception": "Traceback\n  y"}).endswith("x\nTraceback\n  y")


def test_json_unless_text_is_asked_for() -> None:
    assert not text_wanted({})
    assert text_wanted({"SANDMAN_LOG_FORMAT": "text"})
