"""Makes the catalog of this machine from settings, at the start and at each reload. No rule of the product lives here.

Owns what of a configuration is held against engine, devices and model files, and the sentences for what is missing.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gridsched.app.checking import launch_faults, our_flags, setting_of, unchecked
from gridsched.core.model import DeviceSpec
from gridsched.devices.headroom import Headroom
from gridsched.devices.margin import Margin
from gridsched.engine.locate import FoundEngine
from gridsched.library.catalog import ModelCatalog
from gridsched.library.folders import Folders, Seen
from gridsched.library.ollama import is_store, manifests_of
from gridsched.library.places import usual_folders
from gridsched.library.planning import Defaults
from gridsched.library.read import Headers
from gridsched.library.sources import read_library, with_problems
from gridsched.ports import DeviceInfo, Measurement
from gridsched.settings.schema import Settings

FIRST_MODEL = "A server starts all the same; while it runs, gridsched download PUBLISHER/NAME QUANT fetches one"


@dataclass(frozen=True, slots=True)
class Catalogued:
    """A catalog, what stands in the way of serving with it, and what of the configuration cannot be had: a sentence
    each. `seen` are the files of the folders as they were just before it was made."""

    catalog: ModelCatalog
    in_the_way: tuple[str, ...]
    problems: tuple[str, ...]
    seen: Seen


@dataclass(frozen=True, slots=True)
class Cataloguer:
    """What a catalog is made of beside the settings. `host` is the memory beside cards, `usual` where models usually
    lie, `downloads` where ours are put, which are served wherever else is looked."""

    engine: FoundEngine
    devices: Callable[[], tuple[DeviceInfo, ...]]
    measurements: Callable[[], Mapping[str, Measurement]]
    host: Callable[[], DeviceSpec | None]
    usual: Callable[[], tuple[Path, ...]]
    downloads: Path
    headers: Headers = field(default_factory=Headers)
    watched: Folders = field(default_factory=Folders)

    def make(self, settings: Settings, before: ModelCatalog | None = None) -> Catalogued:
        """Read the folders and the configured files, and plan every model; what is as it was in the catalog `before`
        is neither read nor planned again. Blocks."""
        seen = self.look(settings)
        with self.headers.remembering():
            return self._make(settings, before, seen)

    def look(self, settings: Settings) -> Seen:
        """The files there are, in the folders and of the configured models. Blocks."""
        entries = settings.entries()
        files = [path for entry in entries for path in (entry.path, entry.mmproj) if path is not None]
        folders = self.folders(settings)
        manifests = [path for folder in folders if is_store(folder) for path in manifests_of(folder)]
        return self.watched.look(folders, [*files, *manifests])

    def _make(self, settings: Settings, before: ModelCatalog | None, seen: Seen) -> Catalogued:
        engine, margin = self.engine, Margin(headroom_of(settings))
        folders = self.folders(settings)
        faults = tuple(launch_faults(settings, engine.options))
        refused = {name: f"{setting_of(key)}: {sentence}" for name, key, sentence in reversed(faults)}
        entries, virtuals, families = settings.entries(), settings.virtual_entries(), settings.family_entries()
        library = with_problems(read_library(entries, folders, virtuals, families), refused)
        host = self.host()
        catalog = ModelCatalog(
            library,
            [replace(info, spec=margin.of(info.spec)) for info in self.devices()],
            self.measurements(),
            defaults=defaults_of(settings),
            families=families,
            default_model=settings.library.default_model,
            engine_build=engine.info.version,
            host=margin.of(host) if host is not None else None,
            before=before,
        )
        told = [settings.told(key, sentence) for _, key, sentence in faults]
        in_the_way = [] if engine.info.ok else [engine.info.problem, *told, *unchecked(settings)]
        in_the_way += [*our_flags(settings), *(settings.told(key, sentence) for key, sentence in catalog.faults)]
        problems = [*catalog.problems, *told]
        if not catalog.models():
            # Whoever names a folder means that models are there, and a change that would leave none is a slip. A new
            # machine is neither: its first model comes through the server.
            if "auto" not in settings.library.dirs or (before is not None and before.models()):
                in_the_way += [*catalog.notes, no_model(folders)]
            else:
                problems += [f"{no_model(folders)}. {FIRST_MODEL}"]
        return Catalogued(catalog, tuple(in_the_way), tuple(problems), seen)

    def folders(self, settings: Settings) -> tuple[Path, ...]:
        """Where models are looked for."""
        folders: list[Path] = []
        for entry in settings.library.dirs:
            folders += self.usual() if entry == "auto" else (Path(entry),)
        if self.downloads not in folders and os.access(self.downloads, os.F_OK):
            folders.append(self.downloads)
        return tuple(folders)


def usual_in(data_dir: Path, environ: Mapping[str, str], home: Path) -> Callable[[], tuple[Path, ...]]:
    """Where models usually lie on this machine, those folders that are there."""
    return lambda: usual_folders(data_dir, home, environ)


def headroom_of(settings: Settings) -> Headroom:
    """L4: what is never planned."""
    return Headroom(settings.devices.headroom.share, settings.devices.headroom.size_bytes)


def defaults_of(settings: Settings) -> Defaults:
    """For models that do not say it themselves."""
    own = settings.defaults
    return Defaults(
        own.ctx_target, own.ctx_floor, own.parallel, own.idle_ttl_seconds, own.cache_type, own.reasoning_format
    )


def no_model(folders: tuple[Path, ...]) -> str:
    """The sentence for a library without a single model."""
    nowhere = "no folder: none of the usual ones is there (~/models, the caches of llama.cpp and the hub)"
    looked = ", ".join(map(str, folders)) or nowhere
    return (
        f"no model found: looked for GGUF files in {looked}. Put one there, name a folder with --models-dir, "
        "or configure one under models. gridsched demo shows it at work with two small ones, fetched into"
        " ~/.cache/gridsched/models"
    )
