"""AMD cards, read through the files of the kernel's amdgpu driver: no library, no privilege.

Owns the reading of these files. Must never change a card's state. The kernel's documentation names them in
gpu/amdgpu/driver-misc (the card's memory), gpu/drm-usage-stats (what an open file of a process holds) and
gpu/amdgpu/driver-core; what a compute process holds is under `class/kfd`, card by card.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gridsched.devices.cards import Glimpse, Silent
from gridsched.devices.choice import Card, PciAddress, pci_address
from gridsched.devices.procfs import PROC
from gridsched.ports import Backend, DeviceInfo
from gridsched.threads import SHORTAGES

SYS = Path("/sys")

VENDOR = "0x1002"

OWN_BYTES = 2 << 30
"""A graphics unit with no more memory of its own than this, and more of the host's to borrow, is part of a processor:
what models take there is the host's. The firmware sets 0.5 GiB aside on most."""

OWN, SHARED = ("vram",), ("vram", "gtt")
"""Where what models take of a card lies: in its own memory, or, of one whose memory is the host's, mostly in what it
has borrowed. Without that a model there would look as if it computed on the processor (B16)."""

NAMES = Path("usr/share/libdrm/amdgpu.ids")
"""The marketing names by device and revision, beside the root that `sys` lies in."""

_UNITS: Mapping[str, int] = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_CARD = re.compile(r"card\d+")


def list_cards(sys: Path = SYS, proc: Path = PROC) -> tuple[list[Card], list[str]]:
    """The cards that the driver tells of, and a sentence for each that it has and does not tell of."""
    cards, notes = [], []
    for folder in _folders(sys):
        try:
            cards.append(_describe(folder, sys, proc))
        except (OSError, ValueError) as error:
            notes.append(f"The AMD card at {folder.resolve().name} does not answer: {_said(error)}. It is not used.")
    return cards, notes


class AmdDriver:
    """A `cards.CardDriver` over files: there is nothing to open."""

    def __init__(self, sys: Path = SYS, proc: Path = PROC) -> None:
        self._sys = sys
        self._proc = proc

    def reopen(self) -> str | None:
        """Always open."""
        return None

    def look(self, info: DeviceInfo, pids: frozenset[int]) -> Glimpse:
        """One card, found anew by its PCI address: a reset or a driver that is loaded again may give it another number.
        Raises Silent."""
        pci = pci_address(info.pci_bus)
        try:
            folder = next((folder for folder in _folders(self._sys) if _pci_of(folder) == pci), None)
            if folder is None:
                raise Silent("its driver does not have it any more")
            shared = _is_shared(folder)
            used_bytes = None if shared else _number(folder / "mem_info_vram_used")
        except (OSError, ValueError) as error:
            if _is_shortage(error):
                raise
            raise Silent(_said(error)) from None
        by_compute = _held_by_compute(self._sys, pci)
        found = dict(by_compute)
        for pid in pids:
            # A compute process has opened the card as well: both tell of the same memory.
            by_files = _held_by_files(self._proc, pid, pci, SHARED if shared else OWN)
            figures = [size for size in (by_compute.get(pid), by_files) if size is not None]
            if figures:
                found[pid] = max(figures)
        limit_bytes = info.spec.total_bytes
        return Glimpse(used_bytes, {pid: size if size <= limit_bytes else None for pid, size in found.items()})


def _folders(sys: Path) -> Iterator[Path]:
    """The folder of each AMD card that amdgpu drives, connectors (card0-DP-1) left out."""
    for entry in sorted((sys / "class" / "drm").glob("card*")):
        folder = entry / "device"
        ours = _CARD.fullmatch(entry.name) and _line(folder / "vendor") == VENDOR
        if ours and (folder / "mem_info_vram_total").exists():
            yield folder


def _describe(folder: Path, sys: Path, proc: Path) -> Card:
    """One card. Raises OSError or ValueError where it does not say what it has to."""
    pci = _pci_of(folder)
    serial = _line(folder / "unique_id")
    return Card(
        pci=pci,
        uuid=f"GPU-{serial}" if serial else "",
        label=_label(folder, sys),
        total_bytes=_number(folder / "mem_info_vram_total"),
        backend=Backend.ROCM,
        driver=_line(sys / "module" / "amdgpu" / "version") or _line(proc / "sys" / "kernel" / "osrelease"),
        shared=_shared(folder) if _is_shared(folder) else "",
    )


def _is_shared(folder: Path) -> bool:
    own_bytes, borrowed_bytes = _number(folder / "mem_info_vram_total"), _optional(folder / "mem_info_gtt_total")
    return own_bytes <= OWN_BYTES and borrowed_bytes > own_bytes


