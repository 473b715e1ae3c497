"""Puts the running server together: one nursery inside another, so that the order of shutdown can be read off.

    processes ( actor, sampler ( front ))     left from the inside out

Owns start, drain and stop (P8). Knows no HTTP library: the front is a coroutine that serves until its nursery ends.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import trio

from gridsched.core.commands import Log
from gridsched.core.events import DevicesChanged, DrainBegan, Event, InstanceReady
from gridsched.core.ids import JobId, ModelName
from gridsched.core.model import LaunchOption, ModelSpec
from gridsched.core.policy import Policy
from gridsched.core.scheduler import Scheduler
from gridsched.core.snapshot import Explanation, Jobs, LoadView, Snapshot
from gridsched.devices.sampler import HostSampler, Recent, Sampler
from gridsched.ports import (
    Catalog,
    Clock,
    DeviceMonitor,
    Engine,
    HeldOnHost,
    HostMemory,
    MemoryPressure,
    StandingStore,
    Store,
    Upstream,
)
from gridsched.runtime.actor import Actor
from gridsched.runtime.advice import Adviser
from gridsched.runtime.beside import follow
from gridsched.runtime.decisions import DecisionLog
from gridsched.runtime.desk import Desk
from gridsched.runtime.dispatch import Dispatch, tell_served
from gridsched.runtime.heartbeat import Listener, Phase, heartbeat
from gridsched.runtime.steady import ClockWatch
from gridsched.runtime.tape import Recorder
from gridsched.runtime.wishes import Memory, Wishes

LOOK_SECONDS = 1.0
"""A crowd that asks for what fails to load reads the disk once in this time."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The outside world, behind its ports: real or simulated. `silent`: what was there and did not answer when devices
    were looked for, a sentence each."""

    catalog: Catalog
    engine: Engine
    upstream: Upstream
    monitor: DeviceMonitor
    store: Store
    clock: Clock
    host: HostMemory | None = None
    held_on_host: HeldOnHost | None = None
    pressure: Callable[[], MemoryPressure | None] = lambda: None
    silent: tuple[str, ...] = ()
    standing: StandingStore | None = None

    def devices_changed(self) -> DevicesChanged:
        """The event that tells of what there is to plan with."""
        host = self.host.spec if self.host is not None else None
        return DevicesChanged(tuple(info.spec for info in self.monitor.devices()), host)


@dataclass(frozen=True, slots=True)
class Limits:
    """P8: how long running steps may take to finish, and processes to end, once the server is told to stop."""

    drain_seconds: float = 30.0
    stop_seconds: float = 15.0
    sample_seconds: float = 1.0


Front = Callable[["Runtime", trio.Event], Awaitable[None]]
"""Serves clients until the event is set, then ends: listeners at once, open answers within a grace of its own."""


class Runtime:
    """The server's inside, as doors 3 and 5 show it to the API."""

    def __init__(
        self,
        parts: Parts,
        policy: Policy,
        *,
        limits: Limits = Limits(),
        timed: Callable[[float], None] = lambda seconds: None,  # noqa: ARG005 - nobody asked
        check: bool = False,
        recorder: Recorder | None = None,
        beat: Listener | None = None,
        log: DecisionLog | None = None,
    ) -> None:
        """`log` keeps the decisions, `timed` is told how long each took, `beat` of every heartbeat."""
        self.parts = parts
        self.limits = limits
        self.log = log or DecisionLog()
        recent = Recent()
        self.dispatch = Dispatch(
            catalog=parts.catalog,
            engine=parts.engine,
            upstream=parts.upstream,
            monitor=parts.monitor,
            store=parts.store,
            recent=recent,
            warn=self.note,
            host=parts.host,
        )
        scheduler = Scheduler(policy, check_invariants=check, guarded=True)
        self._actor = Actor(scheduler, self.dispatch.carry_out, self.log, parts.clock, timed=timed, recorder=recorder)
        self._sampler = Sampler(
            parts.monitor, parts.engine.processes, self._actor.post, recent, self.limits.sample_seconds
        )
        held = parts.held_on_host
        self._host_sampler = held and HostSampler(held, parts.engine.processes, self._actor.post)
        self._watch = ClockWatch(parts.clock, self.note)
        self.adviser = Adviser(parts.catalog)
        self.desk = Desk(self._actor.post, self.dispatch.settle, self.adviser, last_id=self.log.last_job)
        self.wishes = Wishes(self._actor.post, self.adviser, Memory(parts.standing, parts.clock))
        self.draining = False
        self._beat = beat
        self._look_at: dict[ModelName, float] = {}
        self._stop = trio.Event()
        self._exit_code = 0

    @property
    def phase(self) -> Phase:
        """As the heartbeat says it."""
        return Phase.DRAINING if self.draining else Phase.READY

    def post(self, event: Event) -> None:
        """Tell the scheduler that something has happened. A process that has become ready has its host memory read."""
        self._actor.post(event)
        if self._host_sampler is not None and isinstance(event, InstanceReady):
            self._host_sampler.hurry()

    def snapshot(self) -> Snapshot:
        """What there is at this moment, for those who only look."""
        return self._actor.scheduler.snapshot(trio.current_time())

    def wall_seconds_at(self, at: float) -> float:
        """What the wall clock said at a moment of a snapshot's clock."""
        return self._watch.wall_seconds_at(at)

    def said(self, job_id: JobId) -> str | None:
        """What a waiting job is told while it waits (H3), or None when it does not."""
        return self._actor.scheduler.said(job_id, trio.current_time())

    def jobs(self, most: int | None = None) -> Jobs:
        """All living jobs, and why those wait that do (S9b); of each class no more of these than the first `most`."""
        return self._actor.scheduler.jobs(trio.current_time(), most)

    def explain(self, job_id: JobId) -> Explanation | None:
        """How one job stands that lives; None for every other."""
        return self._actor.scheduler.explain(job_id, trio.current_time())

    def outlook(self, model: ModelName, options: tuple[LaunchOption, ...] | None = None) -> LoadView | None:
        """What a person's load of a model would come to now, by its ladder or by other options; None for one that the
        scheduler does not know."""
        return self._actor.scheduler.outlook(model, trio.current_time(), options)

    def served(self) -> tuple[ModelSpec, ...]:
        """The models that can be served."""
        return tuple(model.spec for model in self.parts.catalog.models() if model.spec is not None)

    def outdated(self, models: Iterable[ModelSpec]) -> tuple[ModelName, ...]:
        """Those that would be loaded anew if these were the models."""
        return self._actor.scheduler.outdated(models)

    async def look_again(self, model: ModelName) -> bool:
        """Whether a model that could not be served can be now (F11); then the scheduler has been told, before whoever
        asks goes on. Raises KeyError for one that is not there."""
        if not await self.parts.catalog.look_again(model):
            return False
        tell_served(self.parts.catalog, self.post)
        return True

    async def look_at_failed(self, model: ModelName) -> bool:
        """Whether a model whose loads fail has other files by now (L6d); then the scheduler has been told, and need not
        wait to try it. Looks at the disk at most once a second. Raises KeyError for one that is not there."""
        now = trio.current_time()
        if not self._actor.scheduler.in_back_off(model, now) or now < self._look_at.get(model, now):
            return False
        self._look_at[model] = now + LOOK_SECONDS
        if await self.parts.catalog.renew(model) is None:
            return False
        tell_served(self.parts.catalog, self.post)
        return True

    def begin_drain(self) -> None:
        """P8: nobody new from now on, and whoever waits is told; whoever runs may finish. Nothing undoes it, and
        nothing but `end` ends the server after it."""
        if not self.draining:
            self.draining = True
            self.post(DrainBegan())
            self.desk.close()

    async def drain(self) -> bool:
        """Drain, and wait for those who run, within the limit: whether all have finished."""
        self.begin_drain()
        with trio.move_on_after(self.limits.drain_seconds):
            await self.desk.wait_idle()
        return not self.desk.open_tickets

    def end(self, exit_code: int = 0) -> None:
        """Drain and end: `serve` returns this code, the last one that was said."""
        self._exit_code = exit_code
        self._stop.set()

    async def told_to_end(self) -> None:
        """Return when `end` has been called."""
        await self._stop.wait()

    async def serve(self, front: Front) -> int:
        """Run until `end` is called, then drain and end everything: the exit code. A second way out is cancellation: at
        once."""
        front_stop = trio.Event()
        async with trio.open_nursery() as processes:
            self.dispatch.connect(self.desk, self.wishes, self.post, processes)
            self.post(self.parts.devices_changed())
            await self._sampler.read()  # what is pinned loads at once (R7)
            self.wishes.memory.tell(self.post)
            tell_served(self.parts.catalog, self.post)
            async with trio.open_nursery() as inner:
                self._start_inner(inner)
                async with trio.open_nursery() as fronts:
                    fronts.start_soon(front, self, front_stop)
                    await self.told_to_end()
                    self.log.close()
                    await self.drain()
                    front_stop.set()
                with trio.move_on_after(self.limits.stop_seconds):
                    await self.dispatch.end_processes()
                inner.cancel_scope.cancel()
            processes.cancel_scope.cancel()
        return self._exit_code

    def _start_inner(self, nursery: trio.Nursery) -> None:
        """What runs as long as there may be processes."""
        nursery.start_soon(self._actor.run)
        nursery.start_soon(follow, self.parts.devices_changed, self.post)
        nursery.start_soon(self._sampler.run)
        nursery.start_soon(self._watch.run, self._sampler.hurry)
        if self._host_sampler is not None:
            nursery.start_soon(self._host_sampler.run)
        if self._beat is not None:
            phase, in_flight = (lambda: self.phase), (lambda: self.desk.open_tickets)
            nursery.start_soon(heartbeat, self._actor.pulse, phase, in_flight, self._beat)

    def note(self, log: Log) -> None:
        """A line of the decision log that is no decision of the scheduler's."""
        self.log.add(log, self.parts.clock.wall_seconds())
