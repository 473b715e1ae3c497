"""Headers of models, kept from one run to the next."""

import os
from pathlib import Path

import pytest

from gridsched.library import kept
from gridsched.library.kept import HeaderFile
from gridsched.library.read import Headers, ReadFile, read_file
from gridsched.vram.header import SkippedArray
from tests.support.gguf_header import Value, build_header

LONG_AGO_NS = 1_700_000_000_000_000_000
WORDS = [f"word{number}" for number in range(600)]


def write(path: Path, name: str = "a") -> Path:
    """A file with a header that has every kind of value."""
    told: dict[str, Value] = {"general.architecture": "llama", "general.name": name, "whole": 7, "part": 0.5}
    told |= {"yes": True, "few": [1, 2, 3], "words": WORDS}
    path.write_bytes(build_header(told, [("t", (32, 2), "Q8_0")]) + bytes(128))
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return path


@pytest.fixture
def disk(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> HeaderFile:
    """A file that does not exist yet, of a data directory that is ours; every model file has stood still."""
    monkeypatch.setattr("gridsched.library.read.SURE_NS", -1)
    return HeaderFile(tmp_path / kept.FILE, said.append, owned=True)


@pytest.fixture
def said() -> list[str]:
    """What a person is told."""
    return []


def read(disk: HeaderFile, *paths: Path) -> tuple[Headers, list[ReadFile]]:
    """One run: what is kept, and the files as they are read."""
    headers = Headers(disk)
    with headers.remembering():
        return headers, [read_file(path) for path in paths]


def test_a_header_is_the_same_from_the_disk(tmp_path: Path, disk: HeaderFile) -> None:
    """Every kind of value comes back as it was, lists that were hopped over too."""
    model = write(tmp_path / "a.gguf")
    _, [first] = read(disk, model)
    [(_, known)] = disk.load().values()
    assert known == first
    assert known.header.metadata["words"] == SkippedArray("string", len(WORDS))
    assert known.header.metadata["few"] == (1, 2, 3)


def test_a_file_that_is_the_same_is_not_read_again(tmp_path: Path, disk: HeaderFile) -> None:
    """In the next run its header comes from the disk; one whose name is no text, too."""
    model = write(tmp_path / os.fsdecode(b"\xff.gguf"))
    read(disk, model)
    [(_, known)] = disk.load().values()
    headers = Headers(disk)
    assert headers.find(model, any_byte_order=False) == known


def test_a_file_that_has_changed_is_read_again(tmp_path: Path, disk: HeaderFile) -> None:
    """Whichever of size, number and times it was."""
    model = write(tmp_path / "a.gguf")
    read(disk, model)
    model.unlink()
    write(model, "b")
    _, [second] = read(disk, model)
    assert second.header.metadata["general.name"] == "b"
    [(_, known)] = disk.load().values()
    assert known == second, "and what is kept is the new one"


def test_what_nobody_asks_for_any_more_is_not_kept(tmp_path: Path, disk: HeaderFile) -> None:
    """A model that has gone leaves nothing behind."""
    first, second = write(tmp_path / "a.gguf"), write(tmp_path / "b.gguf")
    read(disk, first, second)
    read(disk, second)
    assert list(disk.load()) == [second]


@pytest.mark.parametrize("harm", ["cut", "flipped", "longer"])
def test_a_damaged_file_is_dropped_and_said(tmp_path: Path, disk: HeaderFile, said: list[str], harm: str) -> None:
    """The models are read again, and the next run finds a whole file."""
    model, file = write(tmp_path / "a.gguf"), tmp_path / kept.FILE
    read(disk, model)
    data = file.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    file.write_bytes({"cut": data[:middle], "flipped": flipped, "longer": data + b"x"}[harm])
    _, [again] = read(disk, model)
    assert again.header.metadata["general.name"] == "a"
    assert len(said) == 1
    assert "damaged" in said[0]
    assert list(disk.load()) == [model]
    assert len(said) == 1


def test_what_another_reader_has_read_is_read_again(tmp_path: Path, disk: HeaderFile, said: list[str]) -> None:
    """After an update, without a word: it may read more of a header than was kept."""
    read(disk, write(tmp_path / "a.gguf"))
    file = tmp_path / kept.FILE
    file.write_bytes(b"another reader's" + file.read_bytes()[16:])
    assert disk.load() == {}
    assert said == []


def test_who_only_visits_writes_nothing(tmp_path: Path, disk: HeaderFile, said: list[str]) -> None:
    """Beside a server there is one who writes: the server."""
    model, file = write(tmp_path / "a.gguf"), tmp_path / kept.FILE
    read(HeaderFile(file, said.append, owned=False), model)
    assert not file.exists()
    read(disk, model)
    before = file.stat().st_mtime_ns
    read(HeaderFile(file, said.append, owned=False), model, write(tmp_path / "b.gguf"))
    assert file.stat().st_mtime_ns == before


def test_a_file_that_cannot_be_written_or_read_keeps_nobody_from_reading_models(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder lies in its place: that is said, and the models are there."""
    monkeypatch.setattr("gridsched.library.read.SURE_NS", -1)
    folder = tmp_path / kept.FILE
    folder.mkdir()
    _, [found] = read(HeaderFile(folder, said.append, owned=True), write(tmp_path / "a.gguf"))
    assert found.header.metadata["general.name"] == "a"
    assert [sentence.partition(": ")[0].split()[-3:] for sentence in said] == [
        ["cannot", "be", "read"],
        ["cannot", "be", "written"],
    ]


@pytest.mark.parametrize("somebody_writes", [False, True])
def test_a_pipe_in_the_files_place_holds_no_start_up(
    tmp_path: Path, disk: HeaderFile, *, somebody_writes: bool
) -> None:
    """With or without anybody at its other end."""
    pipe = tmp_path / kept.FILE
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR) if somebody_writes else None
    assert disk.load() == {}
    if writer is not None:
        os.close(writer)
