"""Measurements and load times on disk (L2). Owns their table, and what is believed of it.

Must never raise for what the disk does: what cannot be written is kept in memory, and that is said once. What the file
holds is checked value by value, so that nothing that was read can surprise the planner.

WAL with `synchronous = NORMAL`: a killed process loses nothing that was kept; a machine that loses power may lose the
last few figures, which are measured again.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from gridsched.ports import Account, Measurement
from gridsched.store import accounts
from gridsched.store.database import Say, Schema, open_database, read_database
from gridsched.store.pruning import Known, reason_to_forget
from gridsched.threads import in_thread

MAX_KEPT = 4096
"""Options that are kept, the newest: every engine build and every flag makes new keys, and nobody says when an old one
is no longer of use."""

_MEASUREMENT = """
CREATE TABLE measurement (
    option_key TEXT PRIMARY KEY,
    measured_bytes TEXT NOT NULL,
    load_seconds REAL,
    turn INTEGER NOT NULL
)
"""
_SCHEMA = Schema(
    version=2,
    create=(_MEASUREMENT, accounts.CREATE),
    upgrades={1: (accounts.CREATE, accounts.DATE)},
    probes=("SELECT option_key, measured_bytes, load_seconds, turn FROM measurement LIMIT 0", accounts.PROBE),
)

LONGEST_LOAD_SECONDS = 24 * 3600.0
"""No load takes a day; what says so is no measurement."""

_KEEP = """
INSERT OR REPLACE INTO measurement (option_key, measured_bytes, load_seconds, turn)
VALUES (?, ?, ?, (SELECT ifnull(max(turn), 0) + 1 FROM measurement))
"""

_FORGET = """
DELETE FROM measurement WHERE rowid IN (SELECT rowid FROM measurement ORDER BY turn DESC, rowid DESC LIMIT -1 OFFSET ?)
"""
"""By their number and never by the turns' figures: one row that makes no sense must not cost the others."""

_FORGET_ONE = "DELETE FROM measurement WHERE option_key = ?"
_SWEEP = "DELETE FROM account WHERE option_key NOT IN (SELECT option_key FROM measurement)"


