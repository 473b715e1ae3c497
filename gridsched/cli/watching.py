"""A server's events and status as they come, for a command that goes on looking: read on a thread, over its restarts.

Owns the stream and its return. Must never decide what is shown, nor wait for whoever looks.
"""

import argparse
import json
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from gridsched.cli.client import answered, connect, fetch
from gridsched.cli.failures import FAILURES, Failure, NotOurs, Refused

SILENT_SECONDS = 45.0
"""A server that hangs says nothing for so long; the status alone comes more often."""

AGAIN_SECONDS = 1.0
"""Between two tries to reach a server that has gone."""

SAME_CLOCK_SECONDS = 2.0
"""A server's clock that differs by less is ours: its answers name whole seconds."""


MOST_WAITING = 5000
"""News that nobody has taken; more are left with the server, which tells of those that it keeps no more."""


@dataclass(frozen=True, slots=True)
class Came:
    """The server answers: its version, and how far its clock is before ours."""

    version: str
    ahead_seconds: float


@dataclass(frozen=True, slots=True)
class Gone:
    """It does not any more, and is waited for."""


@dataclass(frozen=True, slots=True)
class Status:
    """How it stands."""

    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the decision log."""

    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing more will come."""

    why: Failure


News = Came | Gone | Status | Line | Failed


def frames(answer: httpx.Response) -> Iterator[tuple[str, str, str]]:
    """Server-sent events: name, number, data."""
    name = number = ""
    data: list[str] = []
    for text in answer.iter_lines():
        field, _, value = text.partition(":")
        match field:
            case "" if not text:
                if data:
                    yield name, number, "\n".join(data)
                name, data = "", []
            case "event":
                name = value.strip()
            case "id":
                number = value.strip()
            case "data":
                data.append(value.removeprefix(" "))


def news(client: httpx.Client, last: str = "") -> Iterator[tuple[str, News]]:
    """What a server tells after the line of that number, each with the number to go on from. Raises httpx.HTTPError,
    Refused and NotOurs."""
    version = str(fetch(client, "/health").get("version", ""))
    headers = {"Last-Event-ID": last} if last else {}
    patience = httpx.Timeout(10.0, read=SILENT_SECONDS)
    with client.stream("GET", "/api/events", params={"status": "1"}, headers=headers, timeout=patience) as answer:
        if answer.is_error:
            answer.read()
            answered(answer)
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            raise NotOurs("it sends no events")
        yield last, Came(version, _ahead(answer))
        for name, number, data in frames(answer):
            last = number or last
            yield last, Status(_object(data)) if name == "status" else Line(_decision(data))


def _object(data: str) -> Mapping[str, Any]:
    """Raises NotOurs."""
    with suppress(ValueError, RecursionError):
        if isinstance(told := json.loads(data), dict):
            return told
    raise NotOurs("its events are no JSON objects")


def _decision(data: str) -> Mapping[str, Any]:
    """Raises NotOurs."""
    told = _object(data)
    try:
        datetime.fromisoformat(told["time"]).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        raise NotOurs("a line of its log has no time") from None
    return {"event": "", **told}


def _ahead(answer: httpx.Response) -> float:
    """How far the server's clock is before ours, by its answer."""
    try:
        there = parsedate_to_datetime(answer.headers["date"])
        ahead = (there - datetime.now(UTC)).total_seconds()
    except (KeyError, ValueError, TypeError):
        return 0.0
    return ahead if abs(ahead) > SAME_CLOCK_SECONDS else 0.0


class Watch:
    """Reads on a thread, which ends with the program. `readable` is a descriptor to wait for; `take` what has come."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._come: queue.Queue[News] = queue.Queue(MOST_WAITING)
        self.readable, self._bell = os.pipe()
        os.set_blocking(self.readable, False)
        os.set_blocking(self._bell, False)
        threading.Thread(target=self._run, daemon=True, name="watch").start()

    def take(self) -> Iterator[News]:
        """What has come since; nothing, if nothing has."""
        with suppress(BlockingIOError):
            os.read(self.readable, 65536)
        with suppress(queue.Empty):
            while True:
                yield self._come.get_nowait()

    def _tell(self, one: News) -> None:
        self._come.put(one)
        with suppress(BlockingIOError):  # it has been rung
            os.write(self._bell, b".")

    def _run(self) -> None:
        """A server that was never there, and one that refuses us, are not waited for."""
        last, has_come = "", False
        while True:
            try:
                with connect(self._args) as client:
                    for number, one in news(client, last):
                        last, has_come = number, True
                        self._tell(one)
            except FAILURES as error:
                if not (has_come and _may_pass(error)):
                    self._tell(Failed(error))
                    return
            self._tell(Gone())
            time.sleep(AGAIN_SECONDS)


def _may_pass(error: Failure) -> bool:
    return isinstance(error, httpx.TransportError) or (
        isinstance(error, Refused) and error.code in ("starting", "draining")
    )
