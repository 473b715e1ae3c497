"""Models over several files are one model, or a sentence that names the part."""

from pathlib import Path

import pytest

from gridsched.library.read import ReadFile, Unreadable
from gridsched.library.shards import first_part, is_later_part, read_model, read_parts, stem_of
from gridsched.vram.geometry import Geometry, GeometryError
from gridsched.vram.header import scan
from tests.library.models import CHAT, TENSORS, write_model, write_split
from tests.support.gguf_header import build_header


def refusal(path: Path) -> str:
    """The sentence about a set that cannot be read."""
    with pytest.raises(Unreadable) as caught:
        read_model(path)
    return str(caught.value)


def test_E14_a_set_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    """Size, tensors and geometry are those of the model in one file to the byte; any part leads to the first (F2)."""
    parts = write_split(tmp_path, "big.v1", 3)
    whole = Geometry.from_header(read_model(write_model(tmp_path / "whole.gguf")).header)
    for part in parts:
        model = read_model(part)
        assert model.path == parts[0]
        assert model.size_bytes == sum(part.stat().st_size for part in parts)
        geometry = Geometry.from_header(model.header, model.shards)
        assert geometry.file_bytes == whole.file_bytes
        assert len(geometry.weights) == len(TENSORS)


def test_F2_a_set_of_one_is_an_ordinary_model(tmp_path: Path) -> None:
    """00001-of-00001 needs no other file, and its header need not speak of a set."""
    path = write_model(tmp_path / "m-00001-of-00001.gguf")
    assert read_model(path).path == path


def test_F2_a_missing_or_damaged_part_is_named(tmp_path: Path) -> None:
    """Never planned without it."""
    parts = write_split(tmp_path, "m", 4)
    parts[2].unlink()
    assert refusal(parts[0]) == "m-00003-of-00004.gguf: the file is not there"
    parts[2].write_bytes(b"x" * 100)
    assert refusal(parts[3]).startswith("m-00003-of-00004.gguf: ")


def test_F2_a_part_of_another_set_is_refused(tmp_path: Path) -> None:
    """The parts say themselves which they are; where two sets are cut alike, by what they hold."""
    parts = write_split(tmp_path, "m", 3)
    other = write_split(tmp_path / "other", "m", 3)
    other[2].rename(parts[1])
    assert refusal(parts[0]) == "m-00002-of-00003.gguf does not say that it is part 2 of 3"
    write_model(parts[1], CHAT)
    assert refusal(parts[0]) == "m-00002-of-00003.gguf does not say that it is part 2 of 3"
    larger = {"split.no": 1, "split.count": 3, "split.tensors.count": 99}
    write_model(parts[1], larger, TENSORS[1::3])
    assert refusal(parts[0]).startswith("m-00002-of-00003.gguf is of another set than m-00001-of-00003.gguf")
    write_model(parts[1], {**larger, "split.tensors.count": len(TENSORS)}, TENSORS[::3])
    assert refusal(parts[0]).endswith("another set than m-00001-of-00003.gguf: both have token_embd.weight")


def test_F2_a_set_that_lacks_tensors_or_parts_is_not_planned(tmp_path: Path) -> None:
    """split.tensors.count is the set's, split.count its files: half of a model is never taken for all of it."""
    parts = write_split(tmp_path, "m", 2)
    own = {"split.no": 1, "split.count": 2, "split.tensors.count": len(TENSORS)}
    write_model(parts[1], own, TENSORS[1:2])
    model = read_model(parts[0])
    with pytest.raises(GeometryError, match=r"split.tensors.count: says 4 tensors, the files have 3"):
        Geometry.from_header(model.header, model.shards)
    alone = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(GeometryError, match="split over 2 files, 1 of them were read"):
        Geometry.from_header(read_model(alone).header)


def test_F5_a_name_that_promises_many_parts_costs_nothing(tmp_path: Path) -> None:
    """One of 99,999: the second is looked for and missed, the rest is not even named."""
    path = write_model(tmp_path / "m-00001-of-99999.gguf")
    assert refusal(path) == "m-00002-of-99999.gguf: the file is not there"


def test_F5_what_answers_to_every_name_is_asked_for_two_parts() -> None:
    """A server may have whatever it is asked for; that the first is no part of 99,999 shows with the second."""
    asked: list[str] = []

    def read(name: str) -> ReadFile:
        asked.append(name)
        return ReadFile(Path(name), 0, 0, "", scan(build_header(CHAT, TENSORS)))

    with pytest.raises(Unreadable, match=r"m-00001-of-99999\.gguf does not say that it is part 1 of 99999"):
        read_parts("m-00001-of-99999.gguf", read)
    assert asked == ["m-00001-of-99999.gguf", "m-00002-of-99999.gguf"]


def test_the_fingerprint_changes_with_any_part(tmp_path: Path) -> None:
    """A replaced part makes every measurement void (L2)."""
    parts = write_split(tmp_path, "m", 2)
    before = read_model(parts[0]).fingerprint
    own = {"split.no": 1, "split.count": 2, "split.tensors.count": len(TENSORS)}
    write_model(parts[1], own, TENSORS[1::2], age_seconds=5)
    assert read_model(parts[0]).fingerprint != before


@pytest.mark.parametrize(
    ("name", "stem", "later"),
    [
        ("qwen2.5-7b-v1.0.gguf", "qwen2.5-7b-v1.0", False),
        ("Model.GGUF", "Model", False),
        ("m-00002-of-00003.gguf", "m", True),
        ("m-00001-of-00003.gguf", "m", False),
        ("m-2-of-3.gguf", "m-2-of-3", False),
        ("blob", "blob", False),
    ],
)
def test_stems_keep_their_dots_and_lose_their_part(name: str, stem: str, later: bool) -> None:
    """What a model is called is its file name less what belongs to the format (F10)."""
    assert stem_of(Path(name)) == stem
    assert is_later_part(Path(name)) is later


def test_a_part_beyond_the_set_is_a_file_of_its_own() -> None:
    """00007-of-00003 promises nothing that could be looked for."""
    assert first_part(Path("m-00007-of-00003.gguf")) == Path("m-00007-of-00003.gguf")


@pytest.mark.parametrize("name", ["/", "."])
def test_F11_a_path_without_a_name_is_a_folder(name: str) -> None:
    """The root and the current folder have none, and are told of as any other folder is."""
    assert first_part(Path(name)) == Path(name)
    with pytest.raises(Unreadable, match="it is a folder, not a file"):
        read_model(Path(name))
