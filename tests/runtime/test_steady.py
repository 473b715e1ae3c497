"""D13: time in which the server did not run is not counted, by any of its deadlines; what the clocks did is told.

The clock under test is trio's own here, over a machine whose clocks a task moves on whenever everybody waits.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

import pytest
import trio

from gridsched import app
from gridsched.api.listen import listen
from gridsched.cli.options import simulated_machine
from gridsched.control.authority import Authority
from gridsched.core.events import DeviceRead
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.core.model import Tier
from gridsched.ports import Catalog, CatalogModel, DeviceInfo, DeviceMonitor
from gridsched.runtime.steady import GAP_SECONDS, LOOK_SECONDS, SteadyClock
from gridsched.service.notify import Manager
from gridsched.settings.load import defaults
from sim.models import SimulatedCatalog
from tests.runtime.inside import BIG, MIDDLE, Inside, inside

HOUR = 3600.0
IDLE_SECONDS = 600.0


class Machine:
    """Its three clocks, in seconds. Implements `ports.Clock`."""

    def __init__(self) -> None:
        self.awake, self.boot, self.wall = 5_000.0, 9_000.0, 1_800_000_000.0

    def awake_seconds(self) -> float:
        return self.awake

    def boot_seconds(self) -> float:
        return self.boot

    def wall_seconds(self) -> float:
        return self.wall

    def stop(self, seconds: float) -> None:
        """The process stands still, or it is the machine that does, by a hypervisor: all clocks go on."""
        self.awake += seconds
        self.sleep(seconds)

    def sleep(self, seconds: float) -> None:
        """The machine sleeps: the clock that trio goes by stands."""
        self.boot += seconds
        self.wall += seconds

    async def live(self) -> None:
        """Let time pass whenever everybody waits."""
        while True:
            await trio.testing.wait_all_tasks_blocked()
            seconds = trio.lowlevel.current_statistics().seconds_to_next_deadline
            self.stop(min(max(seconds, 0.0) + 1e-6, LOOK_SECONDS))  # beyond what rounding leaves


@pytest.fixture
def machine() -> Machine:
    """A machine that has been up for a while."""
    return Machine()


@pytest.fixture
def clock(machine: Machine) -> SteadyClock:
    """Trio's clock in the test that asks for it."""
    return SteadyClock(machine.awake_seconds)


class Forgetful(SimulatedCatalog):
    """The same models, each of which is unloaded after ten idle minutes."""

    def models(self) -> tuple[CatalogModel, ...]:
        return tuple(
            replace(model, spec=replace(model.spec, idle_ttl_seconds=IDLE_SECONDS)) if model.spec else model
            for model in super().models()
        )


def forgetful(catalog: Catalog) -> Catalog:
    """Made so in place."""
    assert isinstance(catalog, SimulatedCatalog)
    catalog.__class__ = Forgetful
    return catalog


