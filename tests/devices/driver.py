"""A stand-in for the NVIDIA driver, built from C, and the processes of the machine that it is in."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from gridsched.core.ids import DeviceName
from gridsched.devices.cards import CardMonitor
from gridsched.devices.choice import Wanted
from gridsched.devices.discover import Roots, find_cards
from gridsched.devices.headroom import Headroom
from gridsched.ports import DeviceMonitor

GIB = 1 << 30
SMALL = f"card GPU-small 00000000:01:00.0 {16 * GIB} {GIB // 2} {GIB} NVIDIA Small"
BIG = f"card GPU-big 00000000:41:00.0 {24 * GIB} {GIB // 2} {2 * GIB} NVIDIA Big One"
GPU0, GPU1 = DeviceName("gpu0"), DeviceName("gpu1")
UNKNOWN_ERROR, GPU_IS_LOST, NOT_SUPPORTED = 999, 15, 3


def build_library(folder: Path) -> Path:
    """The stand-in for the driver's library, in a folder (0.1 s). Skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(reason="there is no C compiler to build the driver's stand-in with")
    library, source = folder / "libnvidia-ml.so.1", Path(__file__).with_name("fake_nvml.c")
    subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source], check=True)
    return library


def small(used_bytes: int) -> str:
    """The small card with so much in use."""
    return f"card GPU-small 00000000:01:00.0 {16 * GIB} {GIB // 2} {used_bytes} NVIDIA Small"


@dataclass
class Driver:
    """The stand-in's world: what it says is what was told last. `folder` holds its library, `roots` its machine."""

    story: Path
    folder: Path
    roots: Roots

    def tell(self, *lines: str) -> None:
        """Replace everything the driver says, at once: it may be reading."""
        new = self.story.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.story)

    def process(self, pid: int, parent: int = 1) -> None:
        """Let a process live."""
        folder = self.roots.proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (llama-server) S {parent} {pid} {pid} 0\n")

    def end(self, pid: int) -> None:
        """Let it be gone."""
        folder = self.roots.proc / str(pid)
        (folder / "stat").unlink()
        folder.rmdir()

    def opened(self, *ignore: str, headroom_bytes: int = 0) -> DeviceMonitor:
        """The monitor of a story that has cards."""
        monitor, _ = find_cards(Wanted(Headroom(0.0, headroom_bytes), ignore), roots=self.roots)
        assert monitor is not None
        return monitor

    def cards(self) -> CardMonitor:
        """The same, of a story whose cards are all NVIDIA's."""
        monitor = self.opened()
        assert isinstance(monitor, CardMonitor)
        return monitor
