"""The lines of a batch: what a file that was handed in says, and how an answer is written down. Pure but for reading.

Owns the shape of both (OpenAI's), and every sentence about a line that cannot be run. Must never look into a body
beyond what no batch can do: it is read by door 1 when it is its turn, as any other request's.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

import msgspec

from gridsched.api.members import BOM
from gridsched.store.batches import LineError

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages")
MOST_LINES = 50_000
LONGEST_ID = 512
"""Characters of a `custom_id`."""

FIRST_GOOD, FIRST_BAD = 200, 300

_Fault = tuple[str, str, str | None]
"""A code, a sentence, and the member that it is about."""


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Named(msgspec.Struct):
    """A line that is damaged may still say which it is."""

    custom_id: str | None = None


class _Streamed(msgspec.Struct):
    stream: bool | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One request: where it lies in the file. `error`: it cannot be run."""

    number: int
    start: int
    length: int
    error: LineError | None = None
    custom_id: str | None = None  # of one that cannot be run; of the others it is read again when it is their turn


@dataclass(frozen=True, slots=True)
class Request:
    """What a line asks for."""

    custom_id: str
    body: bytes


class TooManyLines(ValueError):
    """There are more lines than a batch may have."""


def lines_of(file: BinaryIO, endpoint: str, longest: int) -> Iterator[Line]:
    """The requests in a file, the damaged ones too; blank lines are none. Raises OSError, and TooManyLines."""
    seen: set[str] = set()
    found = start = number = 0
    while raw := file.readline(longest + 1):
        number += 1
        length = len(raw)
        while not raw.endswith(b"\n") and len(more := file.readline(longest + 1)) > 0:  # far too long: to its end
            length += len(more)
            raw = more[-1:]
        if start == 0 and raw.startswith(BOM):
            start, length, raw = len(BOM), length - len(BOM), raw[len(BOM) :]
        if length > longest or raw.strip():
            found += 1
            if found > MOST_LINES:
                raise TooManyLines
            yield _line(number, start, length, raw if length <= longest else None, endpoint, seen)
        start += length


def _line(number: int, start: int, length: int, raw: bytes | None, endpoint: str, seen: set[str]) -> Line:
    custom_id = None
    try:
        if raw is None:
            fault: _Fault | None = ("line_too_long", "it is longer than the longest request that is taken", None)
        else:
            line = msgspec.json.decode(raw, type=_Line)
            custom_id = line.custom_id
            fault = _fault(line, endpoint, seen)
            seen.add(custom_id)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        fault, custom_id = _damage(error), _name_of(raw or b"")
    if fault is None:
        return Line(number, start, length)
    code, message, param = fault
    return Line(number, start, length, LineError(code, message, number, param), custom_id)


def _fault(line: _Line, endpoint: str, seen: Collection[str]) -> _Fault | None:
    """Why a line cannot be run: code, sentence, member."""
    body = bytes(line.body)
    faults = (
        (
            not 0 < len(line.custom_id) <= LONGEST_ID,
            "invalid_custom_id",
            f"has 1 to {LONGEST_ID} characters",
            "custom_id",
        ),
        (line.custom_id in seen, "duplicate_custom_id", "is that of an earlier line", "custom_id"),
        (line.method != "POST", "invalid_method", "must be POST", "method"),
        (line.url != endpoint, "mismatched_endpoint", f"must be the endpoint of the batch, {endpoint}", "url"),
        (not body.startswith(b"{"), "invalid_type", "must be an object", "body"),
        (_streams(body), "stream_not_supported", "asks for a stream, which no batch can have", "body"),
    )
    return next(((code, f"{member} {said}", member) for wrong, code, said, member in faults if wrong), None)


def _damage(error: Exception) -> _Fault:
    """What is wrong with a line that could not be read."""
    said = str(error).replace("`", "")
    if isinstance(error, msgspec.ValidationError):
        missing = "missing required field" in said
        members = ("custom_id", "method", "url", "body")
        member = next((each for each in members if f"field {each}" in said or f"$.{each}" in said), None)
        return ("missing_required_parameter" if missing else "invalid_type"), said, member
    return "invalid_json_line", f"it is not valid JSON: {said}", None


def _name_of(raw: bytes) -> str | None:
    try:
        return msgspec.json.decode(raw, type=_Named).custom_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _streams(body: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(body, type=_Streamed).stream)
    except msgspec.MsgspecError:
        return False  # door 1 says what is wrong with it


def request_of(raw: bytes) -> Request:
    """A line that can be run, read again. Raises msgspec.MsgspecError where the file has changed since."""
    line = msgspec.json.decode(raw, type=_Line)
    return Request(line.custom_id, bytes(line.body))


# --- answers ----------------------------------------------------------------------------------------------------------


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Failure(msgspec.Struct):
    code: str
    message: str


class _Answer(msgspec.Struct):
    id: str
    custom_id: str | None
    response: _Response | None
    error: _Failure | None


class _DamagedLine(_Answer):
    line: int
    param: str | None


def answer_line(batch_id: str, number: int, custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """The line about an answer, the engine's or ours; its body as it came, on what is one line to every reader."""
    try:
        body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)  # looked through, and no vector made numbers
        told = body.replace(b"\r", b" ").replace(b"\n", b" ")  # inside a JSON text they can only be white space
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        told = msgspec.json.encode(body.decode("utf-8", "replace"))
    response = _Response(status, request_id, msgspec.Raw(told))
    return _written(_Answer(_id(batch_id, number), custom_id, response, None))


def undone_line(batch_id: str, number: int, custom_id: str, code: str, message: str) -> bytes:
    """The line about a request that was not run."""
    return _written(_Answer(_id(batch_id, number), custom_id, None, _Failure(code, message)))


def damaged_line(batch_id: str, line: Line) -> bytes:
    """The line about one that cannot be run."""
    assert line.error is not None  # noqa: S101 - for the type checker
    error = line.error
    failure = _Failure(error.code, f"line {line.number}: {error.message}")
    named = _DamagedLine(_id(batch_id, line.number), line.custom_id, None, failure, line.number, error.param)
    return _written(named)


def _id(batch_id: str, number: int) -> str:
    """It ends with the line's number: by it a batch that is taken up again knows which lines have been answered."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{number}"


LINE_ENDS: Final = tuple((each.encode(), b"\\u%04x" % ord(each)) for each in "\x85\u2028\u2029")
"""What readers of texts take for the end of a line (Python's `splitlines`, too) and JSON does not, and its escape."""


def _written(answer: _Answer) -> bytes:
    written = msgspec.json.encode(answer)
    for end, escaped in LINE_ENDS:  # in JSON they can only be inside a string
        if end in written:
            written = written.replace(end, escaped)
    return written + b"\n"
