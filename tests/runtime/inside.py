"""A running server without its HTTP front: the real runtime on simulated hardware, and clients at its desk.

Owns what the tests of the runtime look at: the decision log with the clock's times, how each ticket was closed, and
whether the card was ever over. A client is what a handler is: it sits at the desk, runs its steps on the granted
process and ends its ticket, so its nursery ends as a front's does, some time after it is told to.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import trio

from gridsched.api.seat import TAKEN_AWAY, UntilAnswered
from gridsched.api.steps import Way, run_step
from gridsched.core.commands import Grant, Rejection
from gridsched.core.events import Event, GrantReturned, JobAbandoned, JobEnded, JobSubmitted
from gridsched.core.ids import GrantId, InstanceId, JobId, ModelName
from gridsched.core.job import Job, JobClass, JobKind, Outcome, OutcomeKind
from gridsched.core.policy import Policy
from gridsched.ports import Catalog, Clock, DeviceMonitor
from gridsched.runtime.decisions import DecisionLog, Line
from gridsched.runtime.desk import Ticket
from gridsched.runtime.runtime import Parts, Runtime
from gridsched.store.memory import MemoryStore
from sim import SimWorld, build
from tests.support.fakes import StandingClock

CHAT, BACKGROUND, BATCH = JobClass
BIG, MIDDLE, SMALL, EMBED = "sim-chat-12b", "sim-chat-4b", "sim-chat-2b", "sim-embed"
GIB = 1 << 30
GRACE_SECONDS = 2.0
"""How long a client may go on when the front is told to end."""

STALL_SECONDS = 60.0

LEFT = "left"
"""What became of a job whose client went away."""


@dataclass
class Sink:
    """Where a client's answer goes. `on_bytes` is called with each piece, as a socket would be."""

    on_bytes: Callable[[bytes], object] = lambda _: None
    status: int = 0
    parts: list[bytes] = field(default_factory=list)

    def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The head has come."""
        del headers  # nobody asks
        self.status = status
        self.parts.clear()

    async def body(self, data: bytes) -> None:
        """A piece has come, and goes to the client."""
        self.parts.append(data)
        self.on_bytes(data)
        await trio.lowlevel.checkpoint()


class Inside:
    """The server and what happens in it. `lines` are (time, line of the decision log); `closed`, how each ticket was
    closed, by job; `ends`, what became of each job for its client. `cut` is the second signal."""

    def __init__(self, world: SimWorld, runtime: Runtime, lines: list[tuple[float, Line]]) -> None:
        self.world = world
        self.runtime = runtime
        self.lines = lines
        self.started, self.ended = trio.Event(), trio.Event()
        self.cut = trio.CancelScope()
        self.exit_code: int | None = None
        self.closed: dict[JobId, list[str]] = {}
        self.ends: dict[JobId, str] = {}
        self.jobs: dict[JobId, Job] = {}
        self.least_free_bytes = 1 << 60
        self.on_answer: Callable[[JobId], object] = lambda _: None
        self.clients: trio.Nursery
        self._granted: dict[GrantId, JobId] = {}
        self._post, self._deliver = runtime.desk.post, runtime.desk.deliver
        runtime.desk.post = self._posted
        runtime.desk.deliver = self._delivered  # type: ignore[method-assign]  # looked at in passing

    # --- the server -------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Until it has ended, one way or the other."""
        with self.cut:
            self.exit_code = await self.runtime.serve(self._front)
        self.ended.set()

    async def _front(self, runtime: Runtime, stop: trio.Event) -> None:
        async with trio.open_nursery() as self.clients:
            self.clients.start_soon(self._watch_cards)
            self.started.set()
            await stop.wait()
            self.clients.cancel_scope.deadline = trio.current_time() + (
                GRACE_SECONDS if runtime.desk.open_tickets else 0
            )

    async def _watch_cards(self) -> None:
        while True:
            free = min(self.world.monitor.free_bytes(info.spec.name) for info in self.world.monitor.devices())
            self.least_free_bytes = min(self.least_free_bytes, free)
            await trio.sleep(0.5)

    def _posted(self, event: Event) -> None:
        match event:
            case JobSubmitted(job):
                self.jobs[job.id] = job
                self.closed[job.id] = []
            case JobAbandoned(job_id):
                self.closed[job_id].append("abandoned")
            case GrantReturned(grant_id) | JobEnded(grant_id):
                self.closed[self._granted[grant_id]].append("ended" if isinstance(event, JobEnded) else "returned")
            case _:
                pass
        self._post(event)

    def _delivered(self, job_id: JobId, answer: Grant | Rejection) -> None:
        self.on_answer(job_id)
        if isinstance(answer, Grant):
            self._granted[answer.id] = job_id
        elif not self.closed[job_id]:
            self.closed[job_id].append("rejected")
        self._deliver(job_id, answer)

    # --- clients ----------------------------------------------------------------------------------------------------

    def job(self, name: str, job_class: JobClass = CHAT, steps: int = 1, **more: object) -> Job:
        """A job for one of the simulated models."""
        kind = JobKind.EMBEDDINGS if name == EMBED else JobKind.CHAT
        job = Job(self.runtime.desk.new_id(), ModelName(name), job_class, kind, steps)
        return replace(job, **more)  # type: ignore[arg-type]  # fields by name

    async def ask(self, job: Job, *, tokens: int = 8, sink: Sink | None = None) -> str:
        """One job from its submission to its end, as a handler sees it: how it ended. Cancelled, its client left."""
        self.ends[job.id] = LEFT
        with self.runtime.desk.submit(job) as ticket:
            self.ends[job.id] = await self._converse(ticket, tokens, sink or Sink())
        return self.ends[job.id]

    async def _converse(self, ticket: Ticket, tokens: int, sink: Sink) -> str:
        body = body_of(ticket.job, tokens)
        while True:
            answer = await ticket.answer()
            if isinstance(answer, Rejection):
                return answer.code.value
            outcome = await self._run(ticket, answer, body, sink)
            if may_go_on(outcome, answer):
                ticket.step_ended(outcome, settled=outcome.kind is not OutcomeKind.ABORTED)
                continue
            ticket.end(outcome)
            return outcome.kind.value

    async def _run(self, ticket: Ticket, grant: Grant, body: bytes, sink: Sink) -> Outcome:
        """One step, given up when it is taken away for a chat (S11). Nothing of an embedding job is sent before its
        end."""
        way = Way(self.runtime.parts.upstream, self.runtime.dispatch.stalls, STALL_SECONDS)
        if ticket.job.kind is JobKind.EMBEDDINGS:
            return replace(await run_step(way, grant, "/v1/embeddings", body, sink), answered=False)
        with ticket.until_aborted():
            return await run_step(way, grant, "/v1/chat/completions", body, UntilAnswered(sink, ticket))
        return TAKEN_AWAY

    def come(self, job: Job, *, tokens: int = 8, sink: Sink | None = None) -> trio.CancelScope:
        """A client of its own, which leaves when its scope is cancelled."""
        scope = trio.CancelScope()

        async def sit() -> None:
            with scope:
                await self.ask(job, tokens=tokens, sink=sink)

        self.clients.start_soon(sit, name=f"client of job {job.id}")
        return scope

    # --- looking ----------------------------------------------------------------------------------------------------

    def logged(self, event: str, **fields: object) -> list[tuple[float, Line]]:
        """The lines of one kind, with these fields."""
        return [
            (at, line)
            for at, line in self.lines
            if line["event"] == event and all(line.get(name.rstrip("_")) == value for name, value in fields.items())
        ]

    async def until(self, event: str, count: int = 1, **fields: object) -> None:
        """Wait for that many such lines, a virtual hour at most."""
        with trio.fail_after(3600.0):
            async with aclosing(cast("AsyncGenerator[object]", self.runtime.log.follow(0))) as lines:
                async for _ in lines:
                    if len(self.logged(event, **fields)) >= count:
                        return

    def instance(self, name: str) -> InstanceId:
        """The living process of a model."""
        (found,) = (item.id for item in self.runtime.snapshot().instances if item.model == name)
        return found

    def check(self) -> None:
        """What must be so at the end of every test: one closing for each ticket, no slot overfilled, no card over."""
        assert self.runtime.desk.open_tickets == 0
        assert not self.world.engine.processes()
        assert {job_id: how for job_id, how in self.closed.items() if len(how) != 1} == {}
        assert self.world.engine.overfilled == 0


