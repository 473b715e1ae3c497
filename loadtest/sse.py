"""Server-sent events: bytes in, the data of each finished event out. Owns the framing, knows nothing of HTTP."""

LONGEST_LINE_BYTES = 16 * 1024 * 1024
"""A line that is longer is no event stream; without a limit it would fill the memory."""


class SseReader:
    """Feed it what arrives, in any pieces.

    Lines are split at LF and CR LF only: Python's own line splitting, which HTTP clients use, also breaks at characters
    that a JSON string may hold as they are (U+2028, U+0085).
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """The data of every event that these bytes finish. Comments and other fields are left out.
        Raises ValueError for a line that is too long."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE_BYTES:
            raise ValueError(f"an event line is longer than {LONGEST_LINE_BYTES} bytes")
        finished = []
        for line in lines:
            text = line.removesuffix(b"\r").decode(errors="replace")
            if text.startswith("data:"):
                self._data.append(text.removeprefix("data:").removeprefix(" "))
            elif not text and self._data:
                finished.append("\n".join(self._data))
                self._data = []
        return finished
