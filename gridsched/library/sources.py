"""Every name that is to be served, with the file behind it: what a person configured, then what the folders hold.

Owns the marriage of the two. A file that is configured is not listed a second time under its own name, but is still
found by it. Blocks while it reads: the caller makes the call in a thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gridsched.library.names import file_words
from gridsched.library.ollama import Stored, is_store, read_store
from gridsched.library.projectors import projector_beside, read_companions, why_no_model
from gridsched.library.read import Unreadable, real_path
from gridsched.library.scan import Indexed, scan_folders
from gridsched.library.shards import ModelFile, first_part, read_model, stem_of
from gridsched.ports import FamilyEntry, ModelEntry, VirtualEntry
from gridsched.vram.flags import FlagError, parse_flags


@dataclass(frozen=True, slots=True)
class Source:
    """One served name before it is planned. `problem` says why it cannot be: always, if `file` is None.

    `words` are what the file itself is called, see `names`. `draft` and `adapters` are the files that flags name.
    """

    entry: ModelEntry
    words: tuple[str, ...]
    file: ModelFile | None = None
    projector: ModelFile | None = None
    draft: ModelFile | None = None
    adapters: tuple[ModelFile, ...] = ()
    problem: str | None = None

    def changed(self) -> Path | None:
        """The first of its files in whose place another lies now. Blocks."""
        files = (self.file, self.projector, self.draft, *self.adapters)
        stamps = (stamp for file in files if file is not None for stamp in file.stamps)
        return next((stamp.path for stamp in stamps if stamp.is_another()), None)

    def read_again(self) -> "Source":
        """The same name with the files that are there now; a launch that is refused stays refused. Blocks."""
        found = _read(self.entry, self.words, self.entry.path if self.file is None else self.file.path)
        is_refused = self.file is not None and self.problem is not None and found.file is not None
        return replace(found, problem=self.problem) if is_refused else found


@dataclass(frozen=True, slots=True)
class Library:
    """All sources in the order in which they are served, sentences about what was passed over, and the names over
    others, which have no file of their own."""

    sources: tuple[Source, ...]
    notes: tuple[str, ...] = ()
    virtuals: tuple[VirtualEntry, ...] = ()


def read_library(
    entries: Sequence[ModelEntry],
    folders: Sequence[Path],
    virtuals: Sequence[VirtualEntry] = (),
    families: Sequence[FamilyEntry] = (),
) -> Library:
    """Scan the folders and read every configured file. Never raises for what a file is like.

    What is configured comes first. A file that it serves already is left out, and one that is called by a word that a
    person gave to something else: clients' words are found without regard to case.
    """
    stores = [folder for folder in folders if is_store(folder)]
    index = scan_folders([folder for folder in folders if folder not in stores])
    stored, store_notes = _stores(stores)
    words = [word for entry in entries for word in (entry.name, *entry.aliases)]
    words += [word for virtual in virtuals for word in (virtual.name, *virtual.aliases)]
    taken = {word.casefold() for word in (*words, *(family.name for family in families))}
    origins = {real_path(found.path): found for found in index.models}
    blobs = {real_path(kept.model): kept for kept in sorted(stored, key=lambda kept: kept.is_plain)}
    sources = [_configured(entry, origins, blobs) for entry in entries]
    notes = [*index.notes, *store_notes]
    served = {real_path(first_part(entry.path)) for entry in entries}
    for real, found in origins.items():
        if real in served:
            continue
        source = _indexed(found)
        if source.entry.name.casefold() in taken:
            notes.append(f"{found.path} is not served: {source.entry.name} is configured as something else.")
            continue
        sources.append(source)
    for kept in stored:
        if kept.name.casefold() in taken:
            notes.append(f"{kept.model} is not served: {kept.name} is configured as something else.")
        elif not any(blobs.get(real) is kept for real in served):
            sources.append(_kept(kept))
    return Library(tuple(sources), tuple(notes), tuple(virtuals))


def with_problems(library: Library, problems: Mapping[str, str]) -> Library:
    """The same, where some names cannot be launched as they are configured, each for its reason."""
    return replace(
        library,
        sources=tuple(
            replace(source, problem=problems[source.entry.name])
            if source.file is not None and source.entry.name in problems
            else source
            for source in library.sources
        ),
    )


def _stores(folders: Sequence[Path]) -> tuple[tuple[Stored, ...], tuple[str, ...]]:
    """What Ollama's stores have; of two with one name the first."""
    found: dict[str, Stored] = {}
    notes: list[str] = []
    for folder in folders:
        store = read_store(folder)
        notes += store.notes
        for kept in store.models:
            if found.setdefault(kept.name.casefold(), kept) is not kept:
                notes.append(f"{kept.model} is not served: another store has {kept.name}, too.")
    return tuple(found.values()), tuple(notes)


def _kept(kept: Stored) -> Source:
    """A model of a store is served under Ollama's name for it, with the files that its manifest names."""
    flags = tuple(word for adapter in kept.adapters for word in ("--lora", str(adapter)))
    entry = ModelEntry(kept.name, kept.model, mmproj=kept.projector, flags=flags)
    if kept.problem is not None:
        return Source(entry, kept.words, problem=kept.problem)
    return _read(entry, kept.words, kept.model)


def _configured(entry: ModelEntry, origins: Mapping[Path, Indexed], blobs: Mapping[Path, Stored]) -> Source:
    path = first_part(entry.path)
    if (kept := blobs.get(real_path(path))) is not None:
        return _read(entry, (*kept.words, *file_words(path, stem_of(path))), path)
    found = origins.get(real_path(path))
    words = file_words(path, stem_of(path), found.publisher, found.repo) if found else file_words(path, stem_of(path))
    return _read(entry, words, path)


def _read(entry: ModelEntry, words: tuple[str, ...], path: Path) -> Source:
    try:
        file = read_model(path)
    except Unreadable as error:
        return Source(entry, words, problem=f"{path}: {error}")
    if reason := why_no_model(file):
        return Source(entry, words, problem=f"{path}: {reason}")
    return _with_companions(entry, words, file)


def _with_companions(entry: ModelEntry, words: tuple[str, ...], file: ModelFile) -> Source:
    """The source with the files that are loaded beside the model: named by its settings or flags, or found beside
    it."""
    try:
        said = parse_flags(entry.flags)
    except FlagError:
        return Source(entry, words, file)  # it will not be launched, and whoever plans it says why
    try:
        named = read_companions(said, entry.mmproj)
    except Unreadable as error:
        return Source(entry, words, problem=str(error))
    projector = named.projector or projector_beside(file)
    return Source(entry, words, file, projector=projector, draft=named.draft, adapters=named.adapters)


def _indexed(found: Indexed) -> Source:
    """An index entry is served as it is, under `publisher/repo/file`, or under its file's name where that is all."""
    name = "/".join(word for word in (found.publisher, found.repo, found.stem) if word)
    entry = ModelEntry(name, found.path)
    words = file_words(found.path, found.stem, found.publisher, found.repo)
    if found.file is None:
        return Source(entry, words, problem=f"{found.path}: {found.problem}")
    return Source(entry, words, found.file, projector_beside(found.file))
