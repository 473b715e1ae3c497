"""What a measurement is of, as a row of the table `account`: the words of it, and what is believed of a row.

Owns the table's columns and their reading. Must never raise for what a row says: one that makes no sense is none.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields

from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceFootprint
from gridsched.ports import Account, LaunchFacts

CREATE = """
CREATE TABLE account (
    option_key TEXT PRIMARY KEY,
    kept_at REAL NOT NULL,
    model TEXT,
    architecture TEXT,
    path TEXT,
    fingerprint TEXT,
    flags TEXT,
    engine_build TEXT,
    devices TEXT,
    drivers TEXT,
    predicted TEXT,
    allocated TEXT
)
"""
"""`kept_at`: seconds since the epoch, of the last load of the option; the rest is null where nobody said what it is."""

DATE = "INSERT INTO account (option_key, kept_at) SELECT option_key, strftime('%s', 'now') FROM measurement"
"""Version 1 has not kept when each was loaded last: that counts from now."""

PROBE = """
SELECT option_key, kept_at, model, architecture, path, fingerprint, flags, engine_build, devices, drivers, predicted,
    allocated
FROM account LIMIT 0
"""

KEEP = "INSERT OR REPLACE INTO account VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

READ = """
SELECT measurement.option_key, measured_bytes, load_seconds, kept_at, model, architecture, path, fingerprint, flags,
    engine_build, devices, drivers, predicted, allocated
FROM measurement LEFT JOIN account ON account.option_key = measurement.option_key
"""

_TEXTS = ("model", "architecture", "path", "fingerprint", "flags", "engine_build")
_COLUMNS = (*_TEXTS, "devices", "drivers", "predicted", "allocated")
"""In the order of the table, behind its key and time."""

LARGEST_BYTES = 1 << 60
"""No device has an exbibyte; what says so is no size, and figures of any length cannot be reckoned with."""

_SIZES = frozenset(field.name for field in fields(DeviceFootprint) if field.name.endswith("_bytes"))


def row_of(account: Account | None) -> tuple[object, ...]:
    """The columns' values."""
    if account is None:
        return (None,) * len(_COLUMNS)
    facts = account.facts
    return (
        *(_stored(str(getattr(facts, name))) for name in _TEXTS),
        json.dumps(facts.devices),
        json.dumps(facts.drivers),
        json.dumps([asdict(part) for part in account.predicted]),
        json.dumps([asdict(part) for part in account.allocated]),
    )


def _stored(text: str) -> str | bytes:
    """A path may hold bytes that are no UTF-8, which SQLite would refuse as text."""
    return text if text.isprintable() else os.fsencode(text)


def _read_back(value: object) -> str:
    """Raises ValueError."""
    if isinstance(value, bytes):
        return os.fsdecode(value)
    if not isinstance(value, str):
        raise ValueError("no text")  # noqa: TRY004 - what is wrong is the row's value
    return value


def account_of(values: Iterable[object]) -> Account | None:
    """What a row says, or None where it says nothing, or nonsense."""
    row = dict(zip(_COLUMNS, values, strict=True))
    try:
        texts = {name: _read_back(row[name]) for name in _TEXTS}
        devices, drivers = (tuple(map(str, _list(row[name]))) for name in ("devices", "drivers"))
        predicted, allocated = (tuple(map(_footprint, _list(row[name]))) for name in ("predicted", "allocated"))
    except (ValueError, RecursionError):
        return None
    if not len(devices) == len(drivers) == len(predicted):
        return None
    return Account(LaunchFacts(**texts, devices=devices, drivers=drivers), predicted, allocated)


def _list(text: object) -> list[object]:
    """Raises ValueError."""
    value = json.loads(str(text))
    if not isinstance(value, list):
        raise ValueError("no list")  # noqa: TRY004 - what is wrong is the row's value
    return value


def is_size(value: object) -> bool:
    """Whether a row's figure can be a number of bytes."""
    return type(value) is int and 0 <= value < LARGEST_BYTES


def _footprint(value: object) -> DeviceFootprint:
    """Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError("no footprint")  # noqa: TRY004 - what is wrong is the row's value
    sizes = {name: size for name, size in value.items() if name in _SIZES}
    if not all(is_size(size) for size in sizes.values()):
        raise ValueError("no sizes")
    return DeviceFootprint(DeviceName(str(value.get("device", ""))), **sizes)