@asynccontextmanager
async def server_on(
    machine: Machine, clock: SteadyClock, monitor: type[DeviceMonitor] | None = None
) -> AsyncIterator[Inside]:
    """A server on this machine."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(machine.live)
        async with inside(clock, catalog=forgetful, machine=machine, monitor=monitor or (lambda one: one)) as server:
            yield server
        nursery.cancel_scope.cancel()


def told(server: Inside) -> list[tuple[object, object]]:
    """What the decision log says of clocks."""
    return [(line["kind"], line["seconds"]) for _, line in server.logged("clock")]


async def test_D13_after_two_hours_away_nothing_has_run_out(machine: Machine, clock: SteadyClock) -> None:
    """No idle stop, no queue timeout, a hot model stays hot, a step whose engine was silent goes on; and all of them
    run out later, when their time has really passed."""
    async with server_on(machine, clock) as server:
        await server.ask(server.job(BIG))
        running = [server.job(BIG) for _ in range(2)]
        for job in running:
            server.come(job, tokens=600)
        await server.until("dispatch", 3)
        waiting = server.job(BIG, max_wait_seconds=5.0)
        server.come(waiting)
        await server.until("enqueue", 4)
        before = server.runtime.snapshot()
        machine.stop(2 * HOUR)
        await trio.lowlevel.checkpoint()
        after = server.runtime.snapshot()
        assert after.at - before.at <= LOOK_SECONDS
        await trio.sleep(1.0)
        assert [view.tier for view in server.runtime.snapshot().instances] == [Tier.HOT]
        assert [view.id for view in server.runtime.jobs().waiting] == [waiting.id]
        await trio.sleep(5.0)
        assert server.ends[waiting.id] == "queue_timeout"
        await trio.sleep(60.0)
        assert [server.ends[job.id] for job in running] == ["done", "done"]
        machine.stop(2 * HOUR)
        await trio.sleep(IDLE_SECONDS - 60.0)
        assert server.logged("stop") == []
        await trio.sleep(60.0)
        assert [line["rule"] for _, line in server.logged("stop")] == ["R6"]
        assert told(server) == [("stopped", pytest.approx(2 * HOUR, abs=LOOK_SECONDS))] * 2


async def test_D13_a_load_is_not_timed_out_by_a_gap(machine: Machine, clock: SteadyClock) -> None:
    """It goes on where it was; whoever waits for it is served."""
    async with server_on(machine, clock) as server:
        job = server.job(MIDDLE, max_wait_seconds=60.0)
        server.come(job)
        await server.until("load")
        machine.stop(2 * HOUR)
        await server.until("complete")
        assert server.ends[job.id] == "done"


async def test_D13_a_machine_that_slept_is_told_of_and_nothing_else_changes(
    machine: Machine, clock: SteadyClock
) -> None:
    """Trio's clock stood meanwhile; wall clock and time since boot went on together."""
    async with server_on(machine, clock) as server:
        await server.ask(server.job(MIDDLE))
        at = trio.current_time()
        machine.sleep(2 * HOUR)
        await trio.sleep(5.0)
        assert trio.current_time() - at == pytest.approx(5.0)
        assert told(server) == [("suspended", 2 * HOUR)]
        assert server.logged("stop") == []


async def test_D13_a_wall_clock_that_is_set_changes_the_log_alone(machine: Machine, clock: SteadyClock) -> None:
    """An hour back: the lines' times follow, the numbers go on, and no deadline moves."""
    async with server_on(machine, clock) as server:
        await server.ask(server.job(MIDDLE))
        job = server.job(BIG, max_wait_seconds=30.0, warm_only=True)
        machine.wall -= HOUR
        at = trio.current_time()
        assert await server.ask(job) == "not_resident"
        assert await server.ask(server.job(MIDDLE)) == "done"
        await trio.sleep(at + 5.0 - trio.current_time())
        assert told(server) == [("set", -HOUR)]
        lines = [line for _, line in server.lines]
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
        times = [str(line["time"]) for line in lines]
        assert min(times) < "2027-01-15T07:10" < max(times) < "2027-01-15T08:10"
        assert sum(later < earlier for earlier, later in pairwise(times)) == 1
        assert server.logged("stop") == []


async def test_D13_what_happened_when_is_told_as_the_log_has_it(machine: Machine, clock: SteadyClock) -> None:
    """After a stop, a sleep and a clock that was set, old moments still have the times of their lines."""
    async with server_on(machine, clock) as server:
        job = server.job(MIDDLE)
        await server.ask(job)
        for change in (machine.stop, machine.sleep):
            change(2 * HOUR)
            await trio.sleep(10.0)
        machine.wall -= HOUR / 2
        await trio.sleep(10.0)
        assert len(told(server)) == 3
        logged = {at: line["time"] for at, line in server.lines if line.get("job") == job.id}
        assert len(logged) >= 2
        for at, time in logged.items():
            told_at = datetime.fromisoformat(str(time)).timestamp()
            assert server.runtime.wall_seconds_at(at) == pytest.approx(told_at, abs=0.002)


