"""What must hold of any bytes at all that the header reader is given.

Owns the judgement: an AssertionError, or any exception that the reader does not declare, is a find.
"""

from contextlib import suppress

from gridsched.vram.geometry import Geometry, GeometryError
from gridsched.vram.header import KEPT_ARRAY_ENTRIES, KEPT_BYTES, Header, HeaderError, NeedMore, scan, scan_file

FAR = 1 << 40
"""The size of a file in which nearly everything that a header claims could be."""

End = Header | HeaderError | NeedMore


def end_of(data: bytes, file_bytes: int | None) -> End:
    """What a scan ends in; any other exception goes through."""
    try:
        return scan(data, file_bytes=file_bytes)
    except (HeaderError, NeedMore) as end:
        return end


def windowed(data: bytes, file_bytes: int, more: int) -> End:
    """The same read in windows that have so many bytes more than was asked for."""
    try:
        return scan_file(lambda offset, least: data[offset : offset + least + more], file_bytes)
    except (HeaderError, NeedMore) as end:
        return end


def check(data: bytes) -> End:
    """Assert everything, and give what the bytes are as the beginning of a very large file."""
    whole, large = end_of(data, len(data)), end_of(data, FAR)
    assert not isinstance(whole, NeedMore), "a whole file has no more to give"
    for more in (0, 50 + len(data) % 500):
        assert told(windowed(data, len(data), more)) == told(whole), more
    for file_bytes, end in ((len(data), whole), (FAR, large), (None, end_of(data, None))):
        match end:
            case Header():
                check_header(end, file_bytes)
            case HeaderError():
                assert end.field
                assert end.message
                assert end.offset >= 0
            case NeedMore():
                assert end.bytes_needed > len(data)
                assert file_bytes is None or end.bytes_needed <= file_bytes
    return large


def told(end: End) -> object:
    """An end as a value that can be compared. How far into a list of texts the reader is when it sees that the rest
    cannot be there depends on the window."""
    match end:
        case Header():
            return repr(end)  # as text, because a NaN equals nothing
        case HeaderError():
            return end.field
        case NeedMore():
            return NeedMore


def check_header(header: Header, file_bytes: int | None) -> None:
    """Assert that a header keeps no more than it may, that its tensors lie in the file, and that planning bears it."""
    kept = sum(len(value) for value in header.metadata.values() if isinstance(value, str))
    assert kept <= KEPT_BYTES
    assert all(len(value) <= KEPT_ARRAY_ENTRIES for value in header.metadata.values() if isinstance(value, tuple))
    end = 0
    for tensor in header.tensors:
        assert tensor.offset >= end, tensor
        assert tensor.size_bytes >= 0, tensor
        end = tensor.offset + tensor.size_bytes
    assert file_bytes is None or not header.tensors or header.data_offset + end <= file_bytes
    with suppress(GeometryError):
        assert Geometry.from_header(header).file_bytes >= 0
