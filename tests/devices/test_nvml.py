"""Cards as the real Python binding reports them, over a stand-in for the driver's library built from C."""

import contextlib
import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
import trio.testing

from gridsched.core.ids import InstanceId
from gridsched.devices.discover import discover
from gridsched.devices.headroom import Headroom
from gridsched.devices.nvml import NvmlMonitor, find_cards, pci_address
from gridsched.ports import Backend

GIB = 1 << 30
COMPILER = shutil.which("cc") or shutil.which("gcc")
SMALL = f"card GPU-small 00000000:01:00.0 {16 * GIB} {GIB // 2} {GIB} NVIDIA Small"
BIG = f"card GPU-big 00000000:41:00.0 {24 * GIB} {GIB // 2} {2 * GIB} NVIDIA Big One"
UNKNOWN_ERROR = 999


class Driver:
    """The stand-in's world: what it says is what was told last."""

    def __init__(self, story: Path) -> None:
        self.story = story

    def tell(self, *lines: str) -> None:
        """Replace everything the driver says."""
        self.story.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, built once (0.1 s)."""
    if COMPILER is None:
        pytest.skip(reason="there is no C compiler to build the driver's stand-in with")
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", str(target), str(source)], check=True)
    return target


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A driver that the binding talks to instead of the machine's own."""
    monkeypatch.setenv("NVML_STORY", str(tmp_path / "story"))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    driver = Driver(tmp_path / "story")
    driver.tell(SMALL, BIG)
    yield driver
    with contextlib.suppress(pynvml.NVMLError):  # the test may have closed it
        pynvml.nvmlShutdown()


def opened(*ignore: str, headroom_bytes: int = 0, child: int = 0) -> NvmlMonitor:
    """The monitor of a story that has cards. The story's processes are not this machine's: each has only `child`."""
    monitor = find_cards(Headroom(0.0, headroom_bytes), ignore).monitor
    assert monitor is not None
    return NvmlMonitor(monitor.devices(), trees=lambda pids: {pid: frozenset({pid, child}) for pid in pids})


def test_cards_are_named_in_pci_order_and_known_by_uuid(driver: Driver) -> None:
    """Whatever order the driver lists them in, gpu0 is the first on the bus; bus 41 comes after bus 0a."""
    driver.tell(BIG, SMALL.replace(":01:", ":0a:"))
    first, second = opened(headroom_bytes=GIB).devices()
    assert (first.spec.name, first.uuid, first.pci_bus, first.index) == ("gpu0", "GPU-small", "0000:0a:00.0", 0)
    assert (second.spec.name, second.uuid, second.label, second.index) == ("gpu1", "GPU-big", "NVIDIA Big One", 1)
    assert second.backend is Backend.CUDA
    assert second.spec.headroom_bytes == GIB


def test_what_a_card_can_compute_is_known_where_the_driver_tells(driver: Driver) -> None:
    """Its compute capability; a card that does not tell is used all the same."""
    driver.tell(SMALL, BIG, "capability 1 8 9")
    assert [info.capability for info in opened().devices()] == [0, 89]


async def test_the_drivers_own_share_is_nobodys_memory(driver: Driver) -> None:
    """What the driver reserves is neither used by somebody nor there to be planned (D1)."""
    driver.tell(SMALL)
    monitor = opened()
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
    (read,) = await opened().read({InstanceId(1): 11, InstanceId(2): 12})
    assert read.held == ((1, GIB), (2, 2 * GIB))


@pytest.mark.parametrize("figure", ["unknown", str(17 * GIB)])
async def test_a_missing_figure_is_unknown_never_zero_or_huge(driver: Driver, figure: str) -> None:
    """Without a figure, or with one larger than the card, the instance could not be read (D2)."""
    driver.tell(SMALL, f"holds 0 compute 11 {figure}")
    (read,) = await opened().read({InstanceId(1): 11})
    assert read.held == ()


async def test_a_process_the_driver_does_not_list_is_unknown(driver: Driver) -> None:
    """In a container the driver lists foreign pids: ours could not be read, and hold not nothing (D4)."""
    driver.tell(SMALL, f"holds 0 compute 4242 {GIB}")
    (read,) = await opened().read({InstanceId(1): 11})
    assert read.held == ()
    assert read.used_bytes == GIB


async def test_memory_of_a_wrappers_child_belongs_to_the_instance(driver: Driver) -> None:
    """An engine behind a script is the script's child: the family is asked for, not the pid alone."""
    driver.tell(SMALL, f"holds 0 compute 12 {GIB}")
    (read,) = await opened(child=12).read({InstanceId(1): 11})
    assert read.held == ((1, GIB),)


async def test_a_driver_without_process_lists_still_gives_readings(driver: Driver) -> None:
    """Not supported is an answer: the device is read, its holders are not."""
    not_supported = 3
    driver.tell(SMALL, f"fails 0 compute {not_supported}", f"holds 0 graphics 11 {GIB}")
    (read,) = await opened().read({InstanceId(1): 11})
    assert read.held == ((1, GIB),)


