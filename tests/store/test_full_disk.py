"""A disk that takes no byte more: each file that cannot be written is one line, and everything goes on."""

import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import pytest

from gridsched.engine.identity import ProcessId
from gridsched.engine.logs import RotatedLog
from gridsched.engine.roster import Roster, read_roster
from gridsched.files import atomic_write
from gridsched.ports import Measurement
from gridsched.settings.paths import DataDir, DataDirInUse
from gridsched.store import MeasurementStore
from tests.store.test_stores import Said

Disk = Callable[[Path], AbstractContextManager[tuple[Path, Callable[[], None], Callable[[], None]]]]
"""A folder on a disk that can be filled, what fills it, and what empties it."""


@contextmanager
def tmpfs(folder: Path) -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """A disk of 4 MiB, and what fills and empties it."""
    disk = folder / "disk"
    disk.mkdir(mode=0o700)
    words = ["/usr/bin/env", "mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "none", str(disk)]
    mounted = subprocess.run(words, check=False, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(reason=f"a small disk cannot be mounted here: {mounted.stderr.strip()}")

    def fill() -> None:
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while filler.write(b"x" * 512):
                pass

    try:
        yield disk, fill, (disk / "filler").unlink
    finally:
        subprocess.run(["/usr/bin/env", "umount", str(disk)], check=True)


@contextmanager
def limit(folder: Path) -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """A limit on files' lengths, which refuses a write as a full disk does; needs no rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    set_to = resource.setrlimit
    try:
        yield (
            folder,
            lambda: set_to(resource.RLIMIT_FSIZE, (0, hard)),
            lambda: set_to(resource.RLIMIT_FSIZE, (soft, hard)),
        )
    finally:
        set_to(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("disk", [tmpfs, limit])
async def test_a_disk_that_fills_up_while_serving(tmp_path: Path, caplog: pytest.LogCaptureFixture, disk: Disk) -> None:
    """Holder, log, state file, measurements: a line each, however often it is tried; with room again all is written."""
    with disk(tmp_path) as (place, fill, empty), DataDir.own(place / "data") as owned:
        said = Said()
        log, roster = RotatedLog(owned.logs / "m.log"), Roster(owned.run)
        us = ProcessId.of_child(os.getpid())
        with closing(MeasurementStore(owned.path / "m.sqlite3", said)) as store:
            await store.keep_measurement("before", (1,))
            fill()
            for number in range(3):
                log.append("x" * 9000 + "\n")
                roster.enter("m", f"s{number}", ProcessId(us.pid, number, us.boot_id))
                for part in range(40):
                    await store.keep_measurement(f"during {number} {part}" + "x" * 999, (2,))
            owned.say_port(80)
            told = [record.message for record in caplog.records]
            assert [sum(str(path) in line for line in told) for path in (log.path, owned.run / "children.json")] == [
                1,
                1,
            ]
            assert len([line for line in told if "who finds the data directory" in line]) <= 1
            assert len(said) == 1
            assert len(store.measurements()) == 121
            assert log.lost_lines == 3
            empty()
            log.append("again\n")
            roster.write()
            await store.keep_measurement("after", (3,))
            owned.say_port(81)
            assert log.path.read_text(encoding="utf-8").endswith("again\n")
            assert len(read_roster(owned.run)[0]) == 3
            with pytest.raises(DataDirInUse, match="on port 81"):
                DataDir.own(owned.path)
        with closing(MeasurementStore(owned.path / "m.sqlite3", said)) as store:
            assert len(store.measurements()) == 122
        assert len(said) == 1


@pytest.mark.parametrize("disk", [tmpfs, limit])
async def test_a_disk_that_is_full_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture, disk: Disk) -> None:
    """The directory is owned, measurements are kept in memory, and each is a line."""
    with disk(tmp_path) as (place, fill, empty):
        DataDir.own(place / "data").close()
        fill()
        said = Said()
        with DataDir.own(place / "data") as owned:
            with closing(MeasurementStore(owned.path / "m.sqlite3", said)) as store:
                await store.keep_measurement("a", (1,))
                assert store.measurements() == {"a": Measurement((1,))}
            with pytest.raises(DataDirInUse):
                DataDir.own(owned.path)
        empty()
    assert len(said) == 1
    assert "going on without" in said[0]
    assert [record.message for record in caplog.records if "owner.lock" in record.message]


def test_a_small_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    """A write that fails leaves the old one and nothing beside it; what a killed writer left is no hindrance."""
    path = tmp_path / "small"
    (tmp_path / "small.new").write_bytes(b"left")
    atomic_write(path, b"old")
    with limit(tmp_path) as (_, fill, _):
        fill()
        with pytest.raises(OSError, match="File too large"):
            atomic_write(path, b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("small", b"old")]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_small_file_that_is_there_is_not_called_unwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some disks know no fsync of a folder: the file is whole, and only a loss of power could undo it."""
    sync = os.fsync

    def of_files_only(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").is_dir():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(fd)

    monkeypatch.setattr(os, "fsync", of_files_only)
    atomic_write(tmp_path / "small", b"new")
    assert (tmp_path / "small").read_bytes() == b"new"
