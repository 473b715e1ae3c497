"""What is known of files and batches, on disk and in memory. Owns their records, their table, what is believed of it.

Every record is in memory too, so that whoever asks never waits for the disk; what changes is on disk first, one
transaction for each change. Nothing here knows what a line of a batch says, or when it runs.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio

from gridsched.store.database import Say, Schema, open_database
from gridsched.store.folder import RUNNING, Folder
from gridsched.threads import in_thread

_RECORD = """
CREATE TABLE record (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, body TEXT NOT NULL)
"""
_SCHEMA = Schema(version=1, create=(_RECORD,), upgrades={}, probes=("SELECT number, id, body FROM record LIMIT 0",))
_PUT = "INSERT INTO record (id, body) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body"


class StoreError(Exception):
    """The disk did not take a change: one sentence. Nothing of it has happened. `full`: it had no room."""

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class Status(Enum):
    """Where a batch is; OpenAI's words."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        """Whether nothing changes it any more."""
        return self in _OVER


_OVER: Final = frozenset({Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED})


class LineError(msgspec.Struct, frozen=True):
    """What is wrong with a line of a batch's file, or with the file (no line)."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class FileRecord(msgspec.Struct, frozen=True, tag="file", tag_field="kind"):
    """One file. `key` is the API key's name that it belongs to. Times are seconds since the epoch."""

    id: str
    key: str
    filename: str
    purpose: str
    size_bytes: int
    created_at: int
    expires_at: int | None = None


class BatchRecord(msgspec.Struct, frozen=True, tag="batch", tag_field="kind"):
    """One batch. `limit_seconds` is its completion window, `used_seconds` how much of that is over. `window` is its own
    window of the day, None for the server's. `ending` is where it goes once it is not to run any more; `results` are
    the ids that its two files will have. The counts are those at the last change of its status."""

    id: str
    key: str
    endpoint: str
    input_file_id: str
    completion_window: str
    limit_seconds: float
    job_class: str
    created_at: int
    status: Status = Status.VALIDATING
    metadata: dict[str, str] | None = None
    window: str | None = None
    output_expires_seconds: int | None = None
    used_seconds: float = 0.0
    times: dict[str, int] = {}
    errors: tuple[LineError, ...] = ()
    ending: Status | None = None
    results: tuple[str, str] = ("", "")
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def remaining(self) -> int:
        """Lines that have no answer yet."""
        return 0 if self.status.is_over else max(0, self.total - self.completed - self.failed)


Record = FileRecord | BatchRecord


class BatchStore:
    """The records in a data directory, and their files. Opening it blocks; changes go through a thread, one at a time.
    `say` is told, in a sentence each, what a person should know."""

    def __init__(self, data_dir: Path, say: Say) -> None:
        self._path = data_dir / "batches.sqlite3"
        self._said: list[str] = []
        self._writer = trio.Lock()
        self._records: dict[str, Record] = {}
        self.folder = Folder(data_dir / "files")

        def told(sentence: str) -> None:
            self._said.append(sentence)
            say(sentence)

        self._connection = open_database(self._path, _SCHEMA, told)
        if self._connection is None:
            return
        self._read(self._connection, told)
        try:
            if left := self.folder.open(self._names()):
                told(f"{self.folder.path('')} has {left} files that no record names; they are left alone")
        except OSError as error:
            told(f"cannot use {self.folder.path('')} ({error}); files and batches are refused")
            self.close()

    def _names(self) -> frozenset[str]:
        """What may be in the folder."""
        running = {batch.id + end for batch in self.batches() for end in RUNNING if not batch.status.is_over}
        results = {name for batch in self.batches() if not batch.status.is_over for name in batch.results}
        return frozenset(running | results | {file.id for file in self.files()})

    @property
    def why_closed(self) -> str | None:
        """Why there is no store, or None where there is one."""
        return None if self._connection is not None else "; ".join(self._said) or f"{self._path} is closed"

    def files(self) -> tuple[FileRecord, ...]:
        """All files, oldest first."""
        return tuple(record for record in self._records.values() if isinstance(record, FileRecord))

    def batches(self) -> tuple[BatchRecord, ...]:
        """All batches, oldest first."""
        return tuple(record for record in self._records.values() if isinstance(record, BatchRecord))

    def file(self, file_id: str) -> FileRecord | None:
        """One file."""
        found = self._records.get(file_id)
        return found if isinstance(found, FileRecord) else None

    def batch(self, batch_id: str) -> BatchRecord | None:
        """One batch."""
        found = self._records.get(batch_id)
        return found if isinstance(found, BatchRecord) else None

    def by_status(self) -> Mapping[Status, int]:
        """How many batches there are of each status."""
        found = dict.fromkeys(Status, 0)
        for batch in self.batches():
            found[batch.status] += 1
        return found

    async def change(self, put: Iterable[Record] = (), drop: Iterable[str] = ()) -> None:
        """Keep records, new or changed, and forget others: all of it or nothing. Raises StoreError."""
        put, drop = tuple(put), tuple(drop)
        async with self._writer:
            with trio.CancelScope(shield=True):  # what is on disk and what is told must not part
                error = await in_thread(partial(_write, self._connection, put, drop))
                if error is None:
                    self._records.update((record.id, record) for record in put)
                    for each in drop:
                        self._records.pop(each, None)
        if error is not None:
            full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            raise StoreError(f"{self._path.name} cannot be written: {error}", full=full)

    async def keep(self, record: FileRecord) -> None:
        """Keep a file that has come. Its record is first: a start finishes what was cut off behind that, and what was
        cut off before it is removed. Raises StoreError, OSError: it is not kept."""
        with trio.CancelScope(shield=True):
            await self.change([record])
            try:
                await in_thread(partial(self.folder.keep, record.id))
            except OSError:
                await self.change(drop=[record.id])
                raise

    async def forget(self, file_ids: Iterable[str], batch_ids: Iterable[str] = ()) -> None:
        """Remove files, and forget them and batches. The files go first: so a full disk has room to write that down,
        and what was cut off can be done again. Raises StoreError, OSError."""
        file_ids = tuple(file_ids)
        with trio.CancelScope(shield=True):
            for each in file_ids:
                await in_thread(partial(self.folder.drop, each))
            await self.change(drop=[*batch_ids, *file_ids])

    def close(self) -> None:
        """Finish with the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _read(self, connection: sqlite3.Connection, say: Say) -> None:
        bad = 0
        try:
            for each, body in connection.execute("SELECT id, body FROM record ORDER BY number"):
                try:
                    self._records[each] = msgspec.json.decode(body, type=Record)
                except (msgspec.MsgspecError, UnicodeError, TypeError):
                    bad += 1
        except sqlite3.Error as error:
            say(f"cannot read {self._path} ({error})")
        if bad:
            say(f"{bad} files or batches in {self._path} make no sense and are left out")


def _write(
    connection: sqlite3.Connection | None, put: tuple[Record, ...], drop: tuple[str, ...]
) -> sqlite3.Error | str | None:
    """One transaction, in a thread; what went wrong."""
    if connection is None:
        return "it is closed"
    try:
        with connection:
            connection.executemany(_PUT, [(record.id, msgspec.json.encode(record).decode()) for record in put])
            connection.executemany("DELETE FROM record WHERE id = ?", [(each,) for each in drop])
    except sqlite3.Error as error:
        return error
    return None
