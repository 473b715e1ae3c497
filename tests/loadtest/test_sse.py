import json

import pytest

from loadtest.sse import LONGEST_LINE_BYTES, SseReader


def test_events_are_found_however_the_bytes_are_cut() -> None:
    """One byte at a time gives what all at once gives."""
    raw = b": queued 3\n\nid: 7\ndata: one\n\ndata:two\r\n\r\n"
    reader = SseReader()
    assert [data for byte in raw for data in reader.feed(bytes([byte]))] == ["one", "two"]
    assert SseReader().feed(raw) == ["one", "two"]


def test_data_of_several_lines_is_one_event() -> None:
    """Lines of one event are joined as the format says."""
    assert SseReader().feed(b"data: a\ndata: b\n\n") == ["a\nb"]


def test_an_unfinished_event_is_not_given() -> None:
    """What has no blank line yet may still grow."""
    assert SseReader().feed(b"data: half\n") == []


def test_a_line_separator_inside_json_does_not_break_the_line() -> None:
    """U+2028 and U+0085 may stand raw in a JSON string."""
    value = {"text": "a\u2028b\u0085c"}
    raw = f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()
    assert [json.loads(data) for data in SseReader().feed(raw)] == [value]


def test_an_endless_line_is_refused() -> None:
    """Something that is no event stream does not fill the memory."""
    reader = SseReader()
    with pytest.raises(ValueError, match="longer than"):
        reader.feed(b"x" * (LONGEST_LINE_BYTES + 1))
