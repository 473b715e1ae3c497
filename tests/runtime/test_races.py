"""Clients and persons that do anything at any moment, processes that die, cards that fill up, a stop in the midst of
it: for every seed each ticket is closed once, nothing breaks in the actor, and in the end nothing is left.

The seed draws what happens, and the order in which tasks of one tick run: the same example is the same run.
"""

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from gridsched.core.events import Event, LeaseAsked, LeaseReleased, LoadAsked, PinAsked, UnloadAsked
from gridsched.core.ids import DeviceName, ModelName, RequestId
from gridsched.core.job import JobClass
from gridsched.core.policy import Eviction, Policy
from sim.engine import Faults
from tests.runtime.inside import BIG, EMBED, GIB, LEFT, MIDDLE, SMALL, Inside, Sink, inside
from tests.runtime.test_blind import Blinking, Sight

CLIENTS, ROUNDS = 12, 6
POLICIES = (
    Policy(),
    Policy(background_pause=True, abort_after_seconds=0.5),
    Policy(abort_after_seconds=0.0, hot_window_seconds=2.0, min_residency_seconds=1.0, eviction=Eviction.LRU),
    Policy(background_max_starvation_seconds=0.0, interactive_turn_seconds=0.0, hot_yield_after_seconds=5.0),
)
FAULTS = (
    Faults(),
    Faults(),
    Faults(crash_in_load=True),
    Faults(out_of_memory=True),
    Faults(crash_after_seconds=1.5),
    Faults(ignore_stop=True),
    Faults(load_factor=4.0),
)
CARD = DeviceName("sim0")
WISHES: tuple[Callable[[RequestId, ModelName], Event], ...] = (
    LoadAsked,
    UnloadAsked,
    partial(UnloadAsked, force=True),
    partial(PinAsked, pinned=True),
    partial(PinAsked, pinned=False),
    lambda number, name: LeaseAsked(number, CARD, f"who has to do with {name}", 3.0),
    lambda number, _: LeaseReleased(number, CARD),
)
MODELS = (BIG, MIDDLE, SMALL, EMBED)


async def client(server: Inside, rng: Random) -> None:
    """Asks for this and that, and now and then goes away: before its grant, in mid-stream, at its last byte."""
    for _ in range(ROUNDS):
        await trio.sleep(rng.choice((0.0, 0.0, 0.1, 1.0, 4.0)))
        name, job_class = rng.choice(MODELS), rng.choice(tuple(JobClass))
        more = {
            "steps": rng.choice((1, 3)) if name == EMBED else 1,
            "max_wait_seconds": rng.choice((None, None, 0.0, 5.0, 60.0)),
            "warm_only": rng.random() < 0.1,
            "no_evict": rng.random() < 0.1,
            "key": rng.choice(("", "", "a", "b")),
        }
        scope = trio.CancelScope()
        if rng.random() < 0.4:
            scope.deadline = trio.current_time() + rng.choice((0.0, 0.001, 0.3, 3.0, 10.0))
        sink = Sink(on_bytes=partial(leave_at_the_end, scope) if rng.random() < 0.1 else lambda _: None)
        with scope:
            await server.ask(server.job(name, job_class, **more), tokens=rng.choice((1, 8, 60)), sink=sink)


def leave_at_the_end(scope: trio.CancelScope, data: bytes) -> None:
    """Go away as the last bytes come."""
    if b"[DONE]" in data:
        scope.cancel()


async def chance(server: Inside, rng: Random, eyes: Blinking) -> None:
    """What the outside does: processes die, loads fail, a program takes memory, the driver goes quiet."""
    monitor, engine = server.world.monitor, server.world.engine
    while True:
        await trio.sleep(rng.choice((0.0, 0.5, 1.0, 3.0)))
        deed = rng.randrange(6)
        living = list(engine.processes())
        if deed == 0 and living:
            engine.crash(rng.choice(living))
        elif deed == 1:
            engine.plan_faults(rng.choice(MODELS), rng.choice(FAULTS))
        elif deed == 2:
            monitor.set_foreign(CARD, rng.choice((0, 0, 2 * GIB)))
        elif deed == 3:
            eyes.sight = rng.choice((Sight.GOOD, Sight.GOOD, *Sight))
        elif deed == 4 and living:
            engine.set_faults(rng.choice(living), rng.choice(FAULTS[:2] + FAULTS[5:]))


