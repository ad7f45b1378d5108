"""The ledger's arithmetic and border code, without Redis."""

from __future__ import annotations

import math
import random
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from app.ledger import scripts
from app.ledger.codec import clean_text
from app.ledger.epoch import KnownEpoch, read_epoch, write_epoch
from app.ledger.model import (
    LIVE,
    Brief,
    ExecSample,
    Reason,
    Run,
    SandboxSpec,
    State,
    cause_of,
    is_run_id,
    is_sandbox_id,
    new_run_id,
    new_sandbox_id,
    retryable_of,
)
from app.ledger.report import bucket_of, bucket_value, build_report, exec_updates, percentile, report_rows
from app.ledger.scripts import script_names, script_text
from app.ledger.settings import SettingsError, read_settings
from app.ledger.tokens import SecretUnreadable, read_secret, sandbox_token, token_sha256
from worker.providers.base import Observed
from worker.reconcile import Trust, is_orphan, is_stray

RUN = Run("run-x", "a", "", {}, "open", 1_000, None, None, 60.0, 61_000, 0, 0)


@given(st.floats(1, 1e9))
def test_a_bucket_holds_its_values_to_five_percent(ms: float) -> None:
    assert bucket_value(bucket_of(ms)) == pytest.approx(ms, rel=0.05)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=300), st.sampled_from([50, 90, 99]))
def test_percentiles_are_right_to_a_bucket(values: list[float], percent: int) -> None:
    histogram: dict[int, int] = {}
    for value in values:
        histogram[bucket_of(value)] = histogram.get(bucket_of(value), 0) + 1
    exact = sorted(values)[math.ceil(len(values) * percent / 100) - 1]
    assert percentile(histogram, percent, max(values)) == pytest.approx(exact, rel=0.1)


def test_an_empty_report_makes_nothing_up() -> None:
    report = build_report(RUN, {"origin": "1000"}, now_ms=5_000)
    assert report["delays"]["total"] == {
        "count": 0,
        "mean": None,
        "max": None,
        "p50": None,
        "p90": None,
        "p99": None,
    }
    assert report["wall_seconds"] == 4.0
    assert ("usage.cpu_seconds", "0.0") in report_rows(report)


def test_usage_so_far_counts_those_that_still_live() -> None:
    numbers = {"origin": "1000", "open:n": "2", "open:t": "3.0", "open:cpu": "1.0", "open:cpu_t": "1.5"}
    usage = build_report(RUN, numbers | {"sandbox_seconds": "10"}, now_ms=11_000)["usage"]
    assert (usage["sandbox_seconds"], usage["cpu_seconds"]) == (27.0, 8.5)


def test_exec_batches_are_summed_per_run() -> None:
    samples = [ExecSample("s", "r1", "ok", 0.001)] * 3 + [
        ExecSample("s", None, "ok", 1),
        ExecSample("s", "r2", "lost", 2),
    ]
    updates = exec_updates(random.sample(samples, len(samples)))
    assert set(updates) == {"r1", "r2"}
    triples = {tuple(updates["r1"][i : i + 3]) for i in range(0, len(updates["r1"]), 3)}
    assert triples == {("x:ok", "i", "3"), ("h:exec:1", "i", "3"), ("s:exec", "f", "3"), ("m:exec", "m", "1")}


def test_every_reason_has_a_cause_and_only_infrastructure_is_masked() -> None:
    assert {reason for reason in Reason if cause_of(reason) == "task"} == {
        Reason.IMAGE_PULL,
        Reason.IMAGE_INVALID,
        Reason.OOM_KILLED,
        Reason.EXITED,
    }
    assert cause_of(Reason.QUOTA) == "caller"
    assert cause_of(Reason.NODE_LOST) == "infra" and retryable_of(Reason.NODE_LOST)
    assert not retryable_of(Reason.IMAGE_INVALID)


def test_ids_are_names_that_every_backend_accepts() -> None:
    assert is_sandbox_id(new_sandbox_id()) and is_run_id(new_run_id())
    assert len({new_sandbox_id() for _ in range(100)}) == 100
    for text in (
        "",
        "sb-",
        new_run_id(),
        new_sandbox_id() + "\n",
        new_sandbox_id().upper(),
        "sb-" + "1" * 26,
    ):
        assert not is_sandbox_id(text), text


