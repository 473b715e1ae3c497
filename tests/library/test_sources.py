"""What is served: the configured names first, then what the folders hold, each with its file or a sentence."""

from pathlib import Path

import pytest

from gridsched.library.projectors import projector_capabilities
from gridsched.library.sources import Source, read_library
from gridsched.ports import Capability, ModelEntry
from tests.library.models import ADAPTER, CHAT, PROJECTOR, PROJECTOR_TENSORS, WIDTH, write_model, write_split
from tests.support.gguf_header import Value


def one(entry: ModelEntry) -> Source:
    """The source of a single configured model."""
    (source,) = read_library([entry], []).sources
    return source


def test_configured_models_come_first_and_their_files_only_once(tmp_path: Path) -> None:
    """Two names over one file are two models (P1); the index adds what nobody configured."""
    path = write_model(tmp_path / "a" / "b" / "m.gguf")
    write_model(tmp_path / "other.gguf")
    link = tmp_path / "elsewhere"
    link.symlink_to(path)
    library = read_library([ModelEntry("one", path), ModelEntry("two", link)], [tmp_path])
    assert [source.entry.name for source in library.sources] == ["one", "two", "other"]
    assert "a/b/m" in library.sources[0].words
    assert library.notes == ()


def test_an_indexed_model_is_called_by_its_whole_origin(tmp_path: Path) -> None:
    """Publisher and repository are part of the name where the folders tell them."""
    write_model(tmp_path / "pub" / "repo" / "m.v2.gguf")
    (source,) = read_library([], [tmp_path]).sources
    assert source.entry.name == "pub/repo/m.v2"
    assert set(source.words) == {"m.v2", "m.v2.gguf", "pub/m.v2", "pub/repo", "pub/repo/m.v2", "pub/repo/m.v2.gguf"}


def test_a_configured_name_keeps_an_indexed_one_out(tmp_path: Path) -> None:
    """One name, one file; the other is said."""
    wanted = write_model(tmp_path / "x" / "wanted.gguf")
    other = write_model(tmp_path / "y" / "m.gguf")
    library = read_library([ModelEntry("m", wanted)], [tmp_path / "y"])
    assert [source.entry.path for source in library.sources] == [wanted]
    assert library.notes == (f"{other} is not served: m is configured as something else.",)


def test_F2_a_set_may_be_named_by_any_of_its_files(tmp_path: Path) -> None:
    """The second part leads to the first, and the index does not list the set again (F2)."""
    parts = write_split(tmp_path, "m", 3)
    library = read_library([ModelEntry("big", parts[1])], [tmp_path])
    (source,) = library.sources
    assert source.file is not None
    assert source.file.path == parts[0]
    assert {"m", "m-00001-of-00003.gguf"} <= set(source.words)


def test_F11_a_file_that_is_gone_keeps_its_name_and_has_its_reason(tmp_path: Path) -> None:
    """Listed with a sentence that names the file (F11)."""
    path = tmp_path / "gone.gguf"
    assert one(ModelEntry("gone", path)).problem == f"{path}: the file is not there"
    assert one(ModelEntry("folder", tmp_path)).problem == f"{tmp_path}: it is a folder, not a file"


def test_a_projector_goes_with_the_model_it_fits(tmp_path: Path) -> None:
    """The one beside the model whose output is as wide as the model's input; F16 before others; damaged ones aside."""
    model = write_model(tmp_path / "one" / "chat.gguf")
    write_model(tmp_path / "one" / "mmproj-BF16.gguf", PROJECTOR, PROJECTOR_TENSORS)
    wanted = write_model(tmp_path / "one" / "mmproj-F16.gguf", PROJECTOR, PROJECTOR_TENSORS)
    (tmp_path / "one" / "mmproj-a.gguf").write_bytes(b"x" * 50)
    wider = {**PROJECTOR, "clip.vision.projection_dim": 2 * WIDTH}
    other = write_model(tmp_path / "two" / "chat2.gguf")
    named = write_model(tmp_path / "two" / "mmproj.gguf", wider, PROJECTOR_TENSORS)
    assert one(ModelEntry("a", model)).projector is not None
    assert one(ModelEntry("b", other)).projector is None
    chosen = one(ModelEntry("c", other, mmproj=named)).projector
    assert chosen is not None
    assert chosen.path == named
    indexed = {source.entry.name: source for source in read_library([], [tmp_path / "one"]).sources}
    assert set(indexed) == {"chat", "mmproj-a"}
    assert indexed["mmproj-a"].problem is not None
    assert indexed["chat"].projector is not None
    assert indexed["chat"].projector.path == wanted


def test_F7_a_projector_is_refused_as_a_model_and_a_model_as_a_projector(tmp_path: Path) -> None:
    """Both ways, naming the file (F7)."""
    model = write_model(tmp_path / "m.gguf")
    projector = write_model(tmp_path / "p.gguf", PROJECTOR, PROJECTOR_TENSORS)
    assert (one(ModelEntry("p", projector)).problem or "").startswith(f"{projector}: it is a projector")
    assert one(ModelEntry("m", model, mmproj=model)).problem == f"mmproj {model}: it is a model, not a projector"


