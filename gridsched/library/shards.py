"""Models that are split over several files, read as one (F2).

Owns the naming of split sets (`NAME-00001-of-00003.gguf`) and the checks that the parts belong together. A model in one
file is a set of one. Opens nothing itself: `read` does.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from gridsched.library.read import ReadFile, Stamp, Unreadable, read_file
from gridsched.vram.header import Header

SUFFIX = ".gguf"
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A whole model on disk. `path` is what the engine is given: its only file, or the first of its set.

    `header` is the first file's, `shards` are the others'. `created` is in seconds since the epoch. `stamps` are of
    all its files.
    """

    path: Path
    size_bytes: int
    created: int
    fingerprint: str
    header: Header
    shards: tuple[Header, ...] = ()
    stamps: tuple[Stamp, ...] = ()


def stem_of(path: PurePath) -> str:
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
    return path.parent / next(part_names(path.name))  # not `with_name`: `/` and `.` have none


def part_names(name: str) -> Iterator[str]:
    """The names of all files of the set that this one belongs to, in order; the name alone where it is of no set."""
    split = _SPLIT.fullmatch(name)
    if split is None or not 1 <= int(split["number"]) <= int(split["count"]):
        yield name
        return
    for number in range(1, int(split["count"]) + 1):
        yield f"{split['stem']}-{number:05}-of-{split['count']}{split['suffix']}"


def read_model(path: Path, *, any_byte_order: bool = False) -> ModelFile:
    """Read a model by any of its files. Raises Unreadable, which names the part that is missing or does not belong.

    `any_byte_order` is for who only wants to know about the model, as in `read_file`.
    """
    return read_parts(path.name, lambda name: read_file(path.parent / name, any_byte_order=any_byte_order))


def read_parts(name: str, read: Callable[[str], ReadFile]) -> ModelFile:
    """The model that the file `name` belongs to, each of whose files `read` reads by its name. Raises Unreadable."""
    files: list[ReadFile] = []
    owner: dict[str, str] = {}
    names = tuple(part_names(name))
    for number, part in enumerate(names):
        try:
            files.append(read(part))
        except Unreadable as error:
            if part == name:
                raise  # whoever asks knows which file was asked for
            raise Unreadable(f"{part}: {error}", missing=error.missing) from error
        if number == 1:
            _check_belongs(files, 0, len(names), owner)
        if number > 0:  # as soon as it is read: what answers to every name would be read without an end
            _check_belongs(files, number, len(names), owner)
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
        stamps=tuple(Stamp(file.path, file.size_bytes, file.modified_ns) for file in files),
    )


def _check_belongs(files: Sequence[ReadFile], number: int, count: int, owner: dict[str, str]) -> None:
    """Every part of a set says how many there are, which one it is, counted from 0, and how many tensors all have; and
    no tensor is in two of them. Parts of two sets would be planned and loaded as a model that there never was.

    `owner` has the tensors of the parts before, and gets those of this one.
    """
    file, first = files[number], files[0]
    metadata, name = file.header.metadata, file.path.name
    if metadata.get("split.count") != count or metadata.get("split.no") != number:
        raise Unreadable(f"{name} does not say that it is part {number + 1} of {count}")
    if metadata.get("split.tensors.count") != first.header.metadata.get("split.tensors.count"):
        raise Unreadable(f"{name} is of another set than {first.path.name}: they disagree on split.tensors.count")
    for tensor in file.header.tensors:
        if owner.setdefault(tensor.name, name) != name:
            raise Unreadable(f"{name} is of another set than {owner[tensor.name]}: both have {tensor.name}")
