"""What the server itself has said lately, kept in memory: warnings and errors of all of its parts.

A handler of Python's logging beside the one that prints. Owns the lines. Must never be what logging fails by.
"""

import logging
from collections import deque
from typing import Final

from gridsched.engine.redact import redacted

KEPT_LINES: Final = 2000
LONGEST_LINE: Final = 2000

_FORM: Final = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


class OwnLog(logging.Handler):
    """The last lines."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is said, line by line."""
        try:
            text = redacted(_FORM.format(record))
        except Exception:  # noqa: BLE001 - a bad format string is told by logging itself
            self.handleError(record)
            return
        self._lines.extend(line[:LONGEST_LINE] for line in text.splitlines())

    def last(self, count: int) -> tuple[str, ...]:
        """The last lines, oldest first."""
        return tuple(self._lines)[-count:]
