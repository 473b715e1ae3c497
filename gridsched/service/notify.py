"""Tells the service manager that started us how we are (systemd's notification protocol); silent where none did.

Owns one datagram socket and the words on it. Must never raise and never wait: a manager that does not listen is no
reason to serve worse. What it could not be told at once goes with the next word.
"""

import os
import socket
from collections.abc import Mapping, MutableMapping
from types import TracebackType
from typing import Self

SOCKET, PERIOD, WATCHED_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
TAKEN = (SOCKET, PERIOD, WATCHED_PID, "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
"""Variables that are for one process. An engine that inherited them could tell the manager that we are well, or end
the service by its own word."""

LONGEST_STATUS = 300
"""Characters of the sentence that `systemctl status` shows."""


class Manager:
    """Whoever started us and wants to hear of it, or nobody."""

    def __init__(self, address: str = "", *, watches: bool = False) -> None:
        """`address` is of a Unix socket, `@` before an abstract one; `watches`: it ends us when we miss our beats."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watches = watches
        self._status = ""
        self._owed: dict[str, str] = {}
        # Made once: a beat must not be missed for want of a descriptor.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) if address else None

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str]) -> Self:
        """The manager that the environment names. Its variables are taken out, so that no child inherits them."""
        said: Mapping[str, str] = {name: environ.pop(name, "") for name in TAKEN}
        address = said[SOCKET] if said[SOCKET][:1] in ("/", "@") else ""
        return cls(address, watches=bool(said[PERIOD]) and said[WATCHED_PID] in ("", str(os.getpid())))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    @property
    def listens(self) -> bool:
        """Whether there is somebody to tell."""
        return self._socket is not None

    def ready(self) -> None:
        """The server takes requests."""
        self._tell({"READY": "1"})

    def stopping(self, within_seconds: float) -> None:
        """The server ends, in that time at the latest: the manager's own limit moves there."""
        self._tell({"STOPPING": "1", "EXTEND_TIMEOUT_USEC": str(round(within_seconds * 1e6))})

    def status(self, sentence: str) -> None:
        """What a person is shown of the server; said when it is another than before."""
        shown = " ".join(sentence.split())[:LONGEST_STATUS]
        if shown != self._status:
            self._status = shown
            self._tell({"STATUS": shown})

    def beat(self) -> None:
        """The server lives. One that does not say so for long enough is ended and started anew by the manager."""
        if self._watches:
            self._tell({"WATCHDOG": "1"})

    def _tell(self, fields: Mapping[str, str]) -> None:
        if self._socket is None:
            return
        self._owed.update(fields)
        said = "\n".join(f"{name}={value}" for name, value in self._owed.items())
        try:
            self._socket.sendto(said.encode("utf-8", "replace"), self._address)
        except (OSError, ValueError):  # nobody listens, or not now; a path that is too long, or holds a NUL
            return
        self._owed.clear()
