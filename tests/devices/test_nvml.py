"""Cards as the real Python binding reports them, over a stand-in for the driver's library built from C."""

import ctypes
import shutil
import threading
from pathlib import Path

import pynvml
import pytest
import trio
import trio.testing

from gridsched.core.events import DeviceRead
from gridsched.core.ids import InstanceId, ModelName
from gridsched.core.model import DeviceFootprint, LaunchOption
from gridsched.devices.cards import CALL_SECONDS, HANGS
from gridsched.devices.choice import Usable, Wanted, all_of, pci_address
from gridsched.devices.discover import discover, find_cards
from gridsched.devices.headroom import Headroom
from gridsched.engine.argv import build_env
from gridsched.ports import Backend, DeviceMonitor, Launch
from tests.devices.driver import BIG, GIB, GPU0, GPU1, GPU_IS_LOST, NOT_SUPPORTED, SMALL, UNKNOWN_ERROR, Driver

ONE, TWO = InstanceId(1), InstanceId(2)


def test_cards_are_named_in_pci_order_and_known_by_uuid(driver: Driver) -> None:
    """Whatever order the driver lists them in, gpu0 is the first on the bus; bus 41 comes after bus 0a."""
    driver.tell(BIG, SMALL.replace(":01:", ":0a:"))
    first, second = driver.opened(headroom_bytes=GIB).devices()
    assert (first.spec.name, first.uuid, first.pci_bus, first.index) == ("gpu0", "GPU-small", "0000:0a:00.0", 0)
    assert (second.spec.name, second.uuid, second.label, second.index) == ("gpu1", "GPU-big", "NVIDIA Big One", 1)
    assert second.backend is Backend.CUDA
    assert second.spec.headroom_bytes == GIB


def test_what_a_card_can_compute_is_known_where_the_driver_tells(driver: Driver) -> None:
    """Its compute capability; a card that does not tell is used all the same."""
    driver.tell(SMALL, BIG, "capability 1 8 9")
    assert [info.capability for info in driver.opened().devices()] == [0, 89]


async def test_the_drivers_own_share_is_nobodys_memory(driver: Driver) -> None:
    """What the driver reserves is neither used by somebody nor there to be planned (D1)."""
    driver.tell(SMALL)
    monitor = driver.opened()
    (read,) = await monitor.read({})
    assert monitor.devices()[0].spec.total_bytes == 16 * GIB - GIB // 2
    assert read.total_bytes == 16 * GIB - GIB // 2
    assert read.used_bytes == GIB


async def test_held_is_read_from_both_lists_once(driver: Driver) -> None:
    """A process that computes and draws is one process; one that only draws counts too."""
    driver.tell(
        SMALL,
        f"holds 0 compute 11 {GIB}",
        f"holds 0 graphics 11 {GIB}",
        f"holds 0 graphics 12 {2 * GIB}",
        "holds 0 compute 99 5",
    )
    (read,) = await driver.opened().read({ONE: 11, TWO: 12})
    assert read.held == ((1, GIB), (2, 2 * GIB))


def test_who_holds_the_cards_is_told_over_all_of_them(driver: Driver) -> None:
    """That are planned; also who has no figure. A driver that does not tell costs no card."""
    driver.tell(
        SMALL,
        BIG,
        f"holds 0 compute 11 {GIB}",
        f"holds 1 graphics 11 {GIB}",
        "holds 1 compute 12 unknown",
    )
    assert discover(Wanted(), roots=driver.roots).holders == {11: 2 * GIB, 12: 0}
    assert discover(Wanted(ignore=("gpu1",)), roots=driver.roots).holders == {11: GIB}
    driver.tell(SMALL, f"fails 0 compute {UNKNOWN_ERROR}", f"holds 0 graphics 11 {GIB}")
    assert discover(Wanted(), roots=driver.roots).holders == {}


@pytest.mark.parametrize("figure", ["unknown", str(17 * GIB)])
async def test_a_missing_figure_is_unknown_never_zero_or_huge(driver: Driver, figure: str) -> None:
    """Without a figure, or with one larger than the card, the instance could not be read (D2)."""
    driver.tell(SMALL, f"holds 0 compute 11 {figure}")
    (read,) = await driver.opened().read({ONE: 11})
    assert read.held == ()