async def test_a_lost_card_is_missing_and_the_other_one_is_read(driver: Driver) -> None:
    """One card's fault takes one reading away, not all of them."""
    monitor = opened()
    driver.tell(SMALL, BIG, "fails 0 memory 15")
    (read,) = await monitor.read({})
    assert read.device == "gpu1"


async def test_a_lost_driver_is_opened_again_with_growing_pauses(
    driver: Driver, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Between attempts nothing is asked, nothing is said twice, and when the driver is back the readings are (D6)."""
    driver.tell(SMALL)
    monitor = opened()
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


@pytest.mark.parametrize("name", ["gpu1", "gpu-BIG", "41:00.0", "00000000:41:00.0"])
@pytest.mark.usefixtures("driver")
def test_an_ignored_card_is_left_alone_and_keeps_its_number(name: str) -> None:
    """By name, UUID or PCI address; the others are called what they were called before."""
    cards = find_cards(Headroom(), (name,))
    assert cards.monitor is not None
    assert [info.spec.name for info in cards.monitor.devices()] == ["gpu0"]
    assert cards.notes == ("gpu1 (NVIDIA Big One) is left alone, as configured.",)
    assert [info.spec.name for info in opened("gpu0").devices()] == ["gpu1"]


@pytest.mark.usefixtures("driver")
def test_an_ignored_name_that_no_card_has_is_said() -> None:
    """A slip of the pen would have a card used that was to be left alone."""
    cards = find_cards(Headroom(), ("gpu7", "gpu1"))
    assert cards.notes == (
        "devices.ignore: there is no card 'gpu7'.",
        "gpu1 (NVIDIA Big One) is left alone, as configured.",
    )


@pytest.mark.parametrize(("listed", "used"), [(("gpu1",), ["gpu1"]), ((), None)])
@pytest.mark.usefixtures("driver")
def test_B16_a_card_that_the_engine_does_not_list_is_not_planned(
    listed: tuple[str, ...], used: list[str] | None
) -> None:
    """Every load there would fail. Without any that is listed there is no monitor: the host is planned instead."""
    cards = find_cards(
        Headroom(), (), lambda found: {info.spec.name: Backend.VULKAN for info in found if info.spec.name in listed}
    )
    assert (None if cards.monitor is None else [info.spec.name for info in cards.monitor.devices()]) == used
    assert cards.notes[0].startswith("gpu0 (NVIDIA Small) is not used, because the engine does not list it: name a")
    assert len(cards.notes) == 2 - len(listed)


def test_a_card_that_does_not_tell_its_memory_is_named_and_not_used(driver: Driver) -> None:
    """A board whose memory is the host's answers Not Supported (D7)."""
    driver.tell(SMALL, "fails 0 memory 3")
    cards = find_cards(Headroom())
    assert cards.monitor is None
    assert cards.notes == ("gpu0 (NVIDIA Small) does not tell how much memory it has: not used.",)


def test_a_card_that_does_not_answer_at_start_does_not_hide_the_others(driver: Driver) -> None:
    """The fault is said, the rest is used."""
    driver.tell(SMALL, BIG, "fails 0 name 15")
    cards = find_cards(Headroom())
    assert cards.monitor is not None
    assert [info.uuid for info in cards.monitor.devices()] == ["GPU-big"]
    assert cards.notes == ("The NVIDIA driver's card 0 does not answer: GPU is lost. It is not used.",)


@pytest.mark.parametrize(
    ("code", "notes"),
    [(9, ()), (18, ("The NVIDIA driver does not answer: RM has detected an NVML/RM version mismatch.",))],
)
def test_no_driver_is_no_error_and_a_broken_one_is_said(driver: Driver, code: int, notes: tuple[str, ...]) -> None:
    """A machine without a driver has nothing to say; one whose driver is broken says why no card is used."""
    driver.tell(SMALL, f"driver {code}")
    cards = find_cards(Headroom())
    assert cards.monitor is None
    assert cards.notes == notes


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


def test_E24_beside_cards_host_memory_is_found_or_that_it_is_not(driver: Driver, tmp_path: Path) -> None:
    """Without /proc nothing is held against it, and that is said."""
    driver.tell(SMALL)
    found = discover(Headroom(0.0), proc=tmp_path, cgroup=tmp_path)
    assert found.host is None
    assert found.notes[-1].startswith("What launches take of host memory is not checked: ")
    (tmp_path / "meminfo").write_text("MemTotal: 1048576 kB\nMemAvailable: 1024 kB\n")
    found = discover(Headroom(0.0), proc=tmp_path, cgroup=tmp_path)
    assert found.host is not None
    assert (found.host.spec.total_bytes, found.host.available_bytes()) == (GIB, 1 << 20)
