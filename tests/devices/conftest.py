"""What the tests of devices share."""

import contextlib
import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from gridsched.devices.discover import Roots
from tests.devices.driver import BIG, SMALL, Driver

COMPILER = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for the NVIDIA driver's library, built once (0.1 s)."""
    if COMPILER is None:
        pytest.skip(reason="there is no C compiler to build the driver's stand-in with")
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", soname, "-o", str(target), str(source)], check=True)
    return target


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A driver that the binding opens, closes and loads instead of the machine's own."""
    folder = tmp_path / "lib"
    folder.mkdir()
    shutil.copy(library, folder)
    monkeypatch.setenv("NVML_STORY", str(tmp_path / "story"))
    monkeypatch.setattr(pynvml, "CDLL", lambda name: ctypes.CDLL(str(folder / name)))
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    driver = Driver(tmp_path / "story", folder, Roots(tmp_path / "proc", tmp_path / "cgroup", tmp_path / "sys"))
    driver.tell(SMALL, BIG)
    yield driver
    with contextlib.suppress(pynvml.NVMLError):  # the test may have closed it
        pynvml.nvmlShutdown()
