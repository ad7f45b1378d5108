"""From the ledger's errors to what callers are told."""

from __future__ import annotations

from app.errors import problem_of
from app.ledger.errors import TooManyRuns


def test_too_many_open_runs_are_a_429_that_says_the_bound_and_may_be_tried_again() -> None:
    problem = problem_of(TooManyRuns(10_000))
    assert problem is not None
    document = problem.document("r")
    assert (document["type"], document["status"]) == ("urn:sandman:problem:too-many-runs", 429)
    assert (document["bound"], document["retryable"], document["cause"]) == (10_000, True, "caller")
    assert problem.headers["retry-after"] == "1"
