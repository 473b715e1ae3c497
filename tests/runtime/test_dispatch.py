"""Dispatch: slots that an abandoned step may still hold, and refusals with what would fit."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio

from gridsched.core.commands import Grant, Log
from gridsched.core.events import Event, SlotSettled
from gridsched.core.ids import GrantId, InstanceId, JobId, ModelName
from gridsched.devices.sampler import Recent
from gridsched.ports import HostMemory, UpstreamFailure, UpstreamFailureKind
from gridsched.runtime.advice import Adviser
from gridsched.runtime.desk import Desk
from gridsched.runtime.dispatch import Dispatch
from gridsched.runtime.wishes import Wishes
from gridsched.store.memory import MemoryStore
from sim import build

ONE, TWO = GrantId(1), GrantId(2)
INSTANCE = InstanceId(7)
MODEL = ModelName("sim-chat-12b")


class Slots:
    """An engine that says how many slots are busy: one figure a question, the last one for ever; None: no answer."""

    def __init__(self, *busy: int | None) -> None:
        self.busy = list(busy)
        self.asked_at: list[float] = []
        self.alive = True

    @property
    def asked(self) -> int:
        """How often."""
        return len(self.asked_at)

    async def busy_slots(self, instance_id: InstanceId) -> int:
        assert instance_id == INSTANCE
        self.asked_at.append(trio.current_time())
        figure = self.busy.pop(0) if len(self.busy) > 1 else self.busy[0]
        await trio.lowlevel.checkpoint()
        if figure is None:
            raise UpstreamFailure(UpstreamFailureKind.CONNECT, "nobody there")
        return figure

    def processes(self) -> Mapping[InstanceId, int]:
        return {INSTANCE: 1} if self.alive else {}


class Hall:
    """A dispatch with its desk, and what is posted."""

    def __init__(self, slots: Slots, host: HostMemory | None = None) -> None:
        world = build()
        self.warned: list[Log] = []
        self.slots = slots
        self.posted: list[Event] = []
        self.dispatch = Dispatch(
            catalog=world.catalog,
            engine=slots,  # type: ignore[arg-type]  # what is asked of an engine here is `processes`
            upstream=slots,  # type: ignore[arg-type]  # and of an upstream `busy_slots`
            monitor=world.monitor,
            store=MemoryStore(),
            recent=Recent(),
            warn=self.warned.append,
            host=host,
        )
        adviser = Adviser(world.catalog)
        self.desk = Desk(self.posted.append, self.dispatch.settle, adviser)
        self.wishes = Wishes(self.posted.append, adviser)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            self.dispatch.connect(self.desk, self.wishes, self.posted.append, nursery)
            yield
            nursery.cancel_scope.cancel()

    def settle(self, number: GrantId) -> None:
        self.dispatch.settle(Grant(number, JobId(1), INSTANCE, MODEL, 1, 1, 0.0))

    def settled(self) -> list[GrantId]:
        return [event.grant_id for event in self.posted if isinstance(event, SlotSettled)]


async def test_S8_a_slot_is_free_when_the_engine_says_so_twice(autojump_clock: trio.testing.MockClock) -> None:
    """Once is not enough: a step that was granted a moment ago may not show yet."""
    hall = Hall(Slots(1, 0, 1, 0, 0))
    async with hall.open():
        hall.settle(ONE)
        await trio.sleep(30)
    assert hall.settled() == [ONE]
    assert hall.slots.asked == 5
    assert autojump_clock.autojump_threshold == 0


@pytest.mark.parametrize(("running", "soon"), [(0, True), (1, False)])
async def test_S8_the_second_answer_is_not_waited_for_where_nobody_else_runs(
    running: int, soon: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """After seconds of asking the questions are far apart. A chat may wait for the slot (S11), so the answer that it is
    free is asked for again at once, unless a step runs there that may not show yet."""
    assert autojump_clock.autojump_threshold == 0
    hall = Hall(Slots(*[1 + running] * 12, running))
    async with hall.open():
        hall.desk.active[INSTANCE] = running
        hall.settle(ONE)
        await trio.sleep(30)
    assert hall.settled() == [ONE]
    first, second = hall.slots.asked_at[-2:]
    assert (second - first < 0.1) is soon


async def test_S8_a_running_step_is_not_taken_for_an_abandoned_one(autojump_clock: trio.testing.MockClock) -> None:
    """Two slots busy, one of them with a step that we know of: the other one is still held."""
    assert autojump_clock.autojump_threshold == 0
    hall = Hall(Slots(2, 2, 2, 1, 1))
    async with hall.open():
        hall.desk.active[INSTANCE] = 1
        hall.settle(ONE)
        await trio.sleep(0.1)
        assert hall.settled() == []
        await trio.sleep(30)
    assert hall.settled() == [ONE]


async def test_S8_two_abandoned_steps_come_free_one_by_one(autojump_clock: trio.testing.MockClock) -> None:
    """The first that was left is the first that is free: which of them it is the engine does not say."""
    assert autojump_clock.autojump_threshold == 0
    hall = Hall(Slots(2, 1, 1, 1, 0, 0))
    async with hall.open():
        hall.settle(ONE)
        hall.settle(TWO)
        await trio.sleep(30)
    assert hall.settled() == [ONE, TWO]


async def test_an_engine_that_does_not_answer_keeps_its_slots(autojump_clock: trio.testing.MockClock) -> None:
    """Silence proves nothing; the watch ends with the process."""
    assert autojump_clock.autojump_threshold == 0
    hall = Hall(Slots(None))
    async with hall.open():
        hall.settle(ONE)
        await trio.sleep(60)
        assert hall.settled() == []
        hall.slots.alive = False
        await trio.sleep(5)
        asked = hall.slots.asked
        await trio.sleep(60)
    assert hall.slots.asked == asked
