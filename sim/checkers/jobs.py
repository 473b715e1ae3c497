"""Every job ends exactly once, and waits no longer than it may (S9)."""

import heapq
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import ceil

from gridsched.core.commands import GrantStep, RejectionCode, RejectJob
from gridsched.core.events import JobSubmitted, PolicyChanged
from gridsched.core.ids import JobId
from gridsched.core.job import Job
from sim.checkers.checker import Checker, Violation, Waits
from sim.checkers.facts import Facts
from sim.checkers.notes import JobNote

SEEN_OUTSIDE = (  # reasons that a stranger can judge; all others are believed
    RejectionCode.NOT_RESIDENT,
    RejectionCode.DRAINING,
    RejectionCode.UPSTREAM_ERROR,
    RejectionCode.MODEL_NOT_FOUND,
    RejectionCode.MODEL_NOT_SUPPORTED,
    RejectionCode.MODEL_FAILED,
    RejectionCode.GPU_UNAVAILABLE,
)
SLACK_SECONDS = 0.01  # a timer may ring while other news of the same moment are being heard


class Jobs(Checker):
    """Answers go to living jobs only, one at a time, and refusals have the reason they name."""

    def __init__(self, book: Facts, found: list[Violation]) -> None:
        super().__init__(book, found)
        self._limits: list[tuple[float, JobId]] = []
        self._came: JobNote | None = None  # with this step
        self._longer = False  # whether a queue may have become longer than it may be

    def hears(self) -> Mapping[type, Callable[..., None]]:
        """Arrivals, and what changes how long they may wait."""
        return {JobSubmitted: self._submitted, PolicyChanged: self._remember_limits}

    def judges(self) -> Mapping[type, Callable[..., None]]:
        """Answers."""
        return {GrantStep: self._judge_grant, RejectJob: self._judge_rejection}

    def _submitted(self, event: JobSubmitted) -> None:
        """A job's number is never used twice: that is the world's duty, and trusted here."""
        if event.job.id in self.book.closed:
            self.broken("S7", f"job {event.job.id} is submitted twice")
        self._came = self.book.jobs[event.job.id]
        self._longer = True

    def _remember_limits(self, event: object) -> None:
        del event
        self._longer = True
        self._limits.clear()
        for note in self.book.waiting():
            self._remember_limit(note)

    def _remember_limit(self, note: JobNote) -> None:
        limit = self._limit(note)
        if limit is not None:
            heapq.heappush(self._limits, (note.arrived_at + limit + SLACK_SECONDS, note.job.id))

    def _judge_grant(self, command: GrantStep) -> None:
        job_id = command.grant.job_id
        note = self.book.jobs.get(job_id)
        if note is None or note.grant is not None:
            self._say_answered(job_id, note, "granted")

    def _judge_rejection(self, command: RejectJob) -> None:
        note = self.book.jobs.get(command.job_id)
        if note is None or note.grant is not None:
            self._say_answered(command.job_id, note, f"rejected ({command.rejection.code.value})")
        if note is not None:
            self._judge_reason(note, command)

    def _say_answered(self, job_id: JobId, note: JobNote | None, what: str) -> None:
        why = f"it is over ({self.book.closed.get(job_id, 'unknown')})"
        if note is not None and note.grant is not None:
            why = f"grant {note.grant.id} of it is outstanding"
        self.broken("S7", f"job {job_id} is {what} although {why}")

    def _judge_reason(self, note: JobNote, command: RejectJob) -> None:
        code = command.rejection.code
        if code in SEEN_OUTSIDE and not self._holds(note, code):
            self.broken("L7", f"job {note.job.id} is rejected as {code.value}, which is not so")
        if code is RejectionCode.QUEUE_TIMEOUT:
            waited, limit = self.book.now - note.arrived_at, self._limit(note)
            if limit is None or waited < limit - SLACK_SECONDS:
                self.broken("S9", f"job {note.job.id} is timed out after {waited:.3f}s, its limit is {limit}")
        if not command.rejection.message:
            self.broken("L7", f"job {note.job.id} is rejected without a word")

    def _holds(self, note: JobNote, code: RejectionCode) -> bool:
        """Whether the reason may be true, as far as a stranger can tell."""
        if code is RejectionCode.NOT_RESIDENT:
            return note.job.warm_only or note.job.no_evict
        if code is RejectionCode.DRAINING:
            return self.book.draining
        if code is RejectionCode.UPSTREAM_ERROR:
            return note.deaths > 0
        if code is RejectionCode.GPU_UNAVAILABLE:
            return bool(self.book.lost_devices)
        return self._holds_of_models(note, code)

    def _holds_of_models(self, note: JobNote, code: RejectionCode) -> bool:
        """The same of a reason that lies with the models that may serve the job."""
        book, names = self.book, self.book.models_for(note)
        if code is RejectionCode.MODEL_NOT_FOUND:
            there = [name for name in names if name in book.models]
            # Whose family was gone once waits for one of its variants, and which cannot be seen from outside.
            return note.model in book.gone_families or not there or (note.stray and len(there) < len(names))
        if code is RejectionCode.MODEL_NOT_SUPPORTED:
            return note.model in book.families and (not names or note.job.steps > 1)
        return any(name in book.failed_at for name in names)

    def settled(self, waits: Waits) -> None:
        """Nobody has waited longer than they may, and no queue is longer than it may be."""
        book = self.book
        if book.draining and waits:
            for note in book.waiting():
                self.broken("P8", f"job {note.job.id} still waits although the server drains")
        while self._limits and self._limits[0][0] < book.now:
            late = book.jobs.get(heapq.heappop(self._limits)[1])
            if late is not None and late.first_granted_at is None:
                waited = book.now - late.arrived_at
                self.broken("S9", f"job {late.job.id} waits {waited:.3f}s, its limit is {self._limit(late)}")
        if self._longer:
            self._longer = False
            self._judge_lengths()
        came, self._came = self._came, None
        if came is not None and not came.ended and came.first_granted_at is None:
            self._remember_limit(came)

    def _judge_lengths(self) -> None:
        book = self.book
        for job_class, queue in book.policy.queues.items():
            length = book.unserved[job_class]
            if length > queue.max_length:
                self.broken("S9", f"the {job_class.label} queue has {length} jobs, {queue.max_length} may wait")
        came = self._came
        if came is not None and not came.ended and came.job.queue_share is not None:
            self._judge_share(came.job, came.job.queue_share)

    def _judge_share(self, job: Job, share: float) -> None:
        length = self.book.unserved_of_key[job.job_class, job.key]
        limit = ceil(Fraction(str(share)) * self.book.policy.queues[job.job_class].max_length)
        if length > limit:
            self.broken("S9", f"the key {job.key} has {length} {job.job_class.label} jobs, {limit} may wait")

    def _limit(self, note: JobNote) -> float | None:
        """The job's own longest wait and its class's, whichever is shorter."""
        own, of_class = note.job.max_wait_seconds, self.book.policy.queues[note.job_class].max_wait_seconds
        if own is None or of_class is None:
            return of_class if own is None else own
        return min(own, of_class)

    def unfinished(self) -> None:
        """Every job must have ended, and every slot be given back."""
        for note in self.book.jobs.values():
            state = f"holds grant {note.grant.id}" if note.grant else "waits"
            what = f"{note.job_class.label} job {note.job.id} for {note.model} {state} and never ends"
            self.broken("liveness", what)
        for instance in self.book.living():
            if instance.slots:
                self.broken("liveness", f"instance {instance.id} has slots that are never given back")
            if instance.state == "starting":
                self.broken("liveness", f"instance {instance.id} is for ever starting")
