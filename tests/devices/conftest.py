"""What the tests of devices share."""

import contextlib
import ctypes
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from gridsched.devices.discover import Roots
from tests.devices.driver import BIG, SMALL, Driver, build_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for the NVIDIA driver's library, built once."""
    return build_library(tmp_path_factory.mktemp("nvml"))


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
    driver.tell(SMALL, BIG)
    for thread in threading.enumerate():
        if thread.name.endswith(" cards"):  # one that was not waited for would go on with the next test's library
            thread.join()
    with contextlib.suppress(pynvml.NVMLError):  # the test may have closed it
        pynvml.nvmlShutdown()
