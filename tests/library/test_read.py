"""One file, whatever lies at the path: its header, or a sentence."""

import errno
import os
import socket
from pathlib import Path

import pytest

from gridsched.library import read
from gridsched.library.read import Unreadable, read_file, read_header, real_path
from gridsched.library.shards import read_model
from gridsched.vram.geometry import Geometry
from tests.library.models import CHAT, TENSORS, write_model
from tests.support.gguf_header import build_header, data_end


def refusal(path: Path) -> str:
    """The sentence about a file that cannot be read."""
    with pytest.raises(Unreadable) as caught:
        read_file(path)
    return str(caught.value)


def test_a_header_comes_with_the_files_size_and_time(tmp_path: Path) -> None:
    """Through links too; the path stays the one that was asked for."""
    target = write_model(tmp_path / "model.gguf")
    link = tmp_path / "link.gguf"
    link.symlink_to(target)
    file = read_file(link)
    assert file.path == link
    assert file.size_bytes == target.stat().st_size
    assert file.modified_ns == 1_767_225_600 * 10**9
    assert file.header.metadata["general.architecture"] == "llama"
    assert len(file.header.tensors) == len(TENSORS)


def test_a_header_longer_than_a_window_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it goes, and no further than the file."""
    long = {**CHAT, "tokenizer.ggml.merges": ["m" * 1000] * 9_000}
    path = write_model(tmp_path / "long.gguf", long)
    whole = read_file(path).header
    assert len(build_header(long, TENSORS)) > 8 << 20
    assert len(whole.tensors) == len(TENSORS)
    monkeypatch.setattr(read, "WINDOW_BYTES", 999)
    assert read_file(path).header == whole


def test_F9_names_of_any_kind_are_read(tmp_path: Path) -> None:
    """Spaces, quotes, other alphabets, both forms of an accent (F9)."""
    for name in ("my model 'q4' 🦙.gguf", 'мо"дель.gguf', "caf\u00e9.gguf", "cafe\u0301.gguf"):
        assert read_file(write_model(tmp_path / name)).path.name == name


def test_the_fingerprint_follows_content_size_and_time(tmp_path: Path) -> None:
    """Another time, another beginning or another size is another file; the same file again is the same."""
    path = write_model(tmp_path / "a.gguf")
    first = read_file(path).fingerprint
    assert read_file(path).fingerprint == first
    assert read_file(write_model(tmp_path / "copy.gguf")).fingerprint == first
    write_model(path, age_seconds=1)
    assert read_file(path).fingerprint != first
    write_model(path, {**CHAT, "general.name": "another"})
    assert read_file(path).fingerprint != first
    write_model(path)
    os.truncate(path, path.stat().st_size + 1)
    os.utime(path, (1_767_225_600, 1_767_225_600))
    assert read_file(path).fingerprint != first


def test_F11_what_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    """No file, a link to nothing, a file used as a folder: each tells which (F11)."""
    dangling = tmp_path / "dangling.gguf"
    dangling.symlink_to(tmp_path / "nothing")
    assert refusal(tmp_path / "none.gguf") == "the file is not there"
    assert refusal(dangling) == "it is a link to a file that is not there"
    assert refusal(write_model(tmp_path / "m.gguf") / "below.gguf") == "the file is not there"
    with pytest.raises(Unreadable) as caught:
        read_file(dangling)
    assert caught.value.missing


def test_F11_what_is_no_file_is_said_and_never_waited_for(tmp_path: Path) -> None:
    """A folder, a pipe that nobody writes to, a socket, a device, a link in a circle, an empty file (F11)."""
    pipe, circle, empty, name = (tmp_path / word for word in ("pipe", "circle", "empty", "socket"))
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    empty.touch()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(name))
        assert refusal(name) == "it is a socket, not a file"
    assert refusal(tmp_path) == "it is a folder, not a file"
    assert refusal(pipe) == "it is a pipe, not a file"
    assert refusal(Path("/dev/null")) == "it is a device, not a file"
    assert refusal(circle) == "it is a link that leads back to itself"
    assert refusal(empty) == "the file is empty"


def test_F11_a_file_that_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permission is a reason like any other. The system's refusal is played: the superuser may read every file."""
    path = write_model(tmp_path / "secret.gguf")

    def refuse(name: Path, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(name), flags)

    monkeypatch.setattr(os, "open", refuse)
    assert refusal(path) == "this user may not read the file"


def test_F15_a_file_that_shrinks_while_it_is_read_is_said(tmp_path: Path) -> None:
    """Its size was asked for, and then somebody cut it: in the header, at its first byte."""
    path = write_model(tmp_path / "m.gguf")
    size = path.stat().st_size
    with path.open("r+b") as file:
        for left in (1000, 24, 3, 0):
            file.truncate(left)
            with pytest.raises(Unreadable, match="became shorter while it was read"):
                read_header(file.fileno(), size)


def test_F1_a_big_endian_file_is_read_for_who_asks_and_loaded_by_nobody(tmp_path: Path) -> None:
    """Engines of this host cannot load it; what it is can still be told."""
    path = tmp_path / "big.gguf"
    header = build_header(CHAT, TENSORS, order=">")
    with path.open("wb") as file:
        file.write(header)
        file.truncate(data_end(header, TENSORS))
    assert refusal(path) == "big-endian GGUF is not supported by this host"
    assert (
        read_file(path, any_byte_order=True).header.metadata == read_file(write_model(tmp_path / "m")).header.metadata
    )
    geometry = Geometry.from_header(read_model(path, any_byte_order=True).header)
    assert any("big-endian" in note for note in geometry.notes)


def test_a_damaged_file_says_where(tmp_path: Path) -> None:
    """What the header's reader found, with its byte; a cut file is told from a foreign one."""
    foreign, cut, short = (tmp_path / word for word in ("foreign", "cut", "short"))
    foreign.write_bytes(b"PK\3\4" * 100)
    cut.write_bytes(write_model(tmp_path / "m.gguf").read_bytes()[:3000])
    short.write_bytes(write_model(tmp_path / "m.gguf").read_bytes()[:-1000])
    assert "not a GGUF file" in refusal(foreign)
    assert "byte" in refusal(cut)
    assert "end of the file" in refusal(short)


def test_a_link_that_goes_while_it_is_followed_is_its_own_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of processes do, below `/proc`, when a folder of the library is the whole disk."""
    link = tmp_path / "link"
    link.symlink_to("there")

    def gone(path: object, **_: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "readlink", gone)
    assert real_path(link / ".." / "m") == tmp_path / "m"
