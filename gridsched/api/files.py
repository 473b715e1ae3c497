"""`/v1/files`: what clients hand in for batches, and what they get back (OpenAI's Files API).

Owns the shapes of its answers and who sees which file. Must never read what a file says.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar
from urllib.parse import parse_qs

import msgspec

from gridsched.api.exchange import Exchange, send_whole
from gridsched.api.upload import Upload, of_disk
from gridsched.control.authority import Caller, Scope
from gridsched.control.problems import LONGEST_SAID_NAME, Problem, RequestError, invalid
from gridsched.store.batches import BatchStore, FileRecord, StoreError
from gridsched.threads import in_thread

FILES: Final = "/v1/files"
PURPOSE: Final = "batch"
MOST_LISTED: Final = 10_000
PIECE_BYTES: Final = 256 * 1024
SHORTEST_LIFE_SECONDS, LONGEST_LIFE_SECONDS = 3600, 30 * 86400
"""OpenAI's limits of `expires_after`."""

JSON: Final = ((b"content-type", b"application/json"),)


class _Known(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def key(self) -> str: ...


K = TypeVar("K", bound=_Known)


class Files:
    """Answers for files. `busy` are the files that a batch still reads. `wall` is the time of day."""

    def __init__(self, store: BatchStore, busy: Callable[[], Iterable[str]], wall: Callable[[], float]) -> None:
        self._store = store
        self._busy = busy
        self._wall = wall

    async def create(self, exchange: Exchange, upload: Upload) -> None:
        """Keep what has come. Raises RequestError."""
        fields = dict(upload.fields)
        purpose = fields.pop("purpose", None)
        if purpose != PURPOSE:
            raise invalid(f"purpose must be {PURPOSE}: nothing else is done with files here", "purpose")
        now = int(self._wall())
        expires_at = None if (life := _life(fields)) is None else now + life
        if fields:
            raise invalid(f"the form has a field that is not known: {next(iter(fields))[:LONGEST_SAID_NAME]}")
        record = FileRecord(
            upload.id, exchange.caller.key, upload.filename, PURPOSE, upload.size_bytes, now, expires_at
        )
        try:
            await self._store.keep(record)
        except (OSError, StoreError) as error:
            raise RequestError(of_disk(error)) from None
        await send_json(exchange, shown(record))

    async def list(self, exchange: Exchange) -> None:
        """A page of them. Raises RequestError."""
        asked = Page.read(exchange.query, MOST_LISTED, MOST_LISTED, extra=("purpose",))
        purpose = asked.extra.get("purpose")
        files = [
            record for record in seen_by(exchange.caller, self._store.files()) if purpose in (None, record.purpose)
        ]
        await send_json(exchange, asked.page(files, shown))

    async def retrieve(self, exchange: Exchange, file_id: str) -> None:
        """One. Raises RequestError."""
        await send_json(exchange, shown(self.find(exchange.caller, file_id)))

    async def delete(self, exchange: Exchange, file_id: str) -> None:
        """Forget one. Raises RequestError."""
        record = self.find(exchange.caller, file_id)
        if record.id in set(self._busy()):
            raise RequestError(Problem("conflict", f"{record.id} is the input of a batch that is not over"))
        try:
            await self._store.forget([record.id])
        except (OSError, StoreError) as error:
            raise RequestError(of_disk(error)) from None
        await send_json(exchange, {"id": record.id, "object": "file", "deleted": True})

    async def content(self, exchange: Exchange, file_id: str) -> bool:
        """Its bytes, a piece at a time. False: it broke off. Raises RequestError."""
        record = self.find(exchange.caller, file_id)
        try:
            path = self._store.folder.path(record.id)
            file = await in_thread(lambda: path.open("rb"))
        except FileNotFoundError:
            raise RequestError(Problem("not_found", f"{record.id} is no longer on the server's disk")) from None
        except OSError as error:
            raise RequestError(of_disk(error)) from None
        with file:
            left = record.size_bytes
            head = ((b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % left))
            await exchange.send_start(200, head)
            while left > 0:
                try:
                    piece = await in_thread(partial(file.read, min(left, PIECE_BYTES)))
                except OSError:
                    return False
                if not piece:
                    return False
                left -= len(piece)
                await exchange.send_body(piece)
        return True

    def find(self, caller: Caller, file_id: str) -> FileRecord:
        """One that this caller may see. Raises RequestError."""
        record = self._store.file(file_id)
        if record is None or not may_see(caller, record.key):
            raise RequestError(Problem("not_found", f"there is no file {file_id[:LONGEST_SAID_NAME]!r}"))
        return record


def shown(record: FileRecord) -> dict[str, object]:
    """OpenAI's file object."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.size_bytes,
        "created_at": record.created_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "expires_at": record.expires_at,
        "status_details": None,
    }


def _life(fields: dict[str, str]) -> int | None:
    """How long a file is to be kept, in seconds. Raises RequestError."""
    anchor, seconds = fields.pop("expires_after[anchor]", None), fields.pop("expires_after[seconds]", None)
    if anchor is None and seconds is None:
        return None
    return life_of(
        {"anchor": anchor, "seconds": int(seconds) if seconds and seconds.isdecimal() else None}, "expires_after"
    )


def life_of(said: object, param: str) -> int | None:
    """`{"anchor": "created_at", "seconds": N}` in seconds, None for none. Raises RequestError."""
    match said:
        case None:
            return None
        case {"anchor": "created_at", "seconds": int(seconds)} if (
            SHORTEST_LIFE_SECONDS <= seconds <= LONGEST_LIFE_SECONDS
        ):
            return seconds
    raise invalid(
        f'{param} must be {{"anchor": "created_at", "seconds": {SHORTEST_LIFE_SECONDS} to {LONGEST_LIFE_SECONDS}}}',
        param,
    )


# --- what batches share -----------------------------------------------------------------------------------------------


def may_see(caller: Caller, key: str) -> bool:
    """A key sees its own; who may change the machine sees all."""
    return caller.key == key or Scope.ADMIN in caller.scopes


def seen_by(caller: Caller, records: Iterable[K]) -> Sequence[K]:
    """Those that this caller may see."""
    return [record for record in records if may_see(caller, record.key)]


async def send_json(exchange: Exchange, content: object) -> None:
    """200 and a body."""
    await send_whole(exchange, 200, JSON, msgspec.json.encode(content))


class Page(msgspec.Struct, frozen=True):
    """What a list is asked for."""

    after: str | None
    limit: int
    newest_first: bool
    extra: Mapping[str, str]

    @classmethod
    def read(cls, query: bytes, default: int, most: int, extra: Sequence[str] = ()) -> "Page":
        """Raises RequestError."""
        said = {name: values[-1] for name, values in parse_qs(query.decode("latin-1")).items()}
        limit, order = said.get("limit", str(default)), said.get("order", "desc")
        if not limit.isdecimal() or not 1 <= int(limit[:9]) <= most:
            raise invalid(f"limit must be a number from 1 to {most}", "limit")
        if order not in {"asc", "desc"}:
            raise invalid("order must be asc or desc", "order")
        return cls(
            said.get("after"), int(limit[:9]), order == "desc", {name: said[name] for name in extra if name in said}
        )

    def page(self, records: Sequence[K], show: Callable[[K], object]) -> dict[str, object]:
        """Of records that are in the order in which they came. Raises RequestError."""
        ordered = list(records)[::-1] if self.newest_first else list(records)
        if self.after is not None:
            place = next((place for place, record in enumerate(ordered) if record.id == self.after), None)
            if place is None:
                raise invalid(f"after: there is no {self.after[:LONGEST_SAID_NAME]!r} in this list", "after")
            ordered = ordered[place + 1 :]
        found = ordered[: self.limit]
        return {
            "object": "list",
            "data": [show(record) for record in found],
            "first_id": found[0].id if found else None,
            "last_id": found[-1].id if found else None,
            "has_more": len(ordered) > len(found),
        }
