"""The gateway's HTTP side, as a client sees it: one question, one answer, in bounded time. And who has a port.

Must never wait longer than it is told to, and never use a proxy of the environment.
"""

import http.client
import io
import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridsched.watchdog.processes import PROC, pids
from gridsched.watchdog.timed import TimedReader

MOST_ANSWER_BYTES = 1024 * 1024
LOOPBACK = "127.0.0.1"
_LISTENING = "0A"
_EVERYWHERE = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - read, not listened on


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the status, and the JSON object, empty where it was none."""

    status: int
    told: dict[str, Any]


class NoAnswer(Exception):
    """Nothing came back; why, in a few words."""


def ask(
    host: str, port: int, method: str, path: str, seconds: float, body: object = None, *, token: str = ""
) -> Answer:
    """One request, with a credential where there is one. Raises NoAnswer."""
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    deadline = time.monotonic() + seconds
    headers = {"Connection": "close"} | ({"Content-Type": "application/json"} if body is not None else {})
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = http.client.HTTPResponse(_Timed(connection.sock, deadline), method=method)  # type: ignore[arg-type]  # all of a socket that it uses
        answer.begin()
        data = answer.read(MOST_ANSWER_BYTES)
    except TimeoutError:
        raise NoAnswer(f"no answer within {seconds:g} s") from None
    except ConnectionRefusedError:
        raise NoAnswer(f"nobody listens on port {port}") from None
    except OSError as error:
        raise NoAnswer(error.strerror or type(error).__name__) from None
    except http.client.HTTPException as error:
        raise NoAnswer(f"what answers does not speak HTTP ({type(error).__name__})") from None
    finally:
        connection.close()
    with suppress(ValueError, RecursionError):
        told = json.loads(data)
        if isinstance(told, dict):
            return Answer(answer.status, told)
    return Answer(answer.status, {})


class _Timed:
    """What a response uses of a socket: its reading end, which ends at the deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._reader = TimedReader(connection, deadline)

    def makefile(self, mode: str) -> io.BufferedReader:  # noqa: ARG002 - as a socket has it
        """The reading end."""
        return io.BufferedReader(self._reader)


def host_of(port: int) -> str:
    """Where whoever listens on a port of this machine can be reached. Takes milliseconds where there are thousands of
    connections: the kernel lists them all."""
    host = next((address for address, _ in _listeners(port)), LOOPBACK)
    return _EVERYWHERE.get(host, host)


def holder_of(port: int) -> str:
    """Who listens on a port, as well as it can be seen from here."""
    inodes = {f"socket:[{inode}]" for _, inode in _listeners(port)}
    for pid in pids():
        with suppress(OSError):
            for link in (PROC / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    if str(link.readlink()) in inodes:
                        name = (PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
                        return f"process {pid} ({name})"
    return "another process"


def _listeners(port: int) -> Iterator[tuple[str, str]]:
    """Address and inode of each listening socket on a port."""
    suffix = f":{port:04X} "
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            lines = Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for words in (line.split() for line in lines if suffix in line):  # of thousands, on a busy machine
            address, _, hex_port = words[1].rpartition(":")
            if words[3] == _LISTENING and int(hex_port, 16) == port:
                yield _address(family, address), words[9]


def _address(family: socket.AddressFamily, text: str) -> str:
    """An address as /proc writes it: 32-bit words, each in the byte order of this machine."""
    words = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    return socket.inet_ntop(family, b"".join(word.to_bytes(4, sys.byteorder) for word in words))
