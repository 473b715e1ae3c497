"""One batch, from its validation to its two files: the lines that run, and what is told of it.

Owns the life of a batch. A line is a request like any other (`Inference.serve`); who runs when is for the scheduler to
say. Whatever the disk does, nothing is lost and nothing is answered twice: what it does not take is tried again.
"""

import logging
import os
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, TypeVar

import msgspec
import trio

from gridsched.api import batch_lines
from gridsched.api.batch_asking import LOOK_SECONDS, Asker, Office
from gridsched.api.batch_lines import Line
from gridsched.daytime import Window
from gridsched.store.batches import BatchRecord, FileRecord, LineError, Status, StoreError
from gridsched.store.folder import FULL, Answers
from gridsched.threads import in_thread

log = logging.getLogger(__name__)

KEEP_USED_SECONDS: Final = 60.0
"""How much of a completion window's use may be forgotten when the server is killed."""

MOST_ERRORS_TOLD: Final = 100
FILL_LINES: Final = 500
SAID_WHY: Final[Mapping[Status, tuple[str, str]]] = {
    Status.CANCELLED: ("batch_cancelled", "the batch was cancelled before this request was answered"),
    Status.EXPIRED: ("batch_expired", "this request could not be answered before the completion window ended"),
}

T = TypeVar("T")


@dataclass(slots=True)
class _Scribe:
    """Writes down answers of one kind, whatever has come together since the last time in one go. `told` are the lines
    that have been written."""

    append: Callable[[bytes], None]
    told: set[int]
    _waiting: list[tuple[int, bytes]] = field(default_factory=list)
    _writing: trio.Lock = field(default_factory=trio.Lock)

    def add(self, number: int, line: bytes) -> None:
        """Have a line written with the next `flush`."""
        self._waiting.append((number, line))

    async def flush(self) -> None:
        """Write what waits. Raises OSError: it waits on."""
        with trio.CancelScope(shield=True):  # an answer that is there is not lost to a server that ends
            async with self._writing:
                taken, self._waiting = self._waiting, []
                if not taken:
                    return
                try:
                    await in_thread(partial(self.append, b"".join(line for _, line in taken)))
                except OSError:
                    self._waiting = taken + self._waiting
                    raise
                self.told.update(number for number, _ in taken)


