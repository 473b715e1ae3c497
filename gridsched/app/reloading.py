"""Another configuration taken over by a server that runs: the `World` of `control.reloading`. Composition only.

Owns what a settings object becomes in each part: figures of the scheduler and the front, the engine's patience, what of
a device is never planned, the catalog.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gridsched.app.cataloguing import Catalogued, Cataloguer, headroom_of
from gridsched.app.start import StartError
from gridsched.control.reloading import ConfigRefused, Prepared
from gridsched.core.events import PolicyChanged
from gridsched.core.policy import Policy
from gridsched.devices.margin import Margin
from gridsched.library.catalog import ModelCatalog
from gridsched.library.live import LiveCatalog
from gridsched.runtime.dispatch import tell_served
from gridsched.runtime.runtime import Runtime
from gridsched.settings.faults import SettingsError
from gridsched.settings.load import defaults, find, load, looked_at, override
from gridsched.settings.reload import ReloadPlan, compare, running
from gridsched.settings.schema import Settings


@dataclass(slots=True)
class Source:
    """Where the settings come from: the file that `path` or the surroundings name, under what the command line said.
    A file that was found once stays the file, so that one which is deleted is not replaced by another."""

    path: Path | None
    environ: Mapping[str, str]
    host: str | None = None
    port: int | None = None
    models_dir: Path | None = None

    def find(self) -> Path | None:
        """The file, None where there is none yet."""
        self.path = find(self.path, self.environ, Path())
        return self.path

    def is_empty(self) -> bool:
        """Whether there is a file without a byte. Blocks."""
        path = self.find()
        try:
            return path is not None and path.is_file() and path.stat().st_size == 0
        except OSError:
            return False

    def read(self) -> Settings:
        """The settings. Raises SettingsError."""
        path = self.find()
        settings = load(path, self.environ) if path is not None else defaults()
        return self.overridden(settings)

    def overridden(self, settings: Settings) -> Settings:
        """What the command line said instead. Raises SettingsError."""
        return override(settings, self.host, self.port, self.models_dir)


@dataclass(frozen=True, slots=True)
class Machinery:
    """What of a real machine can be given other figures while it runs."""

    live: LiveCatalog
    cataloguer: Cataloguer
    margin: Margin
    be_patient: Callable[[float, float], None]


class ServerWorld:
    """Implements `control.reloading.World`. Of a simulated machine (no `machinery`) only figures change."""

    def __init__(
        self,
        runtime: Runtime,
        source: Source,
        machinery: Machinery | None,
        policy: Policy,
        take_figures: Callable[[Settings], Callable[[], None]],
        try_start: Callable[[Settings, Settings], None] = lambda before, after: None,  # noqa: ARG005 - none is tried
    ) -> None:
        """`policy` is what the scheduler goes by now; `take_figures` makes of settings what has front and runtime
        go by them; it may raise StartError, and so may `try_start`, for settings with which a start would fail."""
        self._runtime = runtime
        self._source = source
        self._machinery = machinery
        self._take_figures = take_figures
        self._try_start = try_start
        self._policy = policy
        self._was_empty = source.is_empty()

    def look(self) -> object:
        """The file's content, in short."""
        path = self._source.find()
        return looked_at(path) if path is not None else None

    def read(self) -> Settings:
        """The settings of the file. Raises ConfigRefused, for one without a byte as well where there were some: a full
        disk leaves such a file to whoever saves, and nobody who means the defaults."""
        is_empty = self._source.is_empty()
        if is_empty and not self._was_empty:
            raise ConfigRefused([f"{self._source.path}: the file is empty; for the defaults, write {{}}"])
        try:
            settings = self._source.read()
        except SettingsError as error:
            raise ConfigRefused(str(error).splitlines()) from None
        self._was_empty = is_empty
        return settings

    def compare(self, before: Settings, after: Settings) -> ReloadPlan:
        """What it comes to."""
        return compare(before, after, [str(spec.name) for spec in self._runtime.served()])

    def running(self, before: Settings, after: Settings) -> Settings:
        """What runs after it."""
        return running(before, after)

    def try_start(self, before: Settings, after: Settings) -> None:
        """Whether the next start would go well. Raises ConfigRefused."""
        try:
            self._try_start(before, after)
        except StartError as error:
            raise ConfigRefused(str(error).splitlines()) from None

    def prepare(self, settings: Settings, *, anew: bool) -> Prepared:
        """A catalog of these settings, and all that takes them over."""
        try:
            take_figures = self._take_figures(settings)
        except StartError as error:
            raise ConfigRefused(str(error).splitlines()) from None
        machinery = self._machinery
        if machinery is None:

            def take_over() -> None:
                take_figures()
                self._take_policy(settings)

            return Prepared(take_over, self._runtime.served())
        before = machinery.live.now
        made = machinery.cataloguer.make(settings, before if isinstance(before, ModelCatalog) else None)
        if made.in_the_way and not anew:
            raise ConfigRefused(made.in_the_way)

        def take() -> None:
            if not anew:
                take_figures()
                self._take_policy(settings)
                self._take_machinery(settings, machinery)
            self._take_catalog(made, machinery)

        served = tuple(model.spec for model in made.catalog.models() if model.spec is not None)
        return Prepared(take, served, made.problems)

    def _take_policy(self, settings: Settings) -> None:
        if (policy := settings.policy()) != self._policy:
            self._policy = policy
            self._runtime.post(PolicyChanged(policy))

    def _take_machinery(self, settings: Settings, machinery: Machinery) -> None:
        engine, headroom = settings.engine, headroom_of(settings)
        machinery.be_patient(engine.startup_timeout_seconds, engine.stop_grace_seconds)
        if headroom != machinery.margin.headroom:
            machinery.margin.headroom = headroom
            self._runtime.post(self._runtime.parts.devices_changed())

    def _take_catalog(self, made: Catalogued, machinery: Machinery) -> None:
        parts = self._runtime.parts
        had_families = bool(parts.catalog.families())
        machinery.live.become(made.catalog)
        machinery.cataloguer.watched.read(made.seen)
        made.catalog.learn(parts.store.measurements())  # what was measured while it was made
        tell_served(parts.catalog, self._runtime.post, had_families=had_families)

    def folders_changed(self, settings: Settings) -> bool:
        """Whether the library's folders hold other files; those of a simulated machine never do."""
        if self._machinery is None:
            return False
        cataloguer = self._machinery.cataloguer
        return cataloguer.watched.changed(cataloguer.look(settings))
