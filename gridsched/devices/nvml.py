"""NVIDIA cards, read through the driver's own library (nvidia-ml-py).

Owns the only import of pynvml; none of its objects or errors leave this file. Must never change a card's state.
All calls are made in a thread, one at a time: a sick driver can hold a call for seconds.

Only the second version of the memory call is used. It tells what the driver keeps for itself apart from what is used,
so that the driver's share (300-500 MB) never looks like a program of somebody else's.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pynvml
import trio

from gridsched.core.events import DeviceRead
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.core.model import DeviceSpec
from gridsched.devices.headroom import Headroom
from gridsched.devices.procfs import process_trees
from gridsched.ports import Backend, DeviceInfo

RETRY_FIRST_SECONDS = 1.0
RETRY_LONGEST_SECONDS = 60.0
"""How long a lost driver is left alone between attempts to open it again; doubled each time. A guess: a driver
update takes minutes, and opening costs a card that sleeps about a second."""

NOT_LISTED = (
    "is not used, because the engine does not list it: name a llama-server that was built for it in engine.path (with"
    " CUDA, or Vulkan)."
)

_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-7])?", re.IGNORECASE)

Handle = Any  # pynvml ships no types
Trees = Callable[[Collection[int]], Mapping[int, frozenset[int]]]
Usable = Callable[[Sequence[DeviceInfo]], Mapping[DeviceName, Backend]]
"""Those of some cards that the engine can compute on, and what with."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cards:
    """What was found: a monitor where there is a card to plan with, and sentences about what was not taken."""

    monitor: "NvmlMonitor | None"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Card:
    """What the driver says of one card that answers. `total_bytes` and `capability` are 0 where it does not tell."""

    pci: tuple[int, int, int]
    uuid: str
    label: str
    total_bytes: int
    capability: int
    driver: str


def all_of(cards: Sequence[DeviceInfo]) -> Mapping[DeviceName, Backend]:
    """Every card can be computed on, as far as is known."""
    return {card.spec.name: card.backend for card in cards}


def find_cards(headroom: Headroom, ignore: Sequence[str] = (), usable: Usable = all_of) -> Cards:
    """Open the driver and list its cards, in the order of their PCI address: the order CUDA uses when told to.

    `ignore` names cards to leave alone: by name (`gpu0`), UUID, or PCI address (`0000:41:00.0`, `41:00.0`).
    `usable` says which of the rest the engine can compute on: memory on another is no use to anybody. No driver is not
    an error: the answer has no monitor then. Blocks; call it at start, or in a thread.
    """
    try:
        pynvml.nvmlInit()
        listed, notes = _list_cards()
    except pynvml.NVMLError as error:
        return Cards(None, () if _is_absent(error) else (f"The NVIDIA driver does not answer: {_said(error)}.",))
    taken = []
    cards = list(_numbered(listed, headroom))
    notes += [
        f"devices.ignore: there is no card {text!r}." for text in ignore if not any(_is_named(c, text) for c in cards)
    ]
    for info in cards:
        if any(_is_named(info, text) for text in ignore):
            notes.append(f"{info.spec.name} ({info.label}) is left alone, as configured.")
        elif info.spec.total_bytes == 0:
            notes.append(f"{info.spec.name} ({info.label}) does not tell how much memory it has: not used.")
        else:
            taken.append(info)
    backends = usable(tuple(taken))
    notes += [f"{info.spec.name} ({info.label}) {NOT_LISTED}" for info in taken if info.spec.name not in backends]
    taken = [replace(info, backend=backends[info.spec.name]) for info in taken if info.spec.name in backends]
    if not taken:
        _close()
        return Cards(None, tuple(notes))
    return Cards(NvmlMonitor(tuple(taken)), tuple(notes))


def driver_version() -> str:
    """The driver's own word for its version; empty where it is not open, or does not say."""
    try:
        return _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ""


def pci_address(text: str) -> tuple[int, int, int]:
    """Domain, bus and device of `[domain:]bus:device[.function]`. All three are hexadecimal: bus 41 is the 65th.

    Raises ValueError for anything else.
    """
    if (match := _PCI.fullmatch(text.strip())) is None:
        raise ValueError(f"{text!r} is not a PCI address such as 0000:41:00.0")
    domain, bus, device = (int(part or "0", 16) for part in match.groups())
    return domain, bus, device