async def test_a_process_the_driver_does_not_list_is_unknown(driver: Driver) -> None:
    """In a container the driver lists foreign pids: ours could not be read, and hold not nothing (D4)."""
    driver.tell(SMALL, f"holds 0 compute 4242 {GIB}")
    (read,) = await driver.opened().read({ONE: 11})
    assert read.held == ()
    assert read.used_bytes == GIB


async def test_memory_of_a_wrappers_child_belongs_to_the_instance(driver: Driver) -> None:
    """An engine behind a script is the script's child: the family is asked for, not the pid alone."""
    driver.tell(SMALL, f"holds 0 compute 12 {GIB}")
    driver.process(11)
    driver.process(12, parent=11)
    (read,) = await driver.opened().read({ONE: 11})
    assert read.held == ((1, GIB),)


async def test_a_driver_without_process_lists_still_gives_readings(driver: Driver) -> None:
    """Not supported is an answer: the device is read, its holders are not."""
    driver.tell(SMALL, f"fails 0 compute {NOT_SUPPORTED}", f"holds 0 graphics 11 {GIB}")
    (read,) = await driver.opened().read({ONE: 11})
    assert read.held == ((1, GIB),)


async def test_a_lost_card_is_missing_and_the_other_one_is_read(driver: Driver) -> None:
    """One card's fault takes one reading away, not all of them."""
    monitor = driver.opened()
    driver.tell(SMALL, BIG, "fails 0 memory 15")
    (read,) = await monitor.read({})
    assert read.device == "gpu1"


