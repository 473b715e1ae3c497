"""Folders of models: what is found, what it is called, what is told apart."""

import os
from pathlib import Path

import pytest

from gridsched.library import scan
from gridsched.library.scan import Index, Indexed, scan_folders
from tests.library.models import CHAT, PROJECTOR, PROJECTOR_TENSORS, TENSORS, write_model, write_split


def by_stem(index: Index) -> dict[str, Indexed]:
    """What was found, by stem."""
    return {found.stem: found for found in index.models}


def test_every_quantisation_is_a_model_of_its_own(tmp_path: Path) -> None:
    """Files beside each other are not summed (E27), and their order is the same every time (H12)."""
    for name in ("b-Q8.gguf", "a-Q4.gguf", "c-F16.GGUF", "notes.txt", "d.gguf.part"):
        write_model(tmp_path / name)
    index = scan_folders([tmp_path])
    assert [found.stem for found in index.models] == ["a-Q4", "b-Q8", "c-F16"]
    assert {found.file.size_bytes for found in index.models if found.file} == {(tmp_path / "a-Q4.gguf").stat().st_size}


def test_F11_faulty_files_have_their_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    """A pipe, an empty file, a link to nothing, rubbish: each is listed with a sentence (F11)."""
    write_model(tmp_path / "good.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    (tmp_path / "rubbish.gguf").write_bytes(b"rubbish " * 10)
    found = by_stem(scan_folders([tmp_path]))
    assert found["good"].problem is None
    assert found["pipe"].problem == "it is a pipe, not a file"
    assert found["empty"].problem == "the file is empty"
    assert found["gone"].problem == "it is a link to a file that is not there"
    assert "not a GGUF file" in (found["rubbish"].problem or "")


def test_F2_a_split_set_is_one_model_and_a_broken_one_names_the_part(tmp_path: Path) -> None:
    """Also where only a later part is there (F2)."""
    write_split(tmp_path, "whole", 3)
    write_split(tmp_path, "holed", 3)[1].unlink()
    write_split(tmp_path, "headless", 2)[0].unlink()
    found = by_stem(scan_folders([tmp_path]))
    assert set(found) == {"whole", "holed", "headless"}
    assert found["whole"].problem is None
    assert found["holed"].problem == "holed-00002-of-00003.gguf: the file is not there"
    assert found["headless"].problem == "headless-00001-of-00002.gguf: the file is not there"


def test_F7_a_projector_is_no_model(tmp_path: Path) -> None:
    """Whatever it is called, its header tells (F7)."""
    write_model(tmp_path / "chat.gguf")
    write_model(tmp_path / "eyes.gguf", PROJECTOR, PROJECTOR_TENSORS)
    assert set(by_stem(scan_folders([tmp_path]))) == {"chat"}


def test_files_without_a_models_weights_are_no_models(tmp_path: Path) -> None:
    """An adapter, an importance matrix, a bare vocabulary: no engine would serve them. A first part may be bare."""
    write_model(tmp_path / "lora.gguf", {**CHAT, "general.type": "adapter"})
    write_model(tmp_path / "imatrix.gguf", {**CHAT, "general.type": "imatrix"})
    write_model(tmp_path / "vocabulary.gguf", CHAT, ())
    split = {"split.count": 2, "split.no": 0, "split.tensors.count": len(TENSORS)}
    write_model(tmp_path / "whole-00001-of-00002.gguf", {**CHAT, **split}, ())
    write_model(tmp_path / "whole-00002-of-00002.gguf", {**CHAT, **split, "split.no": 1})
    assert set(by_stem(scan_folders([tmp_path]))) == {"whole"}


def test_F11_links_that_lead_back_to_themselves_harm_nobody(tmp_path: Path) -> None:
    """One is listed with its reason, the rest is served (F11)."""
    write_model(tmp_path / "m.gguf")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    found = by_stem(scan_folders([tmp_path]))
    assert found["m"].problem is None
    assert found["loop"].problem == "it is a link that leads back to itself"


def test_F10_a_files_name_is_kept_but_for_what_no_list_or_header_can_hold(tmp_path: Path) -> None:
    """Quotes, spaces, dots and other scripts stay; a line's end, an escape, a byte that is no UTF-8 do not."""
    names = {
        "my модель 'q4' é🦙.v1.0.gguf": "my модель 'q4' é🦙.v1.0",
        "ne\r\nX-Evil: 1.gguf": "ne__X-Evil: 1",
        "esc\x1b[31m\x7f\u2028.gguf": "esc_[31m__",
        "bad\udcff.gguf": "bad_",
        " \t.gguf": "_",
    }
    for name in names:
        write_model(tmp_path / "p\n" / "r" / name)
    found = scan_folders([tmp_path]).models
    assert {one.path.name: one.stem for one in found} == names
    assert {one.publisher for one in found} == {"p_"}


def test_publisher_and_repository_come_from_the_folders(tmp_path: Path) -> None:
    """PUBLISHER/REPO/FILE as LM Studio lays it out, the hub's cache with its snapshots, and a flat folder."""
    write_model(tmp_path / "lm" / "bartowski" / "Qwen3-8B-GGUF" / "Qwen3-8B-Q4_K_M.gguf")
    blob = write_model(tmp_path / "hub" / "models--unsloth--gemma-3" / "blobs" / "abc")
    snapshot = tmp_path / "hub" / "models--unsloth--gemma-3" / "snapshots" / "f00" / "gemma.gguf"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(blob)
    write_model(tmp_path / "flat" / "plain.gguf")
    found = by_stem(scan_folders([tmp_path / "lm", tmp_path / "hub", tmp_path / "flat"]))
    origins = {stem: (one.publisher, one.repo) for stem, one in found.items()}
    assert origins == {
        "Qwen3-8B-Q4_K_M": ("bartowski", "Qwen3-8B-GGUF"),
        "gemma": ("unsloth", "gemma-3"),
        "plain": ("", ""),
    }
    assert found["gemma"].path == snapshot


def test_one_file_by_two_links_is_one_model(tmp_path: Path) -> None:
    """Two revisions of a cache that share a blob, or two overlapping folders."""
    path = write_model(tmp_path / "deep" / "m.gguf")
    (tmp_path / "n.gguf").symlink_to(path)
    index = scan_folders([tmp_path, tmp_path / "deep"])
    assert len(index.models) == 1
    assert index.notes == ()


def test_of_two_files_with_one_name_the_newer_serves_and_it_is_said(tmp_path: Path) -> None:
    """Which file answers to a name is never left to chance."""
    old = write_model(tmp_path / "a" / "m.gguf", age_seconds=100)
    new = write_model(tmp_path / "b" / "m.gguf")
    index = scan_folders([tmp_path / "a", tmp_path / "b"])
    assert [found.path for found in index.models] == [new]
    assert index.notes == (f"{old} is not served: {new} has the same name and is newer.",)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    """A misspelt `dirs` is no silence."""
    index = scan_folders([tmp_path / "nowhere"])
    assert index.models == ()
    assert index.notes == (f"{tmp_path / 'nowhere'} cannot be looked into: No such file or directory.",)


def test_the_walk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Circles end, what is hidden is passed over, depth and counts have limits that are said."""
    (tmp_path / "loop").symlink_to(tmp_path)
    write_model(tmp_path / ".hidden" / "h.gguf")
    write_model(tmp_path / "._deep.gguf")  # what another system leaves beside each file that it copies
    write_model(tmp_path / ".gguf")
    write_model(tmp_path.joinpath(*"abcdef") / "deep.gguf")
    write_model(tmp_path.joinpath(*"abcdefg") / "too-deep.gguf")
    assert [found.stem for found in scan_folders([tmp_path]).models] == ["deep"]
    monkeypatch.setattr(scan, "MAX_FOLDERS", 3)
    assert "holds more than 3 folders" in scan_folders([tmp_path]).notes[0]
    monkeypatch.setattr(scan, "MAX_FILES", 1)
    write_model(tmp_path / "x.gguf")
    write_model(tmp_path / "y.gguf")
    index = scan_folders([tmp_path])
    assert [found.stem for found in index.models] == ["x"]
    assert "holds more than 1 GGUF files" in index.notes[0]


def test_a_file_of_llama_cpps_cache_is_called_by_its_repository(tmp_path: Path) -> None:
    """All repositories lie in one folder; the manifests tell them apart, also where one begins like another."""
    for manifest in ("a=m=latest", "a=m_x-GGUF=Q4", "broken"):
        (tmp_path / f"manifest={manifest}.json").touch()
    for name in ("a_m_one.gguf", "a_m_x-GGUF_one-Q4.gguf", "b_m_one.gguf"):
        write_model(tmp_path / name)
    write_split(tmp_path, "a_m_big", 2)
    found = {(each.publisher, each.repo, each.stem) for each in scan_folders([tmp_path]).models}
    assert found == {("a", "m", "one"), ("a", "m_x-GGUF", "one-Q4"), ("", "", "b_m_one"), ("a", "m", "big")}
