"""What is made of the bytes of a batch's file, whatever they are."""

import io
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridsched.api.batch_lines import answer_line, lines_of, request_of

CHAT = "/v1/chat/completions"
GOOD = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}'
DEEP = 100_000
NASTY = [
    GOOD.replace(b"[]", b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    GOOD.replace(b"[]", b"[" * DEEP),
    GOOD.replace(b"[]", b'"\xff"'),
    GOOD.replace(b'"a"', b'"\xff"'),
    GOOD.replace(b'"a"', b'"\\ud800"'),
    GOOD.replace(b"[]", b"1e999"),
    GOOD.replace(b"[]", b'[], "stream": "yes"'),
    GOOD.replace(b"[]", b'[], "stream": 1'),
    b"[" * DEEP,
    b'"' + b"\\" * 99,
    b"\0" * 500,
    "{}".encode("utf-16"),
]
PIECES = st.sampled_from(
    [GOOD, b"\n", b"\r\n", b"{", b'"', b"\xff", b"\0", b" ", b"null", b"\xef\xbb\xbf", b"}", *NASTY[2:8]]
)


def check(data: bytes, longest: int = 10_000_000) -> int:
    """The spans are in order, hold all that is not blank, and each good one can be read again; how many there are."""
    found = list(lines_of(io.BytesIO(data), CHAT, longest))
    end = 0
    for line in found:
        assert data[end : line.start].strip(b" \t\r\n\v\f\xef\xbb\xbf") == b""
        end = line.start + line.length
        if line.error is None:
            request = request_of(data[line.start : end])
            assert request.body.startswith(b"{")
        else:
            assert (line.error.line, bool(line.error.code), bool(line.error.message)) == (line.number, True, True)
    assert data[end:].strip(b" \t\r\n\v\f\xef\xbb\xbf") == b""
    return len(found)


@pytest.mark.parametrize("line", NASTY, ids=range(len(NASTY)))
def test_a_nasty_line_costs_only_itself(line: bytes) -> None:
    """Nested without end, no text, no number, cut off: the lines around it are good."""
    assert check(b"\n".join([GOOD.replace(b'"a"', b'"x"'), line, GOOD.replace(b'"a"', b'"y"')])) >= 3


@given(st.lists(PIECES, max_size=30), st.integers(10, 200))
def test_whatever_the_bytes_are_each_line_is_good_or_has_its_error(pieces: list[bytes], longest: int) -> None:
    """Also where lines may not be long."""
    data = b"".join(pieces)
    check(data)
    check(data, longest)


def test_a_line_that_is_too_long_is_passed_over_without_being_held() -> None:
    """Its place and number are known, and the next is read."""
    data = GOOD + b"\n" + b"x" * 100_000 + b"\n" + GOOD.replace(b'"a"', b'"b"')
    found = list(lines_of(io.BytesIO(data), CHAT, 200))
    assert [(line.number, line.error and line.error.code) for line in found] == [
        (1, None),
        (2, "line_too_long"),
        (3, None),
    ]


ENDS = '{"a": "x\u2028y\u2029z\u0085\\\\\u2028"}'


@given(
    st.binary(max_size=40)
    | st.text(st.sampled_from('{"a":}\\\u2028\x85\x0c\x1d ')).map(str.encode)
    | st.sampled_from([b'{"a": 1,\r\n "b": "\\n"}', b'{"x": NaN}', b"[" * 9999, b"", ENDS.encode()])
)
def test_an_answer_is_one_line_of_json_whatever_the_engine_said(body: bytes) -> None:
    """JSON as it came, but for its line ends; anything else as a text."""
    written = answer_line("batch_1", 7, "a", 200, "req", body)
    assert written.count(b"\n") == len(written.decode().splitlines()) == 1
    told = json.loads(written)["response"]["body"]
    try:
        assert told == msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        assert isinstance(told, str)
