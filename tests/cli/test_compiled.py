"""Methods of dataclasses are kept from one run to the next."""

import sys
from dataclasses import make_dataclass
from pathlib import Path

import pytest

from gridsched.cli.compiled import beside_bytecode, kept


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where there is none yet, with an interpreter that writes bytecode."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path / "cache" / "kept.methods"


def makes_points(path: Path | None) -> None:
    """A dataclass that is made within the block behaves as any."""
    with kept(path):
        point = make_dataclass("Point", ("x", "y"), frozen=True, slots=True)
    assert (point(1, 2), hash(point(1, 2))) == (point(1, 2), hash((1, 2)))
    assert repr(point(1, y=2)) == "Point(x=1, y=2)"
    with pytest.raises(AttributeError):
        point(1, 2).x = 3


def test_what_was_compiled_once_is_found_again(file: Path) -> None:
    """The file stays as it is while the texts are the same, and follows them."""
    makes_points(file)
    first = file.stat()
    makes_points(file)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    with kept(file):
        make_dataclass("Other", ("a", "b", "c"))
    assert file.stat().st_ino != first.st_ino
    assert [each.name for each in file.parent.iterdir()] == [file.name], "nothing is left beside it"


@pytest.mark.parametrize("content", [b"", b"nothing of ours", None])
def test_a_damaged_file_is_made_anew(file: Path, content: bytes | None) -> None:
    """Empty, something else, or cut short: it is as if it were not there."""
    makes_points(file)
    whole = file.read_bytes()
    damaged = whole[:-1] if content is None else content
    file.write_bytes(damaged)
    makes_points(file)
    assert file.stat().st_size == len(whole)


def test_nothing_is_written_where_bytecode_is_not(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a word to the interpreter, by an interpreter that has no place for it, or where the folder cannot be made."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    makes_points(file)
    assert not file.parent.exists()
    makes_points(None)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file.parent.write_text("a file where the folder would be", encoding="utf-8")
    makes_points(file)
    assert file.parent.is_file()


def test_it_lies_with_the_bytecode_of_modules() -> None:
    """One for each kind of interpreter."""
    path = beside_bytecode()
    assert path is not None
    assert str(sys.implementation.cache_tag) in path.name