class MeasurementStore:
    """A `ports.Store` on disk. Opening it blocks; keeping goes through a thread, one write at a time.

    `say` is told, in a sentence each, what a person should know about the file. `owned` False: another process owns the
    data directory. The file is read as it is then, and what is kept here stays in memory.
    """

    def __init__(self, path: Path, say: Say, *, owned: bool = True, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._say = say
        self._now = now
        self._said = self._full = False
        self._unsaved: dict[str, None] = {}
        self._writer = trio.Lock()
        connection = (open_database if owned else read_database)(path, _SCHEMA, say)
        self._kept: dict[str, Measurement] = {}
        self._kept_at: dict[str, float] = {}
        for key, kept_at, measurement in self._read(connection):
            self._kept[key] = measurement
            self._kept_at[key] = kept_at
        if connection is not None and not owned:
            connection.close()
        self._connection = connection if owned else None

    def measurements(self) -> Mapping[str, Measurement]:
        """Everything kept, by option key: what the file had at the start, and what was kept since."""
        return dict(self._kept)

    def prune(self, known: Known) -> None:
        """Forget what is of no more use, and say why. Blocks: to be called before the server serves."""
        reasons: dict[str, list[str]] = {}
        for key, measurement in self._kept.items():
            reason = reason_to_forget(measurement.account, self._kept_at[key], known, self._now())
            if reason is not None:
                reasons.setdefault(reason, []).append(key)
        if self._connection is None or not reasons:
            return
        gone = [key for keys in reasons.values() for key in keys]
        if (error := _forget(self._connection, gone)) is not None:
            self._say_once(error)
            return
        for key in gone:
            del self._kept[key], self._kept_at[key]
        for reason, keys in reasons.items():
            self._say(f"{len(keys)} kept measurement{'s are' if len(keys) > 1 else ' is'} forgotten: {reason}")

    async def keep_measurement(
        self, option_key: str, measured_bytes: tuple[int, ...], account: Account | None = None
    ) -> None:
        """Replace the measurement of an option, and of what it is; an empty one is none."""
        await self._keep(option_key, replace(self._of(option_key), measured_bytes=measured_bytes, account=account))

    async def keep_load_time(self, option_key: str, load_seconds: float) -> None:
        """Replace the load time of an option."""
        await self._keep(option_key, replace(self._of(option_key), load_seconds=load_seconds))

    def close(self) -> None:
        """Finish with the file. What is kept after this stays in memory."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _of(self, option_key: str) -> Measurement:
        return self._kept.get(option_key, Measurement())

    async def _keep(self, option_key: str, measurement: Measurement) -> None:
        self._kept[option_key] = measurement
        self._kept_at[option_key] = self._now()
        self._unsaved[option_key] = None
        async with self._writer:
            if self._connection is not None:
                await self._save(self._connection)

    async def _save(self, connection: sqlite3.Connection) -> None:
        """Write what is not on disk yet, also what the disk refused before."""
        keys = tuple(self._unsaved)
        rows = [(key, self._kept[key], self._kept_at[key]) for key in keys]
        written = await in_thread(partial(_write, connection, rows))
        if isinstance(written, sqlite3.Error):
            self._say_once(written)
            return
        for key, measurement, _ in rows:
            if self._kept[key] is measurement:  # not replaced meanwhile
                self._unsaved.pop(key, None)
        if written and not self._full:
            self._full = True
            self._say(f"the measurements that were kept first are forgotten: there are over {MAX_KEPT}")

    def _read(self, connection: sqlite3.Connection | None) -> Iterator[tuple[str, float, Measurement]]:
        """Key, when it was last used, and what is believed of it, of each option in the file."""
        if connection is None:
            return
        try:
            rows = connection.execute(accounts.READ).fetchall()
        except sqlite3.Error as error:
            self._say_once(error)
            return
        for option_key, measured_bytes, load_seconds, kept_at, *account in rows:
            measured = _believed_bytes(measured_bytes)
            found = accounts.account_of(account)
            if found is not None and len(found.predicted) != len(measured):
                found = None
            when = kept_at if isinstance(kept_at, float) else self._now()
            yield str(option_key), when, Measurement(measured, _believed_seconds(load_seconds), found)

    def _say_once(self, error: sqlite3.Error) -> None:
        if not self._said:
            self._said = True
            self._say(
                f"cannot use {self._path} ({error}); what is measured until it can be may be forgotten at the end"
            )


def _write(connection: sqlite3.Connection, rows: Iterable[tuple[str, Measurement, float]]) -> sqlite3.Error | int:
    """One transaction, in a thread; what went wrong, or how many of the oldest had to go."""
    try:
        with connection:
            for key, measurement, kept_at in rows:
                connection.execute(_KEEP, (key, json.dumps(measurement.measured_bytes), measurement.load_seconds))
                connection.execute(accounts.KEEP, (key, kept_at, *accounts.row_of(measurement.account)))
            if forgotten := connection.execute(_FORGET, (MAX_KEPT,)).rowcount:
                connection.execute(_SWEEP)
    except sqlite3.Error as error:
        return error
    return forgotten


def _forget(connection: sqlite3.Connection, option_keys: Iterable[str]) -> sqlite3.Error | None:
    """One transaction; what went wrong."""
    try:
        with connection:
            connection.executemany(_FORGET_ONE, [(key,) for key in option_keys])
            connection.execute(_SWEEP)
    except sqlite3.Error as error:
        return error
    return None


def _believed_bytes(text: object) -> tuple[int, ...]:
    """The bytes by device that a row holds, or none where it holds something else."""
    try:
        values = json.loads(str(text))
    except (ValueError, RecursionError):
        return ()
    if isinstance(values, list) and all(map(accounts.is_size, values)):
        return tuple(values)
    return ()


def _believed_seconds(value: object) -> float | None:
    """The load time that a row holds, or None where it holds something else."""
    return value if isinstance(value, float) and 0 <= value <= LONGEST_LOAD_SECONDS else None
