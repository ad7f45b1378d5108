"""The reader of the daemon's answers: the same result however the bytes are cut, and nothing taken on trust."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.http1 import HEAD_BYTES_MAX, AnswerReader, ProtocolViolation

SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: 1\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"


def read(pieces: list[bytes], *, no_body: bool = False) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader(no_body)
    body = b"".join(b"".join(reader.feed(piece)) for piece in pieces)
    return reader, body


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(
    st.sampled_from([(SIZED, 200, b"hello"), (CHUNKED, 201, b"abc0123456789"), (INTERIM, 204, b"")]),
    st.lists(st.integers(0, 500)),
)
def test_any_cut_reads_the_same(case: tuple[bytes, int, bytes], places: list[int]) -> None:
    data, status, expected = case
    reader, body = read(cut(data, places))
    assert reader.done and reader.head is not None and reader.head.status == status and body == expected
    assert reader.head.keep_alive


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(0, 2000)))
def test_any_chunks_read_back(chunks: list[bytes], places: list[int]) -> None:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    reader, found = read(cut(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body, places))
    assert reader.done and found == b"".join(chunks)


@given(st.binary(max_size=300))
def test_garbage_is_refused_or_awaited_and_never_crashes(data: bytes) -> None:
    try:
        AnswerReader().feed(data)
    except ProtocolViolation:
        pass


@pytest.mark.parametrize(
    "data",
    [
        SIZED + b"x",
        CHUNKED + b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName : x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\nInjected: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 400,
        b"HTTP/1.1 200 OK\r\n" + b"a: " + b"x" * (HEAD_BYTES_MAX + 10),
    ],
)
def test_what_no_daemon_sends_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        AnswerReader().feed(data)


def test_an_answer_to_head_has_no_body() -> None:
    reader, _ = read([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"], no_body=True)
    assert reader.done


def test_without_a_length_the_end_of_the_connection_ends_it_and_it_is_not_used_again() -> None:
    reader, body = read([b"HTTP/1.1 200 OK\r\n\r\nabc", b"def"])
    assert body == b"abcdef" and not reader.done
    assert reader.eof() and reader.head is not None and not reader.head.keep_alive


def test_an_early_end_is_not_an_end() -> None:
    reader, _ = read([SIZED[:-2]])
    assert not reader.eof()
    reader, _ = read([CHUNKED[:-10]])
    assert not reader.eof()