async def test_D13_what_happens_as_the_process_comes_back_is_told_as_the_log_has_it(
    machine: Machine, clock: SteadyClock
) -> None:
    """What came in meanwhile may be decided before anybody has looked at the clocks."""
    async with server_on(machine, clock) as server:
        await trio.sleep(20.25)
        before = trio.current_time(), machine.wall
        machine.stop(2 * HOUR)
        after = trio.current_time(), machine.wall
        machine.stop(0.001)  # a step takes its time
        await trio.sleep(5.0)
        for at, wall_seconds in (before, after):
            assert server.runtime.wall_seconds_at(at) == pytest.approx(wall_seconds, abs=0.002)


class Counting:
    """Notes when it is read. Implements `ports.DeviceMonitor`."""

    asked: list[float]

    def __init__(self, inner: DeviceMonitor) -> None:
        self._inner = inner
        Counting.asked = []

    def devices(self) -> tuple[DeviceInfo, ...]:
        return self._inner.devices()

    def lost(self) -> Mapping[DeviceName, str]:
        return {}

    def settled(self, instance_id: InstanceId) -> None:
        self._inner.settled(instance_id)

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        Counting.asked.append(trio.current_time())
        return await self._inner.read(processes)


async def test_D13_devices_are_read_at_once_after_a_gap(machine: Machine, clock: SteadyClock) -> None:
    """In the very moment in which it is noticed, and in the usual rhythm again from there."""
    async with server_on(machine, clock, Counting) as server:
        await trio.sleep(10.25)
        machine.sleep(HOUR)
        await server.until("clock")
        await trio.sleep(0.0)
        assert Counting.asked[-1] == trio.current_time()
        await trio.sleep(5.0)
        assert len(Counting.asked) <= 18


@pytest.mark.parametrize(
    ("seconds", "counted"), [(0.5, 0.5), (LOOK_SECONDS + GAP_SECONDS, 11.0), (11.001, 1.0), (2 * HOUR, 1.0)]
)
def test_D13_the_clock_counts_a_busy_machine_and_leaves_a_gap_out(
    machine: Machine, seconds: float, counted: float
) -> None:
    """What a machine under load keeps a process waiting is time; what is longer was none. It never goes back."""
    clock = SteadyClock(machine.awake_seconds)
    machine.stop(60.0)
    clock.start_clock()
    began = clock.current_time()
    machine.stop(seconds)
    assert clock.current_time() - began == pytest.approx(counted)
    machine.stop(0.25)
    assert clock.current_time() - began == pytest.approx(counted + 0.25)


def test_D13_no_sleep_is_longer_than_a_look(machine: Machine) -> None:
    """However far the deadline: a process that sleeps is not away."""
    clock = SteadyClock(machine.awake_seconds)
    now = clock.current_time()
    assert clock.deadline_to_sleep_time(now + HOUR) == LOOK_SECONDS
    assert clock.deadline_to_sleep_time(float("inf")) == LOOK_SECONDS
    assert clock.deadline_to_sleep_time(now + 0.25) == pytest.approx(0.25)
    assert clock.deadline_to_sleep_time(now - 1.0) < 0


def test_D13_the_server_goes_by_it() -> None:
    """The whole of it, as `gridsched serve` starts it: until a signal, which it is told from within."""
    settings, seen, interval = defaults(), [], sys.getswitchinterval()

    def ready() -> None:
        seen.append(trio.lowlevel.current_clock())
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        code = app.serve(
            simulated_machine(settings), settings, [listen("127.0.0.1", 0)], (Authority(), None), ready, Manager()
        )
    finally:
        sys.setswitchinterval(interval)
    assert code == 0
    assert [type(clock) for clock in seen] == [SteadyClock]
