"""A file that a client hands in (`POST /v1/files`): a form, written to disk while it comes.

Owns reading the form and its limits. Never holds more of a file in memory than one piece. A form that is refused
leaves nothing behind.
"""

import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import BinaryIO, Final

import trio
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gridsched.api.body import Incoming
from gridsched.control.problems import Problem, RequestError, invalid
from gridsched.store.batches import StoreError
from gridsched.store.folder import FULL, Folder
from gridsched.threads import in_thread

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # what is wrong with a form its client is told

PIECE_BYTES: Final = 1024 * 1024
LONGEST_FIELD_BYTES = 4096
MOST_PARTS = 16
LONGEST_NAME = 255


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that has come whole, and what its form says. It is there as `id`, not kept yet."""

    id: str
    filename: str
    size_bytes: int
    fields: Mapping[str, str]


@dataclass(slots=True)
class _Form:
    """What the parser has found so far. `pieces` are the file's bytes that are not on disk yet."""

    longest: int
    fields: dict[str, bytearray] = field(default_factory=dict)
    filename: str | None = None
    size_bytes: int = 0
    pieces: bytearray = field(default_factory=bytearray)
    ended: bool = False
    _header: bytearray = field(default_factory=bytearray)
    _value: bytearray = field(default_factory=bytearray)
    _disposition: bytes = b""
    _parts: int = 0
    _into: bytearray | None = None  # the field that is being read, None for the file

    def callbacks(self) -> dict[str, object]:
        """As the parser calls them."""
        return {
            "on_part_begin": self._part_begins,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header_ends,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._data,
            "on_end": self._ends,
        }

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise invalid(f"a form may have {MOST_PARTS} parts")
        self._disposition = b""

    def _header_ends(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if not name:
            raise invalid("a part of the form has no name")
        if name == "file":
            if self.filename is not None:
                raise invalid("the form has two files", "file")
            self.filename = _plain_name(options.get(b"filename", b""))
            self._into = None
        elif name in self.fields:
            raise invalid(f"the form has {name[:LONGEST_NAME]} twice", name[:LONGEST_NAME])
        else:
            self._into = self.fields[name] = bytearray()

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._into is None:
            self.size_bytes += end - start
            if self.size_bytes > self.longest:
                message = f"the file is longer than {self.longest} bytes, the longest that is taken"
                raise RequestError(Problem("request_too_large", message, "file"))
            self.pieces += data[start:end]
            return
        self._into += data[start:end]
        if len(self._into) > LONGEST_FIELD_BYTES:
            raise invalid(f"a field of the form is longer than {LONGEST_FIELD_BYTES} bytes")

    def _ends(self) -> None:
        self.ended = True


async def receive_upload(body: Incoming, content_type: bytes, folder: Folder, longest: int) -> Upload | None:
    """The file that comes with a request, on disk; None when the client leaves before its end. Raises RequestError, as
    soon as it is known that it is not wanted."""
    file_id = f"file-{secrets.token_hex(12)}"
    upload: Upload | None = None
    try:
        upload = await _received(body, content_type, folder, file_id, longest)
    except FormParserError as error:
        raise invalid(f"the form cannot be read: {error}") from None
    except OSError as error:
        raise RequestError(of_disk(error)) from None
    finally:
        if upload is None:
            await discard(folder, file_id)
    return upload


async def _received(body: Incoming, content_type: bytes, folder: Folder, file_id: str, longest: int) -> Upload | None:
    """Raises RequestError, FormParserError, OSError."""
    form = _Form(longest)
    parser = MultipartParser(_boundary(content_type), form.callbacks())  # type: ignore[arg-type]  # its TypedDict is private
    with await in_thread(partial(folder.begin, file_id)) as file:
        while body.more:
            piece = await body.piece()
            if piece is None:
                return None
            parser.write(piece)
            if len(form.pieces) >= PIECE_BYTES or not body.more:
                await _write(file, form)
        await in_thread(partial(os.fsync, file.fileno()))
    if not form.ended:
        raise invalid("the form ends before its last boundary")
    if form.filename is None:
        raise invalid("the form has no part named file", "file")
    if not form.size_bytes:
        raise invalid("the file is empty", "file")
    fields = {name: value.decode("utf-8", "replace") for name, value in form.fields.items()}
    return Upload(file_id, form.filename, form.size_bytes, fields)


async def _write(file: BinaryIO, form: _Form) -> None:
    """All that has come. Raises OSError."""
    piece, form.pieces = form.pieces, bytearray()

    def write() -> None:
        view = memoryview(piece)
        while view:
            view = view[file.write(view) :]

    await in_thread(write)


async def discard(folder: Folder, file_id: str) -> None:
    """Remove a file that is not kept, also when the client has gone."""
    with trio.CancelScope(shield=True):
        try:
            await in_thread(partial(folder.drop, file_id))
        except OSError:
            return  # a start of the server removes it


def of_disk(error: OSError | StoreError) -> Problem:
    """What the disk did not take."""
    full = error.full if isinstance(error, StoreError) else error.errno in FULL
    said = str(error) if isinstance(error, StoreError) else error.strerror or str(error)
    code = "insufficient_storage" if full else "storage_unavailable"
    hint = "; make room on the disk of the data directory and try again" if full else ""
    return Problem(code, f"the server's disk does not take it: {said}{hint}")


def _boundary(content_type: bytes) -> bytes:
    """Raises RequestError."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise RequestError(Problem("unsupported_media_type", "a file comes as multipart/form-data"))
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise invalid("the content type names no boundary")
    return boundary


def _plain_name(filename: bytes) -> str:
    """A name to show; it is no path, and nothing on disk is called so."""
    text = filename.decode("utf-8", "replace").replace("\\", "/")
    name = "".join(each if each.isprintable() else "�" for each in PurePosixPath(text).name)
    return name[:LONGEST_NAME] or "file"