def test_E17_files_that_flags_name_are_read(tmp_path: Path) -> None:
    """A draft model, adapters and a projector go with the model; the flag's projector before the setting's."""
    model, small = write_model(tmp_path / "m.gguf"), write_model(tmp_path / "s.gguf")
    lora = write_model(tmp_path / "l.gguf", {"general.architecture": "llama", "general.type": "adapter"}, ADAPTER)
    projector = write_model(tmp_path / "p.gguf", PROJECTOR, PROJECTOR_TENSORS)
    flags = ("-md", str(small), f"--lora={lora}", "--mmproj", str(projector))
    source = one(ModelEntry("m", model, flags=flags, mmproj=tmp_path / "none.gguf"))
    assert source.problem is None
    assert source.draft is not None
    assert source.projector is not None
    assert (source.draft.path, source.projector.path) == (small, projector)
    assert [adapter.path for adapter in source.adapters] == [lora]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("-md {folder}/gone.gguf", "flags: --model-draft {folder}/gone.gguf: the file is not there"),
        ("-md {folder}/p.gguf", "flags: --model-draft {folder}/p.gguf: it is a projector"),
        ("--lora {folder}/m.gguf", "flags: --lora {folder}/m.gguf: it is no adapter (LoRA)"),
        ("-mm {folder}/m.gguf", "mmproj {folder}/m.gguf: it is a model, not a projector"),
    ],
)
def test_E17_a_file_that_flags_name_and_that_is_not_there_or_another_kind_is_a_fault(
    tmp_path: Path, flags: str, problem: str
) -> None:
    """The engine would end over it at every start."""
    model = write_model(tmp_path / "m.gguf")
    write_model(tmp_path / "p.gguf", PROJECTOR, PROJECTOR_TENSORS)
    source = one(ModelEntry("m", model, flags=tuple(flags.format(folder=tmp_path).split())))
    assert (source.problem or "").startswith(problem.format(folder=tmp_path))


def test_an_adapter_and_a_vocabulary_are_refused_as_models(tmp_path: Path) -> None:
    """Before an engine is started for nothing."""
    adapter = write_model(tmp_path / "lora.gguf", {**CHAT, "general.type": "adapter"})
    vector = write_model(tmp_path / "vector.gguf", {"general.architecture": "controlvector"})
    bare = write_model(tmp_path / "vocabulary.gguf", CHAT, ())
    assert (
        one(ModelEntry("a", adapter)).problem
        == f"{adapter}: it is an adapter (LoRA), which goes with a model, not a model"
    )
    assert (one(ModelEntry("c", vector)).problem or "").startswith(f"{vector}: it is a control vector")
    assert one(ModelEntry("v", bare)).problem == f"{bare}: it has no weights (a vocabulary only)"


def test_F11_a_configured_link_that_leads_back_to_itself_has_its_reason(tmp_path: Path) -> None:
    """A sentence, and no crash (F11)."""
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    assert one(ModelEntry("l", tmp_path / "loop.gguf")).problem == (
        f"{tmp_path / 'loop.gguf'}: it is a link that leads back to itself"
    )


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {Capability.VISION}),
        ({"clip.has_audio_encoder": True}, {Capability.VISION, Capability.AUDIO}),
        ({"clip.has_vision_encoder": False, "clip.has_audio_encoder": True}, {Capability.AUDIO}),
    ],
)
def test_a_projector_says_what_it_brings(tmp_path: Path, keys: dict[str, bool], expected: set[Capability]) -> None:
    """Pictures, sound, or both; old files, which do not say, are for pictures."""
    metadata: dict[str, Value] = {"general.architecture": "clip", "clip.vision.projection_dim": WIDTH, **keys}
    write_model(tmp_path / "mmproj.gguf", metadata, PROJECTOR_TENSORS)
    source = one(ModelEntry("m", write_model(tmp_path / "m.gguf")))
    assert source.projector is not None
    assert projector_capabilities(source.projector.header) == expected


def test_F7_in_a_cache_of_many_repositories_a_projector_is_its_own_repositorys(tmp_path: Path) -> None:
    """llama.cpp keeps all files in one folder; the width alone would pair strangers (F7)."""
    for manifest in ("a=sees=latest", "a=reads=latest"):
        (tmp_path / f"manifest={manifest}.json").touch()
    write_model(tmp_path / "a_sees_m.gguf")
    write_model(tmp_path / "a_reads_m.gguf")
    write_model(tmp_path / "a_sees_mmproj-F16.gguf", PROJECTOR, PROJECTOR_TENSORS)
    found = {source.entry.name: source.projector for source in read_library([], [tmp_path]).sources}
    assert found["a/reads/m"] is None
    assert found["a/sees/m"] is not None
