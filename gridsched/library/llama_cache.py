"""llama.cpp's cache: files of all repositories in one folder, `PUBLISHER_REPO_FILE`, and a manifest for each that names
them apart (`manifest=PUBLISHER=REPO=TAG.json`).

Owns how a file there tells where it is from. The manifests' names are enough; what is in them is not read.
"""

import os
from dataclasses import dataclass
from pathlib import Path

_MARK = "manifest="
_PIECES = 4


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a file is from, and what it is called there."""

    publisher: str
    repo: str
    name: str


def origins(folder: Path) -> tuple[tuple[str, str], ...]:
    """The repositories that a folder has manifests of, the longest names first: one may begin like another."""
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(_MARK)]
    except OSError:
        return ()
    split = (name.split("=") for name in names)
    found = {(each[1], each[2]) for each in split if len(each) == _PIECES and each[1] and each[2]}
    return tuple(sorted(found, key=lambda one: (-len("_".join(one)), one)))


def origin_of(name: str, known: tuple[tuple[str, str], ...]) -> Origin | None:
    """Where a file of that folder is from; None for one that no manifest is of."""
    for publisher, repo in known:
        prefix = f"{publisher}_{repo}_"
        if name.startswith(prefix) and len(name) > len(prefix):
            return Origin(publisher, repo, name.removeprefix(prefix))
    return None
