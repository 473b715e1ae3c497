"""Devices that cannot be read, for a while or for good: what is loaded serves on, and nothing is planned on a guess."""

from collections.abc import Mapping
from enum import Enum

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.events import DeviceRead
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.ports import DeviceInfo, DeviceMonitor
from tests.runtime.inside import BACKGROUND, BIG, GIB, MIDDLE, inside

TWO_DO_NOT_FIT = (10 * GIB,)


class Sight(Enum):
    """How a device answers."""

    GOOD = "good"
    FAILS = "fails"
    HANGS = "hangs"
    EMPTY = "says nothing"


class Blinking:
    """A monitor whose readings fail when it is told to. Implements `ports.DeviceMonitor`."""

    def __init__(self, sight: Sight = Sight.GOOD) -> None:
        self.sight = sight
        self._inner: DeviceMonitor

    def over(self, inner: DeviceMonitor) -> "Blinking":
        """Put it between the server and a monitor that sees."""
        self._inner = inner
        return self

    def devices(self) -> tuple[DeviceInfo, ...]:
        return self._inner.devices()

    def lost(self) -> Mapping[DeviceName, str]:
        return {}

    def settled(self, instance_id: InstanceId) -> None:
        """It tells what each process holds: nothing depends on it."""

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        await trio.lowlevel.checkpoint()
        match self.sight:
            case Sight.FAILS:
                raise OSError("no descriptor left")
            case Sight.HANGS:
                await trio.sleep_forever()
            case Sight.EMPTY:
                return ()
            case Sight.GOOD:
                pass
        return await self._inner.read(processes)


blindness = pytest.mark.parametrize("sight", [Sight.FAILS, Sight.HANGS, Sight.EMPTY], ids=lambda one: one.value)


@blindness
async def test_L3_what_is_loaded_serves_on_and_free_memory_is_used(autojump_clock: MockClock, sight: Sight) -> None:
    """Blind from the start: estimates are believed, and two models that fit side by side are loaded and serve."""
    async with inside(autojump_clock, monitor=Blinking(sight).over) as server:
        assert await server.ask(server.job(BIG)) == "done"
        assert await server.ask(server.job(MIDDLE, BACKGROUND)) == "done"
        await trio.sleep(60.0)
        assert await server.ask(server.job(BIG)) == "done"
        assert server.logged("pressure") == []


@blindness
async def test_L5_memory_that_nobody_sees_come_back_is_lost_until_it_is_seen(
    autojump_clock: MockClock, sight: Sight
) -> None:
    """A swap while blind: the victim has gone, its memory is not believed to be back; with sight the chat is served."""
    eyes = Blinking()
    async with inside(autojump_clock, cards=TWO_DO_NOT_FIT, monitor=eyes.over) as server:
        assert await server.ask(server.job(MIDDLE)) == "done"
        eyes.sight = sight
        server.come(server.job(BIG))
        await server.until("exit")
        await trio.sleep(25.0)
        assert server.logged("load", model=BIG) == []
        assert server.runtime.snapshot().devices[0].lost_bytes > 0
        eyes.sight = Sight.GOOD
        await trio.sleep(10.0)
        assert server.runtime.snapshot().devices[0].lost_bytes == 0
        assert await server.ask(server.job(BIG)) == "done"


@blindness
async def test_P8_the_servers_end_needs_no_sight(autojump_clock: MockClock, sight: Sight) -> None:
    """It ends its processes and is gone; it does not wait for a device to say so."""
    eyes = Blinking()
    async with inside(autojump_clock, monitor=eyes.over) as server:
        await server.ask(server.job(MIDDLE))
        eyes.sight = sight
        told_at = trio.current_time()
        server.runtime.end()
        await server.ended.wait()
        assert trio.current_time() - told_at < 1.0
