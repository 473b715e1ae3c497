"""Downloads from the hub while they run: one of each, so many at once, and only where there is room for them.

Owns what is under way, how fast it comes, and the room that it needs. What came is kept when a download ends early, and
the next one of the same model goes on from there. Must never ask the hub by itself: somebody wants every download.
"""

import errno
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TypeVar

import trio

from gridsched.control.problems import Problem, RequestError
from gridsched.library.fetch import Stopped, fetch
from gridsched.library.headers import HubHeaders
from gridsched.library.hub import Hub, HubError, HubFile, Repo, Trouble
from gridsched.library.offers import Offer, chosen, offers_of
from gridsched.library.shelf import NotOurs, Shelf
from gridsched.threads import in_thread

MOST_AT_ONCE = 2
KEPT = 100
"""Downloads that are over and are still listed."""

RESERVE_BYTES = 1 << 30
"""What a download leaves free of the disk in any case: a server without room for its log and its measurements fails."""

TIGHT_SHARE, TIGHT_BYTES = 0.1, 20 << 30
"""A disk with less than this share free, and less than these bytes, is worth a question before it is filled on."""

TELL_SECONDS = 0.25
RATE_SECONDS = 10.0
GIB, MIB = 1 << 30, 1 << 20

_CODES: Mapping[Trouble, str] = {
    Trouble.OFFLINE: "hub_unavailable",
    Trouble.UNREACHABLE: "hub_unavailable",
    Trouble.BUSY: "hub_unavailable",
    Trouble.NOT_FOUND: "not_found",
    Trouble.GATED: "hub_forbidden",
    Trouble.WRONG: "hub_error",
    Trouble.ASKED_WRONG: "invalid_request",
}


T = TypeVar("T")


class State(Enum):
    """How a download stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BROKEN_OFF = "broken_off"  # of an earlier run of this server: what came is there


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be fetched: all files of one model, and its projector."""

    repo: Repo
    offer: Offer
    files: tuple[HubFile, ...]

    @property
    def id(self) -> str:
        """`PUBLISHER/REPO/PATH` of its first file: the same model is the same download."""
        return f"{self.repo.id}/{self.offer.files[0].path}"

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Room:
    """What a download still needs of a disk, what others that run need, and what is free there."""

    need_bytes: int
    others_bytes: int
    free_bytes: int
    total_bytes: int

    @property
    def left_bytes(self) -> int:
        """What would be free in the end."""
        return self.free_bytes - self.others_bytes - self.need_bytes

    @property
    def is_tight(self) -> bool:
        """Whether a person should hear of it before."""
        return self.left_bytes < min(TIGHT_BYTES, int(self.total_bytes * TIGHT_SHARE))


@dataclass(slots=True)
class Download:
    """One that runs, or ran. Rates are bytes a second, over the last seconds."""

    order: Order
    operations: list[str]
    state: State = State.QUEUED
    there: dict[str, int] = field(default_factory=dict)
    problem: Problem | None = None
    marks: deque[tuple[float, int]] = field(default_factory=deque)
    changed: trio.Event = field(default_factory=trio.Event)

    @property
    def done_bytes(self) -> int:
        """How much is there, of what came before as well."""
        return sum(self.there.values())

    @property
    def bytes_per_s(self) -> float | None:
        """How fast it comes, up to now: a hub that has gone silent is seen to be. None until that is known."""
        if len(self.marks) < 2 or self.state is not State.RUNNING:  # noqa: PLR2004 - two moments
            return None
        began, before = self.marks[0]
        now = max(monotonic(), self.marks[-1][0])
        return (self.done_bytes - before) / (now - began) if now > began else None

    @property
    def rest_s(self) -> float | None:
        """How long it still takes at that rate."""
        rate = self.bytes_per_s
        return (self.order.size_bytes - self.done_bytes) / rate if rate else None

    @property
    def is_under_way(self) -> bool:
        """Whether it has not ended."""
        return self.state in (State.QUEUED, State.RUNNING)

    def mark(self, now: float) -> None:
        """Note how far it has come."""
        self.marks.append((now, self.done_bytes))
        while now - self.marks[0][0] > RATE_SECONDS:
            self.marks.popleft()
        self.tell()

    def tell(self) -> None:
        """Wake those who wait for news."""
        self.changed.set()
        self.changed = trio.Event()

    def text(self) -> str:
        """One sentence."""
        size, done, name = self.order.size_bytes, self.done_bytes, self.order.id
        if self.state is State.RUNNING:
            rate, rest = self.bytes_per_s, self.rest_s
            pace = f", {rate / MIB:,.1f} MiB/s" if rate is not None else ""
            ends = f", {rest:,.0f} s left" if rest is not None else ""
            return f"downloading {name}: {done / GIB:.2f} of {size / GIB:.2f} GiB{pace}{ends}"
        return f"{name}: {self.problem.message if self.problem is not None else self.state.value}"


