"""All batches that are not over, and what is tidied up of those that are.

Owns which batches run, and for how long files are kept. Must never know what a line says.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping

import trio

from gridsched.api.batch_asking import Office
from gridsched.api.batch_run import BatchRun
from gridsched.store.batches import BatchRecord, FileRecord, Status, StoreError

log = logging.getLogger(__name__)

RUNNING_OF_A_KEY = 16
"""Batches of one API key that run at once: each holds its lines' places in memory. The others wait their turn."""

CLOCK_SLACK_SECONDS = 60.0


class BatchRunner:
    """Runs batches until it is cancelled; what runs then is taken up again at the next start."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._runs: dict[str, BatchRun] = {}
        self._places: defaultdict[str, trio.Semaphore] = defaultdict(lambda: trio.Semaphore(RUNNING_OF_A_KEY))
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Take up what is not over, and whatever comes."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._tidy)
            for record in self._office.store.batches():
                if not record.status.is_over:
                    self.begin(record)

    def begin(self, record: BatchRecord) -> None:
        """Run a batch that has been kept."""
        if self._nursery is None or record.id in self._runs:
            return  # `run` finds it
        run = self._runs[record.id] = BatchRun(self._office, record, self._places[record.key])
        self._nursery.start_soon(self._one, run)

    def run_of(self, batch_id: str) -> BatchRun | None:
        """A batch that is not over."""
        return self._runs.get(batch_id)

    def busy_files(self) -> Iterable[str]:
        """The files that are still read."""
        return [batch.input_file_id for batch in self._office.store.batches() if not batch.status.is_over]

    def by_status(self) -> Mapping[str, int]:
        """How many batches there are of each status."""
        return {status.value: count for status, count in self._office.store.by_status().items()}

    def lines_remaining(self) -> int:
        """Lines that have no answer yet, of all batches."""
        return sum(total - well - badly for total, well, badly in (run.counts for run in self._runs.values()))

    async def _one(self, run: BatchRun) -> None:
        try:
            await run.run()
        except Exception:
            run.broken = True
            log.exception("%s stands still until the server starts again", run.record.id)
        else:
            del self._runs[run.record.id]

    # --- what is kept -------------------------------------------------------------------------------------------------

    async def _tidy(self) -> None:
        """Forget what is old, once in a while, unless the clock was set meanwhile: it may be wrong."""
        while True:
            steady, wall = trio.current_time(), self._office.wall()
            await trio.sleep(self._office.house.settings.batches.tidy_seconds)
            gone = self._office.wall() - wall
            if abs(gone - (trio.current_time() - steady)) <= CLOCK_SLACK_SECONDS:
                try:
                    await self.forget_old()
                except (OSError, StoreError) as error:
                    log.warning("files of old batches are still there: %s", error)

    async def forget_old(self) -> None:
        """Forget files and batches that have been kept for long enough. Raises StoreError, OSError."""
        store, now = self._office.store, self._office.wall()
        oldest = now - self._office.house.settings.batches.keep_seconds
        old = [batch for batch in store.batches() if batch.status.is_over and _ended_at(batch) < oldest]
        gone = {batch.id for batch in old}
        used: set[str | None] = set()
        for batch in store.batches():
            if batch.id not in gone:
                used |= {batch.input_file_id, batch.output_file_id, batch.error_file_id}
        busy = set(self.busy_files())
        files = [file for file in store.files() if file.id not in busy and self._is_old(file, used, oldest, now)]
        if not gone and not files:
            return
        await store.forget([file.id for file in files], gone)
        log.info("%d old batches and %d files are forgotten", len(gone), len(files))

    @staticmethod
    def _is_old(file: FileRecord, used: set[str | None], oldest: float, now: float) -> bool:
        if file.expires_at is not None and file.expires_at <= now:
            return True
        return file.id not in used and file.created_at < oldest


def _ended_at(batch: BatchRecord) -> int:
    return max((batch.created_at, *(batch.times.get(each.value, 0) for each in Status)))
