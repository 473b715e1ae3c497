"""A socket that is read until a deadline, however slowly the bytes come. For both ends of HTTP."""

import io
import socket
import time
from typing import Any


class TimedReader(io.RawIOBase):
    """Raises TimeoutError at `deadline` (monotonic seconds), which may be moved."""

    def __init__(self, connection: socket.socket, deadline: float = 0.0) -> None:
        self._connection = connection
        self.deadline = deadline

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As many bytes as there are. Raises TimeoutError."""
        self._connection.settimeout(max(0.001, self.deadline - time.monotonic()))
        return self._connection.recv_into(buffer)