async def test_a_lost_driver_is_opened_again_with_growing_pauses(
    driver: Driver, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Between attempts nothing is asked, nothing is said twice, and when the driver is back the readings are (D6)."""
    driver.tell(SMALL)
    monitor = driver.opened()
    driver.tell(SMALL, f"fails 0 memory {UNKNOWN_ERROR}", f"driver {UNKNOWN_ERROR}")
    assert await monitor.read({}) == ()
    mock_clock.jump(1.0)
    assert await monitor.read({}) == ()  # the second attempt fails too: the next one is two seconds later
    driver.tell(SMALL)
    mock_clock.jump(1.9)
    assert await monitor.read({}) == ()
    mock_clock.jump(0.1)
    (read,) = await monitor.read({})
    assert read.used_bytes == GIB
    sentences = [record.getMessage() for record in caplog.records]
    assert [sentence.partition(":")[0].partition(".")[0] for sentence in sentences] == [
        "gpu0 cannot be read any more",
        "gpu0 can be read again",
    ]


def found(
    driver: Driver, wanted: Wanted | None = None, usable: Usable = all_of
) -> tuple[list[str] | None, tuple[str, ...]]:
    """The names of the cards that are planned, None where there is no monitor, and what is said."""
    monitor, notes = find_cards(wanted or Wanted(), usable, driver.roots)
    return None if monitor is None else [info.spec.name for info in monitor.devices()], notes


@pytest.mark.parametrize("name", ["gpu1", "gpu-BIG", "41:00.0", "00000000:41:00.0"])
def test_an_ignored_card_is_left_alone_and_keeps_its_number(driver: Driver, name: str) -> None:
    """By name, UUID or PCI address; the others are called what they were called before."""
    names, notes = found(driver, Wanted(ignore=(name,)))
    assert names == ["gpu0"]
    assert notes == ("gpu1 (NVIDIA Big One) is left alone, as configured.",)
    assert [info.spec.name for info in driver.opened("gpu0").devices()] == ["gpu1"]


def test_an_ignored_name_that_no_card_has_is_said(driver: Driver) -> None:
    """A slip of the pen would have a card used that was to be left alone."""
    assert found(driver, Wanted(ignore=("gpu7", "gpu1")))[1] == (
        "devices.ignore: there is no card 'gpu7'.",
        "gpu1 (NVIDIA Big One) is left alone, as configured.",
    )


@pytest.mark.parametrize(("listed", "used"), [(("gpu1",), ["gpu1"]), ((), None)])
def test_B16_a_card_that_the_engine_does_not_list_is_not_planned(
    driver: Driver, listed: tuple[str, ...], used: list[str] | None
) -> None:
    """Every load there would fail. Without any that is listed there is no monitor: the host is planned instead."""
    names, notes = found(
        driver,
        usable=lambda cards: {info.spec.name: Backend.VULKAN for info in cards if info.spec.name in listed},
    )
    assert names == used
    if used is None:
        with pytest.raises(pynvml.NVMLError_Uninitialized):  # a driver that is not used is let go
            pynvml.nvmlDeviceGetCount()
    assert notes[0].startswith("gpu0 (NVIDIA Small) is not used, because the engine does not list it: name a")
    assert len(notes) == 2 - len(listed)


def test_D7_a_card_that_does_not_tell_its_memory_is_named_and_not_used(driver: Driver) -> None:
    """A board whose memory is the host's answers Not Supported; what would have it used is said."""
    driver.tell(SMALL, f"fails 0 memory {NOT_SUPPORTED}")
    names, (note,) = found(driver)
    assert names is None
    assert note == (
        "gpu0 (NVIDIA Small) does not tell how much memory it has, as boards do whose memory is the host's: not used."
        " To use it, say how much of it may be planned in devices.total, for example {gpu0: 24GiB}."
    )


@pytest.mark.parametrize(
    ("available_bytes", "held", "used_bytes"),
    [(96 * GIB, 0, 0), (50 * GIB, 0, 10 * GIB), (50 * GIB, 8 * GIB, 10 * GIB), (55 * GIB, 8 * GIB, 8 * GIB)],
)
async def test_D7_a_configured_size_is_planned_and_its_use_is_read_from_the_host(
    driver: Driver, available_bytes: int, held: int, used_bytes: int
) -> None:
    """As long as the host could give all of what we do not hold, others cost nothing; what it lacks is in use."""
    rows = [f"holds 0 compute 11 {held}"] if held else []
    driver.tell(SMALL, f"fails 0 memory {NOT_SUPPORTED}", *rows)
    driver.process(11)
    (driver.roots.proc / "meminfo").write_text(f"MemAvailable: {available_bytes // 1024} kB\n")
    monitor, notes = find_cards(Wanted(Headroom(0.0), totals={"GPU-small": 60 * GIB}), roots=driver.roots)
    assert notes == ()
    assert monitor is not None
    assert monitor.devices()[0].spec.total_bytes == 60 * GIB
    (read,) = await monitor.read({ONE: 11})
    assert (read.total_bytes, read.used_bytes) == (60 * GIB, used_bytes)
    assert read.held == (((ONE, held),) if held else ())


def test_D7_a_size_for_a_card_that_tells_its_own_is_not_used(driver: Driver) -> None:
    """And that is said, as is a size for a card that there is not."""
    names, notes = found(driver, Wanted(totals={"gpu0": GIB, "gpu9": GIB}))
    assert names == ["gpu0", "gpu1"]
    assert notes == (
        "devices.total: there is no card 'gpu9'.",
        "gpu0 (NVIDIA Small) tells its memory itself: its size in devices.total is not used.",
    )


@pytest.mark.parametrize(("mode", "used"), [(0, ["gpu0", "gpu1"]), (1, ["gpu1"])])
def test_a_card_in_slices_is_named_and_left(driver: Driver, mode: int, used: list[str]) -> None:
    """MIG: slices are not planned, and the sentence says what would have the card used whole."""
    driver.tell(SMALL, BIG, f"mig 0 {mode}")
    names, notes = found(driver)
    assert names == used
    assert [note.partition(", and")[0] for note in notes] == ["gpu0 (NVIDIA Small) is split into slices (MIG)"] * mode


def test_a_card_that_does_not_answer_at_start_does_not_hide_the_others(driver: Driver) -> None:
    """The fault is said, the rest is used."""
    driver.tell(SMALL, BIG, f"fails 0 name {GPU_IS_LOST}")
    monitor, notes = find_cards(Wanted(), roots=driver.roots)
    assert monitor is not None
    assert [info.uuid for info in monitor.devices()] == ["GPU-big"]
    assert notes == ("The NVIDIA driver's card 0 does not answer: GPU is lost. It is not used.",)


def test_D1_a_driver_that_is_too_old_to_tell_its_own_share_is_said(driver: Driver) -> None:
    """The first version of the call would count that share as somebody's."""
    driver.tell(SMALL, "fails 0 memory 13")
    names, (note,) = found(driver)
    assert names is None
    assert note.startswith("The NVIDIA driver's card 0 is not used. Its driver is too old to tell")


@pytest.mark.parametrize(
    ("code", "notes"),
    [(9, ()), (18, ("The NVIDIA driver does not answer: RM has detected an NVML/RM version mismatch.",))],
)
def test_no_driver_is_no_error_and_a_broken_one_is_said(driver: Driver, code: int, notes: tuple[str, ...]) -> None:
    """A machine without a driver has nothing to say; one whose driver is broken says why no card is used."""
    driver.tell(SMALL, f"driver {code}")
    assert found(driver) == (None, notes)


@pytest.mark.parametrize(
    ("text", "address"),
    [("00000000:41:00.0", (0, 0x41, 0)), ("41:00.0", (0, 0x41, 0)), ("0001:0A:1f", (1, 0xA, 0x1F))],
)
def test_pci_addresses_are_hexadecimal(text: str, address: tuple[int, int, int]) -> None:
    """Bus 41 is the sixty-fifth; the domain may be left out."""
    assert pci_address(text) == address


@pytest.mark.parametrize("text", ["", "gpu0", "1:2:3:4", "zz:00.0"])
def test_what_is_no_pci_address_is_refused(text: str) -> None:
    """So that a UUID or a name is never taken for one."""
    with pytest.raises(ValueError, match="is not a PCI address"):
        pci_address(text)


def test_E24_beside_cards_host_memory_is_found_or_that_it_is_not(driver: Driver) -> None:
    """Without /proc nothing is held against it, and that is said."""
    driver.tell(SMALL)
    found = discover(Wanted(Headroom(0.0)), roots=driver.roots)
    assert found.host is None
    assert found.notes[-1].startswith("What launches take of host memory is not checked: ")
    driver.roots.proc.mkdir()
    (driver.roots.proc / "meminfo").write_text("MemTotal: 1048576 kB\nMemAvailable: 1024 kB\n")
    found = discover(Wanted(Headroom(0.0)), roots=driver.roots)
    assert found.host is not None
    assert (found.host.spec.total_bytes, found.host.available_bytes()) == (GIB, 1 << 20)


class _Memory(ctypes.Structure):
    """The second version of the memory structure, as NVML's header has it."""

    _fields_ = [
        ("version", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "reserved", "free", "used")),
    ]


