"""A stream of server-sent events to one client (H3): a held head, comment lines while nothing flows, error frames.

Owns when 200 is committed: with the engine's own first byte, or after `hold_seconds`, whichever comes first; until then
a refusal is a real status. Bytes of the engine pass unchanged. Must never put a comment inside an event, never send
`[DONE]` of its own, never invent an answer.
"""

from collections.abc import Callable, Sequence

import msgspec
import trio

from gridsched.api.dialects import Dialect, event
from gridsched.api.exchange import Exchange, send_problem
from gridsched.control.problems import Header, Problem

EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
LONGEST_END_BYTES = 4
LONGEST_REFUSAL_BYTES = 1024 * 1024
HTTP_OK, FIRST_ERROR, BAD_GATEWAY = 200, 400, 502
EVENT_STREAM = b"text/event-stream"
STREAM_HEADERS: tuple[Header, ...] = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies in front hold a stream back unless told not to
)


class _Turn:
    """Whose turn it is to send. Nearly always nobody else's, and then it is had without a turn of the loop, as
    `trio.Lock` takes one for each token."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def __aenter__(self) -> None:
        """Have it."""
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        """Give it up."""
        self._lock.release()


class EventStream:
    """The client's side of one streamed job; implements `reply.Reply`. `say` words the next comment line; None: there
    are none."""

    def __init__(
        self,
        exchange: Exchange,
        headers: Sequence[Header],
        say: Callable[..., str] | None,
        *,
        hold_seconds: float,
        comment_seconds: float,
        dialect: Dialect = Dialect.OPENAI,
    ) -> None:
        self.begun_at: float | None = None
        self.status = 0
        self._exchange = exchange
        self._ours = list(headers)
        self._theirs: Sequence[Header] = ()
        self._say = say
        self._comment_seconds = comment_seconds
        self._dialect = dialect
        self._sending = _Turn()
        self._tail = b"\n\n"  # the last bytes sent: a stream that has not begun is between events
        self._flowed_at = trio.current_time()
        self._held_until = self._flowed_at + hold_seconds
        self._beats_at = self._flowed_at + min(hold_seconds, comment_seconds)
        self._events = True  # whether the head that was sent promised events
        self._refusal: bytes | None = None  # an engine's error that comes after 200 was committed

    # --- Reply ------------------------------------------------------------------------------------------------------

    def decided(self, headers: Sequence[Header]) -> None:
        """A step begins, or the job is refused; a head that an earlier step left behind is forgotten."""
        self._ours = list(headers)
        self._theirs, self._refusal = (), None

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """Keep the engine's head until its first byte; an error that comes after 200 was committed becomes a frame."""
        self.status, self._theirs = status, headers
        if self._exchange.started and not self._has_events():
            self._refusal = b""
            self.status = status if status >= FIRST_ERROR else BAD_GATEWAY

    async def body(self, data: bytes) -> None:
        """Pass bytes on as they came."""
        if self._refusal is not None:
            if not self._is_coded():
                self._refusal += data[: LONGEST_REFUSAL_BYTES - len(self._refusal)]
            return
        async with self._sending:
            if self.begun_at is None:
                self.begun_at = trio.current_time()
            await self._send(data)

    async def finish(self) -> bool:
        """The engine's body has ended."""
        async with self._sending:
            await self._commit()
            if self._refusal is not None:
                await self._frame(_error_json(self._refusal))
        return True

    async def refuse(self, problem: Problem) -> bool:
        """A real status before the head has gone, one error frame and the end of the stream after it."""
        self.status = problem.status
        async with self._sending:
            if not self._exchange.started:
                await send_problem(self._exchange, problem, self._ours)
            elif self._events:
                await self._frame(problem.body())
            else:
                return False
        return True

    # --- while nothing flows ----------------------------------------------------------------------------------------

    def beats_at(self) -> float:
        """When something may have to be said because nothing flows; what has flowed since puts it off."""
        if self._exchange.started:
            return max(self._beats_at, self._flowed_at + self._comment_seconds)
        return self._beats_at

    async def beat(self) -> None:
        """Commit 200 when the hold is over, then write a comment if nothing has flowed for a while."""
        async with self._sending:
            self._beats_at = await self._comment(self._held_until)

    async def _comment(self, held_until: float) -> float:
        """Write a comment if one is due, and return when the next may be."""
        now = trio.current_time()
        if self._exchange.started:
            if now < self._flowed_at + self._comment_seconds:
                return self._flowed_at + self._comment_seconds
        elif now < held_until:
            return min(held_until, now + self._comment_seconds)
        elif not self._theirs or self._has_events():
            await self._commit()
        if self._say and self._exchange.started and self._events and self._tail.endswith(EVENT_ENDS):
            await self._send(b": %s\n\n" % self._say(answering=self.begun_at is not None).encode())
        return trio.current_time() + self._comment_seconds

    # --- bytes ------------------------------------------------------------------------------------------------------

    def _has_events(self) -> bool:
        """Whether the engine's answer is events that ours can stand between."""
        events = any(name == b"content-type" and value.startswith(EVENT_STREAM) for name, value in self._theirs)
        return events and not self._is_coded()

    def _is_coded(self) -> bool:
        """Whether the engine compressed it, although it was told not to."""
        return any(name == b"content-encoding" and value.lower() != b"identity" for name, value in self._theirs)

    async def _commit(self, first: bytes = b"") -> None:
        """Send the head, once, with the first bytes: the engine's where it has come, else 200 and the promise of
        events."""
        if self._exchange.started:
            return
        self._events = not self._theirs or self._has_events()
        if not self._events:
            await self._exchange.send_start(self.status, [*self._ours, *self._theirs], first)
            return
        theirs = [header for header in self._theirs if header[0] not in _STREAM_NAMES]
        promise = theirs or [(b"content-type", EVENT_STREAM)]
        status = self.status if self._theirs else HTTP_OK
        await self._exchange.send_start(status, [*self._ours, *promise, *STREAM_HEADERS], first)

    async def _send(self, data: bytes) -> None:
        self._tail = (data if len(data) >= LONGEST_END_BYTES else self._tail + data)[-LONGEST_END_BYTES:]
        if self._exchange.started:
            await self._exchange.send_body(data)
        else:
            await self._commit(data)
        self._flowed_at = trio.current_time()

    async def _frame(self, error_json: bytes) -> None:
        """One event with an error. An event that was cut off is ended first."""
        cut = b"" if self._tail.endswith(EVENT_ENDS) else b"\n\n"
        await self._send(cut + event(self._dialect, error_json))


_STREAM_NAMES = frozenset(name for name, _ in STREAM_HEADERS) | {b"content-length"}


def _error_json(body: bytes) -> bytes:
    """An engine's error body on one line; what is not an OpenAI-shaped error is wrapped in one."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        fields = {}
    if "error" in fields:
        return body.replace(b"\n", b" ").replace(b"\r", b" ")  # valid JSON has line ends between its tokens only
    return Problem("upstream_error", body.decode("utf-8", "replace") or "the engine gave no stream").body()
