"""AMD cards over files laid out as the kernel's amdgpu driver has them: its documentation names them."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest
import trio.testing

from gridsched.core.ids import InstanceId
from gridsched.devices.choice import Wanted
from gridsched.devices.discover import Roots, find_cards
from gridsched.devices.headroom import Headroom
from gridsched.engine.cards import EngineDevice, match
from gridsched.ports import Backend, DeviceMonitor
from tests.devices.driver import GIB, GPU0, GPU1, Driver
from tests.engine.test_shortages import only

ONE, TWO = InstanceId(1), InstanceId(2)
PCI = "0000:0b:00.0"
IDS = "# a comment\n1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n744C,\tCC,\tAMD Radeon RX 7900 XT\n"


@dataclass
class Machine:
    """/sys and /proc in folders."""

    roots: Roots

    def card(self, number: int, pci: str = PCI, *, vram: int = 24 * GIB, used: int = GIB, **more: str) -> Path:
        """A card as gpu/amdgpu/driver-misc has it; `more` are further files."""
        folder = self.roots.sys / "devices" / pci
        folder.mkdir(parents=True)
        files = {
            "vendor": "0x1002",
            "device": "0x744c",
            "revision": "0xc8",
            "uevent": f"DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_SLOT_NAME={pci}",
            "mem_info_vram_total": str(vram),
            "mem_info_vram_used": str(used),
            "mem_info_vis_vram_total": str(vram),
            "mem_info_gtt_total": str(16 * GIB),
            **more,
        }
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
        entry = self.roots.sys / "class" / "drm" / f"card{number}"
        entry.mkdir(parents=True)
        (entry / "device").symlink_to(folder)
        (entry.parent / f"card{number}-DP-1").mkdir()
        return folder

    def compute(self, number: int, location: int, *holds: tuple[int, int]) -> None:
        """A card's node for compute processes, and what they hold there."""
        kfd = self.roots.sys / "class" / "kfd" / "kfd"
        node = kfd / "topology" / "nodes" / str(number)
        node.mkdir(parents=True)
        (node / "gpu_id").write_text(f"{4000 + number}\n")
        (node / "properties").write_text(f"simd_count 192\nlocation_id {location}\ndomain 0\n")
        for pid, size in holds:
            (kfd / "proc" / str(pid)).mkdir(parents=True, exist_ok=True)
            (kfd / "proc" / str(pid) / f"vram_{4000 + number}").write_text(f"{size}\n")

    def file(self, pid: int, number: int, *lines: str, parent: int = 1) -> None:
        """An open file of a process, as gpu/drm-usage-stats has it."""
        folder = self.roots.proc / str(pid)
        (folder / "fdinfo").mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"{pid} (llama-server) S {parent} {pid} {pid} 0\n")
        (folder / "fdinfo" / str(number)).write_text("".join(f"{line}\n" for line in ("pos:\t0", *lines)))

    def found(self, wanted: Wanted | None = None) -> tuple[DeviceMonitor | None, tuple[str, ...]]:
        """The monitor, and what is said."""
        return find_cards(wanted or Wanted(Headroom(0.0)), roots=self.roots)

    def monitor(self) -> DeviceMonitor:
        """The monitor of a machine with a card."""
        monitor, _ = self.found()
        assert monitor is not None
        return monitor


