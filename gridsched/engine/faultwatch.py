"""Is an answer an engine's word that its device fails (D13)? Looked at while it passes, and before any of it has.

Owns what is held back of an answer until that is known: a whole answer of status 500, and the first frame of a stream
when it is an error; at most `HELD_BYTES`. Pure: bytes in, bytes out, in order and unchanged. What comes of a fault is
the scheduler's.
"""

from gridsched.engine.causes import is_device_fault
from gridsched.ports import EngineAnswer

HELD_BYTES = 64 * 1024
SERVER_ERROR = 500
EVENT_STREAM = b"text/event-stream"
_MARKS = (b'data: {"error"', b'error: {"', b"event: error")
"""How an error frame begins. Inside a JSON text quotes are escaped and line ends too, so no answer can hold them."""
_WORD = b"error"  # looked for first: in nearly all that passes one search is enough
_LONGEST_MARK_BYTES = max(map(len, _MARKS))


class FaultWatch:
    """One answer. Give it what comes; it gives what may pass on."""

    def __init__(self, answer: EngineAnswer) -> None:
        self._whole = answer.status == SERVER_ERROR
        self._stream = not self._whole and any(
            name == b"content-type" and value.startswith(EVENT_STREAM) for name, value in answer.headers
        )
        self._holding = self._whole or self._stream
        self._held = b""
        self._seen = b""  # of a stream that passes: its last bytes, or all from an error frame on

    def passing(self, data: bytes) -> bytes:
        """What may be sent now of all that has come."""
        if not self._holding:
            self._look_at(data)
            return data
        self._held += data
        if len(self._held) <= HELD_BYTES and (self._whole or self._may_be_error()):
            return b""
        return self._let_go()

    def end(self) -> bytes:
        """The answer has ended: what is still to be sent, nothing of one that says nothing but a device's fault."""
        return b"" if self._holding and self.fault else self._let_go()

    @property
    def fault(self) -> bool:
        """Whether what is known of it says that a device fails."""
        if self._holding:
            return is_device_fault(self._held)
        return _WORD in self._seen and is_device_fault(self._seen)

    def _let_go(self) -> bytes:
        data, self._held, self._holding = self._held, b"", False
        self._look_at(data)
        return data

    def _may_be_error(self) -> bool:
        return any(self._held.startswith(mark) or mark.startswith(self._held) for mark in _MARKS)

    def _look_at(self, data: bytes) -> None:
        """Keep what an error frame of a stream says, however it is cut."""
        if self._stream:
            seen = self._seen + data
            begins = [at for mark in _MARKS if (at := seen.find(mark)) >= 0] if _WORD in seen else []
            self._seen = seen[min(begins) :][:HELD_BYTES] if begins else seen[1 - _LONGEST_MARK_BYTES :]
