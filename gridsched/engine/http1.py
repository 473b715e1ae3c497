"""Reading one HTTP/1.1 response, as a pure state machine: bytes in, a head and payload bytes out. No socket, no trio.

It de-frames (chunked, content-length, until the end of the connection) and never waits for more than it has: whatever
payload lies in the bytes given is handed on at once, however they were cut. It must never look into a payload.
"""

import re
from dataclasses import dataclass
from enum import Enum

MAX_HEAD_BYTES = 64 * 1024  # a head of llama-server is under 1 KiB; the limit only keeps a broken peer out of memory
MAX_CHUNK_LINE_BYTES = 4 * 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.[0-9] ([1-9][0-9][0-9])( .*)?", re.DOTALL)
_CHUNK_LINE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,16})[ \t]*(;.*)?", re.DOTALL)
_FIRST_FINAL_STATUS = 200  # 1xx heads announce; the real one follows


class NotHttp(ValueError):
    """The bytes are not an HTTP/1.1 response; the sentence says where."""


@dataclass(frozen=True, slots=True)
class Head:
    """A final response's status, and its headers with names in lower case, in order."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]

    def values(self, name: bytes) -> list[bytes]:
        """The values of every header of that name."""
        return [value for header, value in self.headers if header == name]


class _Part(Enum):
    """What the next byte belongs to."""

    HEAD = "head"
    SIZED = "sized"
    UNTIL_END = "until_end"
    CHUNK_SIZE = "chunk_size"
    CHUNK_DATA = "chunk_data"
    CHUNK_END = "chunk_end"
    TRAILERS = "trailers"
    DONE = "done"


class ResponseReader:
    """One response. Feed it what arrives; `head` appears when complete, payload is what `feed` returns.

    `method` matters because an answer to HEAD has no body, whatever its headers say.
    """

    def __init__(self, method: str = "GET") -> None:
        self.head: Head | None = None
        self._bodyless = method.upper() == "HEAD"
        self._part = _Part.HEAD
        self._rest = b""  # an incomplete head, chunk line or trailer
        self._left = 0  # payload bytes still to come of a chunk, or of a sized body

    @property
    def done(self) -> bool:
        """The whole response has been read; later bytes are ignored."""
        return self._part is _Part.DONE

    def feed(self, data: bytes) -> bytes:
        """Take bytes as they arrived and return the payload in them, b"" when there is none. Raises NotHttp."""
        if self._part is _Part.CHUNK_DATA and len(data) < self._left:  # the common case in a large answer
            self._left -= len(data)
            return data
        buffer, self._rest = self._rest + data, b""
        payload: list[bytes] = []
        position = 0
        while position < len(buffer) and self._part is not _Part.DONE:
            taken = self._step(buffer, position, payload)
            if taken == 0:
                break
            position += taken
        if not self.done:
            self._rest = buffer[position:]
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def end(self) -> bool:
        """The connection has ended: whether the response is whole."""
        if self._part is _Part.UNTIL_END:
            self._part = _Part.DONE
        return self.done

    def _step(self, buffer: bytes, position: int, payload: list[bytes]) -> int:
        """Consume one element of the response and return its length, 0 when it is not complete yet."""
        match self._part:
            case _Part.HEAD:
                return self._read_head(buffer, position)
            case _Part.SIZED | _Part.CHUNK_DATA:
                return self._read_counted(buffer, position, payload)
            case _Part.UNTIL_END:
                payload.append(buffer[position:])
                return len(buffer) - position
            case _:
                return self._read_line(buffer, position)

    def _read_counted(self, buffer: bytes, position: int, payload: list[bytes]) -> int:
        piece = buffer[position : position + self._left]
        payload.append(piece)
        self._left -= len(piece)
        if self._left == 0:
            self._part = _Part.DONE if self._part is _Part.SIZED else _Part.CHUNK_END
        return len(piece)

    def _read_line(self, buffer: bytes, position: int) -> int:
        """A line of the chunked framing: a size, the end of a chunk, or a trailer."""
        end = buffer.find(b"\r\n", position)
        if end < 0:
            if len(buffer) - position > MAX_CHUNK_LINE_BYTES:
                raise NotHttp("a line of the chunked framing has no end")
            return 0
        line = buffer[position:end]
        if self._part is _Part.CHUNK_SIZE:
            self._left = _chunk_size(line)
            self._part = _Part.CHUNK_DATA if self._left else _Part.TRAILERS
        elif self._part is _Part.CHUNK_END:
            if line:
                raise NotHttp("a chunk is longer than its size says")
            self._part = _Part.CHUNK_SIZE
        elif not line:
            self._part = _Part.DONE
        return len(line) + 2

    def _read_head(self, buffer: bytes, position: int) -> int:
        end = buffer.find(b"\r\n\r\n", position)
        if end < 0:
            if len(buffer) - position > MAX_HEAD_BYTES:
                raise NotHttp(f"the head is longer than {MAX_HEAD_BYTES} bytes")
            if not b"HTTP/1.".startswith(buffer[position : position + 7]):
                raise NotHttp("the answer does not begin like HTTP")
            return 0
        head = _parse_head(buffer[position:end])
        if head.status >= _FIRST_FINAL_STATUS:
            self.head = head
            self._begin_body(head)
        return end + 4 - position

    def _begin_body(self, head: Head) -> None:
        """RFC 9112, section 6.3: which framing the body has."""
        if self._bodyless or head.status in (204, 304):
            self._part = _Part.DONE
            return
        codings = b",".join(head.values(b"transfer-encoding"))
        lengths = {part.strip() for value in head.values(b"content-length") for part in value.split(b",")}
        if codings:
            chunked = codings.rpartition(b",")[2].strip().lower() == b"chunked"
            self._part = _Part.CHUNK_SIZE if chunked else _Part.UNTIL_END
        elif lengths:
            self._left = _content_length(lengths)
            self._part = _Part.SIZED if self._left else _Part.DONE
        else:
            self._part = _Part.UNTIL_END


def _parse_head(head: bytes) -> Head:
    first, *lines = head.split(b"\r\n")
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise NotHttp(f"the answer begins with {first[:60]!r}")
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise NotHttp(f"a header line is {line[:60]!r}")
        headers.append((name.lower(), value.strip()))
    return Head(int(status[1]), tuple(headers))


def _content_length(lengths: set[bytes]) -> int:
    length = lengths.pop()
    if lengths or not length.isdigit():
        raise NotHttp("the content length is not one number")
    return int(length)


def _chunk_size(line: bytes) -> int:
    size = _CHUNK_LINE.fullmatch(line)
    if size is None:
        raise NotHttp(f"a chunk's size is {line[:20]!r}")
    return int(size[1], 16)