def layout(folder: Path) -> Machine:
    """A machine without cards."""
    ids = folder / "usr" / "share" / "libdrm"
    ids.mkdir(parents=True)
    (ids / "amdgpu.ids").write_text(IDS)
    return Machine(Roots(folder / "proc", folder / "cgroup", folder / "sys"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine without an NVIDIA driver."""

    def absent(flags: int) -> None:  # noqa: ARG001 - the binding's signature
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInitWithFlags", absent)
    return layout(tmp_path)


def vram(size: str, *, client: int = 7, pci: str = PCI, key: str = "drm-memory-vram") -> tuple[str, ...]:
    """The lines of one open file."""
    return (
        "drm-driver:\tamdgpu",
        f"drm-pdev:\t{pci}",
        f"drm-client-id:\t{client}",
        f"{key}:\t{size}",
        "drm-memory-gtt: \t2048 KiB",
        f"amd-memory-visible-vram:\t{size}",
    )


def test_a_card_is_found_with_its_name_and_its_size(machine: Machine) -> None:
    """Connectors are no cards; the name is the maker's, by device and revision."""
    machine.card(0, unique_id="61adf9bc71b6b6a5")
    (info,) = machine.monitor().devices()
    assert (info.spec.name, info.label, info.spec.total_bytes) == (GPU0, "AMD Radeon RX 7900 XTX", 24 * GIB)
    assert (info.backend, info.uuid, info.pci_bus) == (Backend.ROCM, "GPU-61adf9bc71b6b6a5", PCI)


@pytest.mark.parametrize(
    ("files", "label"),
    [
        ({"product_name": "AMD Instinct MI210"}, "AMD Instinct MI210"),
        ({"product_name": "", "device": "0xffff"}, "AMD GPU"),
    ],
)
def test_a_card_is_called_what_it_calls_itself_or_what_it_is(
    machine: Machine, files: dict[str, str], label: str
) -> None:
    """Without a name it is known by its address."""
    machine.card(0, vram=GIB * 24, used=GIB, **files)
    (info,) = machine.monitor().devices()
    assert (info.label, info.uuid) == (label, PCI)


def test_cards_are_numbered_by_address_whatever_the_kernel_calls_them(machine: Machine) -> None:
    """Bus 0x41 comes after bus 0x0b; a card of another maker is none of these."""
    machine.card(0, "0000:41:00.0", vram=16 * GIB)
    machine.card(1)
    machine.card(2, "0000:00:02.0", vendor="0x8086")
    infos = machine.monitor().devices()
    assert [(info.spec.name, info.pci_bus, info.index) for info in infos] == [
        (GPU0, PCI, 0),
        (GPU1, "0000:41:00.0", 1),
    ]


async def test_what_a_process_holds_is_read_from_its_open_files(machine: Machine) -> None:
    """Files of one client, as after a fork, count once; another client's are added; another card's are not."""
    machine.card(0, used=5 * GIB)
    machine.file(11, 4, *vram(f"{2 * 1024 * 1024} KiB"))
    machine.file(11, 5, *vram(f"{2 * 1024 * 1024} KiB"))
    machine.file(11, 6, *vram("1024 MiB", client=8))
    machine.file(11, 7, *vram("9000 MiB", client=9, pci="0000:41:00.0"))
    machine.file(11, 8, "drm-driver:\ti915", f"drm-pdev:\t{PCI}")
    (read,) = await machine.monitor().read({ONE: 11})
    assert (read.used_bytes, read.held, read.by_difference) == (5 * GIB, ((ONE, 3 * GIB),), frozenset())


@pytest.mark.parametrize("key", ["drm-resident-vram", "drm-memory-vram", "drm-total-vram"])
async def test_each_kernels_word_for_it_is_understood(machine: Machine, key: str) -> None:
    """What is resident, by the newer or the older name; the total where there is nothing else. No unit is bytes."""
    machine.card(0)
    machine.file(11, 4, *vram("4096", key=key))
    (read,) = await machine.monitor().read({ONE: 11})
    assert read.held == ((ONE, 4096),)


@pytest.mark.parametrize("size", ["?", "4096 GiB"])
async def test_what_a_kernel_does_not_tell_is_unknown_never_zero(machine: Machine, size: str) -> None:
    """An old kernel, or a unit that is not documented."""
    machine.card(0)
    machine.file(11, 4, *vram(size))
    machine.file(11, 5, *vram("4096", pci="nowhere"))
    (read,) = await machine.monitor().read({ONE: 11})
    assert read.held == ()


async def test_what_a_compute_process_holds_is_the_larger_of_two_accounts(machine: Machine) -> None:
    """It has opened the card, too: both tell of the same memory. A wrapper's child belongs to its family."""
    machine.card(0, used=8 * GIB)
    machine.card(1, "0000:41:02.0", vram=16 * GIB)
    machine.compute(1, 0x0B00, (12, 4 * GIB), (99, GIB))
    machine.compute(2, 0x4110, (12, GIB))
    machine.file(11, 3)
    machine.file(12, 4, *vram("1024 MiB"), parent=11)
    first, second = await machine.monitor().read({ONE: 11})
    assert (first.held, second.held) == (((ONE, 4 * GIB),), ((ONE, GIB),))


async def test_D2_without_any_account_it_is_what_the_use_grew_by(machine: Machine) -> None:
    """The files of another user's process are closed to us."""
    folder = machine.card(0)
    monitor = machine.monitor()
    await monitor.read({})
    machine.file(11, 3)
    (folder / "mem_info_vram_used").write_text(f"{5 * GIB}\n")
    (read,) = await monitor.read({ONE: 11})
    assert (read.held, read.by_difference) == (((ONE, 4 * GIB),), frozenset({ONE}))


async def test_D6_a_card_whose_driver_goes_is_lost_and_comes_back(
    machine: Machine, mock_clock: trio.testing.MockClock
) -> None:
    """Its files are gone, or are those of another number after it came back."""
    folder = machine.card(0)
    monitor = machine.monitor()
    entry = machine.roots.sys / "class" / "drm" / "card0"
    entry.rename(entry.with_name("gone0"))
    assert await monitor.read({}) == ()
    assert monitor.lost() == {GPU0: "its driver does not have it any more"}
    (folder / "mem_info_vram_used").write_text("fault\n")
    entry.with_name("gone0").rename(entry.with_name("card3"))
    mock_clock.jump(1.0)
    assert await monitor.read({}) == ()
    (folder / "mem_info_vram_used").write_text("5\n")
    mock_clock.jump(2.0)
    assert [read.used_bytes for read in await monitor.read({})] == [5]


async def test_D6_for_want_of_descriptors_no_card_is_lost(machine: Machine) -> None:
    """However many are left: there is a reading, or none that can be had now."""
    machine.card(0)
    machine.compute(1, 0x0B00)
    monitor = machine.monitor()
    assert len(await monitor.read({})) == 1
    for spare in range(4):
        with only(spare), suppress(OSError):
            await monitor.read({})
        assert monitor.lost() == {}
    assert len(await monitor.read({})) == 1


def test_a_card_that_does_not_answer_at_start_is_said(machine: Machine) -> None:
    """By its place, because nothing else of it is known."""
    machine.card(0, mem_info_vram_total="?")
    assert machine.found() == (
        None,
        (f"The AMD card at {PCI} does not answer: mem_info_vram_total is no number: '?'. It is not used.",),
    )


async def test_D7_graphics_in_a_processor_are_named_and_used_where_a_size_is_given(machine: Machine) -> None:
    """Half a GiB of their own: what models take there is the host's memory, which tells what of it is in use."""
    machine.card(0, vram=GIB // 2, product_name="AMD Radeon 780M")
    monitor, (note,) = machine.found()
    assert monitor is None
    assert note.startswith("gpu0 (AMD Radeon 780M) has only 0.5 GiB of memory of its own and borrows the rest from the")
    machine.roots.proc.mkdir()
    (machine.roots.proc / "meminfo").write_text(f"MemAvailable: {6 * GIB // 1024} kB\n")
    monitor, notes = machine.found(Wanted(Headroom(0.0), totals={PCI: 8 * GIB}))
    assert monitor is not None
    (read,) = await monitor.read({})
    assert (notes, read.total_bytes, read.used_bytes) == ((), 8 * GIB, 2 * GIB)


async def test_D7_what_models_take_of_a_graphics_unit_in_a_processor_is_mostly_borrowed(machine: Machine) -> None:
    """And is theirs as much as the little that is the unit's own: a figure without it would fail every launch as one
    that computes on the processor (B16)."""
    machine.card(0, vram=GIB // 2)
    machine.compute(1, 0x0B00, (77, GIB // 8))
    machine.file(77, 5, *vram("131072 KiB")[:-2], f"drm-memory-gtt:\t{4 * GIB // 1024} KiB")
    (machine.roots.proc / "meminfo").write_text(f"MemAvailable: {32 * GIB // 1024} kB\n")
    monitor, _ = machine.found(Wanted(Headroom(0.0), totals={PCI: 8 * GIB}))
    assert monitor is not None
    (read,) = await monitor.read({ONE: 77})
    assert (dict(read.held), read.used_bytes) == ({ONE: 4 * GIB + GIB // 8}, 4 * GIB + GIB // 8)


async def test_both_makers_cards_are_planned_side_by_side(driver: Driver, tmp_path: Path) -> None:
    """Where the engine lists both, as a Vulkan build does: named together by address, read at the same time."""
    machine = layout(tmp_path)
    machine.card(0)
    listed = [EngineDevice(f"Vulkan{n}", label) for n, label in enumerate(("AMD Radeon RX 7900 XTX", "NVIDIA Small"))]
    driver.tell(
        f"card GPU-small 00000000:01:00.0 {16 * GIB} {GIB // 2} {GIB} NVIDIA Small", f"holds 0 compute 11 {GIB}"
    )
    monitor, notes = find_cards(Wanted(), lambda infos: match(infos, listed).backends, driver.roots)
    assert (notes, monitor is not None) == ((), True)
    assert monitor is not None
    assert [(info.spec.name, info.label, info.backend) for info in monitor.devices()] == [
        (GPU0, "NVIDIA Small", Backend.VULKAN),
        (GPU1, "AMD Radeon RX 7900 XTX", Backend.VULKAN),
    ]
    first, second = await monitor.read({ONE: 11})
    assert (first.device, first.held, second.device, second.used_bytes) == (GPU0, ((ONE, GIB),), GPU1, GIB)
    driver.tell("driver 9")
    assert [read.device for read in await monitor.read({})] == [GPU1]
    assert list(monitor.lost()) == [GPU0]
    monitor.settled(ONE)
