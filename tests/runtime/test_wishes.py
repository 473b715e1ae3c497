"""What persons ask for, in the running server: the wish goes in as an event and its answer comes back once."""

from functools import partial

import trio
from trio.testing import MockClock

from gridsched.core.commands import AnswerRequest, RejectionCode
from gridsched.core.events import LeaseAsked, LeaseReleased, LoadAsked, UnloadAsked
from gridsched.core.ids import DeviceName, ModelName
from sim.gpu import GIB
from tests.runtime.inside import BIG, MIDDLE, SMALL, Inside, inside


async def load(server: Inside, name: str) -> AnswerRequest:
    """A person loads a model."""
    return await server.runtime.wishes.ask(partial(LoadAsked, model=ModelName(name)))


async def unload(server: Inside, name: str, *, force: bool = False) -> AnswerRequest:
    """A person unloads a model."""
    return await server.runtime.wishes.ask(partial(UnloadAsked, model=ModelName(name), force=force))


async def test_R7_a_person_loads_and_unloads(autojump_clock: MockClock) -> None:
    """Each wish is answered when it is really done: ready, and with the memory back."""
    async with inside(autojump_clock) as server:
        answer = await load(server, MIDDLE)
        assert answer.rejection is None
        assert answer.detail["instance"] == server.instance(MIDDLE)
        assert (await unload(server, MIDDLE)).rejection is None
        assert not server.world.engine.processes()
        assert [line["model"] for _, line in server.logged("released")] == [MIDDLE]


async def test_R2_a_forced_unload_cuts_a_stream_and_frees_the_memory(autojump_clock: MockClock) -> None:
    """The client that was being answered hears of it, and the log says that it was by force."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(MIDDLE))
        cut = server.job(MIDDLE)
        server.come(cut, tokens=2000)
        await server.until("dispatch", 2)
        await trio.sleep(3.0)
        answer = await unload(server, MIDDLE, force=True)
        assert answer.rejection is None
        await trio.sleep(1.0)
        assert server.ends[cut.id] == "engine_died"
        assert [(line["forced"], line["steps"]) for _, line in server.logged("stop", rule="R2")] == [(True, 1)]


async def test_R8_a_leased_card_is_empty_when_it_is_held(autojump_clock: MockClock) -> None:
    """A running answer ends first; released, the card serves again."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(SMALL))
        running = server.job(SMALL)
        server.come(running, tokens=300)
        await server.until("dispatch", 2)
        device = server.world.monitor.devices()[0].spec.name
        answer = await server.runtime.wishes.ask(partial(LeaseAsked, devices=(DeviceName(device),), owner="a test"))
        assert answer.rejection is None
        assert server.ends[running.id] == "done"
        assert not server.world.engine.processes()
        assert await server.ask(server.job(SMALL)) == "insufficient_vram"
        answer = await server.runtime.wishes.ask(partial(LoadAsked, model=SMALL))
        assert answer.rejection is not None
        assert answer.rejection.detail["max_ctx_that_fits"] == 0  # a person's load is told what a client's request is
        answer = await server.runtime.wishes.ask(partial(LeaseReleased, device=DeviceName(device)))
        assert answer.rejection is None
        assert await server.ask(server.job(SMALL)) == "done"


async def test_R7_R8_nobody_goes_who_was_not_to_go(autojump_clock: MockClock) -> None:
    """A person's load or lease that says who may go for it is refused where another would have to, which then stays."""
    async with inside(autojump_clock, cards=(10 * GIB,)) as server:
        ask, device = server.runtime.wishes.ask, server.world.monitor.devices()[0].spec.name
        assert (await load(server, SMALL)).rejection is None
        instance, large = server.instance(SMALL), ModelName(BIG)
        lease = partial(LeaseAsked, devices=(DeviceName(device),), owner="a test", may_go=())
        for wish in (partial(LoadAsked, model=large, may_go=()), lease):
            rejection = (await ask(wish)).rejection
            assert rejection is not None
            assert rejection.code is RejectionCode.CONFLICT
            assert SMALL in rejection.message
            assert server.instance(SMALL) == instance
        assert not server.logged("evict")
        assert (await ask(partial(LoadAsked, model=large, may_go=(SMALL,)))).rejection is None
        assert [line["model"] for _, line in server.logged("evict")] == [SMALL]