def may_go_on(outcome: Outcome, grant: Grant) -> bool:
    """Whether a job waits on after a step: for its next one, or because it came to nothing (P5, S11)."""
    if outcome.kind in (OutcomeKind.ENGINE_DIED, OutcomeKind.ABORTED):
        return not outcome.answered
    return outcome.kind is OutcomeKind.DONE and grant.step < grant.steps


def body_of(job: Job, tokens: int) -> bytes:
    """What a job's steps say: a stream of so many tokens, or 32 texts of about 90 words."""
    if job.kind is JobKind.EMBEDDINGS:
        return EMBEDDING_BODY
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": job.model, "messages": messages, "max_tokens": tokens, "stream": True}
    return json.dumps(body).encode()


EMBEDDING_BODY = json.dumps({"model": EMBED, "input": ["word " * 85] * 32}).encode()


@asynccontextmanager
async def inside(
    clock: trio.abc.Clock,
    *,
    policy: Policy | None = None,
    monitor: Callable[[DeviceMonitor], DeviceMonitor] = lambda cards: cards,
    catalog: Callable[[Catalog], Catalog] = lambda models: models,
    cards: Sequence[int] = (16 * GIB,),
    seed: int = 0,
    machine: Clock | None = None,
    **more: Any,
) -> AsyncIterator[Inside]:
    """A server for the length of a block, under the clock of the test; ended and checked at the end of it.
    `more` is of the runtime: its limits, who is told its beats."""
    assert trio.lowlevel.current_clock() is clock
    world = build(seed, cards)
    lines: list[tuple[float, Line]] = []
    shown, read = catalog(world.catalog), monitor(world.monitor)
    parts = Parts(shown, world.engine, world.upstream, read, MemoryStore(), machine or StandingClock())
    runtime = Runtime(
        parts,
        policy or Policy(),
        log=DecisionLog(lambda line: lines.append((trio.current_time(), line))),
        check=True,
        **more,
    )
    server = Inside(world, runtime, lines)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve)
        await server.started.wait()
        yield server
        if not server.ended.is_set():
            server.runtime.end()
        await server.ended.wait()
    server.check()
