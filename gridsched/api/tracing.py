"""What this folder tells whoever traces requests, and asks of it: Protocols, so that tracing stays on its own side.

`Untraced` is nobody: it keeps nothing, and passes on what a client says of a trace of its own (W3C Trace Context) as it
came. Where somebody traces, an engine is told of the step's span, whose parent the client's is.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from gridsched.api.steps import Sink
from gridsched.control.problems import Header
from gridsched.core.commands import Grant
from gridsched.core.job import Job, Outcome

LONGEST_STATE = 512
"""More than this of `tracestate` nobody has to pass on, nor of what a later version may say in `traceparent`: an engine
refuses a request for a header that is too long."""

_PARENT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]{0,%d})?" % LONGEST_STATE
)
_STATE = re.compile(rb"[ -~]{1,%d}" % LONGEST_STATE)


class StepTrace(Protocol):
    """One step on the engine."""

    @property
    def headers(self) -> tuple[Header, ...]:
        """What the engine is told of the trace."""

    @property
    def recorded(self) -> bool:
        """Whether anybody wants to know of the first byte."""

    def first_byte(self) -> None:
        """The first byte of the answer's body has come."""

    def ended(self, outcome: Outcome | None) -> None:
        """It is over; None where it was left before its end."""


class Trace(Protocol):
    """One request. Called on its path: synchronous, cheap, never fails."""

    @property
    def id(self) -> str:
        """The trace's, "" where it is not kept."""

    def meant(self, job: Job, *, streamed: bool) -> None:
        """It is a job now."""

    def waits(self) -> None:
        """It waits for a grant from now on."""

    def granted(self, grant: Grant) -> None:
        """It has one."""

    def failed(self, code: str) -> None:
        """What its client is told of why there is no answer, in the contract's word."""

    def step(self, grant: Grant) -> StepTrace:
        """A granted step begins."""

    def ended(self, code: int | None) -> None:
        """The answer is over, with this status; None where the client left before."""


class Tracer(Protocol):
    """Whoever traces requests."""

    def begin(self, path: str, headers: Mapping[bytes, bytes], request_id: str) -> Trace:
        """A request has come."""


class Timed:
    """A sink that says when the first byte of an answer's body has come."""

    def __init__(self, sink: Sink, step: StepTrace) -> None:
        self._sink = sink
        self._step: StepTrace | None = step

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """The head is not a byte of the body."""
        self._sink.begin(status, headers)

    async def body(self, data: bytes) -> None:
        """Pass bytes on."""
        if self._step is not None:
            self._step.first_byte()
            self._step = None
        await self._sink.body(data)


class _Unrecorded:
    """A request that nobody traces, and each of its steps: only `headers`."""

    id = ""
    recorded = False

    def __init__(self, headers: tuple[Header, ...] = ()) -> None:
        self.headers = headers

    def meant(self, job: Job, *, streamed: bool) -> None:
        """Nobody asked."""

    def waits(self) -> None:
        """Nobody asked."""

    def granted(self, grant: Grant) -> None:
        """Nobody asked."""

    def failed(self, code: str) -> None:
        """Nobody asked."""

    def step(self, grant: Grant) -> StepTrace:  # noqa: ARG002 - every step is alike
        """The same for each."""
        return self

    def first_byte(self) -> None:
        """Nobody asked."""

    def ended(self, over: object) -> None:
        """Nobody asked."""


UNRECORDED = _Unrecorded()


class Untraced:
    """Nobody traces."""

    def begin(self, path: str, headers: Mapping[bytes, bytes], request_id: str) -> Trace:  # noqa: ARG002 - they are alike
        """Keep what the client says of its own trace for the engine, if it can be that."""
        parent = headers.get(b"traceparent")
        if parent is None or (read := _PARENT.fullmatch(parent)) is None or (read[1] == b"00" and read[2] is not None):
            return UNRECORDED
        state = headers.get(b"tracestate", b"")
        named: tuple[Header, ...] = ((b"traceparent", parent),)
        return _Unrecorded((*named, (b"tracestate", state)) if _STATE.fullmatch(state) else named)


UNTRACED = Untraced()
