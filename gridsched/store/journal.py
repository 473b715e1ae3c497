"""Numbered rows in rotated files, read newest first in pages: the audit log.

Owns the numbers of the rows (`seq`), which go on over a restart. Whoever writes never waits (`rotated`).
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from gridsched.store.rotated import USUAL, Bounds, Rotated, Row, lines_back


class Journal:
    """One such log. Nothing is opened before the first row."""

    def __init__(self, path: Path, say: Callable[[str], None], bounds: Bounds = USUAL) -> None:
        """Blocks: the last number is read."""
        self._rows = Rotated(path, say, bounds)
        self._lock = threading.Lock()
        self._seq = next((int(row["seq"]) for row in self._kept()), 0)

    def write(self, row: Row) -> int:
        """Have a row written: its number. Never waits, and never raises."""
        with self._lock:
            self._seq += 1
            self._rows.put({"seq": self._seq, **row})
            return self._seq

    def read(self, before: int | None, limit: int) -> tuple[list[Row], int | None]:
        """Rows with numbers below `before`, newest first, and the number to go on with; None at the end. Blocks."""
        found: dict[int, Row] = {}
        for row in chain(reversed(self._rows.waiting()), self._kept()):
            if before is None or row["seq"] < before:
                found.setdefault(row["seq"], row)
            if len(found) > limit:
                break
        rows = [found[seq] for seq in sorted(found, reverse=True)[: limit + 1]]
        more = len(rows) > limit
        return rows[:limit], int(rows[limit - 1]["seq"]) if more and limit else None

    def close(self) -> None:
        """Have what waits written, for as long as that is reasonable. Blocks."""
        self._rows.close()

    def _kept(self) -> Iterator[Row]:
        """Rows on the disk, newest first; a line that is none, such as one half written, is passed over."""
        with self._rows.opened() as files:
            for line in chain.from_iterable(map(lines_back, files)):
                with suppress(ValueError, RecursionError):
                    row = json.loads(line)
                    if isinstance(row, dict) and isinstance(row.get("seq"), int):
                        yield row