def test_no_value_of_env_is_shown() -> None:
    spec = SandboxSpec(image="x", cpu=1, memory=1, disk=1, env={"TOKEN": "canary"})
    assert "canary" not in repr(spec) and "TOKEN" in repr(spec)


def test_text_of_a_backend_becomes_storable() -> None:
    assert clean_text("a\0b\ud800c" + "x" * 100, 5) == "a\ufffdb?c"


def test_every_script_says_what_it_takes_and_has_the_prelude() -> None:
    assert len(script_names()) > 20
    for name in script_names():
        text = script_text(name)
        assert text.startswith("-- ") and "local P = KEYS[1]" in text
        assert "ARGV" in (Path(scripts.__file__).parent / f"{name}.lua").read_text()


def test_settings_come_from_the_environment_and_name_what_is_wrong(tmp_path: Path) -> None:
    settings = read_settings(
        {"SANDMAN_DATA_DIR": str(tmp_path), "SANDMAN_PORT": "", "SANDMAN_SANDBOX_UID": "0"}
    )
    assert settings.paths.secret_file == tmp_path / "secret"
    assert (settings.port, settings.sandbox_uid) == (8700, 0)
    assert read_settings({}).sandbox_uid is None
    for name, value in (("PORT", "x"), ("PORT", "1.5"), ("CPU_MAX", "nan"), ("LEASE_SECONDS_DEFAULT", "-1")):
        with pytest.raises(SettingsError, match=f"SANDMAN_{name}"):
            read_settings({f"SANDMAN_{name}": value})


def test_a_token_derives_from_secret_and_id(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("ab" * 32 + "\n")
    secret = read_secret(file)
    one, two = sandbox_token(secret, "sb-1"), sandbox_token(secret, "sb-2")
    assert one == sandbox_token(secret, "sb-1") != two and len(token_sha256(one)) == 64
    for text in ("", "zz", "ab"):
        file.write_text(text)
        with pytest.raises(SecretUnreadable, match="secret"):
            read_secret(file)


def test_the_epoch_file_is_replaced_whole_and_a_broken_one_is_a_missing_one(tmp_path: Path) -> None:
    assert read_epoch(tmp_path) == KnownEpoch()
    write_epoch(tmp_path, "e", 7)
    assert read_epoch(tmp_path) == KnownEpoch("e", 7)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger-epoch.json"]
    (tmp_path / "ledger-epoch.json").write_text("{")
    assert read_epoch(tmp_path) == KnownEpoch()


def record(state: State, cleaned: int | None = None) -> Brief:
    return Brief(state in LIVE, state, None, cleaned)


NOW = 1_000_000
TRUST = Trust(now=NOW, born=500_000, agreement=900_000, grace=60_000, settle=10_000)


@pytest.mark.parametrize(
    ("found", "known", "trust", "orphan"),
    [
        (Observed("x", "running", 600_000), None, TRUST, True),
        (Observed("x", "running", 600_000), record(State.READY), TRUST, False),
        (Observed("x", "running", 600_000), record(State.DELETING), TRUST, False),
        # Younger than the last agreement; older than the epoch; no agreement yet; younger than the grace.
        (Observed("x", "running", 920_000), None, TRUST, False),
        (Observed("x", "running", 400_000), None, TRUST, False),
        (Observed("x", "running", 600_000), None, Trust(NOW, 500_000, None, 60_000, 10_000), False),
        (Observed("x", "running", 600_000), None, Trust(NOW, 500_000, 900_000, 500_000, 10_000), False),
        # Dead remains are removed whatever the ledger's age.
        (Observed("x", "gone", 400_000), None, TRUST, True),
        (Observed("x", "gone", 990_000), None, TRUST, False),
        # Made again by a create that came late, after the ledger had seen it cleaned up.
        (Observed("x", "running", 995_000), record(State.DELETED, cleaned=980_000), TRUST, True),
        (Observed("x", "running", 995_000), record(State.DELETED, cleaned=995_000), TRUST, False),
    ],
)
def test_what_is_an_orphan(found: Observed, known: Brief | None, trust: Trust, orphan: bool) -> None:
    assert is_orphan(found, known, trust) == orphan
    if orphan:
        assert is_stray(known)
