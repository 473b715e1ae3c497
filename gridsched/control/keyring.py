"""The API keys of a server that runs: listed, made and taken away, with effect at once.

Owns that the file and what the server takes are the same after a change. A new secret is handed back once; it is kept
nowhere, and whoever calls must not note it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from gridsched.control.authority import Authority
from gridsched.credentials import ApiKey
from gridsched.settings.api_keys import KeyFile, add_key, read_keys, revoke_key
from gridsched.threads import in_thread


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys in a data directory, and who is told of them."""

    data_dir: Path
    file: KeyFile
    authority: Authority

    async def all(self) -> Sequence[ApiKey]:
        """As they are in the file. Raises KeysError."""
        return await in_thread(partial(read_keys, self.data_dir))

    async def add(self, key: ApiKey) -> None:
        """Raises KeysError, OSError."""
        await self._changing(partial(add_key, self.data_dir, key))

    async def revoke(self, name: str) -> None:
        """Raises KeysError, OSError."""
        await self._changing(partial(revoke_key, self.data_dir, name))

    async def _changing(self, change: Callable[[], object]) -> None:
        """Who asked may leave meanwhile: the file is never ahead of what the server takes for that."""
        with trio.CancelScope(shield=True):
            await in_thread(change)
            await in_thread(self.file.look)
            if self.file.keys is not None:
                self.authority.keep(self.file.keys)