@pytest.mark.parametrize(("version", "code"), [(2, 0), (1, 25), (3, 25)])
def test_the_stand_in_refuses_a_structure_of_another_version(driver: Driver, version: int, code: int) -> None:
    """As the real library does: the figures that the monitor reads are those of the version that it asked for."""
    driver.opened()
    memory = _Memory(version=ctypes.sizeof(_Memory) | version << 24)
    assert pynvml.nvmlLib.nvmlDeviceGetMemoryInfo_v2(ctypes.c_void_p(1), ctypes.byref(memory)) == code


def test_D8_the_card_that_is_planned_is_the_card_that_the_engine_computes_on(driver: Driver) -> None:
    """CUDA would number the faster card first; the child is told the UUID of the measured one, and hears no other."""
    driver.tell(BIG, SMALL)  # the driver's own order is not that of the bus either
    small, big = driver.opened().devices()
    assert (small.spec.name, small.uuid, big.pci_bus) == (GPU0, "GPU-small", "0000:41:00.0")
    option = LaunchOption("key", 4096, 1, (DeviceFootprint(GPU1, weights_bytes=20 * GIB),))
    env = build_env({"CUDA_VISIBLE_DEVICES": "0"}, {}, Launch(ModelName("m"), Path(), option, frozenset()), (big,))
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("GPU-big", "PCI_BUS_ID")


@pytest.mark.parametrize("question", ["name", "compute"])
def test_D6_a_driver_that_hangs_at_start_keeps_nobody_from_starting(driver: Driver, question: str) -> None:
    """It is said, and no card of it is used, whatever it does not answer."""
    driver.tell(SMALL, f"hangs 0 {question}")
    monitor, notes = find_cards(Wanted(), roots=driver.roots, open_seconds=0.05)
    driver.tell(SMALL)
    assert monitor is None
    assert notes[0] == "The NVIDIA driver did not list its cards within 0.05 s: none of them is used."


