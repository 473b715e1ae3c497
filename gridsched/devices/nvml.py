"""NVIDIA cards, read through the driver's own library (nvidia-ml-py).

Owns the only import of pynvml; none of its objects or errors leave this file. Must never change a card's state.

Only the second version of the memory call is used. It tells what the driver keeps for itself apart from what is used,
so that the driver's share (300-500 MB) never looks like a program of somebody else's.
"""

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pynvml

from gridsched.devices.cards import Glimpse, Silent
from gridsched.devices.choice import Card, pci_address
from gridsched.ports import Backend, DeviceInfo

SHARED = "does not tell how much memory it has, as boards do whose memory is the host's"
SLICED = (
    "is split into slices (MIG), and slices are not used: to have the card used whole, switch that off as its owner"
    " with `nvidia-smi -mig 0`."
)

TOO_OLD = "Its driver is too old to tell what it keeps for itself: version 510 or a later one is needed."

Handle = Any  # pynvml ships no types


def list_cards() -> tuple[list[Card], list[str]]:
    """Open the driver: the cards that answer, and a sentence for each that does not. Without a driver there is nothing
    to say. Blocks; call it at start, or in a thread."""
    cards, notes = [], []
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return [], [] if _is_absent(error) else [f"The NVIDIA driver does not answer: {_said(error)}."]
    for index in range(count):
        try:
            cards.append(_describe(pynvml.nvmlDeviceGetHandleByIndex(index)))
        except pynvml.NVMLError_FunctionNotFound:
            notes.append(f"The NVIDIA driver's card {index} is not used. {TOO_OLD}")
        except pynvml.NVMLError as error:
            notes.append(f"The NVIDIA driver's card {index} does not answer: {_said(error)}. It is not used.")
    return cards, notes


def driver_version() -> str:
    """The driver's own word for its version; empty where it is not open, or does not say. What a process takes beside
    its buffers depends on it."""
    try:
        return _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ""


def close() -> None:
    """Let the driver go; one that is closed already, or beyond closing, is as good."""
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


class NvmlDriver:
    """A `cards.CardDriver`. Nothing of the driver is kept between readings."""

    def reopen(self) -> str | None:
        """Close, unload and open the driver: handles of a lost one stay dead, and the library of the driver before an
        update never speaks with the one after it."""
        close()
        _unload()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return _said(error)
        return None

    def look(self, info: DeviceInfo, pids: frozenset[int]) -> Glimpse:  # noqa: ARG002 - the driver lists everybody
        """One card, asked for by its UUID. Raises Silent."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(info.uuid)
            return Glimpse(_used_bytes(handle), _by_pid(handle, info.spec.total_bytes))
        except pynvml.NVMLError as error:
            raise Silent(_said(error)) from None


def _used_bytes(handle: Handle) -> int | None:
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
    except pynvml.NVMLError_NotSupported:
        return None  # a board whose memory is the host's


def _by_pid(handle: Handle, limit_bytes: int) -> dict[int, int | None]:
    """Bytes by pid, from the compute and the graphics list. A process on both lists is one process; its figure is
    None where neither has one. A missing figure comes as None or as 2^64-1: what exceeds the card is none either."""
    by_pid: dict[int, int | None] = {}
    for listing in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in _rows(listing, handle):
            figures = (process.usedGpuMemory, by_pid.get(process.pid))
            by_pid[process.pid] = max(
                (size for size in figures if size is not None and size <= limit_bytes), default=None
            )
    return by_pid


def _rows(listing: Callable[[Handle], Iterable[Any]], handle: Handle) -> Iterable[Any]:
    try:
        return listing(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NoPermission):
        return ()  # this driver never tells who holds what


def _describe(handle: Handle) -> Card:
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        total_bytes = int(memory.total - memory.reserved)  # what programs can have at all
    except pynvml.NVMLError_NotSupported:
        total_bytes = 0
    return Card(
        pci=pci_address(_text(pynvml.nvmlDeviceGetPciInfo(handle).busId)),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        label=_text(pynvml.nvmlDeviceGetName(handle)),
        total_bytes=total_bytes,
        backend=Backend.CUDA,
        capability=_capability(handle),
        driver=driver_version(),
        shared="" if total_bytes > 0 else SHARED,
        unfit=SLICED if _is_sliced(handle) else "",
        holders=_holders(handle, total_bytes or sys.maxsize),
    )


def _holders(handle: Handle, limit_bytes: int) -> dict[int, int]:
    """No card is left out because it does not tell."""
    try:
        return {pid: size or 0 for pid, size in _by_pid(handle, limit_bytes).items()}
    except pynvml.NVMLError:
        return {}


def _capability(handle: Handle) -> int:
    """Ten times the card's compute capability (89 for 8.9). No card is left out because it does not tell."""
    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    except pynvml.NVMLError:
        return 0
    return 10 * int(major) + int(minor)


def _is_sliced(handle: Handle) -> bool:
    """Most cards do not know the question."""
    try:
        modes: Sequence[int] = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return False
    return bool(modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def _text(value: str | bytes) -> str:
    """Older releases of the library answer in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _said(error: pynvml.NVMLError) -> str:
    """The driver's words, to be put inside a sentence."""
    return str(error).rstrip(".")


def _is_absent(error: pynvml.NVMLError) -> bool:
    """There is simply no NVIDIA driver here: nothing to say about."""
    return isinstance(error, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded))


def _unload() -> None:
    """Have the library opened from its file next time: an update has put another one there.

    The binding keeps the library for the life of the process, and the loader gives the one that it has for as long as
    anybody holds it, so both have to let it go.
    """
    library: ctypes.CDLL | None = pynvml.nvmlLib
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()  # its functions are of the library that goes
    if library is not None and sys.platform != "win32":
        import _ctypes  # noqa: PLC0415 - the only way to close a library, and not there on Windows

        _ctypes.dlclose(library._handle)
