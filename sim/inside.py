"""From an arrival to its grant through the running server: the real desk and actor over simulated hardware, no HTTP.

Owns the people at the desk: a crowd, a task each, that waits for a busy model; whoever was granted, and ends when told
to; and a person who chats. The clock is the real one. The only file here that knows the server's inside, because that
is measured here, not simulated.
"""

import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import thread_time_ns

import trio
import trio.testing

from gridsched.core.commands import Grant
from gridsched.core.ids import ModelName
from gridsched.core.job import Job, JobClass, JobKind, Outcome, OutcomeKind
from gridsched.core.policy import Policy
from gridsched.runtime.decisions import DecisionLog
from gridsched.runtime.runtime import Parts, Runtime
from gridsched.runtime.steady import SteadyClock
from gridsched.store.memory import MemoryStore
from sim import build
from sim.gpu import GIB
from sim.models import SimModel

DONE = Outcome(OutcomeKind.DONE)
SLOTS = 4
CHAT, LOW = ModelName("chat"), ModelName("low")
MODELS = tuple(SimModel(name, 2 * GIB, GIB // 4, 16384, SLOTS, load_seconds=0.0) for name in (CHAT, LOW))


class _SystemClock:
    """The machine's."""

    wall_seconds = staticmethod(time.time)
    boot_seconds = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    awake_seconds = staticmethod(time.monotonic)


class _Inside:
    """Who is at the desk. `leaves` are for those who run to end, the first to have come first; `ended_at` and
    `granted_at` are when the last one did, and when the one after it heard, in nanoseconds of this thread's time."""

    def __init__(self, runtime: Runtime, nursery: trio.Nursery) -> None:
        self._desk = runtime.desk
        self._nursery = nursery
        self._leaves: deque[trio.Event] = deque()
        self._came = trio.Event()
        self.ended_at = self.granted_at = 0

    def _job(self, model: ModelName, job_class: JobClass) -> Job:
        return Job(self._desk.new_id(), model, job_class, JobKind.CHAT)

    async def crowd(self, waiting: int) -> None:
        """So many more come for the busy model, and have all been heard."""
        for number in range(waiting):
            self._nursery.start_soon(self._wait, JobClass.BACKGROUND if number % 2 else JobClass.BATCH)
        await trio.testing.wait_all_tasks_blocked()

    async def _wait(self, job_class: JobClass) -> None:
        with self._desk.submit(self._job(LOW, job_class)) as ticket:
            await ticket.answer()
            self.granted_at = thread_time_ns()
            self._came.set()
            leave = trio.Event()
            self._leaves.append(leave)
            await leave.wait()
            self.ended_at = thread_time_ns()
            ticket.end(DONE)

    async def fill(self) -> None:
        """Have both models there, and the slots of one taken."""
        await self.chat(JobClass.BACKGROUND)
        for _ in range(SLOTS):
            self._came = trio.Event()
            self._nursery.start_soon(self._wait, JobClass.BACKGROUND)
            await self._came.wait()

    async def chat(self, job_class: JobClass = JobClass.INTERACTIVE) -> float:
        """Microseconds from an arrival to its grant."""
        began = thread_time_ns()
        with self._desk.submit(self._job(CHAT, job_class)) as ticket:
            answer = await ticket.answer()
            took = (thread_time_ns() - began) / 1000
            assert isinstance(answer, Grant), answer  # noqa: S101 - a measurement of refusals would be none
            ticket.end(DONE)
        await trio.testing.wait_all_tasks_blocked()
        return took

    async def freed(self) -> float:
        """Microseconds from the end of a step to the grant of the next in the crowd, to which one more has come."""
        await self.crowd(1)
        self._came = trio.Event()
        self._leaves.popleft().set()
        await self._came.wait()
        await trio.testing.wait_all_tasks_blocked()
        return (self.granted_at - self.ended_at) / 1000


def _serve(policy: Policy, people: Callable[[_Inside], Awaitable[None]]) -> None:
    """A server that ends when these people have gone."""

    async def front(runtime: Runtime, stop: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            inside = _Inside(runtime, nursery)
            await inside.fill()
            await people(inside)
            nursery.cancel_scope.cancel()
            runtime.end()
        await stop.wait()

    async def serve() -> None:
        world = build(cards=(24 * GIB,), models=MODELS)
        parts = Parts(world.catalog, world.engine, world.upstream, world.monitor, MemoryStore(), _SystemClock())
        await Runtime(parts, policy, log=DecisionLog()).serve(front)

    trio.run(serve, clock=SteadyClock())


def arrivals(policy: Policy, waiting: int, times: int) -> dict[str, list[float]]:
    """Microseconds of a chat that finds a slot, and of the next in the crowd when one comes free, `times` of each."""
    took: dict[str, list[float]] = {"chat": [], "freed": []}

    async def people(inside: _Inside) -> None:
        await inside.crowd(waiting)
        for _ in range(times):
            took["freed"].append(await inside.freed())
        for _ in range(times):
            took["chat"].append(await inside.chat())

    _serve(policy, people)
    return took


def resident_bytes(policy: Policy, waiting: int) -> float:
    """By how much the process grows with each waiting job and the task that waits for it."""
    found: list[float] = []

    async def people(inside: _Inside) -> None:
        await inside.crowd(100)  # what the first ones take is not theirs alone
        before = _resident_bytes()
        await inside.crowd(waiting)
        found.append((_resident_bytes() - before) / waiting)

    _serve(policy, people)
    return found[0]


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
