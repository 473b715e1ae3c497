"""Measurements and load times on disk (L2). Owns their table, and what is believed of it.

Must never raise for what the disk does: what cannot be written is kept in memory, and that is said once. What the file
holds is checked value by value, so that nothing that was read can surprise the planner.

WAL with `synchronous = NORMAL`: a killed process loses nothing that was kept; a machine that loses power may lose the
last few figures, which are measured again.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from gridsched.ports import Measurement
from gridsched.store.database import Say, Schema, open_database

MAX_KEPT = 4096
"""Options that are kept, the newest: every engine build and every flag makes new keys, and nobody says when an old one
is no longer of use."""

_SCHEMA = Schema(
    version=1,
    create="""
CREATE TABLE measurement (
    option_key TEXT PRIMARY KEY,
    measured_bytes TEXT NOT NULL,
    load_seconds REAL,
    turn INTEGER NOT NULL
)
""",
    probe="SELECT option_key, measured_bytes, load_seconds, turn FROM measurement LIMIT 0",
)

LONGEST_LOAD_SECONDS = 24 * 3600.0
"""No load takes a day; what says so is no measurement."""

_KEEP = """
INSERT OR REPLACE INTO measurement (option_key, measured_bytes, load_seconds, turn)
VALUES (?, ?, ?, (SELECT ifnull(max(turn), 0) + 1 FROM measurement))
"""

_FORGET = "DELETE FROM measurement WHERE turn <= (SELECT max(turn) - ? FROM measurement)"


class MeasurementStore:
    """A `ports.Store` on disk. Opening it blocks; keeping goes through a thread, one write at a time.

    `say` is told, in a sentence each, what a person should know about the file.
    """

    def __init__(self, path: Path, say: Say) -> None:
        self._path = path
        self._say = say
        self._said = False
        self._writer = trio.Lock()
        self._connection = open_database(path, _SCHEMA, say)
        self._kept = dict(self._read())

    def measurements(self) -> Mapping[str, Measurement]:
        """Everything kept, by option key: what the file had at the start, and what was kept since."""
        return dict(self._kept)

    async def keep_measurement(self, option_key: str, measured_bytes: tuple[int, ...]) -> None:
        """Replace the measurement of an option; an empty one is none."""
        await self._keep(option_key, replace(self._of(option_key), measured_bytes=measured_bytes))

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
        async with self._writer:
            if self._connection is not None:
                write = partial(_write, self._connection, option_key, measurement)
                error = await trio.to_thread.run_sync(write)
                if error is not None:
                    self._say_once(error)

    def _read(self) -> Iterator[tuple[str, Measurement]]:
        if self._connection is None:
            return
        try:
            rows = self._connection.execute(
                "SELECT option_key, measured_bytes, load_seconds FROM measurement"
            ).fetchall()
        except sqlite3.Error as error:
            self._say_once(error)
            return
        for option_key, measured_bytes, load_seconds in rows:
            yield str(option_key), Measurement(_believed_bytes(measured_bytes), _believed_seconds(load_seconds))

    def _say_once(self, error: sqlite3.Error) -> None:
        if not self._said:
            self._said = True
            self._say(f"cannot use {self._path} ({error}); what is measured from now on may be forgotten at the end")


def _write(connection: sqlite3.Connection, option_key: str, measurement: Measurement) -> sqlite3.Error | None:
    """One transaction, in a thread; what went wrong."""
    row = (option_key, json.dumps(measurement.measured_bytes), measurement.load_seconds)
    try:
        with connection:
            connection.execute(_KEEP, row)
            connection.execute(_FORGET, (MAX_KEPT,))
    except sqlite3.Error as error:
        return error
    return None


def _believed_bytes(text: object) -> tuple[int, ...]:
    """The bytes by device that a row holds, or none where it holds something else."""
    try:
        values = json.loads(str(text))
    except (ValueError, RecursionError):
        return ()
    if isinstance(values, list) and all(type(value) is int and value >= 0 for value in values):
        return tuple(values)
    return ()


def _believed_seconds(value: object) -> float | None:
    """The load time that a row holds, or None where it holds something else."""
    return value if isinstance(value, float) and 0 <= value <= LONGEST_LOAD_SECONDS else None
