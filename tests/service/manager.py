"""A service manager's ear: a real datagram socket that hears what a service says."""

import select
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Said = Mapping[str, str]


class Ear:
    """Hears words, each with a bound on the wait."""

    def __init__(self, address: str) -> None:
        """`address` as in NOTIFY_SOCKET: a path, or an abstract name after `@`."""
        self.address = address
        self.heard: list[Said] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.setblocking(False)

    def hear(self, within_seconds: float = 0.0) -> Said | None:
        """The next word, or None where none comes in time."""
        readable, _, _ = select.select([self._socket], [], [], within_seconds)
        if not readable:
            return None
        lines = self._socket.recv(65536).decode().split("\n")
        said = dict(line.partition("=")[::2] for line in lines)
        self.heard.append(said)
        return said

    def until(self, name: str, within_seconds: float = 20.0) -> str:
        """What is said next under this name; between the words it may be silent for so long."""
        while (said := self.hear(within_seconds)) is not None:
            if name in said:
                return said[name]
        raise AssertionError(f"{name} was not said; heard {self.heard}")

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()


@contextmanager
def listening(folder: Path) -> Iterator[Ear]:
    """An ear in a folder, for the length of a block."""
    ear = Ear(str(folder / "notify"))
    try:
        yield ear
    finally:
        ear.close()