async def person(server: Inside, rng: Random) -> None:
    """Somebody at the controls, who asks for one thing after the other. Every wish is answered."""
    while True:
        await trio.sleep(rng.choice((0.0, 1.0, 5.0)))
        await wish(server, rng.choice(WISHES), rng.choice(MODELS))


async def wish(server: Inside, asked: Callable[[RequestId, ModelName], Event], name: str) -> None:
    """One wish about a model, to its answer."""
    with trio.fail_after(2000.0):
        await server.runtime.wishes.ask(lambda number: asked(number, ModelName(name)))


def heal(server: Inside, eyes: Blinking) -> None:
    """From here on all goes well."""
    for name in MODELS:
        server.world.engine.plan_faults(name, Faults())
    for instance_id in server.world.engine.processes():
        server.world.engine.set_faults(instance_id, Faults())
    server.world.monitor.set_foreign(CARD, 0)
    eyes.sight = Sight.GOOD


async def crowd(server: Inside, seed: int, all_done: trio.Event) -> None:
    """All clients, to the end of their questions."""
    async with trio.open_nursery() as nursery:
        for number in range(CLIENTS):
            nursery.start_soon(client, server, Random(seed + number))  # noqa: S311 - repeatable numbers, not secrets
    all_done.set()


async def run(seed: int, stop_at: float, *, cut: bool) -> Inside:
    """One run. The server is stopped at `stop_at` if the clients are not done then, by one signal or by both."""
    rng = Random(seed)  # noqa: S311 - repeatable numbers, not secrets
    eyes = Blinking()
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    async with inside(clock, policy=rng.choice(POLICIES), monitor=eyes.over, cards=(10 * GIB,), seed=seed) as server:
        all_done = trio.Event()
        server.clients.start_soon(crowd, server, seed, all_done)
        async with trio.open_nursery() as outside:
            outside.start_soon(chance, server, rng, eyes)
            outside.start_soon(person, server, Random(seed - 1))  # noqa: S311 - repeatable numbers, not secrets
            with trio.move_on_after(stop_at):
                await all_done.wait()
            if all_done.is_set():
                heal(server, eyes)
                outside.cancel_scope.cancel()
            else:
                server.runtime.end()
                await trio.sleep(rng.choice((0.0, 0.1, 20.0)))
                if cut:
                    server.cut.cancel()
                await server.ended.wait()
                outside.cancel_scope.cancel()
                return server
        await everything_is_over(server)
    return server


async def everything_is_over(server: Inside) -> None:
    """The world is healed: each model serves again, and then nothing is left of all that."""
    for name in MODELS:
        await wish(server, partial(PinAsked, pinned=False), name)
    await trio.sleep(1000.0)  # the longest back-off is over
    for name in (BIG, MIDDLE, SMALL):
        with trio.fail_after(300.0):
            assert await server.ask(server.job(name)) == "done"
    await trio.sleep(130.0)
    snapshot = server.runtime.snapshot()
    assert sum(snapshot.running.values()) + sum(snapshot.queue_lengths.values()) == 0
    assert sum(item.slots_busy for item in snapshot.instances) == 0
    assert snapshot.devices[0].lost_bytes == snapshot.devices[0].freeing_bytes == 0


EXPLORING = settings.get_current_profile_name() == "explore"
few = settings(max_examples=300 if EXPLORING else 6, suppress_health_check=list(HealthCheck))
"""A run costs up to a second; `make explore` searches for longer."""


@pytest.mark.slow
@few
@given(seed=st.integers(0, 2**32), order=st.random_module())
def test_all_is_over_in_the_end(seed: int, order: object) -> None:
    """The clients ask to their last question; then the world is healed, and the server is as if it were new."""
    assert order
    server = trio.run(lambda: run(seed, 5000.0, cut=False), clock=MockClock(autojump_threshold=0))
    assert len(server.ends) >= CLIENTS * ROUNDS
    assert LEFT in server.ends.values()


@pytest.mark.slow
@few
@given(seed=st.integers(0, 2**32), stop_at=st.floats(0.0, 40.0), cut=st.booleans(), order=st.random_module())
def test_P8_it_ends_well_at_any_moment(seed: int, stop_at: float, cut: bool, order: object) -> None:
    """The first signal comes in the midst of it, and often the second."""
    assert order
    server = trio.run(lambda: run(seed, stop_at, cut=cut), clock=MockClock(autojump_threshold=0))
    assert server.ended.is_set()
