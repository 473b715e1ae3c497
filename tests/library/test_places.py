"""Where models usually lie: which folders count, and what other programs say of theirs."""

import json
from pathlib import Path

from gridsched.library import places
from gridsched.library.places import usual_folders


def here(data: Path, home: Path, environ: dict[str, str]) -> list[Path]:
    """What is found, but for the store of a service on this very machine."""
    return [folder for folder in usual_folders(data, home, environ) if folder != places.OLLAMA_SERVICE]


def test_the_usual_folders_are_those_that_exist(tmp_path: Path) -> None:
    """Ours, the person's, llama.cpp's, the hub's, LM Studio's, Ollama's; environment variables move the caches."""
    data, home = tmp_path / "data", tmp_path / "home"
    expected = [
        data / "models",
        home / "models",
        home / ".cache" / "llama.cpp",
        home / ".cache" / "huggingface" / "hub",
        home / ".lmstudio" / "models",
        home / ".cache" / "lm-studio" / "models",
        home / ".ollama" / "models",
    ]
    assert here(data, home, {}) == []
    for folder in expected:
        folder.mkdir(parents=True)
    assert here(data, home, {}) == expected
    moved = tmp_path / "moved"
    (moved / "hub").mkdir(parents=True)
    environ = {"HF_HOME": str(moved), "LLAMA_CACHE": str(tmp_path / "absent"), "OLLAMA_MODELS": str(moved)}
    assert here(data, home, environ) == [*expected[:2], moved / "hub", *expected[4:6], moved]
    assert here(data, home, {"HUGGINGFACE_HUB_CACHE": str(moved)})[3] == moved


def test_the_folder_that_lm_studio_was_told_counts(tmp_path: Path) -> None:
    """Its home may be moved, and its downloads; a note that is no note says nothing."""
    home, studio, chosen = tmp_path / "home", tmp_path / "studio", tmp_path / "chosen"
    for folder in (home, studio / "models", chosen):
        folder.mkdir(parents=True)
    (home / ".lmstudio-home-pointer").write_text(f"{studio}\n")
    (studio / "settings.json").write_text(json.dumps({"downloadsFolder": str(chosen)}))
    assert here(tmp_path, home, {}) == [chosen, studio / "models"]
    for bad in (
        "[" * 100_000,
        "{",
        '{"downloadsFolder": 3}',
        '{"downloadsFolder": "relative"}',
        '{"downloadsFolder": "/\\u0000"}',
    ):
        (studio / "settings.json").write_text(bad)
        assert here(tmp_path, home, {}) == [studio / "models"]


def test_a_folder_that_is_reached_in_two_ways_is_one(tmp_path: Path) -> None:
    """Many link one program's folder into another's."""
    (tmp_path / "models").mkdir()
    (tmp_path / ".ollama").mkdir()
    (tmp_path / ".ollama" / "models").symlink_to(tmp_path / "models")
    assert here(tmp_path / "data", tmp_path, {}) == [tmp_path / "models"]
