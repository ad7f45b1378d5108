"""Figures and foreign text as the console shows them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.console.wording import clock, count, iso, phrase, plain, plural, rate, span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0, "0s"),
        (0.04, "0s"),
        (0.42, "0.4s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (185, "3m 05s"),
        (3599.6, "1h 00m"),
        (8040, "2h 14m"),
        (273_600, "3d 04h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("per_second", "text"), [(1234.4, "1,234/s"), (12.34, "12.3/s"), (0.25, "0.25/s"), (0, "0.00/s")]
)
def test_a_rate_has_as_many_digits_as_help(per_second: float, text: str) -> None:
    assert rate(per_second) == text


def test_small_words() -> None:
    assert count(10_000) == "10,000"
    assert clock(1_700_000_000_000) == "22:13:20"
    assert iso(1_700_000_000_999) == "2023-11-14T22:13:20Z"
    assert phrase("lease_expired") == "lease expired"
    assert (plural(1, "row"), plural(2, "row"), plural(0, "entry", "entries")) == (
        "1 row",
        "2 rows",
        "0 entries",
    )


def test_text_that_would_reorder_or_break_its_line_shows_what_it_is() -> None:
    assert plain("a\nb\tc\x00\u202e") == "a\\nb\\tc\\u0000\\u202e"
    assert plain("ünïcode 漢字 <b>") == "ünïcode 漢字 <b>"


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_shown_text_is_one_bounded_visible_line(text: str, limit: int) -> None:
    shown = plain(text, limit)
    assert not any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in shown)
    assert len(shown) <= limit * 10 + 1