class BatchRun:
    """One batch. `run` once; the rest may be asked at any time."""

    def __init__(self, office: Office, record: BatchRecord, places: trio.Semaphore) -> None:
        self.record = record
        self.running = 0
        self.broken = False
        self.trouble: str | None = None
        self._office = office
        self._places = places
        self._waits_for_place = False
        self._asker = Asker(office, record, lambda: record.limit_seconds - self._used_seconds)
        self._scope = trio.CancelScope()
        self._ending: Status | None = None
        self._changing = trio.Lock()
        self._used_seconds = record.used_seconds
        self._lines: dict[int, Line] | None = None
        self._taken_up = False  # which lines have been answered is known
        self._todo: deque[Line] = deque()
        self._answers: Answers = office.store.folder.answers(record.id)
        self._well = _Scribe(self._answers.well.append, set())
        self._badly = _Scribe(self._answers.badly.append, set())
        self._input = -1
        self._ended_at: deque[float] = deque(maxlen=100)

    # --- what is told of it -------------------------------------------------------------------------------------------

    @property
    def counts(self) -> tuple[int, int, int]:
        """Lines in all, answered well, and badly."""
        total = self.record.total if self._lines is None else len(self._lines)
        if not self._taken_up:
            return total, self.record.completed, self.record.failed
        return total, len(self._well.told), len(self._badly.told)

    @property
    def window(self) -> Window | None:
        """When its lines may begin."""
        return self._asker.window

    @property
    def waiting_for(self) -> str | None:
        """Why no further line begins, as a sentence's end; None where one may."""
        if self.record.status.is_over:
            return None
        if self.broken:
            return "a restart of the server: it met an error of its own, and its log has the details"
        if self._waits_for_place:
            return "older batches to be done"
        return self.trouble or self._asker.held() or self._asker.queued()

    @property
    def eta_seconds(self) -> float | None:
        """How long the rest takes at the pace of late, while lines may begin; None where that is not known."""
        total, well, badly = self.counts
        if len(self._ended_at) < 2 or self._ended_at[-1] <= self._ended_at[0]:  # noqa: PLR2004 - a pace needs two
            return None
        pace = (len(self._ended_at) - 1) / (self._ended_at[-1] - self._ended_at[0])
        return (total - well - badly) / pace

    @property
    def expires_at(self) -> int:
        """Seconds since the epoch, if its lines could begin from now on, or from when its window opens."""
        left = max(0.0, self.record.limit_seconds - self._used_seconds)
        return int(self._office.wall() + self._asker.seconds_until_open + left)

    # --- what is done with it -----------------------------------------------------------------------------------------

    async def cancel(self) -> None:
        """End it, with what has been answered. Raises StoreError."""
        await self._keep(at="cancelling", status=Status.CANCELLING)
        self._end(Status.CANCELLED)

    async def run(self) -> None:
        """From where it stands to its end."""
        try:
            if self.record.ending is None and self.record.status is not Status.CANCELLING:
                await self._live()
            await self._finish(self.record.ending or self._ending or self._ending_of_status())
        except FileNotFoundError:
            gone = LineError("input_file_missing", f"{self.record.input_file_id} is no longer on the server's disk")
            await self._finish(Status.FAILED, (gone,))
        finally:
            self._answers.close()
            self._close_input()

    def _ending_of_status(self) -> Status:
        return Status.CANCELLED if self.record.status is Status.CANCELLING else Status.COMPLETED

    def _end(self, ending: Status) -> None:
        if self._ending is None:
            self._ending = ending
        self._scope.cancel()

    async def _live(self) -> None:
        """Read the lines and run them, until they are done or it is ended. Raises FileNotFoundError."""
        with self._scope:
            self._waits_for_place = True
            async with self._places:
                self._waits_for_place = False
                if not await self._open():
                    return
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_time)
                    async with trio.open_nursery() as workers:
                        for _ in range(self._office.house.settings.batches.in_flight):
                            workers.start_soon(self._work)
                    nursery.cancel_scope.cancel()
        self._waits_for_place = False

    async def _open(self) -> bool:
        """Read the lines, and which of them have been answered. False: there is nothing to run, and it is ended so.
        Raises FileNotFoundError."""
        read = await self._insist(lambda: in_thread(self._read))
        if isinstance(read, LineError):
            return await self._refuse((read,))
        lines, damaged, (well, badly) = read
        errors = tuple(islice((line.error for line in lines if line.error is not None), MOST_ERRORS_TOLD))
        if len(damaged) == len(lines):
            return await self._refuse(errors or (LineError("empty_file", "the file has no line"),))
        self._know(well, badly)
        self._lines = {line.number: line for line in lines}
        answered = well | badly
        for number, told in damaged.items():
            if number not in answered:
                self._badly.add(number, told)
                self._office.house.observer.batch_line_ended("damaged")
        await self._insist(self._badly.flush)
        self._todo = deque(line for line in lines if line.error is None and line.number not in answered)
        if self.record.status is Status.VALIDATING:
            change = partial(self._keep, at="in_progress", status=Status.IN_PROGRESS, total=len(lines), errors=errors)
            await self._insist(change)
        return True

    def _know(self, well: set[int], badly: set[int]) -> None:
        self._well.told, self._badly.told = well, badly
        self._taken_up = True

    async def _refuse(self, errors: tuple[LineError, ...]) -> bool:
        self._ending = Status.FAILED
        await self._insist(lambda: self._keep(errors=errors))
        return False

    def _read(self) -> LineError | tuple[list[Line], dict[int, bytes], tuple[set[int], set[int]]]:
        """The lines, what is told of those that cannot be run, and which have been answered. In a thread. Raises
        OSError."""
        path = self._office.store.folder.path(self.record.input_file_id)
        with path.open("rb") as file:
            try:
                longest = self._office.house.settings.max_body_bytes
                lines = list(batch_lines.lines_of(file, self.record.endpoint, longest))
            except batch_lines.TooManyLines:
                most = batch_lines.MOST_LINES
                return LineError("too_many_tasks", f"the file has more than {most} lines, the most that a batch takes")
            self._close_input()
            self._input = os.dup(file.fileno())
        damaged = {line.number: batch_lines.damaged_line(self.record.id, line) for line in lines if line.error}
        return lines, damaged, self._answers.open()

    def _close_input(self) -> None:
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    async def _watch_time(self) -> None:
        """Count the time in which its lines may begin, and end it when that is over. A server that is down and a window
        that is closed count for nothing; nor does a clock that is set."""
        kept_seconds = self._used_seconds
        while True:
            left = self.record.limit_seconds - self._used_seconds
            if left <= 0:
                self._end(Status.EXPIRED)
                return
            before = trio.current_time()
            counts = self._asker.is_open
            await trio.sleep(min(LOOK_SECONDS, left))
            if counts:
                self._used_seconds += trio.current_time() - before
            if self._used_seconds - kept_seconds >= KEEP_USED_SECONDS:
                kept_seconds = self._used_seconds
                try:
                    await self._keep()
                except StoreError:
                    continue  # it is tried again, a minute later

    # --- its lines ----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Run lines, one at a time, until there are no more."""
        while self._todo:
            await self._asker.until_allowed()
            if not self._todo:
                return  # the last one went to another worker meanwhile
            line = self._todo.popleft()
            self.running += 1
            try:
                await self._run_line(line)
            finally:
                self.running -= 1

    async def _run_line(self, line: Line) -> None:
        raw = await self._insist(lambda: in_thread(partial(os.pread, self._input, line.length, line.start)))
        batch_id = self.record.id
        try:
            request = batch_lines.request_of(raw)
        except msgspec.MsgspecError:
            changed = LineError("input_file_changed", "the file on disk is not what it was", line.number)
            changed_line = Line(line.number, line.start, line.length, changed)
            await self._tell(self._badly, line, batch_lines.damaged_line(batch_id, changed_line), "damaged")
            return
        exchange = await self._asker.ask(f"{batch_id}-{line.number}", request.body)
        good = batch_lines.FIRST_GOOD <= exchange.status < batch_lines.FIRST_BAD
        told = batch_lines.answer_line(
            batch_id, line.number, request.custom_id, exchange.status, exchange.request_id, exchange.answer
        )
        await self._tell(self._well if good else self._badly, line, told, "completed" if good else "failed")

    async def _tell(self, scribe: _Scribe, line: Line, told: bytes, outcome: str) -> None:
        scribe.add(line.number, told)
        await self._insist(scribe.flush)
        self._ended_at.append(trio.current_time())
        self._office.house.observer.batch_line_ended(outcome)

    # --- its end ------------------------------------------------------------------------------------------------------

    async def _finish(self, ending: Status, errors: tuple[LineError, ...] | None = None) -> None:
        """Make its files of what there is, and say why there is no more."""
        self.trouble = None
        if errors is not None:
            await self._insist(lambda: self._keep(errors=errors))
        folder = self._office.store.folder
        begun = any([await in_thread(folder.path(each).exists) for each in self.record.results if each])
        if not begun:
            status = self.record.status if ending in (Status.CANCELLED, Status.FAILED) else Status.FINALIZING
            at = "finalizing" if status is Status.FINALIZING else None
            await self._insist(lambda: self._keep(at=at, status=status, ending=ending))
            await self._fill(ending)
            total, well, badly = self.counts
            ids = self.record.results if self.record.results[0] else _new_ids()
            await self._insist(lambda: self._keep(total=total, completed=well, failed=badly, results=ids))
        output_id, error_id = self.record.results
        sizes = await self._insist(
            lambda: in_thread(
                lambda: (
                    self._answers.well.finish(folder.path(output_id)),
                    self._answers.badly.finish(folder.path(error_id)),
                )
            )
        )
        await self._insist(lambda: self._over(ending, sizes))

    async def _fill(self, ending: Status) -> None:
        """A line about each request that was not run."""
        if not self._taken_up:
            if ending is Status.FAILED:
                self._know(*await self._insist(partial(in_thread, self._answers.open)))
            else:
                await self._open()
        await self._insist(self._well.flush)
        await self._insist(self._badly.flush)
        if ending not in SAID_WHY or self._lines is None:
            return
        code, message = SAID_WHY[ending]
        answered = self._well.told | self._badly.told
        undone = [line for number, line in self._lines.items() if number not in answered]
        for start in range(0, len(undone), FILL_LINES):
            group = undone[start : start + FILL_LINES]
            for line, custom_id in await self._insist(partial(in_thread, partial(self._named, group))):
                self._badly.add(
                    line.number, batch_lines.undone_line(self.record.id, line.number, custom_id, code, message)
                )
                self._office.house.observer.batch_line_ended(ending.value)
            await self._insist(self._badly.flush)

    def _named(self, lines: list[Line]) -> list[tuple[Line, str]]:
        """In a thread. Raises OSError."""
        raws = [(line, os.pread(self._input, line.length, line.start)) for line in lines]
        return [(line, batch_lines.request_of(raw).custom_id) for line, raw in raws]

    async def _over(self, ending: Status, sizes: tuple[int, int]) -> None:
        """Raises StoreError."""
        record, now = self.record, int(self._office.wall())
        life = record.output_expires_seconds
        expires_at = None if life is None else now + life
        names = (f"{record.id}_output.jsonl", f"{record.id}_error.jsonl")
        files = [
            FileRecord(file_id, record.key, name, "batch_output", size, now, expires_at)
            for file_id, name, size in zip(record.results, names, sizes, strict=True)
            if size
        ]
        ids = [file.id for file in files]
        await self._keep(
            *files,
            at=ending.value,
            expires_at=self.expires_at,
            status=ending,
            output_file_id=record.results[0] if record.results[0] in ids else None,
            error_file_id=record.results[1] if record.results[1] in ids else None,
        )

    # --- the disk -----------------------------------------------------------------------------------------------------

    async def _keep(
        self, *files: FileRecord, at: str | None = None, expires_at: int | None = None, **changes: object
    ) -> None:
        """Change its record, on disk first; `at` is what it comes to now. Raises StoreError."""
        async with self._changing:
            times = self.record.times if at is None else {**self.record.times, at: int(self._office.wall())}
            if expires_at is not None:
                times = {**times, "expires": expires_at}
            record = msgspec.structs.replace(self.record, times=times, used_seconds=self._used_seconds, **changes)
            await self._office.store.change([*files, record])
            self.record = record

    async def _insist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Do what the disk may refuse, until it does not; meanwhile it is said. Raises FileNotFoundError: that does not
        pass."""
        while True:
            try:
                done = await attempt()
            except FileNotFoundError:
                raise
            except (OSError, StoreError) as error:
                if self.trouble is None:
                    log.warning("%s stands still: %s", self.record.id, error)
                full = error.full if isinstance(error, StoreError) else error.errno in FULL
                self.trouble = f"{'room on ' if full else ''}the server's disk, which does not take it: {error}"
                await trio.sleep(LOOK_SECONDS)
            else:
                self.trouble = None
                return done


def _new_ids() -> tuple[str, str]:
    return f"file-{secrets.token_hex(12)}", f"file-{secrets.token_hex(12)}"
