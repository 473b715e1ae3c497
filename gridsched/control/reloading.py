"""Another configuration, or other files in the library's folders, under a server that runs.

Owns when the configuration is read again (a signal, a verb, a change of the file), that this happens once at a time,
the last word asked for wins, and that a bad one is refused whole and told; and when the folders are looked at. What a
configuration is, and how it is taken over, is the `World`'s. Must never take over a part of one that has a fault.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from gridsched.control.problems import Problem, RequestError
from gridsched.core.commands import Log, LogEvent
from gridsched.core.model import ModelSpec
from gridsched.runtime.runtime import Runtime
from gridsched.threads import in_thread

if TYPE_CHECKING:  # pydantic is slow to load, and the command line wants the verbs only
    from gridsched.settings.reload import ReloadPlan
    from gridsched.settings.schema import Settings

T = TypeVar("T")

Noted = Callable[[str, Sequence[str], Problem | None], None]

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""How often the file is looked at: it is small, and read whole, so that no way to replace it goes unseen (J10)."""

SETTLED_SECONDS = 0.2
MOST_LOOKS = 5
"""A file that has changed is looked at again until it stands still, but not for ever: it may be written in pieces."""

FOLDERS_SECONDS = 2.0
"""How often the folders of the library are looked at. A file that has come or grown counts when it stands still between
two looks."""


WATCHED = "the file has changed"
HANG_UP = "SIGHUP"
"""Why a reload is made that no verb has asked for."""


class ConfigRefused(Exception):
    """A configuration that cannot be used: every fault, a sentence each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A configuration that may be taken over: `take` does, at once and in the loop's thread. `models` are those that it
    serves; `notes` are told of it."""

    take: Callable[[], None]
    models: tuple[ModelSpec, ...] = ()
    notes: tuple[str, ...] = ()


class World(Protocol):
    """Where configurations come from, and what takes them over. Real or simulated."""

    def look(self) -> object:
        """What changes when the file does, and None where there is none. Blocks."""

    def read(self) -> "Settings":
        """The settings as a start would have them. Raises ConfigRefused. Blocks."""

    def compare(self, before: "Settings", after: "Settings") -> "ReloadPlan":
        """What it comes to. Pure."""

    def running(self, before: "Settings", after: "Settings") -> "Settings":
        """What runs when all has been taken over that can be. Pure."""

    def try_start(self, before: "Settings", after: "Settings") -> None:
        """Whether a start would go well with what waits for one. Raises ConfigRefused. Blocks."""

    def prepare(self, settings: "Settings", *, anew: bool) -> Prepared:
        """Read what it names, and make what it needs. `anew`: of the folders as they are now, whatever is wrong with
        the rest. Raises ConfigRefused. Blocks."""

    def folders_changed(self, settings: "Settings") -> bool:
        """Look at the library's folders: whether other files are there than were read last. Blocks."""


