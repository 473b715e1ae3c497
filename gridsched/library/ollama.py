"""Ollama's store, read where it lies: which names are there, and which blobs are behind each.

Owns the layout of `manifests` and `blobs`. A manifest that cannot be used becomes an entry with its reason, and the
rest go on. Of its layers the model, projector and adapters are used; templates, parameters and words for the system are
Ollama's own and are not. Must never write there, and never follow a digest out of the store.

Blocks for as long as the disk does.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gridsched.library.names import presentable
from gridsched.library.read import real_path

HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
"""What Ollama leaves out of a name."""

MOST_MANIFESTS = 2_000
LARGEST_MANIFEST_BYTES = 1 << 20
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_LAYER = "application/vnd.ollama.image."
_MODEL, _PROJECTOR, _ADAPTER, _TENSOR = (f"{_LAYER}{kind}" for kind in ("model", "projector", "adapter", "tensor"))
_LEVELS = 4  # of folders and file: HOST/NAMESPACE/NAME/TAG


@dataclass(frozen=True, slots=True)
class Stored:
    """One model in a store: its name, what else it is called, its files. `problem` says why it cannot be served."""

    name: str
    words: tuple[str, ...]
    model: Path
    projector: Path | None = None
    adapters: tuple[Path, ...] = ()
    problem: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether its model's file is all there is of it."""
        return self.projector is None and not self.adapters


@dataclass(frozen=True, slots=True)
class Store:
    """All of a store's, in the order of their names, and sentences about what was not looked at, or is not used."""

    models: tuple[Stored, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Manifest:
    """One tag: where it is in the store, and its layers by kind."""

    parts: tuple[str, ...]
    blobs: dict[str, list[Path]] = field(default_factory=dict)
    ignored: bool = False
    problem: str | None = None

    @property
    def tag(self) -> str:
        return self.parts[-1]

    def files(self) -> tuple[Path, ...]:
        """What is loaded."""
        return tuple(path for kind in (_MODEL, _PROJECTOR, _ADAPTER) for path in self.blobs.get(kind, ()))


def is_store(folder: Path) -> bool:
    """Whether a folder is Ollama's: one with manifests and blobs."""
    return all(os.access(folder / name, os.F_OK) for name in ("manifests", "blobs"))


def read_store(root: Path) -> Store:
    """Every name in a store. Tags over the same files are one model, with all their names."""
    notes: list[str] = []
    groups: dict[tuple[Path, ...], list[_Manifest]] = {}
    ignored = 0
    for path in _manifests(root, notes):
        manifest = _read(root, path)
        if manifest.problem is None and not manifest.files():
            notes.append(f"{path} names no file: what it runs is not on this machine.")
            continue
        ignored += manifest.ignored
        groups.setdefault(tuple(map(real_path, manifest.files())) or (path,), []).append(manifest)
    if ignored:
        notes.append(
            f"{root}: templates, parameters and system words of {ignored} names are Ollama's own, and not used."
        )
    return Store(tuple(sorted(map(_stored, groups.values()), key=lambda each: each.name)), tuple(notes))


def manifests_of(root: Path) -> tuple[Path, ...]:
    """The files that say which names there are: another name is another file, and one that is pulled again has another
    time."""
    return tuple(_manifests(root, []))


def _manifests(root: Path, notes: list[str]) -> Iterator[Path]:
    """Files that are where manifests are, in the order of their names."""
    top, found = root / "manifests", 0
    for folder, folders, names in os.walk(top, onerror=lambda error: notes.append(_unseen(error))):
        depth = len(Path(folder).relative_to(top).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and depth < _LEVELS - 1)
        for name in sorted(names) if depth == _LEVELS - 1 else ():
            if name.startswith("."):
                continue
            found += 1
            if found > MOST_MANIFESTS:
                notes.append(f"{root} holds more than {MOST_MANIFESTS} names: the rest was not looked at.")
                return
            yield Path(folder) / name


def _unseen(error: OSError) -> str:
    return f"{error.filename} cannot be looked into: {error.strerror}."


def _read(root: Path, path: Path) -> _Manifest:
    found = _Manifest(path.relative_to(root / "manifests").parts)
    try:
        told = json.loads(path.read_bytes() if _is_small_file(path) else b"")
        layers: Sequence[Mapping[str, object]] = told["layers"]
        for layer in layers:
            _take(found, root, str(layer["mediaType"]), str(layer["digest"]))
    except OSError as error:
        found.problem = f"{path} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, RecursionError):
        found.problem = f"{path} is no manifest that is understood"
    return found


def _is_small_file(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= LARGEST_MANIFEST_BYTES


def _take(found: _Manifest, root: Path, kind: str, digest: str) -> None:
    """One layer: its blob, if it is of a kind that is loaded."""
    if kind == _TENSOR:
        found.problem = "its weights are kept as single tensors, which no engine here loads"
    if kind not in (_MODEL, _PROJECTOR, _ADAPTER):
        found.ignored = found.ignored or kind.startswith(_LAYER)
        return
    if (named := _DIGEST.fullmatch(digest)) is None:
        found.problem = f"its manifest names a blob {digest[:80]!r}, which is no digest"
        return
    blobs = root / "blobs"
    paths = [blobs / f"sha256{mark}{named[1]}" for mark in "-:"]
    found.blobs.setdefault(kind, []).append(next((path for path in paths if os.path.lexists(path)), paths[0]))


def _stored(group: list[_Manifest]) -> Stored:
    """One model, under the name of its most particular tag."""
    first, *_ = sorted(group, key=lambda one: (one.tag == TAG, one.parts))
    words = dict.fromkeys(word for one in (first, *group) for word in _words(one.parts))
    models = first.blobs.get(_MODEL, [])
    projectors = first.blobs.get(_PROJECTOR, [])
    problem = first.problem
    if problem is None and len(models) != 1:
        problem = f"its manifest names {len(models)} models"
    return Stored(
        name=_name(first.parts),
        words=tuple(words),
        model=models[0] if models else Path(*first.parts),
        projector=projectors[0] if projectors else None,
        adapters=tuple(first.blobs.get(_ADAPTER, [])),
        problem=problem,
    )


def _name(parts: tuple[str, ...]) -> str:
    """As Ollama lists it."""
    host, namespace, name, tag = map(presentable, parts)
    if host != HOST:
        return f"{host}/{namespace}/{name}:{tag}"
    return f"{name}:{tag}" if namespace == NAMESPACE else f"{namespace}/{name}:{tag}"


def _words(parts: tuple[str, ...]) -> Iterator[str]:
    """As its clients may say it, the publisher's name among the first; of the usual tag without it, too."""
    host, namespace, name, tag = map(presentable, parts)
    forms = [f"{namespace}/{name}", f"{host}/{namespace}/{name}"]
    forms += [name] if (host, namespace) == (HOST, NAMESPACE) else []
    for form in forms:
        yield f"{form}:{tag}"
        if tag == TAG:
            yield form
