"""Reading a response: whatever the segmentation, the same payload; and what is not HTTP is said to be so."""

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridsched.engine.http1 import MAX_CHUNK_LINE_BYTES, MAX_HEAD_BYTES, NotHttp, ResponseReader

PAYLOADS = st.lists(st.binary(min_size=1, max_size=200), max_size=8)
EXTENSIONS = st.sampled_from([b"", b";a=b", b" ; note"])


def feed_all(reader: ResponseReader, segments: list[bytes]) -> bytes:
    """Every payload byte, fed as cut."""
    return b"".join([reader.feed(segment) for segment in segments])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in segments that end at these places."""
    ends = [*sorted({place % (len(data) + 1) for place in places}), len(data)]
    starts = [0, *ends[:-1]]
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


def head(*lines: bytes) -> bytes:
    """A head of these lines."""
    return b"\r\n".join((b"HTTP/1.1 200 OK", *lines, b"", b""))


@given(PAYLOADS, EXTENSIONS, st.booleans(), st.lists(st.integers(min_value=0), max_size=30))
def test_any_segmentation_of_a_chunked_answer_gives_the_same_payload(
    parts: list[bytes], extension: bytes, trailer: bool, places: list[int]
) -> None:
    """Chunks are de-framed however they arrive, and a trailer is passed over."""
    answer = head(b"Transfer-Encoding: chunked") + b"".join(b"%X%b\r\n%b\r\n" % (len(p), extension, p) for p in parts)
    answer += b"0\r\n" + (b"X-Note: 1\r\n" if trailer else b"") + b"\r\n"
    reader = ResponseReader()
    assert feed_all(reader, cut(answer, places)) == b"".join(parts)
    assert reader.done


@given(st.binary(max_size=500), st.booleans(), st.lists(st.integers(min_value=0), max_size=30))
def test_any_segmentation_of_a_sized_or_unsized_answer_gives_the_same_payload(
    body: bytes, sized: bool, places: list[int]
) -> None:
    """A length ends the body; without one, the connection's end does."""
    answer = head(b"Content-Length: %d" % len(body)) if sized else head()
    reader = ResponseReader()
    assert feed_all(reader, cut(answer + body, places)) == body
    assert reader.done is sized
    assert reader.end()


@given(PAYLOADS, st.lists(st.integers(min_value=0), max_size=10))
def test_a_second_reader_agrees(parts: list[bytes], places: list[int]) -> None:
    """h11 reads the same payload out of the same bytes."""
    answer = head(b"Transfer-Encoding: chunked") + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"
    other = h11.Connection(h11.CLIENT)
    other.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    other.receive_data(answer)
    seen = b""
    while not isinstance(event := other.next_event(), h11.EndOfMessage):
        seen += bytes(event.data) if isinstance(event, h11.Data) else b""
    assert feed_all(ResponseReader(), cut(answer, places)) == seen


def test_payload_is_handed_on_as_soon_as_it_is_there() -> None:
    """Half a chunk is payload already."""
    reader = ResponseReader()
    assert reader.feed(head(b"Transfer-Encoding: chunked") + b"a\r\nhal") == b"hal"
    assert reader.feed(b"f and") == b"f and"
    assert not reader.done


def test_the_head_is_read_with_names_in_lower_case_and_in_order() -> None:
    """Values keep their spelling; equal names stay apart."""
    reader = ResponseReader()
    reader.feed(head(b"X-One:  a ", b"x-two:B", b"X-ONE: c", b"Content-Length: 0"))
    assert reader.head is not None
    assert reader.head.headers[:3] == ((b"x-one", b"a"), (b"x-two", b"B"), (b"x-one", b"c"))
    assert reader.head.values(b"x-one") == [b"a", b"c"]


def test_announcements_before_the_answer_are_passed_over() -> None:
    """100 and 103 are not the answer."""
    reader = ResponseReader()
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    assert reader.feed(early + head(b"Content-Length: 2") + b"ok") == b"ok"
    assert reader.head is not None
    assert reader.head.status == 200


@pytest.mark.parametrize(("method", "status"), [("HEAD", b"200 OK"), ("GET", b"204 No Content"), ("GET", b"304 X")])
def test_answers_without_a_body_are_done_with_their_head(method: str, status: bytes) -> None:
    """Whatever length they speak of."""
    reader = ResponseReader(method)
    assert reader.feed(b"HTTP/1.1 " + status + b"\r\nContent-Length: 9\r\n\r\n") == b""
    assert reader.done


def test_chunked_wins_over_a_length() -> None:
    """RFC 9112: a length beside a transfer coding does not count."""
    reader = ResponseReader()
    assert reader.feed(head(b"Content-Length: 99", b"Transfer-Encoding: chunked") + b"1\r\nx\r\n0\r\n\r\n") == b"x"
    assert reader.done


def test_bytes_behind_the_answer_are_ignored() -> None:
    """The connection is closed behind it anyway."""
    reader = ResponseReader()
    assert reader.feed(head(b"Content-Length: 1") + b"xHTTP/1.1 200 OK\r\n\r\n") == b"x"
    assert reader.feed(b"more") == b""


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.0\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 20000 OK\r\n\r\n",
        head(b"no colon here"),
        head(b" folded: line"),
        head(b"Content-Length: -1"),
        head(b"Content-Length: 1, 2"),
        head(b"Content-Length: 1", b"Content-Length: 2"),
        head(b"Content-Length: " + b"9" * 5000),
        head(b"Transfer-Encoding: chunked") + b"xyz\r\n",
        head(b"Transfer-Encoding: chunked") + b"\r\n",
        head(b"Transfer-Encoding: chunked") + b"-1\r\n",
        head(b"Transfer-Encoding: chunked") + b"11111111111111111\r\n",
        head(b"Transfer-Encoding: chunked") + b"1" * (MAX_CHUNK_LINE_BYTES + 1),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES,
    ],
)
def test_what_is_not_http_is_refused(answer: bytes) -> None:
    """With a sentence, and without waiting for more."""
    with pytest.raises(NotHttp, match=r"\w+ \w+"):
        ResponseReader().feed(answer)


@pytest.mark.parametrize("wrong", [b"1\r\nbc\r\n", b"five\r\n"])
def test_I4_what_came_before_what_is_wrong_is_handed_on(wrong: bytes) -> None:
    """Also where both are read at once; and then it is said what is wrong."""
    reader = ResponseReader()
    assert reader.feed(head(b"Transfer-Encoding: chunked") + b"1\r\na\r\n" + wrong) == b"ab"[: 1 + wrong.count(b"b")]
    assert reader.broken is not None
    assert not reader.end()


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200", head(b"Content-Length: 5") + b"ab"])
def test_an_early_end_is_not_a_whole_answer(part: bytes) -> None:
    """The connection ended, the answer did not."""
    reader = ResponseReader()
    reader.feed(part)
    assert not reader.end()
