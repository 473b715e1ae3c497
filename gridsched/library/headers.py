"""Headers of files on the hub, read by ranges and remembered: the same file is not asked for a second time.

Owns what is remembered, by checksum. Blocks for as long as the hub does, up to a limit.
"""

from collections import OrderedDict
from threading import Lock

from gridsched.library.hub import Hub, HubFile, Repo
from gridsched.library.shards import ModelFile

READ_SECONDS = 30.0
MOST_KEPT = 64


class HubHeaders:
    """One per server."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, ModelFile] = OrderedDict()
        self._lock = Lock()

    def of(self, hub: Hub, repo: Repo, file: HubFile) -> ModelFile:
        """A model by one of its files, with all parts of its set. Raises HubError where the hub may not be asked, and
        Unreadable."""
        key = f"{repo.id}/{file.path}@{file.sha256 or repo.commit}"
        with self._lock:
            if (known := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return known
        hub.check_may_ask()
        from gridsched.library.remote import read_remote  # noqa: PLC0415 - it brings an HTTP library

        found = read_remote(hub.address(repo, file.path), hub.environ, seconds=READ_SECONDS)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return found
