"""Text and captures: characters cut anywhere (B041), bytes that are no text (B042), and bounded results (B148)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandman.output import Capture, decoder_for


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    points = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(points)]


@given(st.text(), st.lists(st.integers(0, 200)))
def test_b041_text_is_the_same_wherever_it_is_cut(text: str, cuts: list[int]) -> None:
    decoder = decoder_for("utf-8")
    data = text.encode()
    assert (
        "".join(decoder.decode(chunk) for chunk in chunked(data, cuts)) + decoder.decode(b"", final=True)
        == text
    )


@pytest.mark.parametrize(
    "chunks, text",
    [
        ([b"\xe2", b"\x89", b"\xa4"], "≤"),
        ([b"\xf0", b"\x9f\x98\x80"], "😀"),
        ([b"ok\xe2\x89"], "ok\ufffd"),
    ],
)
def test_b041_split_and_dangling_characters(chunks: list[bytes], text: str) -> None:
    decoder = decoder_for("utf-8")
    assert "".join(map(decoder.decode, chunks)) + decoder.decode(b"", final=True) == text


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_b042_any_bytes_become_some_text_independent_of_the_cuts(data: bytes, cuts: list[int]) -> None:
    decoder = decoder_for("utf-8")
    text = "".join(decoder.decode(chunk) for chunk in chunked(data, cuts)) + decoder.decode(b"", final=True)
    assert text == data.decode("utf-8", "replace")
    text.encode()  # no lone surrogates


@given(st.binary(max_size=300), st.lists(st.integers(0, 300)), st.integers(0, 320))
def test_b148_a_capture_keeps_both_ends_and_counts_the_middle(
    data: bytes, cuts: list[int], limit: int
) -> None:
    capture = Capture(limit)
    for chunk in chunked(data, cuts):
        capture.add(chunk)
    kept, missing = capture.finish().joined()
    assert capture.total == len(data)
    assert len(kept) + missing == len(data)
    if len(data) <= limit:
        assert kept == data
    else:
        head, tail = limit - limit // 2, limit // 2
        assert kept == data[:head] + (data[-tail:] if tail else b"")
    assert capture.total == len(data)


@given(st.text(min_size=1), st.integers(0, 40))
def test_b148_text_is_cut_between_characters_and_the_count_stays_exact(text: str, limit: int) -> None:
    data = text.encode()
    capture = Capture(limit)
    capture.add(data)
    shown, missing = capture.finish().text("utf-8")
    assert len(shown.encode()) + missing == len(data)
    assert all(character in text for character in shown)


def test_b148_a_capture_never_holds_much_more_than_its_limit() -> None:
    capture = Capture(1000)
    for _ in range(10_000):
        capture.add(b"x" * 100)
        assert len(capture._head) + capture._tail_size <= 1000 + 100


def test_b053_a_gap_counts_as_dropped_and_what_follows_is_the_end() -> None:
    capture = Capture(10)
    capture.add(b"ab")
    capture.skip(100)
    capture.add(b"cdefghij")
    assert capture.finish().joined() == (b"abfghij", 103)
    assert capture.total == 110
