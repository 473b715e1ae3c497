"""The status as frames of an event stream, for all who watch it.

Owns when it is told anew, and the frame that they share: it is made once however many there are, by whoever is first to
find that it is due, and by nobody while nobody watches. Must never hold the loop: what takes long is told less often.
"""

from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Final

import msgspec
import trio

from gridsched.control.problems import plain
from gridsched.control.reloading import Reloader
from gridsched.control.status import status
from gridsched.runtime.runtime import Runtime

SOONEST_SECONDS: Final = 0.5
"""After something was decided."""

LATEST_SECONDS: Final = 2.0
"""However quiet it is: memory of other programs changes without a decision."""

SHARE: Final = 20
"""So many times as long as it takes to make a frame, the loop is left to others."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One status, as it is sent. `number` counts from 1; `last_seq` is the last line of the log that was there."""

    number: int
    at: float
    last_seq: int
    cost_seconds: float
    text: bytes


class StatusFeed:
    """One per server."""

    def __init__(self, runtime: Runtime, reloader: Reloader | None = None) -> None:
        self._runtime = runtime
        self._reloader = reloader
        self._frame = Frame(0, -inf, 0, 0.0, b"")

    def due_at(self) -> float:
        """When the next frame is to be made, as things are now."""
        frame = self._frame
        if frame.last_seq == self._runtime.log.last_seq:
            return frame.at + LATEST_SECONDS
        return frame.at + min(LATEST_SECONDS, max(SOONEST_SECONDS, SHARE * frame.cost_seconds))

    def newer(self, number: int) -> Frame | None:
        """The newest frame, for one who has had that of this number (0: none), made now where it is due; None where
        he has it."""
        if trio.current_time() >= self.due_at():
            self._make()
        return self._frame if self._frame.number > number else None

    def _make(self) -> None:
        last_seq, at, began = self._runtime.log.last_seq, trio.current_time(), perf_counter()
        told = msgspec.json.encode(status(self._runtime, self._reloader), enc_hook=plain)
        text = b"event: status\ndata: %b\n\n" % told
        self._frame = Frame(self._frame.number + 1, at, last_seq, perf_counter() - began, text)
