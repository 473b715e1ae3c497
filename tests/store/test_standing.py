"""The file of what outlives the server: whole or said to be damaged, never a reason not to start."""

from pathlib import Path

import msgspec
import pytest

from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.standing import KeptLease, OwnerProcess, Standing, Word
from gridsched.store.standing import StandingFile

STANDING = Standing(
    (Word(ModelName("a"), pin=True, put_down=False, configured=False), Word(ModelName("b"), None, True, True)),
    (
        KeptLease(DeviceName("gpu0"), "ComfyUI", 60.0, 1.5e9, OwnerProcess(7, 8, "boot"), (ModelName("a"),)),
        KeptLease(DeviceName("gpu1"), "somebody", 30.0),
    ),
)


async def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """All of it; nothing is written twice, and nothing of it is anybody else's to read."""
    path, said = tmp_path / "standing.json", list[str]()
    first = StandingFile(path, said.append)
    assert first.standing() == Standing()
    assert not path.exists()
    first.take(STANDING)
    assert await first.write() == ""
    assert path.stat().st_mode & 0o777 == 0o600
    assert StandingFile(path, said.append).standing() == STANDING
    path.unlink()
    assert await first.write() == ""
    assert not path.exists()
    assert said == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"gridsched_standing": 1',
        b'{"words": []}',
        b'{"gridsched_standing": 1, "words": [{"model": "a"}]}',
        b'{"gridsched_standing": 1, "leases": [{"device": "gpu0", "owner": 7}]}',
        b'{"gridsched_standing": 1, "leases": [{"device": "gpu0", "owner": "me", "until": "soon"}]}',
        b'{"gridsched_standing": 1, "leases": [{"device": "gpu0", "owner": "who never gives it back"}]}',
        b'{"gridsched_standing": 1, "leases": [{"device": "gpu0", "owner": "me", "seconds": 9, "until": 1e308}]}',
        b'{"gridsched_standing": 1, "leases": [{"device": "gpu0", "owner": "a\\u0000b", "seconds": 9}]}',
    ],
)
async def test_a_damaged_file_is_said_and_set_aside(tmp_path: Path, data: bytes) -> None:
    """The next one is whole."""
    path, said = tmp_path / "standing.json", list[str]()
    path.write_bytes(data)
    file = StandingFile(path, said.append)
    assert file.standing() == Standing()
    (sentence,) = said
    assert "is damaged" in sentence
    assert (tmp_path / "standing.json.damaged").read_bytes() == data
    file.take(STANDING)
    assert await file.write() == ""
    assert StandingFile(path, said.append).standing() == STANDING


async def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    """And nothing is kept, which whoever asks is told."""
    path, said = tmp_path / "standing.json", list[str]()
    path.write_bytes(msgspec.json.encode({"gridsched_standing": 2, "words": {"a": "unheard of"}}))
    before = path.read_bytes()
    file = StandingFile(path, said.append)
    assert file.standing() == Standing()
    file.take(STANDING)
    assert "newer version" in await file.write()
    assert path.read_bytes() == before
    assert len(said) == 1


async def test_a_disk_that_takes_nothing_is_said(tmp_path: Path) -> None:
    """What was there stays; the next write may succeed. Beside another server nothing is written."""
    folder, said = tmp_path / "data", list[str]()
    file = StandingFile(folder / "standing.json", said.append)
    file.take(STANDING)
    assert "cannot be written" in await file.write()
    assert len(said) == 1
    folder.mkdir()
    assert await file.write() == ""
    visitor = StandingFile(folder / "standing.json", said.append, owned=False)
    assert visitor.standing() == STANDING
    visitor.take(Standing())
    assert "another server's" in await visitor.write()