def _shared(folder: Path) -> str:
    own = f"{_number(folder / 'mem_info_vram_total') / 2**30:.1f} GiB"
    return f"has only {own} of memory of its own and borrows the rest from the host, as graphics in a processor do"


def _label(folder: Path, sys: Path) -> str:
    """What the card calls itself, else what its maker does, else what it is."""
    if own := _line(folder / "product_name"):
        return own
    device, revision = (_line(folder / name).removeprefix("0x").upper() for name in ("device", "revision"))
    for line in _lines(sys.parent / NAMES):
        fields = [field.strip() for field in line.split(",", 2)]
        if fields[:2] == [device, revision.zfill(2)] and len(fields) == 3:  # noqa: PLR2004 - device, revision, name
            return fields[2]
    return "AMD GPU"


def _pci_of(folder: Path) -> PciAddress:
    """Raises ValueError."""
    told = (line.removeprefix("PCI_SLOT_NAME=") for line in _lines(folder / "uevent") if "PCI_SLOT_NAME=" in line)
    return pci_address(next(told, folder.resolve().name))


def _held_by_compute(sys: Path, pci: PciAddress) -> dict[int, int]:
    """What compute processes hold of a card: `proc/PID/vram_ID`, where ID is the number that the card has there."""
    kfd = sys / "class" / "kfd" / "kfd"
    number = next((_line(node / "gpu_id") for node in kfd.glob("topology/nodes/*") if _is_at(node, pci)), "")
    if not number:
        return {}
    found = {}
    for path in kfd.glob(f"proc/[0-9]*/vram_{number}"):
        if (text := _line(path)).isdigit():
            found[int(path.parent.name)] = int(text)
    return found


def _is_at(node: Path, pci: PciAddress) -> bool:
    """A node tells bus, device and function in one number."""
    told = dict(line.split(maxsplit=1) for line in _lines(node / "properties") if len(line.split()) > 1)
    try:
        domain, location = int(told.get("domain", "0")), int(told["location_id"])
    except (KeyError, ValueError):
        return False
    return (domain, location >> 8, (location & 0xFF) >> 3) == pci


def _held_by_files(proc: Path, pid: int, pci: PciAddress, regions: Iterable[str]) -> int | None:
    """What the open files of a process hold of a card's memory in these regions, None where they do not tell or may not
    be looked at. Several files of one client, as after a fork, tell of the same memory."""
    clients: dict[str, int] = {}
    try:
        for path in (proc / str(pid) / "fdinfo").iterdir():
            told = _fields(path)
            ours = told.get("drm-driver") == "amdgpu" and _is_address(told.get("drm-pdev", ""), pci)
            if ours and (size := _held(told, regions)) is not None:
                client = told.get("drm-client-id", path.name)
                clients[client] = max(size, clients.get(client, 0))
    except OSError:
        return None
    return sum(clients.values()) if clients else None


def _held(told: Mapping[str, str], regions: Iterable[str]) -> int | None:
    """What is held in some regions, None where none of them is told."""
    sizes = [size for region in regions if (size := _resident(told, region)) is not None]
    return sum(sizes) if sizes else None


def _resident(told: Mapping[str, str], region: str) -> int | None:
    """What is resident: newer kernels say so, older ones call it memory; those between tell the total, too. None where
    none of these is told."""
    for key in (f"drm-resident-{region}", f"drm-memory-{region}", f"drm-total-{region}"):
        number, _, unit = told.get(key, "").partition(" ")
        if number.isdigit() and unit.strip() in _UNITS:
            return int(number) * _UNITS[unit.strip()]
    return None


def _is_address(text: str, pci: PciAddress) -> bool:
    try:
        return pci_address(text) == pci
    except ValueError:
        return False


def _fields(path: Path) -> dict[str, str]:
    """The `key: value` lines of a file; none of one that has just been closed."""
    pairs: Iterable[tuple[str, str, str]] = (line.partition(":") for line in _lines(path))
    return {key.strip(): value.strip() for key, _, value in pairs}


def _number(path: Path) -> int:
    """Raises OSError or ValueError."""
    text = path.read_text(errors="replace").strip()
    if not text.isdigit():
        raise ValueError(f"{path.name} is no number: {text!r}")
    return int(text)


def _optional(path: Path) -> int:
    text = _line(path)
    return int(text) if text.isdigit() else 0


def _line(path: Path) -> str:
    """A file's only line; empty where it is not there."""
    return next(iter(_lines(path)), "").strip()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError as error:
        if _is_shortage(error):
            raise
        return []


def _is_shortage(error: Exception) -> bool:
    """Of descriptors, say: no file of a card is to blame, and the next reading may find it."""
    return isinstance(error, OSError) and error.errno in SHORTAGES


def _said(error: OSError | ValueError) -> str:
    """The system's words."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
