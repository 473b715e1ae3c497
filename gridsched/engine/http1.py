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
_LENGTH = re.compile(rb"[0-9]{1,19}")  # more digits than any body has; thousands of them the interpreter refuses
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
    CHUNKS = "chunks"
    TRAILERS = "trailers"
    DONE = "done"


class ResponseReader:
    """One response. Feed it what arrives; `head` appears when complete, payload is what `feed` returns. `broken` is
    what is wrong behind the payload that was returned last; nothing more is read then.

    `method` matters because an answer to HEAD has no body, whatever its headers say.
    """

    def __init__(self, method: str = "GET") -> None:
        self.head: Head | None = None
        self.broken: NotHttp | None = None
        self._bodyless = method.upper() == "HEAD"
        self._part = _Part.HEAD
        self._rest = b""  # an incomplete head, chunk line or trailer
        self._left = 0  # payload bytes still to come of a chunk, or of a sized body
        self._in_chunk = False  # from a chunk's size to the line end behind its data

    @property
    def done(self) -> bool:
        """The whole response has been read; later bytes are ignored."""
        return self._part is _Part.DONE

    def feed(self, data: bytes) -> bytes:
        """Take bytes as they arrived and return the payload in them, b"" when there is none. Raises NotHttp, unless
        there is payload before what is wrong."""
        if len(data) < self._left:  # the common case in a large answer: payload and nothing else
            self._left -= len(data)
            return data
        buffer, self._rest = self._rest + data, b""
        payload: list[bytes] = []
        position = 0
        while position < len(buffer) and self._part is not _Part.DONE:
            try:
                taken = self._step(buffer, position, payload)
            except NotHttp as error:
                if not payload:
                    raise
                self.broken = error
                break
            if taken == 0:
                self._rest = buffer[position:]
                break
            position += taken
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def end(self) -> bool:
        """The connection has ended: whether the response is whole."""
        if self._part is _Part.UNTIL_END:
            self._part = _Part.DONE
        return self.done

    def _step(self, buffer: bytes, position: int, payload: list[bytes]) -> int:
        """Consume one part of the response and return its length, 0 when more bytes are needed for it."""
        if self._part is _Part.CHUNKS:
            return self._read_chunks(buffer, position, payload)
        if self._part is _Part.HEAD:
            return self._read_head(buffer, position)
        if self._part is _Part.TRAILERS:
            return self._read_trailer(buffer, position)
        end = position + self._left if self._part is _Part.SIZED else len(buffer)
        piece = buffer[position:end]
        payload.append(piece)
        if self._part is _Part.SIZED:
            self._left -= len(piece)
            self._part = _Part.SIZED if self._left else _Part.DONE
        return len(piece)

    def _read_chunks(self, buffer: bytes, position: int, payload: list[bytes]) -> int:
        """As many chunks as there are, the last perhaps in part. The one loop that runs for every token."""
        start = position
        while position < len(buffer) and self._part is _Part.CHUNKS:
            if self._left:
                piece = buffer[position : position + self._left]
                payload.append(piece)
                self._left -= len(piece)
                position += len(piece)
                continue
            end = _line_end(buffer, position)
            if end < 0:
                break
            if not self._in_chunk:
                self._left = _chunk_size(buffer[position:end])
                self._in_chunk = True
                self._part = _Part.CHUNKS if self._left else _Part.TRAILERS
            elif end == position:
                self._in_chunk = False
            else:
                raise NotHttp("a chunk is longer than its size says")
            position = end + 2
        return position - start

    def _read_trailer(self, buffer: bytes, position: int) -> int:
        end = _line_end(buffer, position)
        if end < 0:
            return 0
        if end == position:
            self._part = _Part.DONE
        return end + 2 - position

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
            self._part = _Part.CHUNKS if chunked else _Part.UNTIL_END
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
    if lengths or not _LENGTH.fullmatch(length):
        raise NotHttp("the content length is not one number")
    return int(length)


def _line_end(buffer: bytes, position: int) -> int:
    """Where a line of the chunked framing ends, -1 if it does not yet."""
    end = buffer.find(b"\r\n", position)
    if end < 0 and len(buffer) - position > MAX_CHUNK_LINE_BYTES:
        raise NotHttp("a line of the chunked framing has no end")
    return end


def _chunk_size(line: bytes) -> int:
    size = _CHUNK_LINE.fullmatch(line)
    if size is None:
        raise NotHttp(f"a chunk's size is {line[:20]!r}")
    return int(size[1], 16)
