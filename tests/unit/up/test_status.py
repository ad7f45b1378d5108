"""The status line: said when its numbers change, and only then."""

from __future__ import annotations

from worker.up.status import StatusLine

IDLE = {
    "live": {},
    "concurrency": {"now": 0, "peak": 0},
    "pacing": {"reason": "initial"},
    "orphans": {"now": 0},
}


def test_the_same_numbers_are_said_once() -> None:
    line = StatusLine()
    assert line.changed(IDLE) == "sandboxes: none"
    assert line.changed(IDLE) is None
    busy = IDLE | {"live": {"queued": 2, "ready": 3}, "pacing": {"reason": "window"}}
    assert line.changed(busy) == "sandboxes: 2 queued · 3 ready (pacing: window)"
    assert line.fields["ready"] == 3
    assert line.changed(busy) is None
    assert line.changed(IDLE) == "sandboxes: none"


def test_orphans_are_said() -> None:
    assert StatusLine().changed(IDLE | {"orphans": {"now": 2}}) == "sandboxes: none · 2 orphans"


def test_one_missed_answer_is_no_news() -> None:
    line = StatusLine()
    line.changed(IDLE)
    assert line.changed(None) is None
    assert line.changed(None) == "the API does not answer"
    assert line.changed(None) is None
    assert line.changed(IDLE) == "sandboxes: none"


def test_an_odd_answer_does_not_break_it() -> None:
    assert StatusLine().changed([]) is None
    for odd in ({}, {"live": None}, {"live": {"ready": "many"}}, {"orphans": 3, "pacing": []}):
        assert StatusLine().changed(odd) == "sandboxes: none"
