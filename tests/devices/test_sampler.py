"""The rhythm of readings, and the proof that a dead process's memory is back, in virtual time."""

import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.events import DeviceBack, DeviceLost, DeviceRead, Event, HostMemoryRead, MemoryReleased
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption
from gridsched.devices.sampler import HostSampler, Recent, Sampler, verify_release
from gridsched.devices.together import Together
from gridsched.ports import Backend, DeviceInfo

ONE, TWO, THREE = InstanceId(1), InstanceId(2), InstanceId(3)
GPU0, GPU1 = DeviceName("gpu0"), DeviceName("gpu1")
OPTION = LaunchOption("key", 4096, 1, (DeviceFootprint(GPU0, weights_bytes=800),))
WIDE = LaunchOption("key", 4096, 1, (DeviceFootprint(GPU0), DeviceFootprint(GPU1)))

Figures = tuple[int, Mapping[InstanceId, int]]


class Cards:
    """A monitor whose figures are a function of virtual time: for each card, (from when, used, held)."""

    def __init__(self, plan: Mapping[DeviceName, Iterable[tuple[float, int, Mapping[InstanceId, int]]]]) -> None:
        self.plan = {name: sorted(steps, key=lambda step: step[0]) for name, steps in plan.items()}
        self.backend = Backend.CUDA
        self.asked: list[Mapping[InstanceId, int]] = []
        self.answers_after_seconds = 0.0
        self.fails_until_seconds = 0.0
        self.silent: dict[DeviceName, str] = {}

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The cards of the plan."""
        return tuple(DeviceInfo(DeviceSpec(name, 1000), name, self.backend) for name in self.plan)

    def lost(self) -> Mapping[DeviceName, str]:
        """Those that were made silent."""
        return self.silent

    def settled(self, instance_id: InstanceId) -> None:
        """It tells what each process holds: nothing depends on it."""

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        """What the plan says for now; a card without a figure yet gives no reading."""
        self.asked.append(dict(processes))
        await trio.sleep(self.answers_after_seconds)
        if trio.current_time() < self.fails_until_seconds:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        reads = []
        for name, steps in self.plan.items():
            if name in self.silent:
                continue
            past = [step for step in steps if step[0] <= trio.current_time()]
            if past:
                _, used, held = past[-1]
                figures = tuple((instance, size) for instance, size in held.items() if instance in processes)
                reads.append(DeviceRead(name, 1000, used, figures))
        return tuple(reads)


def seen(cards: Cards, processes: Mapping[InstanceId, int], *reads: DeviceRead) -> Recent:
    """What the polling loop remembers after these processes were last read."""
    recent = Recent()
    recent.note(processes, reads)
    cards.asked.clear()
    return recent


async def release(cards: Cards, option: LaunchOption, recent: Recent) -> list[Event]:
    """What is posted until the release of instance 1 is proved. Virtual time begins at 0."""
    events: list[Event] = []
    await verify_release(cards, ONE, option, events.append, recent)
    return events


async def test_every_device_is_posted_once_in_an_interval(autojump_clock: MockClock) -> None:
    """The loop asks with the processes of the moment, and posts what came."""
    cards = Cards({GPU0: [(0, 10, {ONE: 5})]})
    events: list[Event] = []
    processes = {ONE: 11}
    with trio.move_on_after(2.5):
        await Sampler(cards, lambda: processes, events.append, Recent()).run()
    assert events == [DeviceRead(GPU0, 1000, 10, ((ONE, 5),))] * 3
    assert cards.asked == [{ONE: 11}] * 3
    assert autojump_clock.current_time() == 2.5


async def test_a_monitor_that_hangs_is_given_up_and_asked_again(autojump_clock: MockClock) -> None:
    """Nothing is posted for it, and the loop goes on."""
    cards = Cards({GPU0: [(0, 10, {})]})
    cards.answers_after_seconds = 60.0
    events: list[Event] = []
    with trio.move_on_after(13.0):
        await Sampler(cards, dict, events.append, Recent()).run()
    assert events == []
    assert len(cards.asked) == 3
    assert autojump_clock.current_time() == 13.0


async def test_a_monitor_that_fails_is_asked_again(autojump_clock: MockClock) -> None:
    """Out of descriptors for a while: nothing is posted, nothing ends, and the proof of a release waits."""
    cards = Cards({GPU0: [(0, 10, {})]})
    cards.fails_until_seconds = 2.5
    events: list[Event] = []
    with trio.move_on_after(3.5):
        await Sampler(cards, dict, events.append, Recent()).run()
    assert events == [DeviceRead(GPU0, 1000, 10)]
    cards.fails_until_seconds = 10.0
    await release(cards, OPTION, Recent())
    assert autojump_clock.current_time() >= 10.0


def losses(events: Iterable[Event]) -> list[Event]:
    """What was said of devices being there."""
    return [event for event in events if isinstance(event, DeviceLost | DeviceBack)]


async def test_D6_a_device_that_is_lost_is_told_once_and_once_when_it_is_back(autojump_clock: MockClock) -> None:
    """At the reading that finds it; its fresh figures come before the word that it is back."""
    cards = Cards({GPU0: [(0, 10, {})], GPU1: [(0, 20, {})]})
    events: list[Event] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Sampler(cards, dict, events.append, Recent()).run)
        await trio.sleep(3.5)
        assert losses(events) == []
        cards.silent = {GPU1: "GPU is lost"}
        await trio.sleep(1.0)
        assert losses(events) == [DeviceLost(GPU1, "GPU is lost")]
        cards.silent = {GPU1: "Unknown Error"}
        await trio.sleep(100.0)
        cards.silent = {}
        await trio.sleep(1.0)
        assert events[-3:] == [DeviceRead(GPU0, 1000, 10), DeviceRead(GPU1, 1000, 20), DeviceBack(GPU1)]
        assert losses(events) == [DeviceLost(GPU1, "GPU is lost"), DeviceBack(GPU1)]
        nursery.cancel_scope.cancel()
    assert autojump_clock.current_time() == 105.5


async def test_D6_a_first_reading_that_finds_no_device_says_so() -> None:
    """Before anything is planned on it."""
    cards = Cards({GPU0: [(0, 10, {})]})
    cards.silent = {GPU0: "driver/library version mismatch"}
    events: list[Event] = []
    await Sampler(cards, dict, events.append, Recent()).read()
    assert events == [DeviceLost(GPU0, "driver/library version mismatch")]


@pytest.mark.parametrize("how", ["hangs", "fails", "says nothing"])
async def test_D6_half_a_minute_without_a_reading_is_a_loss(autojump_clock: MockClock, how: str) -> None:
    """Whatever the reason, and although the monitor knows of none; the next reading ends it. One device that gives none
    is lost by itself."""
    began = autojump_clock.current_time()
    plan = {GPU0: [(40.0 if how == "says nothing" else 0.0, 10, {})], GPU1: [(0, 10, {})]}
    cards = Cards(plan)  # type: ignore[arg-type]  # no process holds anything
    cards.answers_after_seconds = 600.0 if how == "hangs" else 0.0
    cards.fails_until_seconds = 40.0 if how == "fails" else 0.0
    events: list[Event] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Sampler(cards, dict, events.append, Recent()).run)
        await trio.sleep(29.0)
        assert losses(events) == []
        await trio.sleep(9.0)
        alone = [DeviceLost(GPU0, "it has given no reading for 30 s")]
        both = [*alone, DeviceLost(GPU1, "it has given no reading for 30 s")]
        assert losses(events) == (alone if how == "says nothing" else both)
        cards.answers_after_seconds = 0.0
        await trio.sleep(10.0)
        assert losses(events)[-1] == DeviceBack(GPU0 if how == "says nothing" else GPU1)
        nursery.cancel_scope.cancel()
    assert autojump_clock.current_time() - began == 48.0


async def test_D13_a_sampler_that_is_hurried_reads_at_once(autojump_clock: MockClock) -> None:
    """And keeps its rhythm from there."""
    cards = Cards({GPU0: [(0, 10, {})]})
    sampler = Sampler(cards, dict, lambda _: None, Recent(), 10.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sampler.run)
        await trio.sleep(4.0)
        sampler.hurry()
        await trio.sleep(9.0)
        assert len(cards.asked) == 2
        await trio.sleep(2.0)
        assert len(cards.asked) == 3
        nursery.cancel_scope.cancel()
    assert autojump_clock.current_time() == 15.0


async def test_M11_host_memory_is_posted_while_there_are_processes(autojump_clock: MockClock) -> None:
    """Every five seconds, and at once when it is asked for, of those that can be read; a reading that
    fails is left out."""
    processes: dict[InstanceId, int] = {}
    events: list[Event] = []

    async def held(pids: Mapping[InstanceId, int]) -> Mapping[InstanceId, int]:
        await trio.lowlevel.checkpoint()
        if THREE in pids:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return {instance: 1000 * pid for instance, pid in pids.items() if instance != TWO}

    sampler = HostSampler(held, lambda: processes, events.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sampler.run)
        await trio.sleep(12.0)
        assert events == []
        processes |= {TWO: 12, ONE: 11}
        await trio.sleep(10.0)
        assert events == [HostMemoryRead(((ONE, 11_000),))] * 2
        sampler.hurry()
        await trio.sleep(0.5)
        assert len(events) == 3
        processes |= {THREE: 0}
        await trio.sleep(10.0)
        del processes[THREE]
        await trio.sleep(5.0)
        assert len(events) == 4
        nursery.cancel_scope.cancel()
    assert autojump_clock.current_time() == 37.5


async def test_L5_memory_that_dropped_is_released_at_the_first_look(autojump_clock: MockClock) -> None:
    """A swap is not held up by the rhythm of polling; the fresh figures come before the release."""
    cards = Cards({GPU0: [(0, 120, {TWO: 100})]})
    recent = seen(cards, {ONE: 11, TWO: 12}, DeviceRead(GPU0, 1000, 920, ((ONE, 800), (TWO, 100))))
    events = await release(cards, OPTION, recent)
    assert autojump_clock.current_time() == 0
    assert events == [DeviceRead(GPU0, 1000, 120, ((TWO, 100),)), MemoryReleased(ONE)]
    assert cards.asked == [{ONE: 11, TWO: 12}]
    assert (recent.living, recent.pids, list(recent.held)) == ({TWO: 12}, {TWO: 12}, [(TWO, GPU0)])


async def test_L5_memory_that_stays_listed_is_not_released(autojump_clock: MockClock) -> None:
    """The driver still holds a context of the dead process: that is no release, however long it takes (D10)."""
    cards = Cards({GPU0: [(0, 900, {ONE: 800}), (30, 100, {})]})
    recent = seen(cards, {ONE: 11}, DeviceRead(GPU0, 1000, 900, ((ONE, 800),)))
    assert MemoryReleased(ONE) in await release(cards, OPTION, recent)
    assert 30 <= autojump_clock.current_time() <= 31


async def test_L5_a_proof_that_takes_long_asks_also_about_those_that_have_come_since(
    autojump_clock: MockClock,
) -> None:
    """Its last reading is what the next load is planned with: what they hold would be missing from it."""
    cards = Cards({GPU0: [(0, 900, {ONE: 800}), (30, 300, {TWO: 200})]})
    recent = seen(cards, {ONE: 11}, DeviceRead(GPU0, 1000, 900, ((ONE, 800),)))
    events: list[Event] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(verify_release, cards, ONE, OPTION, events.append, recent)
        await trio.sleep(20)
        recent.note({TWO: 12}, ())
    assert events == [DeviceRead(GPU0, 1000, 300, ((TWO, 200),)), MemoryReleased(ONE)]
    assert autojump_clock.current_time() >= 30


async def test_L5_the_drop_may_come_after_the_process_has_left_the_list(autojump_clock: MockClock) -> None:
    """The card frees 0.4 s after the exit (C18): released when it shows, not before."""
    cards = Cards({GPU0: [(0, 900, {}), (0.4, 100, {})]})
    recent = seen(cards, {ONE: 11}, DeviceRead(GPU0, 1000, 900, ((ONE, 800),)))
    assert MemoryReleased(ONE) in await release(cards, OPTION, recent)
    assert 0.4 <= autojump_clock.current_time() < 1.0


async def test_L5_without_a_drop_a_whole_interval_without_the_process_is_the_proof(autojump_clock: MockClock) -> None:
    """Somebody else may have taken the memory at once, or no figure was ever known: nothing more can be waited for."""
    cards = Cards({GPU0: [(0, 900, {})]})
    events = await release(cards, OPTION, Recent())
    assert 1.0 <= autojump_clock.current_time() < 2.0
    assert events == [DeviceRead(GPU0, 1000, 900), MemoryReleased(ONE)]


async def test_L5_every_device_of_the_launch_must_have_it_back(autojump_clock: MockClock) -> None:
    """A spanning instance is released when its last card is; a card that gives no reading proves nothing."""
    cards = Cards({GPU0: [(0, 0, {})], GPU1: [(5, 0, {})]})
    recent = seen(
        cards, {ONE: 11}, DeviceRead(GPU0, 1000, 400, ((ONE, 400),)), DeviceRead(GPU1, 1000, 400, ((ONE, 400),))
    )
    assert MemoryReleased(ONE) in await release(cards, WIDE, recent)
    assert 5 <= autojump_clock.current_time() <= 6


async def test_L5_on_the_host_the_exit_is_the_proof(autojump_clock: MockClock) -> None:
    """The kernel takes memory back before a process can be waited for."""
    cards = Cards({GPU0: [(0, 900, {})]})
    cards.backend = Backend.CPU
    events = await release(cards, OPTION, Recent())
    assert autojump_clock.current_time() == 0
    assert events == [DeviceRead(GPU0, 1000, 900), MemoryReleased(ONE)]


class Placed(Cards):
    """The same, of one maker among several: at an address."""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """In the order of their names."""
        return tuple(replace(info, pci_bus=f"{info.spec.name[-1]}:00.0") for info in super().devices())


async def test_a_driver_that_is_out_of_descriptors_costs_the_other_makers_cards_no_reading(
    mock_clock: MockClock,
) -> None:
    """Nor does it end the server: readings of its own cards are there again with the next."""
    here, there = Placed({GPU0: [(0.0, 100, {})]}), Placed({GPU1: [(0.0, 200, {})]})
    there.fails_until_seconds = trio.current_time() + 1.0
    events: list[Event] = []
    sampler = Sampler(Together([here, there]), dict, events.append, Recent())
    await sampler.read()
    assert [event.device for event in events if isinstance(event, DeviceRead)] == [GPU0]
    mock_clock.jump(1.0)
    await sampler.read()
    assert [event.device for event in events if isinstance(event, DeviceRead)] == [GPU0, GPU0, GPU1]
