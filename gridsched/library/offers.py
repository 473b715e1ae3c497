"""What a repository of the hub offers: its models, each with all of its files, and what goes with them. Pure.

Owns what file names tell before a byte is fetched: which belong together, how the weights are kept, which is a
projector. Names may lie; what a file is, its header tells when it is here.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from gridsched.library.hub import HubError, HubFile, Repo, Trouble
from gridsched.library.projectors import NAME_PART
from gridsched.library.shards import SUFFIX, part_names, stem_of

_QUANTIZATION = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|F16|F32|FP16|FP32|MXFP4(?:_MOE)?|NVFP4))(?=$|[-_.])",
    re.IGNORECASE,
)
_NO_MODEL = ("imatrix", "ggml-vocab")
MOST_FILES = 2_000


@dataclass(frozen=True, slots=True)
class Offer:
    """One model that can be fetched. `missing` names the parts of its set that the repository has not."""

    name: str
    quantization: str
    files: tuple[HubFile, ...]
    missing: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Offers:
    """All of a repository's, by the path of their first file, and its projectors, F16 before others."""

    models: tuple[Offer, ...]
    projectors: tuple[HubFile, ...]


def offers_of(repo: Repo) -> Offers:
    """What a repository offers."""
    files = {file.path: file for file in repo.files if file.path.lower().endswith(SUFFIX) and is_safe(file.path)}
    models, projectors = [], []
    for path in sorted(files)[:MOST_FILES]:
        name = PurePosixPath(path).name
        if NAME_PART in name.lower():
            projectors.append(files[path])
        elif not any(word in name.lower() for word in _NO_MODEL):
            folder = PurePosixPath(path).parent
            parts = tuple(str(folder / part) for part in part_names(name))
            if path == next(part for part in parts if part in files):
                there = tuple(files[part] for part in parts if part in files)
                missing = tuple(part for part in parts if part not in files)
                models.append(Offer(str(folder / stem_of(PurePosixPath(name))), quantization_of(path), there, missing))
    projectors.sort(key=lambda file: ("-f16" not in file.path.lower(), file.path))
    return Offers(tuple(models), tuple(projectors))


def quantization_of(path: str) -> str:
    """The word for how the weights are kept, "" where the name has none: the file's, else its folder's."""
    for word in (stem_of(PurePosixPath(path)), PurePosixPath(path).parent.name):
        if found := _QUANTIZATION.findall(word):
            return str(found[-1]).upper().replace("FP16", "F16").replace("FP32", "F32")
    return ""


def is_safe(path: str) -> bool:
    """Whether a path of the hub's stays in the folder that it is put in, and is not hidden there."""
    parts = path.split("/")
    return path.isprintable() and "\\" not in path and all(part and not part.startswith(".") for part in parts)


def chosen(offers: Offers, repo_id: str, file: str | None, quantization: str | None) -> Offer:
    """The model that is meant, by any of its files or by how it is kept; the only one where neither is said. Raises
    HubError, with what there is."""
    found = list(_meant(offers.models, file, quantization))
    if len(found) == 1:
        if found[0].missing:
            raise HubError(Trouble.NOT_FOUND, f"{repo_id} has not all parts of it: {found[0].missing[0]} is missing")
        return found[0]
    there = ", ".join(offer.quantization or offer.name for offer in (found or offers.models)[:40])
    if not offers.models:
        raise HubError(Trouble.NOT_FOUND, f"{repo_id} has no model in a GGUF file")
    if not found:
        asked = file or quantization
        raise HubError(Trouble.NOT_FOUND, f"{repo_id} has no {asked!r}; it has {there}")
    raise HubError(Trouble.ASKED_WRONG, f"{repo_id} has several models: name a file or a quantization of {there}")


def _meant(models: Sequence[Offer], file: str | None, quantization: str | None) -> Iterator[Offer]:
    for offer in models:
        names = {word for each in offer.files for word in (each.path, PurePosixPath(each.path).name)}
        names |= {offer.name, PurePosixPath(offer.name).name}
        if file is not None and file.lower() not in {name.lower() for name in names}:
            continue
        if quantization is not None and quantization.lower() != offer.quantization.lower():
            continue
        yield offer
