"""Models that are split over several files, read as one (F2).

Owns the naming of split sets (`NAME-00001-of-00003.gguf`) and the checks that the parts belong together. A model in one
file is a set of one. Opens nothing itself: `read` does.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gridsched.library.read import ReadFile, Unreadable, read_file
from gridsched.vram.header import Header

SUFFIX = ".gguf"
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A whole model on disk. `path` is what the engine is given: its only file, or the first of its set.

    `header` is the first file's, `shards` are the others'. `created` is in seconds since the epoch.
    """

    path: Path
    size_bytes: int
    created: int
    fingerprint: str
    header: Header
    shards: tuple[Header, ...] = ()


def stem_of(path: Path) -> str:
    """The model's file name without the suffix and without the number of its part; dots inside it stay (F10)."""
    if split := _SPLIT.fullmatch(path.name):
        return split["stem"]
    return path.name[: -len(SUFFIX)] if path.name.lower().endswith(SUFFIX) else path.name


def is_later_part(path: Path) -> bool:
    """Whether this is a split set's second file, or a later one."""
    split = _SPLIT.fullmatch(path.name)
    return split is not None and int(split["number"]) != 1


def first_part(path: Path) -> Path:
    """The first file of the set that `path` belongs to."""
    return _parts(path)[0]


def read_model(path: Path) -> ModelFile:
    """Read a model by any of its files. Raises Unreadable, which names the part that is missing or does not belong."""
    parts = _parts(path)
    files = []
    for part in parts:
        try:
            files.append(read_file(part))
        except Unreadable as error:
            if len(parts) == 1:
                raise
            raise Unreadable(f"{part.name}: {error}", missing=error.missing) from error
    _check_belong_together(files)
    fingerprint = files[0].fingerprint
    if len(files) > 1:
        fingerprint = hashlib.blake2b("".join(f.fingerprint for f in files).encode(), digest_size=16).hexdigest()
    return ModelFile(
        path=files[0].path,
        size_bytes=sum(file.size_bytes for file in files),
        created=max(file.modified_ns for file in files) // 1_000_000_000,
        fingerprint=fingerprint,
        header=files[0].header,
        shards=tuple(file.header for file in files[1:]),
    )


def _parts(path: Path) -> tuple[Path, ...]:
    split = _SPLIT.fullmatch(path.name)
    if split is None or not 1 <= int(split["number"]) <= int(split["count"]):
        return (path,)
    numbers = range(1, int(split["count"]) + 1)
    return tuple(
        path.with_name(f"{split['stem']}-{number:05}-of-{split['count']}{split['suffix']}") for number in numbers
    )


def _check_belong_together(files: Sequence[ReadFile]) -> None:
    """Every part of a set says how many there are and which one it is, counted from 0."""
    for number, file in enumerate(files):
        metadata = file.header.metadata
        if len(files) > 1 and (metadata.get("split.count") != len(files) or metadata.get("split.no") != number):
            raise Unreadable(f"{file.path.name} does not say that it is part {number + 1} of {len(files)}")