Teller = Callable[[float, float | None, str], None]


class Downloads:
    """All of one server, its shelf, and the hub they come from."""

    def __init__(
        self, hub: Hub, shelf: Shelf, *, pause_seconds: float = 1.0, reserve_bytes: int = RESERVE_BYTES
    ) -> None:
        """`pause_seconds` is what is waited before a hub that broke off is asked again, at first."""
        self.hub = hub
        self.shelf = shelf
        self.headers = HubHeaders()
        self._pause_seconds = pause_seconds
        self._reserve_bytes = reserve_bytes
        self._running: dict[str, Download] = {}
        self._over: deque[Download] = deque(maxlen=KEPT)
        self._at_once = trio.Semaphore(MOST_AT_ONCE)
        self.changed = trio.Event()

    def all(self) -> tuple[Download, ...]:
        """Those that run, oldest first, then those that are over, the last first."""
        return (*self._running.values(), *reversed(self._over))

    def _tell(self) -> None:
        """Wake those who wait for a download to begin, be joined, or end."""
        self.changed.set()
        self.changed = trio.Event()

    def running(self, download_id: str) -> Download | None:
        """One that runs, by its id or an operation's."""
        running = self._running.values()
        return next((each for each in running if download_id == each.order.id or download_id in each.operations), None)

    async def order(
        self, repo_id: str, revision: str | None, file: str | None, quantization: str | None, *, projector: bool
    ) -> Order:
        """What is meant, as the hub has it now. Raises RequestError."""
        repo = await asked(partial(self.hub.repo, repo_id, revision))
        try:
            offers = offers_of(repo)
            offer = chosen(offers, repo.id, file, quantization)
            for each in offer.files:
                self.shelf.target(repo.id, each.path)
        except HubError as error:
            raise RequestError(problem_of(error)) from None
        except NotOurs as error:
            raise RequestError(Problem("conflict", str(error))) from None
        beside = offers.projectors[:1] if projector else ()
        return Order(repo, offer, (*beside, *offer.files))

    async def room(self, order: Order) -> Room:
        """What it would need, and what there is. Raises RequestError."""
        others = (each for each in self._running.values() if each.order.id != order.id)
        beside = sum(each.order.size_bytes - each.done_bytes for each in others)
        try:
            return await in_thread(partial(self._room, order, beside), abandon_on_cancel=True)
        except OSError as error:
            raise RequestError(_of_disk(error, self.shelf.folder)) from None

    def _room(self, order: Order, others_bytes: int) -> Room:
        folder = self.shelf.folder
        while not folder.exists():
            folder = folder.parent
        usage = shutil.disk_usage(folder)
        there = sum(self._there(order.repo, file) for file in order.files)
        return Room(order.size_bytes - there, others_bytes, usage.free, usage.total)

    def _there(self, repo: Repo, file: HubFile) -> int:
        partial_file = self.shelf.partial(repo.id, file)
        if partial_file.exists():
            return min(partial_file.stat().st_size, file.size_bytes)
        target = self.shelf.target(repo.id, file.path)
        return file.size_bytes if target.exists() else 0

    async def carry_out(self, order: Order, operation: str, tell: Teller) -> Download:
        """Fetch it, or go along with a download of the same that runs. Ends when it is there. Raises RequestError."""
        if (known := self._running.get(order.id)) is not None:
            if known.order.files != order.files:
                raise RequestError(
                    Problem("conflict", f"another version of {order.id} is being downloaded; cancel that first")
                )
            known.operations.append(operation)
            self._tell()
            return await self._follow(known, tell)
        download = Download(order, [operation])
        self._running[order.id] = download
        self._tell()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_pass_on, download, tell)
                await self._run(download)
                nursery.cancel_scope.cancel()
        finally:
            del self._running[order.id]
            self._over.append(download)
            if download.is_under_way:
                download.state = State.CANCELLED
            download.tell()
            self._tell()
        if download.problem is not None:
            raise RequestError(download.problem)
        return download

    async def _follow(self, download: Download, tell: Teller) -> Download:
        """Wait for one that another operation began; that one's end is this one's."""
        while download.is_under_way:
            tell(download.done_bytes, download.order.size_bytes, download.text())
            await download.changed.wait()
        if download.state is State.CANCELLED:
            raise RequestError(Problem("conflict", f"the download of {download.order.id} was cancelled"))
        if download.problem is not None:
            raise RequestError(download.problem)
        return download

    async def _run(self, download: Download) -> None:
        """To its end; what went wrong is kept in it."""
        order = download.order
        download.tell()
        try:
            async with self._at_once:
                download.state = State.RUNNING
                self._refuse_without_room(await self.room(order))
                await self._fetch(download)
            download.state = State.DONE
        except RequestError as error:
            download.problem = error.problem
        except HubError as error:
            download.problem = problem_of(error)
        except NotOurs as error:
            download.problem = Problem("conflict", str(error))
        except OSError as error:
            download.problem = _of_disk(error, self.shelf.folder)
        if download.problem is not None:
            download.state = State.FAILED

    async def _fetch(self, download: Download) -> None:
        stop = Event()
        try:
            work = partial(self._fetch_all, download, stop)
            await in_thread(work, abandon_on_cancel=True)  # it sees `stop` by itself, and holds the file until then
        finally:
            stop.set()

    def _fetch_all(self, download: Download, stop: Event) -> None:
        """In a thread: every file that is not here, then all of them their names."""
        order, shelf = download.order, self.shelf
        told_at = [0.0]

        def there(file: HubFile, size_bytes: int) -> None:
            download.there[file.path] = size_bytes
            now = monotonic()
            if now - told_at[0] >= TELL_SECONDS and not stop.is_set():
                told_at[0] = now
                trio.from_thread.run_sync(download.mark, now)

        fetched = []
        for file in order.files:
            if shelf.has(order.repo, file):
                there(file, file.size_bytes)
                continue
            address = self.hub.address(order.repo, file.path)
            partial_file = shelf.partial(order.repo.id, file)
            told = partial(there, file)
            fetch(self.hub, address, file, partial_file, told, stop, pause_seconds=self._pause_seconds)
            fetched.append(file)
        if stop.is_set():
            raise Stopped
        shelf.put(order.repo, fetched)

    def _refuse_without_room(self, room: Room) -> None:
        if room.left_bytes >= self._reserve_bytes:
            return
        figures = {
            "required_bytes": room.need_bytes,
            "available_bytes": max(0, room.free_bytes - room.others_bytes - self._reserve_bytes),
            "free_bytes": room.free_bytes,
            "other_downloads_bytes": room.others_bytes,
            "reserve_bytes": self._reserve_bytes,
            "folder": str(self.shelf.folder),
            "suggestions": ["Delete a downloaded model, or choose a smaller quantization"],
        }
        raise RequestError(
            Problem(
                "insufficient_storage",
                f"it needs {room.need_bytes / GIB:.2f} GiB more, and {self.shelf.folder} has"
                f" {figures['available_bytes'] / GIB:.2f} GiB for it: {room.free_bytes / GIB:.2f} are free,"  # type: ignore[operator] # it is a number
                f" {room.others_bytes / GIB:.2f} are for other downloads, {self._reserve_bytes / GIB:.2f} stay free",
                detail=figures,
            )
        )


async def _pass_on(download: Download, tell: Teller) -> None:
    """What there is to say of a download, to whoever asked for it."""
    while True:
        tell(download.done_bytes, download.order.size_bytes, download.text())
        await download.changed.wait()


async def asked(work: Callable[[], T]) -> T:
    """What the hub says, asked in a thread that nobody has to wait for. Raises RequestError."""
    try:
        return await in_thread(work, abandon_on_cancel=True)
    except HubError as error:
        raise RequestError(problem_of(error)) from None


def problem_of(error: HubError) -> Problem:
    """What the hub's trouble is to a client."""
    return Problem(_CODES[error.trouble], str(error), retry_after_seconds=error.retry_after_seconds)


def _of_disk(error: OSError, folder: Path) -> Problem:
    """A disk that refuses."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        detail = {"folder": str(folder), "suggestions": ["Delete a downloaded model, or choose a smaller quantization"]}
        return Problem("insufficient_storage", f"{folder} is full; what came is kept", detail=detail)
    return Problem("storage_unavailable", f"{error.filename or folder} cannot be written: {error.strerror}")
