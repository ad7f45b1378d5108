"""The rules for fields, bodies and queries, without any I/O."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.body import decode, explain
from app.execs.schemas import ExecBody
from app.gateway.gateway import new_exec_id, with_id
from app.ledger.settings import LeaseSettings, LimitSettings
from app.problems import KINDS, FieldError, Problem, invalid
from app.query import CURSOR, LIMIT, WAIT, Parameter, Query, cursor_of
from app.sandboxes.fields import Faults, check_image, check_labels, lease_seconds, quantity, to_spec
from app.sandboxes.schemas import CreateSandbox

LIMITS, LEASE = LimitSettings(), LeaseSettings()
create: msgspec.json.Decoder[CreateSandbox] = msgspec.json.Decoder(CreateSandbox)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("1k", 1000),
        ("1Ki", 1024),
        ("512Mi", 512 * 2**20),
        ("1.5Gi", 3 * 2**29),
        ("2T", 2 * 10**12),
        ("0.5k", 500),
        ("0.0001k", None),
        ("", None),
        ("Mi", None),
        ("-1", None),
        ("1 Gi", None),
        ("512MiB", 512 * 2**20),
        ("1GB", 10**9),
        ("5B", None),
        ("1e3", None),
        ("١", None),
        ("9" * 16, None),
    ],
)
def test_quantities(text: str, size: int | None) -> None:
    assert quantity(text) == size


@pytest.mark.parametrize(
    "image",
    [
        "host",
        "debian:12",
        "debian",
        "library/debian",
        "registry.example.org:5000/team/image_name:v1.2-rc.1",
        "localhost/x@sha256:" + "a" * 64,
        "ghcr.io/a/b:t@sha256:" + "0" * 64,
        "/srv/images/root",
        "oci:/srv/layout",
        "oci-archive:/srv/x.tar",
        "[::1]:5000/x",
    ],
)
def test_images_that_are_taken(image: str) -> None:
    faults = Faults()
    check_image(image, faults)
    assert not faults.listed


@pytest.mark.parametrize(
    "image",
    [
        "",
        "UPPER//x",
        "-x",
        "--rm",
        "a b",
        "a;b",
        "$(id)",
        "a:tag:tag",
        "a@sha256:12",
        "oci:x",
        "/a/../b",
        "a\0",
        "é",
        "x" * 600,
        "a/" * 300 + "b",
    ],
)
def test_images_that_are_refused(image: str) -> None:
    faults = Faults()
    check_image(image, faults)
    assert [fault.field for fault in faults.listed] == ["image"]


@given(st.dictionaries(st.text(max_size=70), st.text(max_size=70), max_size=5))
def test_labels_never_crash_and_what_passes_is_ascii(labels: dict[str, str]) -> None:
    faults = Faults()
    check_labels(labels, faults)
    if not faults.listed:
        assert all(key.isascii() and value.isascii() for key, value in labels.items())


def test_every_fault_is_named_at_once() -> None:
    body = CreateSandbox(image="UPPER", cpu=-1, env={"A=": "x"}, user="-x", workdir="rel", labels={"-": "x"})
    with pytest.raises(Problem) as refused:
        to_spec(body, LIMITS)
    fields = {error.field for error in refused.value.members["errors"]}
    assert fields == {"image", "cpu", "env", "user", "workdir", "labels"}


def test_defaults_are_filled_in() -> None:
    spec = to_spec(CreateSandbox(image="host"), LIMITS)
    assert (spec.cpu, spec.memory, spec.policy.pids) == (
        LIMITS.cpu_default,
        LIMITS.memory_bytes_default,
        LIMITS.pids_default,
    )


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1e12])
def test_b088_leases(value: float) -> None:
    with pytest.raises(Problem) as refused:
        lease_seconds(value, LEASE)
    assert refused.value.members["errors"][0].field == "lease_seconds"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"image":1}', "image"),
        (b'{"image":"x","env":{"A":1}}', "env[...]"),
        (b'{"image":"x","policy":{"pids":"1"}}', "policy.pids"),
        (b'{"image":"x","secret-name":1}', "secret-name"),
        (b'{"image":"x","policy":{"y":1}}', "policy.y"),
        (b"{}", "image"),
        (b'{"image":"\\ud800"}', "image"),
        (b'{"image":"x","env":{"\\udc00":"1"}}', "env"),
        (b'{"image":"x","cpu":Infinity}', "cpu"),
        (b'{"image":"x","labels":{"a":[NaN]}}', "labels[...]"),
    ],
)
def test_b033_the_field_is_named(body: bytes, field: str) -> None:
    with pytest.raises(Problem) as refused:
        decode(create, body)
    assert refused.value.status == 422
    assert refused.value.members["errors"][0].field == field


@given(st.text(max_size=30).map(lambda text: "canary-7f3a" + text))
def test_b156_values_are_never_repeated(canary: str) -> None:
    bodies: list[dict[str, Any]] = [
        {"image": [canary]},
        {"image": "x", "policy": {"network": canary}},
        {"image": "x", "memory": {canary: 1}},
        {"image": "x", "env": {"A": [canary]}},
    ]
    for body in bodies:
        with pytest.raises(Problem) as refused:
            decode(create, msgspec.json.encode(body))
        assert b"canary-7f3a" not in refused.value.encode()


@given(st.binary(max_size=80))
def test_any_bytes_are_a_problem_or_a_body(body: bytes) -> None:
    try:
        decode(create, body)
    except Problem as problem:
        assert problem.status in (400, 422)


def test_explain_without_a_place() -> None:
    assert explain("Expected `object`, got `array`") == FieldError("", "expected `object`, got `array`")


@given(st.dictionaries(st.sampled_from(["command", "cwd"]), st.text(max_size=20), min_size=1))
def test_an_id_is_put_in_front_of_any_body(fields: dict[str, str]) -> None:
    for body in (msgspec.json.encode(fields), b" \n" + msgspec.json.encode(fields)):
        exec_id = new_exec_id()
        found = msgspec.json.decode(with_id(body, exec_id), type=ExecBody)
        assert found.id == exec_id and found.command == fields.get("command")


def test_problems_have_all_members() -> None:
    for slug, kind in KINDS.items():
        document = Problem(slug).document("r1")
        assert document["type"] == f"urn:sandman:problem:{slug}" and document["status"] == kind.status
        assert {"title", "retryable", "cause", "request_id"} <= set(document)
    assert msgspec.json.decode(invalid(("a", "b")).encode())["errors"] == [{"field": "a", "message": "b"}]


def query(raw: bytes, *declared: Parameter) -> Query:
    scope: Any = {"query_string": raw}
    return Query(scope, declared)


@pytest.mark.parametrize(
    "raw",
    [b"wait=-1", b"wait=nan", b"wait=601", b"wait=1_0", b"wait=", b"wait=%31e9", b"wait=%D9%A1"],
)
def test_bad_numbers(raw: bytes) -> None:
    with pytest.raises(Problem):
        query(raw, WAIT).number(WAIT, 0)


@pytest.mark.parametrize(
    "raw", [b"x=1", b"wait=1&wait=2", b"wait=%ff", b"wait=\xff", b"wait=%00", b"&".join([b"wait=1"] * 200)]
)
def test_bad_queries(raw: bytes) -> None:
    with pytest.raises(Problem):
        query(raw, WAIT)


def test_good_queries() -> None:
    assert query(b"wait=1.5", WAIT).number(WAIT, 0) == 1.5
    assert query(b"", WAIT).number(WAIT, 7) == 7
    assert query(b"limit=10", LIMIT).number(LIMIT, 1) == 10
    with pytest.raises(Problem):
        query(b"limit=1.5", LIMIT).number(LIMIT, 1)
    with pytest.raises(Problem):
        cursor_of(query(b"cursor=..%2f", CURSOR))
