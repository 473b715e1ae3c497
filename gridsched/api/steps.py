"""Running one granted step on the engine, from the request's bytes to the `Outcome` (doors 6 and 7).

Owns the headers that go up and the stall limit while the engine's head is awaited. A new connection for every step
(P3); leaving in whatever way closes it. Must never repeat a request: running a job again is the scheduler's decision.
"""

from collections.abc import Sequence
from typing import Protocol

from gridsched.control.problems import Header
from gridsched.core.commands import Grant
from gridsched.core.job import Outcome, OutcomeKind
from gridsched.core.record import record
from gridsched.engine.relay import relay
from gridsched.engine.stall import StallClocks
from gridsched.ports import Upstream, UpstreamFailure

JSON = b"application/json"
IDENTITY = (b"accept-encoding", b"identity")
"""All that an engine is told beside what the body is, and of a trace: no credential and no cookie of the client's
goes up."""

BAD_GATEWAY = 502


class Sink(Protocol):
    """Where an answer goes."""

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """The head has come."""

    async def body(self, data: bytes) -> None:
        """Bytes of the body have come."""


@record
class Way:
    """How an engine is reached, and how long it may be silent."""

    upstream: Upstream
    stalls: StallClocks
    stall_seconds: float


async def run_step(
    way: Way,
    grant: Grant,
    target: str,
    body: bytes,
    sink: Sink,
    content_type: bytes = JSON,
    of_trace: tuple[Header, ...] = (),
) -> Outcome:
    """Send one POST to the granted process and pump its answer into `sink`. Raises nothing of the engine's."""
    outcome = Outcome(OutcomeKind.STALLED, BAD_GATEWAY, answered=False)
    process = grant.instance_id
    headers = ((b"content-type", content_type), IDENTITY, *of_trace)
    with way.stalls.limit(process, way.stall_seconds) as head:
        try:
            async with way.upstream.request(process, "POST", target, headers, body) as answer:
                head.hold()  # it is here: from now on `relay` watches a clock of its own
                sink.begin(answer.status, answer.headers)
                outcome = await relay(answer, sink.body, way.stalls.limit(process, way.stall_seconds))
        except UpstreamFailure:
            outcome = Outcome(OutcomeKind.ENGINE_DIED, BAD_GATEWAY, answered=False)
    return outcome
