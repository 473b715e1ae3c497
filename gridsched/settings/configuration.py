"""The configuration file of a server that runs: what it says, and a change of it, one at a time.

Owns where the file is, or would be made, and that only what can be a configuration is written there. Must never show
anything to anybody: what is secret in it is for whoever asks to know.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from gridsched.settings.document import Loc
from gridsched.settings.edit import Way, edited
from gridsched.settings.effective import differences, effective, sources
from gridsched.settings.faults import SettingsError
from gridsched.settings.file import BOM, Contents, digest, read, replace
from gridsched.settings.load import MAX_FILE_BYTES, parse
from gridsched.settings.refusals import EditError, Refused
from gridsched.settings.schema import Settings
from gridsched.settings.values import Surroundings
from gridsched.threads import in_thread

Told = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A change that is thought of: what the file says now, what it would say, and what that means."""

    before: Contents
    text: str
    settings: Settings

    @property
    def sha256(self) -> str:
        """Of the file as it would be."""
        return digest(((BOM if self.before.has_bom else "") + self.text).encode())

    @property
    def is_none(self) -> bool:
        """Whether the file is like that already."""
        return self.before.exists and self.text == self.before.text


@dataclass(frozen=True, slots=True)
class Configuration:
    """`path` is where the file is, or would be made. `override` is what the command line said instead of it."""

    path: Path
    environ: Mapping[str, str]
    override: Callable[[Settings], Settings] = lambda settings: settings
    changing: trio.Lock = field(default_factory=trio.Lock)

    def text(self) -> str:
        """What the file says; nothing where there is none. Blocks. Raises Refused for what cannot be such a file."""
        return self._read().text

    async def read(self) -> Contents:
        """The same, with its hash. Raises Refused."""
        return await in_thread(self._read)

    def settings_of(self, text: str) -> Settings:
        """What a text means in the file's place. Raises Refused with every fault."""
        around = Surroundings(self.path.parent, self.environ)
        try:
            return self.override(parse(text, str(self.path), around))
        except SettingsError as error:
            raise Refused(str(error)) from None

    def told(self, settings: Settings) -> Told:
        """Every setting there is, as it would be written."""
        return effective(settings)

    def sources(self, settings: Settings) -> Mapping[str, str]:
        """Where each value comes from that is no default."""
        return sources(settings)

    async def thought(self, put: Told, taken: Sequence[Way], whole: str | None = None) -> Change:
        """What the file would be with these values put in and these keys taken out, or as a `whole`. Raises EditError,
        Refused."""
        return await in_thread(
            partial(self._thought, lambda text: whole if whole is not None else edited(text, put, taken))
        )

    def differences(self, change: Change) -> Iterator[tuple[Loc, object, object]]:
        """Setting by setting, before and after; nothing where the file could not be read before."""
        try:
            before = effective(self.settings_of(change.before.text))
        except Refused:
            return
        yield from differences(before, effective(change.settings))

    async def write(self, change: Change) -> Path | None:
        """Put it in the file's place: the copy of what was there. Whoever asked may leave: it is done whole or not.
        Raises Changed, OSError."""
        return await in_thread(partial(replace, self.path, change.text, change.before))

    def _read(self) -> Contents:
        try:
            return read(self.path)
        except SettingsError as error:
            raise Refused(str(error)) from None

    def _thought(self, change: Callable[[str], str]) -> Change:
        before = self._read()
        text = change(before.text)
        if not text and before.text:
            text = "{}\n"  # a file without a byte is what a full disk leaves: a server that runs does not believe it
        try:
            size_bytes = len(text.encode())
        except UnicodeEncodeError:
            raise EditError("the text holds half a character (a lone surrogate), which no file can") from None
        if size_bytes > MAX_FILE_BYTES:
            raise EditError(f"the file would have more than {MAX_FILE_BYTES} bytes")
        return Change(before, text, self.settings_of(text))
