"""B16 and D14: a process that answers and holds next to nothing of its card is not what was planned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.events import DeviceRead
from gridsched.core.ids import DeviceName, InstanceId, ModelName
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption
from gridsched.ports import Backend, DeviceInfo, DeviceMonitor
from gridsched.runtime.vet import VET_SECONDS, too_little
from tests.runtime.inside import BIG, inside

GPU0, GPU1 = DeviceName("gpu0"), DeviceName("gpu1")
ONE, TWO = InstanceId(1), InstanceId(2)
MIB = 1 << 20
PLANNED = LaunchOption("key", 4096, 1, (DeviceFootprint(GPU0, 4000 * MIB), DeviceFootprint(GPU1, 1000 * MIB)))


@dataclass
class Told:
    """A monitor that says what it was told to, after a while. Implements `ports.DeviceMonitor`."""

    reads: Sequence[DeviceRead] = ()
    after_seconds: float = 0.0
    backend: Backend = Backend.CUDA
    error: OSError | None = None
    asked: list[Mapping[InstanceId, int]] = field(default_factory=list)

    def devices(self) -> tuple[DeviceInfo, ...]:
        return tuple(DeviceInfo(DeviceSpec(name, 1 << 40), name, self.backend) for name in (GPU0, GPU1))

    def lost(self) -> Mapping[DeviceName, str]:
        return {}

    def settled(self, instance_id: InstanceId) -> None:
        """It says what it was told to."""

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        self.asked.append(processes)
        await trio.sleep(self.after_seconds)
        if self.error is not None:
            raise self.error
        return tuple(self.reads)


def holds(device: DeviceName, mib: int, *, by_difference: bool = False) -> DeviceRead:
    """A reading in which instance 1 holds so much, and another one more."""
    guessed = frozenset({ONE} if by_difference else ())
    return DeviceRead(device, 1 << 40, 1 << 39, ((ONE, mib * MIB), (TWO, 9 << 30)), guessed)


async def judged(monitor: Told) -> str | None:
    """What comes of the question about instance 1."""
    return await too_little(monitor, {ONE: 11, TWO: 12}, ONE, PLANNED)


@pytest.mark.parametrize(
    ("first", "second", "enough"), [(0, 0, False), (1000, 249, False), (1000, 250, True), (200, 1050, True)]
)
async def test_B16_under_a_quarter_of_the_estimate_on_all_cards_together_is_too_little(
    first: int, second: int, enough: bool
) -> None:
    """5000 MiB were planned on two cards; what is held there is summed, and both figures are in the sentence."""
    monitor = Told((holds(GPU0, first), holds(GPU1, second)))
    why = await judged(monitor)
    assert (why is None) is enough
    assert monitor.asked == [{ONE: 11, TWO: 12}]
    if why is not None:
        assert f"holds {first + second} MiB on gpu0, gpu1, where this launch takes about 5000 MiB" in why


async def test_B16_a_card_without_a_figure_is_left_out_of_both_sums() -> None:
    """One driver's list is empty: what the other says is held against its own share of the plan."""
    assert await judged(Told((holds(GPU0, 1000),))) is None
    assert "holds 900 MiB on gpu0, where this launch takes about 4000 MiB" in (
        await judged(Told((holds(GPU0, 900),))) or ""
    )


@pytest.mark.parametrize(
    "monitor",
    [
        Told((DeviceRead(GPU0, 1 << 40, 0, ((TWO, 5),)), DeviceRead(GPU1, 1 << 40, 0))),
        Told((holds(GPU0, 1, by_difference=True),)),
        Told(()),
        Told((holds(GPU0, 1),), backend=Backend.CPU),
        Told((holds(GPU0, 1),), error=OSError("no descriptor left")),
        Told((holds(GPU0, 1),), after_seconds=600.0),
    ],
    ids=["not listed", "by difference", "lost", "on the host", "fails", "hangs"],
)
async def test_B16_what_nobody_can_tell_is_not_judged(autojump_clock: MockClock, monitor: Told) -> None:
    """No figure of the driver's own, no card: the launch passes, and nobody waits for long."""
    assert await judged(monitor) is None
    assert autojump_clock.current_time() <= VET_SECONDS


class Shrunk:
    """Cards whose driver tells a hundredth of what each process holds. Implements `ports.DeviceMonitor`."""

    over: list[InstanceId]

    def __init__(self, inner: DeviceMonitor) -> None:
        self._inner = inner
        Shrunk.over = []

    def devices(self) -> tuple[DeviceInfo, ...]:
        return self._inner.devices()

    def lost(self) -> Mapping[DeviceName, str]:
        return {}

    def settled(self, instance_id: InstanceId) -> None:
        Shrunk.over.append(instance_id)

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        reads = await self._inner.read(processes)
        return tuple(replace(one, held=tuple((each, size // 100) for each, size in one.held)) for one in reads)


async def test_B16_an_engine_that_fell_back_to_the_processor_is_a_failed_load(autojump_clock: MockClock) -> None:
    """The chat is told why with both figures, the process is gone, nothing is measured, and it is not tried again and
    again."""
    async with inside(autojump_clock, monitor=Shrunk) as server:
        assert await server.ask(server.job(BIG)) == "model_failed"
        ((_, line),) = server.logged("exit")
        assert line["cause"] == "cpu_fallback"
        assert (
            "holds 85 MiB on sim0, where this launch takes about 8499 MiB"
            in server.runtime.snapshot().failed[ModelName(BIG)][1]
        )
        assert len(Shrunk.over) == 1  # D2: its launch is over, what grows later is not its
        assert not server.world.engine.processes()
        for _ in range(20):
            assert await server.ask(server.job(BIG)) == "model_failed"
        assert len(server.logged("load")) == 1
        assert server.logged("measure") == server.logged("ready") == []
