"""Asking one request of a batch until its answer stands, and what holds its lines back meanwhile.

Owns when a line may begin, and which answers are asked for again. Must never decide who runs when, nor keep an answer.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from gridsched.api.in_process import InProcessExchange
from gridsched.api.inference import Inference
from gridsched.api.routes import ROUTES
from gridsched.api.seat import House
from gridsched.control.authority import NOBODY
from gridsched.control.problems import Problem, RequestError
from gridsched.core.ids import JobId
from gridsched.daytime import Window, window_of
from gridsched.store.batches import BatchRecord, BatchStore

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0
"""How often the time of day, the room on the disk and the completion window are looked at."""

MOST_TRIES: Final = 6
LONGEST_BACK_OFF_SECONDS: Final = 600.0
PASSING: Final = frozenset((429, 502, 503))
"""What may pass by itself, unless its header says that it does not."""

FULL_STATUS: Final = Problem("queue_full", "").status
HELD_STATUS: Final = Problem("draining", "").status


@dataclass(frozen=True, slots=True)
class Office:
    """What every batch needs of the server."""

    house: House
    inference: Inference
    store: BatchStore

    def wall(self) -> float:
        """Seconds since the epoch."""
        return self.house.runtime.parts.clock.wall_seconds()


class Asker:
    """Asks for one batch. `left` is how many seconds of its completion window there are."""

    def __init__(self, office: Office, record: BatchRecord, left: Callable[[], float]) -> None:
        self._own_window = window_of(record.window) if record.window is not None else None
        self._office = office
        self._record = record
        self._left = left
        self._jobs: dict[str, JobId] = {}

    @property
    def window(self) -> Window | None:
        """When its lines may begin: its own, else the server's of now."""
        return self._own_window or self._office.house.settings.batches.window

    def held(self) -> str | None:
        """Why no line may begin, as a sentence's end; None where one may."""
        if self._office.house.runtime.draining:
            return "a restart of the server, which takes no new work"
        if self._record.key and not self._office.house.authority.knows_keys:
            return "the API keys, which cannot be read"
        if self.is_open:
            return None
        return f"its window, {self.window}"

    @property
    def is_open(self) -> bool:
        """Whether its window is."""
        return self.window is None or self.window.is_open(self._office.wall())

    @property
    def seconds_until_open(self) -> float:
        """0 while it is open."""
        return 0.0 if self.window is None or self.is_open else self.window.seconds_until_change(self._office.wall())

    def queued(self) -> str | None:
        """What the scheduler says of its lines, where all that have begun wait; None where one runs, or none has."""
        said = [self._office.house.runtime.said(job) for job in self._jobs.values()]
        return said[0] if said and None not in said else None

    async def until_allowed(self) -> None:
        """Wait until a line may begin."""
        while self.held() is not None:  # noqa: ASYNC110 - a clock that is set tells nobody
            await trio.sleep(min(LOOK_SECONDS, self.seconds_until_open or LOOK_SECONDS))

    async def ask(self, request_id: str, body: bytes) -> InProcessExchange:
        """The answer to a request; one that may be another later is asked for again, a bounded number of times."""
        tries = 0
        while True:
            await self.until_allowed()
            try:
                exchange = await self._asked(request_id, body)
            finally:
                self._jobs.pop(request_id, None)
            if exchange.status == HELD_STATUS and self.held() is not None:
                continue  # it waited until it might not begin any more: that is no try
            if not _is_full(exchange):
                tries += 1
            delay_seconds = _back_off(exchange, tries)
            if delay_seconds is None:
                return exchange
            await trio.sleep(delay_seconds)

    async def _asked(self, request_id: str, body: bytes) -> InProcessExchange:
        record = self._record
        left = max(0.0, self._left())
        if self.window is not None:  # what has not begun when it closes is not to begin
            left = min(left, self.window.seconds_until_change(self._office.wall()))
        headers = {
            b"content-type": b"application/json",
            b"x-class": record.job_class.encode(),
            b"x-max-wait-ms": b"%d" % math.ceil(left * 1000),
        }
        caller = self._office.house.authority.named(record.key)
        if isinstance(caller, Problem):
            exchange = InProcessExchange(record.endpoint, headers, body, request_id, NOBODY)
            exchange.replace_by(caller)
            return exchange
        exchange = InProcessExchange(record.endpoint, headers, body, request_id, caller)

        def submitted(job: JobId) -> None:
            self._jobs[request_id] = job

        try:
            with self._office.house.authority.opened(caller):
                whole = await self._office.inference.serve(exchange, ROUTES[record.endpoint], submitted)
        except RequestError as error:
            exchange.replace_by(error.problem)
        except Exception:
            log.exception("a line of %s failed", record.id)
            exchange.replace_by(Problem("internal", "an error of this server; its log has the details"))
        else:
            if not whole:
                exchange.replace_by(Problem("upstream_error", "the engine broke its answer off"))
        return exchange


def _is_full(exchange: InProcessExchange) -> bool:
    """Whether there was no room for it here: a bound of the queue, or of the key. Room comes, so that is no try."""
    return exchange.status == FULL_STATUS and b"x-should-retry" in exchange.answer_headers


def _back_off(exchange: InProcessExchange, tries: int) -> float | None:
    """How long to wait before the next try; None where the answer stands."""
    headers = exchange.answer_headers
    said = headers.get(b"retry-after", b"")
    stays = headers.get(b"x-should-retry") == b"false" and not said  # a long wait is no reason not to wait here
    if exchange.status not in PASSING or stays or tries >= MOST_TRIES:
        return None
    return min(LONGEST_BACK_OFF_SECONDS, max(float(said) if said.isdigit() else 0.0, 2.0**tries))
