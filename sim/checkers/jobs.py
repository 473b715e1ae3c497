"""Every job ends exactly once, and waits no longer than it may (S9)."""

from gridsched.core.commands import Command, GrantStep, RejectionCode, RejectJob
from gridsched.core.events import Event, JobSubmitted
from gridsched.core.ids import JobId
from sim.checkers.book import JobNote
from sim.checkers.checker import Checker

SLACK_SECONDS = 0.01  # a timer may ring while other news of the same moment are being heard


class Jobs(Checker):
    """Answers go to living jobs only, one at a time, and refusals have the reason they name."""

    def heard(self, event: Event) -> None:
        """A job's number is never used twice: that is the world's duty, and trusted here."""
        if isinstance(event, JobSubmitted) and event.job.id in self.book.closed:
            self.broken("S7", f"job {event.job.id} is submitted twice")

    def decided(self, command: Command) -> None:
        """Judge an answer."""
        if isinstance(command, GrantStep):
            self._judge_answer(command.grant.job_id, "granted")
        elif isinstance(command, RejectJob):
            note = self._judge_answer(command.job_id, f"rejected ({command.rejection.code.value})")
            if note is not None:
                self._judge_reason(note, command)

    def _judge_answer(self, job_id: JobId, what: str) -> JobNote | None:
        note = self.book.jobs.get(job_id)
        if note is None:
            how = self.book.closed[job_id].ended if job_id in self.book.closed else "unknown"
            self.broken("S7", f"job {job_id} is {what} although it is over ({how})")
        elif note.grant is not None:
            self.broken("S7", f"job {job_id} is {what} although grant {note.grant.id} of it is outstanding")
        return note

    def _judge_reason(self, note: JobNote, command: RejectJob) -> None:
        code, waited = command.rejection.code, self.book.now - note.arrived_at
        if not self._holds(note, code):
            self.broken("L7", f"job {note.job.id} is rejected as {code.value}, which is not so")
        if code is RejectionCode.QUEUE_TIMEOUT:
            limit = self._limit(note)
            if limit is None or waited < limit - SLACK_SECONDS:
                self.broken("S9", f"job {note.job.id} is timed out after {waited:.3f}s, its limit is {limit}")
        if not command.rejection.message:
            self.broken("L7", f"job {note.job.id} is rejected without a word")

    def _holds(self, note: JobNote, code: RejectionCode) -> bool:
        """Whether the reason may be true, as far as a stranger can tell."""
        match code:
            case RejectionCode.MODEL_NOT_FOUND:
                return note.job.model not in self.book.models
            case RejectionCode.NOT_RESIDENT:
                return note.job.warm_only or note.job.no_evict
            case RejectionCode.DRAINING:
                return self.book.draining
            case RejectionCode.UPSTREAM_ERROR:
                return note.deaths > 0
            case RejectionCode.MODEL_FAILED:
                return note.job.model in self.book.failed_at
            case _:
                return True

    def settled(self) -> None:
        """Nobody has waited longer than they may, and no queue is longer than it may be."""
        lengths: dict[int, int] = {}
        for note in self.book.waiting():
            if self.book.draining:
                self.broken("P8", f"job {note.job.id} still waits although the server drains")
            limit = self._limit(note)
            waited = self.book.now - note.arrived_at
            if limit is not None and note.first_granted_at is None and waited > limit + SLACK_SECONDS:
                self.broken("S9", f"job {note.job.id} waits {waited:.3f}s, its limit is {limit}")
            if note.first_granted_at is None:
                lengths[note.job.job_class] = lengths.get(note.job.job_class, 0) + 1
        for job_class, queue in self.book.policy.queues.items():
            if lengths.get(job_class, 0) > queue.max_length:
                self.broken(
                    "S9", f"the {job_class.label} queue has {lengths[job_class]} jobs, {queue.max_length} may wait"
                )

    def _limit(self, note: JobNote) -> float | None:
        """The job's own longest wait and its class's, whichever is shorter."""
        limits = (note.job.max_wait_seconds, self.book.policy.queues[note.job.job_class].max_wait_seconds)
        return min((limit for limit in limits if limit is not None), default=None)

    def unfinished(self) -> None:
        """Called when the world has been healed for long: every job must have ended."""
        for note in self.book.jobs.values():
            state = f"holds grant {note.grant.id}" if note.grant else "waits"
            what = f"{note.job.job_class.label} job {note.job.id} for {note.job.model} {state} and never ends"
            self.broken("liveness", what)
        for instance in self.book.living():
            if instance.slots:
                self.broken("liveness", f"instance {instance.start.instance_id} has slots that are never given back")
            if instance.state == "starting":
                self.broken("liveness", f"instance {instance.start.instance_id} is for ever starting")
