"""Any answer becomes a typed error or a value, whatever a proxy made of it (B147), and each fault has its own type (B141)."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sandman
from sandman import errors, problem
from sandman.models import SandboxInfo

JSON = {"content-type": "application/problem+json", "x-request-id": "r-1"}


def body(slug: str, **members: object) -> bytes:
    import msgspec

    return msgspec.json.encode({"type": f"urn:sandman:problem:{slug}", "title": "T", "status": 0, **members})


@pytest.mark.parametrize(
    "status, slug, members, kind",
    [
        (422, "invalid", {"field": "cpu"}, errors.ValidationError),
        (422, "exec-start-failed", {"reason": "not_found", "cause": "task"}, errors.ExecStartError),
        (401, "unauthenticated", {}, errors.AuthError),
        (403, "forbidden", {}, errors.AuthError),
        (404, "not-found", {}, errors.NotFound),
        (404, "not-found", {"errno": "ENOENT", "path": "/x"}, errors.FileMissing),
        (403, "permission-denied", {"errno": "EACCES", "path": "/x"}, errors.FileError),
        (409, "is-a-directory", {"errno": "EISDIR"}, errors.IsADirectory),
        (410, "gone", {"state": "deleted"}, errors.Gone),
        (409, "not-ready", {}, errors.NotReady),
        (409, "idempotency-conflict", {}, errors.Conflict),
        (429, "quota", {}, errors.QuotaExceeded),
        (429, "queue-full", {}, errors.ServiceUnavailable),
        (503, "shutting-down", {}, errors.ServiceUnavailable),
        (418, "teapot", {}, errors.ProblemError),
    ],
)
def test_b141_problems_become_their_types(
    status: int, slug: str, members: dict[str, object], kind: type[Exception]
) -> None:
    error = problem.error_from(status, JSON, body(slug, **members))
    assert type(error) is kind
    assert error.request_id == "r-1" and error.slug == slug and error.status == status


def test_b141_every_error_has_one_base_and_says_whose_fault_it_is() -> None:
    for name in sandman.__all__:
        value = getattr(sandman, name)
        if isinstance(value, type) and issubclass(value, BaseException):
            assert issubclass(value, sandman.SandmanError)
            assert value.cause in ("caller", "task", "infra")


def test_errors_survive_a_process_border() -> None:
    error = problem.error_from(
        422, JSON, body("exec-start-failed", reason="cwd", cause="task", retryable=False)
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.ExecStartError and again.reason == "cwd" and again.request_id == "r-1"
    lost = errors.SandboxLost("gone", sandbox="sb-1", reason="oom_killed", cause="task")
    assert pickle.loads(pickle.dumps(lost)).reason == "oom_killed"


@pytest.mark.parametrize(
    "status, content_type, content, kind, retryable",
    [
        (502, "text/html", b"<html><h1>502 Bad Gateway</h1>", errors.ServiceUnavailable, True),
        (413, "text/html", b"<html>too large", errors.ValidationError, False),
        (503, "", b"", errors.ServiceUnavailable, True),
        (500, "application/json", b'{"tit', errors.ServiceUnavailable, False),
        (429, "application/json", b"[1]", errors.ServiceUnavailable, True),
        (404, "application/json", b'"x"', errors.NotFound, False),
        (301, "text/html", b"moved", errors.ProblemError, False),
    ],
)
def test_b147_foreign_bodies_become_typed_errors_with_an_excerpt(
    status: int, content_type: str, content: bytes, kind: type[Exception], retryable: bool
) -> None:
    error = problem.error_from(status, {"content-type": content_type}, content)
    assert type(error) is kind and error.retryable is retryable and error.type == "about:blank"
    assert str(status) in str(error)


@given(
    st.integers(300, 599),
    st.sampled_from(["application/json", "text/html", "application/problem+json", ""]),
    st.binary(),
)
def test_b147_no_body_breaks_the_classification(status: int, content_type: str, content: bytes) -> None:
    error = problem.error_from(status, {"content-type": content_type, "retry-after": "x"}, content)
    assert len(str(error)) < 400 and str(error).isprintable()


@given(st.binary())
def test_b147_a_success_that_is_not_ours_is_a_bad_answer(content: bytes) -> None:
    try:
        problem.decode(SandboxInfo, 200, {}, content)
    except errors.BadAnswer as error:
        assert error.status == 200 and error.retryable
    else:
        raise AssertionError("it was taken for a sandbox")


@pytest.mark.parametrize(
    "value, seconds",
    [
        ("3", 3.0),
        (" 0.5 ", 0.5),
        ("-1", 0.0),
        ("soon", None),
        (None, None),
        ("inf", None),
        ("nan", None),
        ("Wed, 21 Oct 2015 07:28:10 GMT", 10.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
    ],
)
def test_b147_retry_after_in_both_forms(value: str | None, seconds: float | None) -> None:
    assert problem.parse_retry_after(value, now=1445412480.0) == seconds


def test_secrets_are_not_shown() -> None:
    from sandman.config import resolve

    assert "sm_secret" not in repr(resolve("http://127.0.0.1:1", "sm_secret", environ={}))