class NvmlMonitor:
    """A `ports.DeviceMonitor` over the cards that `find_cards` took. The driver is open when it is made."""

    def __init__(self, infos: tuple[DeviceInfo, ...], trees: Trees = process_trees) -> None:
        self._infos = infos
        self._trees = trees
        self._limiter = trio.CapacityLimiter(1)
        self._retry_at: float | None = None  # None while the driver is open; else when it is opened again
        self._retry_seconds = RETRY_FIRST_SECONDS
        self._silent: Mapping[DeviceName, str] = {}

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The cards, as found at start. One that is lost later stays listed and is missing from the readings."""
        return self._infos

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        """One reading of each card that answers. A process that the driver does not list, or lists without a figure,
        is missing from `held`: it may not have begun yet, or live in a container whose pids the driver does not know.
        """
        now = trio.current_time()
        if self._retry_at is not None and now < self._retry_at:
            return ()
        work = partial(self._read_all, dict(processes), reopen=self._retry_at is not None)
        reads, failures = await trio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)
        self._tell(failures)
        if failures:
            self._retry_at = now + self._retry_seconds
            self._retry_seconds = min(self._retry_seconds * 2, RETRY_LONGEST_SECONDS)
        else:
            self._retry_at, self._retry_seconds = None, RETRY_FIRST_SECONDS
        return reads

    def lost(self) -> Mapping[DeviceName, str]:
        """The cards that did not answer at the last reading, and why."""
        return self._silent

    def _read_all(
        self, processes: Mapping[InstanceId, int], *, reopen: bool
    ) -> tuple[tuple[DeviceRead, ...], dict[DeviceName, str]]:
        """In the thread: the readings, and why a card gave none. Nothing of the driver is kept between readings."""
        if reopen and (problem := _reopen()) is not None:
            return (), {info.spec.name: problem for info in self._infos}
        trees = self._trees(set(processes.values()))
        families = {instance: trees[pid] for instance, pid in processes.items()}
        reads, failures = [], {}
        for info in self._infos:
            try:
                reads.append(_read_card(info, families))
            except pynvml.NVMLError as error:
                failures[info.spec.name] = _said(error)
        return tuple(reads), failures

    def _tell(self, failures: Mapping[DeviceName, str]) -> None:
        """One line when a card goes silent and one when it is back, never one for each poll."""
        for name in sorted(failures.keys() - self._silent.keys()):
            _log.warning("%s cannot be read any more: %s. Its last figures are kept.", name, failures[name])
        for name in sorted(self._silent.keys() - failures.keys()):
            _log.warning("%s can be read again.", name)
        self._silent = dict(failures)


def _read_card(info: DeviceInfo, families: Mapping[InstanceId, frozenset[int]]) -> DeviceRead:
    handle = pynvml.nvmlDeviceGetHandleByUUID(info.uuid)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    total_bytes = info.spec.total_bytes
    by_pid = _held_by_pid(handle, total_bytes)
    held = []
    for instance, pids in families.items():
        figures = [by_pid[pid] for pid in pids if pid in by_pid]
        if figures:
            held.append((instance, sum(figures)))
    return DeviceRead(device=info.spec.name, total_bytes=total_bytes, used_bytes=memory.used, held=tuple(held))


def _held_by_pid(handle: Handle, limit_bytes: int) -> dict[int, int]:
    """Bytes by pid, from the compute and the graphics list. A process on both lists is one process.

    A missing figure comes as None or as 2^64-1; whatever exceeds the card is no figure either.
    """
    by_pid: dict[int, int] = {}
    for listing in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in _rows(listing, handle):
            held_bytes = process.usedGpuMemory
            if held_bytes is not None and held_bytes <= limit_bytes:
                by_pid[process.pid] = max(held_bytes, by_pid.get(process.pid, 0))
    return by_pid


def _rows(listing: Callable[[Handle], Iterable[Any]], handle: Handle) -> Iterable[Any]:
    try:
        return listing(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NoPermission):
        return ()  # this driver never tells who holds what: the estimate stands


def _list_cards() -> tuple[list[_Card], list[str]]:
    """The cards that answer, and a sentence for each that does not. Raises NVMLError where none can be counted."""
    cards, notes = [], []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            cards.append(_describe(pynvml.nvmlDeviceGetHandleByIndex(index)))
        except pynvml.NVMLError as error:
            notes.append(f"The NVIDIA driver's card {index} does not answer: {_said(error)}. It is not used.")
    return cards, notes


def _describe(handle: Handle) -> _Card:
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        total_bytes = memory.total - memory.reserved  # what programs can have at all
    except pynvml.NVMLError_NotSupported:
        total_bytes = 0  # a board whose memory is the host's
    return _Card(
        pci=pci_address(_text(pynvml.nvmlDeviceGetPciInfo(handle).busId)),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        label=_text(pynvml.nvmlDeviceGetName(handle)),
        total_bytes=total_bytes,
        capability=_capability(handle),
        driver=_driver(),
    )


def _capability(handle: Handle) -> int:
    """Ten times the card's compute capability (89 for 8.9). No card is left out because it does not tell."""
    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    except pynvml.NVMLError:
        return 0
    return 10 * int(major) + int(minor)


def _driver() -> str:
    """The driver's version; what a process takes beside its buffers depends on it."""
    try:
        return _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ""


def _numbered(cards: list[_Card], headroom: Headroom) -> Iterator[DeviceInfo]:
    for index, card in enumerate(sorted(cards, key=lambda card: card.pci)):
        spec = DeviceSpec(DeviceName(f"gpu{index}"), card.total_bytes, headroom.of(card.total_bytes))
        domain, bus, device = card.pci
        pci_bus = f"{domain:04x}:{bus:02x}:{device:02x}.0"
        yield DeviceInfo(spec, card.label, Backend.CUDA, index, card.uuid, pci_bus, card.capability, card.driver)


def _text(value: str | bytes) -> str:
    """Older releases of the library answer in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _said(error: pynvml.NVMLError) -> str:
    """The driver's words, to be put inside a sentence."""
    return str(error).rstrip(".")


def _is_named(info: DeviceInfo, text: str) -> bool:
    if text.lower() in {info.spec.name, info.uuid.lower()}:
        return True
    try:
        return pci_address(text) == pci_address(info.pci_bus)
    except ValueError:
        return False


def _is_absent(error: pynvml.NVMLError) -> bool:
    """There is simply no NVIDIA driver here: nothing to say about."""
    return isinstance(error, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded))


def _reopen() -> str | None:
    """Close and open the driver, because handles of a lost one stay dead. None when it is open again."""
    _close()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _said(error)
    return None


def _close() -> None:
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return  # it was closed, or is beyond closing: opening it again is what counts