def test_D6_a_driver_that_cannot_be_asked_at_start_keeps_nobody_from_starting(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of processes there is no thread to ask in."""

    def refuse(thread: threading.Thread) -> None:  # noqa: ARG001 - as the library has it
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    names, notes = found(driver)
    assert names is None
    assert notes[0].startswith("The NVIDIA driver could not be asked for its cards: Resource temporarily unavailable")


# --- a driver that is lost (D6) -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((SMALL, f"fails 0 memory {UNKNOWN_ERROR}"), "Unknown Error"),
        ((SMALL, f"fails 0 memory {GPU_IS_LOST}"), "GPU is lost"),
        ((SMALL, "fails 0 memory 18"), "RM has detected an NVML/RM version mismatch"),
        ((BIG,), "Not Found"),
    ],
)
async def test_D6_a_card_that_fails_is_lost_with_the_drivers_word_for_it(
    driver: Driver, mock_clock: trio.testing.MockClock, lines: tuple[str, ...], why: str
) -> None:
    """Whatever the fault is; it is back as soon as it answers again."""
    driver.tell(SMALL)
    monitor = driver.opened()
    driver.tell(*lines)
    assert await monitor.read({}) == ()
    assert monitor.lost() == {GPU0: why}
    driver.tell(SMALL)
    mock_clock.jump(1.0)
    assert len(await monitor.read({})) == 1
    assert monitor.lost() == {}


async def test_D6_one_lost_card_costs_the_other_no_reading(driver: Driver, mock_clock: trio.testing.MockClock) -> None:
    """The driver is opened again at longer and longer pauses; the card that answers is read each time."""
    monitor = driver.opened()
    driver.tell(SMALL, BIG, f"fails 0 memory {GPU_IS_LOST}")
    for _ in range(20):
        assert [read.device for read in await monitor.read({})] == [GPU1]
        mock_clock.jump(1.0)
    assert monitor.lost() == {GPU0: "GPU is lost"}
    driver.tell(SMALL, BIG)
    assert [read.device for read in await monitor.read({})] == [GPU1]  # it is not asked before its time
    mock_clock.jump(60.0)
    assert [read.device for read in await monitor.read({})] == [GPU0, GPU1]


async def test_D6_a_hundred_readings_of_a_lost_card_are_one_line(
    driver: Driver, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """And one when it is back: a log is for changes."""
    driver.tell(SMALL)
    monitor = driver.opened()
    driver.tell(SMALL, f"driver {UNKNOWN_ERROR}", f"fails 0 memory {UNKNOWN_ERROR}")
    for _ in range(100):
        assert await monitor.read({}) == ()
        mock_clock.jump(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "gpu0 cannot be read any more: Unknown Error. Its last figures are kept."
    ]
    driver.tell(SMALL)
    mock_clock.jump(60.0)
    assert len(await monitor.read({})) == 1
    assert len(caplog.records) == 2


async def test_D6_a_card_that_comes_and_goes_does_not_fill_the_log(
    driver: Driver, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten lines in ten minutes, of which the last says that there were more; then it is told of again."""
    driver.tell(SMALL)
    monitor = driver.opened()
    for number in range(60):
        driver.tell(SMALL, *([f"fails 0 memory {UNKNOWN_ERROR}"] if number % 2 == 0 else []))
        assert len(await monitor.read({})) == number % 2
        mock_clock.jump(1.0)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 10
    assert lines[-1].startswith("gpu0 can be read again. It comes and goes")
    mock_clock.jump(600.0)
    driver.tell(SMALL, f"fails 0 memory {UNKNOWN_ERROR}")
    await monitor.read({})
    assert len(caplog.records) == 11


async def test_D6_the_library_of_an_updated_driver_is_loaded_from_its_file(
    driver: Driver, library: Path, mock_clock: trio.testing.MockClock
) -> None:
    """An update takes the library away and puts another one there; the one that was open never answers again."""
    driver.tell(SMALL)
    monitor = driver.opened()
    (driver.folder / library.name).unlink()
    driver.tell(SMALL, "fails 0 memory 18")
    assert await monitor.read({}) == ()
    mock_clock.jump(1.0)
    assert await monitor.read({}) == ()
    assert monitor.lost() == {GPU0: "NVML Shared Library Not Found"}
    shutil.copy(library, driver.folder)
    driver.tell(SMALL)
    mock_clock.jump(2.0)
    assert len(await monitor.read({})) == 1


async def reads_again(monitor: DeviceMonitor) -> tuple[DeviceRead, ...]:
    """What it reads once a call that hung has returned. Each test waits for that: the next one would find its thread
    still asking, and the driver counts questions."""
    for _ in range(2000):
        if reads := await monitor.read({}):  # at the same moment: it waits for the driver alone
            return reads
        await trio.to_thread.run_sync(threading.Event().wait, 0.005)
    pytest.fail("the driver answers, and nothing is read")


async def test_D6_a_call_that_hangs_is_given_up_and_blocks_nothing_once_it_returns(
    driver: Driver, mock_clock: trio.testing.MockClock
) -> None:
    """The cards are lost meanwhile, a further reading waits for nothing, and no second thread goes the same way."""
    monitor = driver.cards()
    driver.tell(SMALL, BIG, "hangs 0 memory")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(monitor.read, {})
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(CALL_SECONDS)
    assert monitor.lost() == {GPU0: HANGS, GPU1: HANGS}
    for _ in range(60):
        mock_clock.jump(1.0)
        assert await monitor.read({}) == ()
    driver.tell(SMALL, BIG)
    assert len(await reads_again(monitor)) == 2
    assert monitor.lost() == {}


async def test_D6_for_want_of_a_thread_no_card_is_lost(
    driver: Driver, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of processes the driver has not been asked: there is no reading now, and the next is as ever."""

    async def refuse(work: object, **how: object) -> None:  # noqa: ARG001 - as trio has it
        raise RuntimeError("can't start new thread")

    monitor = driver.cards()
    with monkeypatch.context() as patched:
        patched.setattr(trio.to_thread, "run_sync", refuse)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(monitor.read, {})
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(CALL_SECONDS)
    assert monitor.lost() == {}
    assert len(await monitor.read({})) == 2


async def test_D6_a_reading_that_somebody_does_not_wait_for_loses_no_card(
    driver: Driver, mock_clock: trio.testing.MockClock
) -> None:
    """The driver has its time, whoever asks: a shorter patience is no fault of the card's."""
    monitor = driver.cards()
    driver.tell(SMALL, BIG, "hangs 0 memory")
    with trio.move_on_after(CALL_SECONDS / 2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(monitor.read, {})
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(CALL_SECONDS / 2)
    assert await monitor.read({}) == ()
    assert monitor.lost() == {}
    mock_clock.jump(CALL_SECONDS / 2)
    assert await monitor.read({}) == ()
    assert monitor.lost() == {GPU0: HANGS, GPU1: HANGS}
    driver.tell(SMALL, BIG)
    mock_clock.jump(60.0)  # the pause before it is opened again
    assert len(await reads_again(monitor)) == 2


async def test_a_fault_of_one_call_in_the_middle_is_over_with_the_next(
    driver: Driver, mock_clock: trio.testing.MockClock
) -> None:
    """The second reading fails, because the third question about memory does (the first was at start)."""
    driver.tell(SMALL, f"fails 0 memory {UNKNOWN_ERROR} 3 3")
    monitor = driver.opened()
    reads = []
    for _ in range(3):
        reads.append(len(await monitor.read({})))
        mock_clock.jump(1.0)
    assert reads == [1, 0, 1]


async def test_programs_outside_are_named_with_what_they_hold(driver: Driver) -> None:
    """The largest first, ours left out with their children, one without a figure last, what has ended not at all."""
    for pid, parent in ((11, 1), (12, 11), (21, 1), (22, 1), (23, 1)):
        driver.process(pid, parent)
        (driver.roots.proc / str(pid) / "comm").write_text({21: "blender\n", 22: "py\x1bthon3\n"}.get(pid, "x\n"))
    driver.tell(
        SMALL,
        f"holds 0 compute 12 {4 * GIB}",
        f"holds 0 graphics 21 {GIB}",
        f"holds 0 compute 22 {3 * GIB}",
        "holds 0 graphics 23 unknown",
        f"holds 0 compute 24 {GIB}",
    )
    (read,) = await driver.opened().read({ONE: 11})
    assert [(one.pid, one.name, one.bytes) for one in read.foreign] == [
        (22, "py?thon3", 3 * GIB),
        (21, "blender", GIB),
        (23, "x", None),
    ]
