"""Results of benchmarks on disk and in memory. Owns their table, and what is believed of it.

One result is kept for a model's files on one set of devices: a newer one replaces it. Whether one is still true (the
same files, the same engine) is for whoever reads it to say. Must never raise for what the disk does: what cannot be
written is kept in memory, and that is said once.
"""

import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio

from gridsched.store.database import Say, Schema, open_database
from gridsched.threads import in_thread

NAME: Final = "benchmarks.sqlite3"
MAX_KEPT = 1024
"""Results that are kept, the newest."""

_TABLE = """
CREATE TABLE benchmark (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE NOT NULL, body TEXT NOT NULL)
"""
_SCHEMA = Schema(version=1, create=(_TABLE,), upgrades={}, probes=("SELECT number, key, body FROM benchmark LIMIT 0",))
_PUT = "INSERT OR REPLACE INTO benchmark (key, body) VALUES (?, ?)"
_FORGET = """
DELETE FROM benchmark WHERE number NOT IN (SELECT number FROM benchmark ORDER BY number DESC LIMIT ?)
"""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """So many answers at once, by the engine's own clock: tokens a second of each (the mean) and of all together, and
    how long a prompt took until its first token (the mean)."""

    streams: int
    tokens_per_s: float
    total_tokens_per_s: float
    first_token_s: float


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one model on one set of devices.

    `identities` are the very devices and `fingerprint` the files, as in `ports.LaunchFacts`; `read_bytes` are the
    weights that are read for a token, as they were estimated, by which a device's speed with other models is told. `at`
    is the wall clock's time. An embedder has `inputs_per_s` and no levels.
    """

    model: str
    path: str
    fingerprint: str
    engine_build: str
    devices: tuple[str, ...]
    identities: tuple[str, ...]
    option_key: str
    ctx_per_slot: int
    parallel: int
    cache_types: tuple[str, str]
    levels: tuple[Level, ...]
    recommended_slots: int
    inputs_per_s: float | None
    read_bytes: int
    at: float

    @property
    def key(self) -> str:
        """What it is kept under: files, devices, engine."""
        return "\n".join((self.path, self.fingerprint, self.engine_build, *self.identities))


class BenchmarkStore:
    """All results. `path` None: they end with the process. Opening blocks; keeping goes through a thread."""

    def __init__(self, path: Path | None = None, say: Say = lambda sentence: None) -> None:  # noqa: ARG005 - no file
        self._path = path
        self._say = say
        self._said = False
        self._writer = trio.Lock()
        self._kept: dict[str, Benchmark] = {}
        self._connection = open_database(path, _SCHEMA, say) if path is not None else None
        if self._connection is not None:
            self._read(self._connection)

    def all(self) -> tuple[Benchmark, ...]:
        """Every result, the newest last."""
        return tuple(self._kept.values())

    async def keep(self, result: Benchmark) -> None:
        """Replace the result of these files on these devices."""
        self._kept.pop(result.key, None)
        self._kept[result.key] = result
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        async with self._writer:
            if self._connection is not None:
                self._told(await in_thread(partial(_write, self._connection, result)))

    def close(self) -> None:
        """Finish with the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _read(self, connection: sqlite3.Connection) -> None:
        bad = 0
        try:
            for key, body in connection.execute("SELECT key, body FROM benchmark ORDER BY number"):
                if (found := _believed(key, body)) is not None:
                    self._kept[found.key] = found
                else:
                    bad += 1
        except sqlite3.Error as error:
            self._told(error)
        if bad:
            self._say(f"{bad} results of benchmarks in {self._path} make no sense and are left out")

    def _told(self, error: sqlite3.Error | None) -> None:
        if error is not None and not self._said:
            self._said = True
            self._say(f"cannot use {self._path} ({error}); results of benchmarks may be forgotten at the end")


def _believed(key: object, body: object) -> Benchmark | None:
    """A row that makes sense: figures that a machine can have, under its own key."""
    try:
        found = msgspec.json.decode(str(body).encode("utf-8", "surrogateescape"), type=Benchmark)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    sizes = (found.ctx_per_slot, found.parallel, found.recommended_slots)
    levels = [(each.streams, each.tokens_per_s, each.total_tokens_per_s) for each in found.levels]
    sound = all(size > 0 for size in sizes) and all(min(each) > 0 for each in levels)
    return found if sound and found.key == key and len(found.devices) == len(found.identities) else None


def _write(connection: sqlite3.Connection, result: Benchmark) -> sqlite3.Error | None:
    """One transaction, in a thread; what went wrong."""
    try:
        with connection:
            connection.execute(_PUT, (result.key, msgspec.json.encode(result).decode()))
            connection.execute(_FORGET, (MAX_KEPT,))
    except sqlite3.Error as error:
        return error
    return None
