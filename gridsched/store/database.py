"""Opens one SQLite file, or says why not. Owns what damage means, and setting a damaged file aside.

Must never raise for what the disk does, and never delete what a person might want to look at.
"""

import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

Say = Callable[[str], None]
"""Is told one sentence that a person should read."""

OURS_ALONE = 0o600
"""Rights of a new file: what clients have asked is nobody else's to read, whoever can read the folder."""

BUSY_SECONDS = 1.0
"""How long a write waits for a lock: a person may be looking into the file with another program."""

_DAMAGE = frozenset((sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR))
"""SQLITE_ERROR is a statement that the file's tables do not fit: they are not ours."""
_PRIMARY_CODE = 0xFF  # SQLite's extended error codes keep the primary one in their lowest byte


@dataclass(frozen=True, slots=True)
class Schema:
    """What a file holds: its version, the statements that make it, those that make each earlier version the next, and
    queries that only such a file answers."""

    version: int
    create: tuple[str, ...]
    upgrades: Mapping[int, tuple[str, ...]]
    probes: tuple[str, ...]


def open_database(path: Path, schema: Schema, say: Say) -> sqlite3.Connection | None:
    """A connection in WAL mode to a file of this schema, made where there is none.

    None where there can be none: `say` was told why. A file that is damaged, or is somebody else's, goes to
    `NAME.damaged` and a new one is begun. The connection may be used from any thread, by one at a time.
    """
    try:
        return _opened(path, schema, say)
    except sqlite3.Error as error:
        if not _is_damage(error):
            say(f"cannot use {path} ({error}); going on without")
            return None
    try:
        aside = _set_aside(path)
        say(f"{path} is damaged; it is now {aside}, and a new one is begun")
        return _opened(path, schema, say)
    except (OSError, sqlite3.Error) as error:
        say(f"{path} is damaged and cannot be replaced ({error}); going on without")
        return None


def _opened(path: Path, schema: Schema, say: Say) -> sqlite3.Connection | None:
    """Raises sqlite3.Error."""
    with suppress(OSError):  # which SQLite will say in its own words; it makes what lies beside with the same rights
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OURS_ALONE))
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
    connection.text_factory = _text
    try:
        found = _value(connection, "PRAGMA user_version")
        if isinstance(found, int) and found > schema.version:
            say(f"{path} was written by a newer version; it is left alone, and this one goes on without")
            connection.close()
            return None
        verdict = _value(connection, "PRAGMA integrity_check(1)")
        if verdict != "ok":
            raise _damaged(str(verdict))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if statements := _missing(schema, found):
            connection.executescript(f"BEGIN; {'; '.join(statements)}; PRAGMA user_version = {schema.version}; COMMIT")
        for probe in schema.probes:
            connection.execute(probe).close()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _missing(schema: Schema, found: object) -> tuple[str, ...]:
    """What makes a file of this version one of the schema's. It is done as one, so that a killed upgrade never was."""
    if found == 0:
        return schema.create
    versions = range(found, schema.version) if isinstance(found, int) and found > 0 else ()
    return tuple(statement for version in versions for statement in schema.upgrades[version])


def read_database(path: Path, schema: Schema, say: Say) -> sqlite3.Connection | None:
    """A connection that reads and never writes, for whoever only visits the data directory: its owner may be writing.

    None where there is nothing of this version to read, which a damaged file is, too: both are their owner's to mend.
    """
    connection = None
    try:
        if not path.is_file():
            return None
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        connection.text_factory = _text
        if _value(connection, "PRAGMA user_version") == schema.version:
            for probe in schema.probes:
                connection.execute(probe).close()
            return connection
    except (OSError, sqlite3.Error) as error:
        say(f"cannot read {path} ({error}); going on without")
    if connection is not None:
        connection.close()
    return None


def _text(value: bytes) -> str:
    """A text that is no UTF-8 is nonsense in one row, and no reason to read none of the others."""
    return value.decode("utf-8", "surrogateescape")


def _value(connection: sqlite3.Connection, pragma: str) -> object:
    with closing(connection.execute(pragma)) as cursor:
        return cursor.fetchone()[0]


def _damaged(verdict: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(verdict)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # errors of Python's own module have none
    return code is not None and code & _PRIMARY_CODE in _DAMAGE


def _set_aside(path: Path) -> Path:
    """Move a file and what SQLite keeps beside it, over an older damaged one. Raises OSError."""
    aside = path.with_name(path.name + ".damaged")
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
    return aside