class Reloader:
    """One per server. `error` says why the file is not what runs, None where it is, but for `needs_restart`: settings
    that wait for the next start."""

    def __init__(
        self,
        runtime: Runtime,
        world: World,
        settings: "Settings",
        say: Callable[[str], None],
        note: Noted = lambda why, changed, problem: None,  # noqa: ARG005 - nobody writes it down
    ) -> None:
        """`settings` are what runs, `say` tells a person each reload in a line, `note` is told why one was made,
        which keys it has changed, and why it was refused."""
        self._note = note
        self.error: str | None = None
        self.needs_restart: tuple[str, ...] = ()
        self.settings = settings
        self._runtime = runtime
        self._world = world
        self._say = say
        self._turn = trio.Lock()
        self._asked = self._done = 0
        self._last: ReloadPlan | RequestError | None = None
        self._seen: object = ...
        self._noted: tuple[str, ...] = ()

    # --- asked for ----------------------------------------------------------------------------------------------

    async def reload(self, why: str, *, dry_run: bool = False) -> "ReloadPlan":
        """Read the configuration and take it over; what that came to. Several who ask while one is under way share the
        next. With `dry_run` nothing is taken over. Raises RequestError for one that cannot be used: the old one stays.
        """
        if dry_run:
            async with self._turn:
                return (await self._propose())[1]
        self._asked += 1
        mine = self._asked
        async with self._turn:
            if self._done < mine:
                upto = self._asked
                self._last = await self._reload(why)
                self._done = upto
            if isinstance(self._last, RequestError):
                raise RequestError(self._last.problem)
            assert self._last is not None  # noqa: S101 - for the type checker
            return self._last

    async def proposed(self, settings: "Settings") -> "tuple[ReloadPlan, Sequence[str]]":
        """What these settings would come to in the file's place, all that they name looked at, and what of them could
        not be had: a model whose flags the engine would refuse, say. Raises RequestError for those that cannot be
        used."""
        async with self._turn:
            _, plan, prepared = await self._propose(lambda: settings)
            return plan, prepared.notes

    def preview(self, settings: "Settings") -> "ReloadPlan":
        """What these settings would come to, as far as can be said without looking at a file."""
        return self._world.compare(self.settings, settings)

    async def refresh_library(self) -> None:
        """Look at the folders again, whether they seem changed or not, and serve what is there now."""
        async with self._turn:
            await self._refresh()

    # --- by itself ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the file and the folders until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_file)
            nursery.start_soon(self._follow_folders)

    async def _follow_file(self) -> None:
        if not await self._is_what_runs():
            await self._heed()
        while True:
            await trio.sleep(LOOK_SECONDS)
            found = await in_thread(self._world.look, abandon_on_cancel=True)
            if found == self._seen:
                continue
            if await self._settled(found) != self._seen:  # else somebody else has had it read
                await self._heed()

    async def _heed(self) -> None:
        with suppress(RequestError):  # it has been told
            await self.reload(WATCHED)

    async def _is_what_runs(self) -> bool:
        """Whether the file still says what it said at the start: it may have changed while the rest was found."""
        self._seen = await in_thread(self._world.look)
        try:
            read = await in_thread(self._world.read)
        except ConfigRefused:
            return False
        return self._world.compare(self.settings, read).is_empty

    async def _settled(self, found: object) -> object:
        """Wait until the file stands still, for a while; how it is then."""
        for _ in range(MOST_LOOKS):
            await trio.sleep(SETTLED_SECONDS)
            before, found = found, await in_thread(self._world.look, abandon_on_cancel=True)
            if found == before:
                break
        return found

    async def _follow_folders(self) -> None:
        while True:
            await trio.sleep(FOLDERS_SECONDS)
            async with self._turn:
                with suppress(ConfigRefused):  # by a bug, which is in the log
                    if await _beside(lambda: self._world.folders_changed(self.settings)):
                        await self._refresh()

    # --- in turn ------------------------------------------------------------------------------------------------

    async def _reload(self, why: str) -> "ReloadPlan | RequestError":
        """What came of it, which is told in a line and in the decision log."""
        # What is seen here is what is read or older, so that a change in between is a change at the next look.
        self._seen = await in_thread(self._world.look)
        try:
            read, plan, prepared = await self._propose()
        except RequestError as refused:
            self.error = refused.problem.message
            self._say(f"config     refused ({why}), what ran before runs on: {self.error}")
            self._log({"refused": self.error, "why": why})
            self._note(why, (), refused.problem)
            return refused
        self.settings = self._world.running(self.settings, read)
        prepared.take()
        self.error, self.needs_restart = None, plan.needs_restart
        self._say(f"config     read again ({why}): {plan.text}")
        for note in prepared.notes:
            if note not in self._noted:
                self._say(f"problem    {note}")
        self._noted = prepared.notes
        self._log(
            {
                "applied": [change.key for change in plan.changes if change.key not in plan.needs_restart],
                "restarts": list(plan.restarts),
                "needs_restart": list(plan.needs_restart),
                "why": why,
            }
        )
        self._note(why, [change.key for change in plan.changes], None)
        return plan

    async def _propose(
        self, reading: "Callable[[], Settings] | None" = None
    ) -> "tuple[Settings, ReloadPlan, Prepared]":
        """What the file comes to. Raises RequestError with all that is wrong with it."""
        try:
            read = await _beside(reading or self._world.read)
            plan = self._world.compare(self.settings, read)
            runs = self._world.running(self.settings, read)
            if plan.needs_restart:
                await _beside(lambda: self._world.try_start(self.settings, read))
            prepared = await _beside(lambda: self._world.prepare(runs, anew=False))
        except ConfigRefused as refused:
            problem = Problem("config_invalid", str(refused), detail={"faults": list(refused.faults)})
            raise RequestError(problem) from None
        # Exactly those that run and would be launched in another way, whatever the settings seem to say.
        outdated = self._runtime.outdated(prepared.models)
        return read, replace(plan, restarts=tuple(outdated)), prepared

    async def _refresh(self) -> None:
        before = frozenset(spec.name for spec in self._runtime.served())
        try:
            prepared = await _beside(lambda: self._world.prepare(self.settings, anew=True))
        except ConfigRefused as refused:  # only what no configuration can help
            self._say(f"library    not read again: {refused}")
            return
        prepared.take()
        after = frozenset(spec.name for spec in prepared.models)
        came, went = sorted(after - before), sorted(before - after)
        self._say(f"library    read again: {len(after)} models{_listed('new', came)}{_listed('gone', went)}")
        self._log({"library": len(after), "came": came, "went": went})

    def _log(self, figures: Mapping[str, object]) -> None:
        self._runtime.note(Log(LogEvent.CONFIG, figures=figures))


async def _beside(work: Callable[[], T]) -> T:
    """In a thread. Raises ConfigRefused, for a bug as well: what runs is not to end for it."""
    try:
        return await in_thread(work)
    except ConfigRefused:
        raise
    except Exception:
        log.exception("reading the configuration has met a bug")
        raise ConfigRefused(["an error of this server kept it from being read; its log has the details"]) from None


def _listed(word: str, names: Sequence[str]) -> str:
    return f", {word}: {', '.join(names)}" if names else ""
