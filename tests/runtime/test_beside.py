"""Loads that take more host memory than is available at the moment: told of, and begun all the same."""

from pathlib import Path

import pytest
import trio
import trio.testing

from gridsched.core.commands import LogEvent, StartInstance
from gridsched.core.events import DevicesChanged, Event
from gridsched.core.ids import DeviceName, InstanceId, ModelName
from gridsched.core.model import DeviceFootprint, LaunchOption
from gridsched.devices.headroom import Headroom
from gridsched.devices.host import HostBesideCards
from gridsched.runtime.beside import LOOK_SECONDS, follow, lacking
from tests.runtime.test_dispatch import Hall, Slots

GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path) -> HostBesideCards:
    """A machine of 64 GiB with 16 available."""
    (tmp_path / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {16 << 20} kB\n")
    return HostBesideCards(Headroom(), tmp_path, tmp_path)


def launch(host_gib: int, mapped_gib: int = 0) -> LaunchOption:
    """A launch on a card with so much beside it."""
    beside = DeviceFootprint(DeviceName("host"), weights_bytes=host_gib * GIB)
    part = DeviceFootprint(DeviceName("gpu0"), weights_bytes=GIB)
    return LaunchOption("key", 8192, 1, (part,), host=beside, host_mapped_bytes=mapped_gib * GIB)


def test_E24_what_is_lacking_now_is_said_with_what_comes_of_it(host: HostBesideCards, tmp_path: Path) -> None:
    """Mapped weights are read again and again; anything else may end the process. What fits, or is not known, is no
    news."""
    assert lacking(launch(16), host) is None
    assert lacking(launch(18, 18), host) == (
        "it takes 0.00 GiB of host memory beside 18.00 GiB of mapped weights, and 16.00 GiB are available now:"
        " weights will be read from the disk again and again"
    )
    assert lacking(launch(18), host) == (
        "it takes 18.00 GiB of host memory beside its devices, and 16.00 GiB are available now: the system may swap,"
        " or end it"
    )
    assert lacking(launch(18), None) is None
    (tmp_path / "meminfo").unlink()
    assert lacking(launch(18), host) is None


async def test_E24_a_load_beyond_what_is_available_is_told_of_in_the_decision_log(host: HostBesideCards) -> None:
    """And begun: what is free now says little of the next minute."""
    hall = Hall(Slots(0), host)
    async with hall.open():
        hall.dispatch.carry_out(StartInstance(InstanceId(1), ModelName("small"), launch(1)))
        hall.dispatch.carry_out(StartInstance(InstanceId(2), ModelName("large"), launch(18)))
    (line,) = hall.warned
    assert (line.event, line.model, line.rule) == (LogEvent.PRESSURE, "large", "L4")
    assert "18.00 GiB of host memory" in str(line.figures["why"])


async def test_a_machine_that_is_given_more_memory_is_told_of_once(
    host: HostBesideCards, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """The scheduler plans with the new size from then on; where nothing has changed it hears nothing."""
    posted: list[Event] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, lambda: DevicesChanged((), host.spec), posted.append)
        for size_gib in (64, 64, 96, 96):
            (tmp_path / "meminfo").write_text(f"MemTotal: {size_gib << 20} kB\n")
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(LOOK_SECONDS)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    sizes = [event.host.total_bytes for event in posted if isinstance(event, DevicesChanged) and event.host is not None]
    assert sizes == [96 * GIB]
