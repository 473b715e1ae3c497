"""S10 and S11: what stands still, and what is taken away for a chat."""

from collections.abc import Callable, Mapping

from gridsched.core.commands import AbortStep, GrantStep, PauseInstance, ResumeInstance, StopInstance
from gridsched.core.ids import InstanceId
from sim.checkers.checker import Checker, Waits
from sim.checkers.notes import InstanceNote

MOST_ABORTS = 2
SLACK_SECONDS = 0.01  # a timer may ring while other news of the same moment are being heard


class Standing(Checker):
    """A process stands still only for a chat that generates beside it and never for longer than it may; a step is
    taken away only for a chat that waits, before a byte of it was sent, and at most twice a job."""

    def judges(self) -> Mapping[type, Callable[..., None]]:
        """Pauses, resumes, aborts, and what must not meet a process that stands."""
        return {
            PauseInstance: self._judge_pause,
            ResumeInstance: self._judge_resume,
            AbortStep: self._judge_abort,
            GrantStep: self._judge_grant,
            StopInstance: self._judge_stop,
        }

    def _judge_pause(self, command: PauseInstance) -> None:
        book, one = self.book, self.book.instances.get(command.instance_id)
        if one is None or one.state != "ready" or one.paused_at is not None:
            state = "unknown" if one is None else one.state if one.paused_at is None else "paused"
            self.broken("S10", f"instance {command.instance_id} is paused, which is {state}")
            return
        name = f"instance {one.id} of {one.model} is paused"
        if not book.policy.background_pause:
            self.broken("S10", f"{name}, which is switched off")
        if any(not grant.job.low or grant.over or grant.abort_asked for grant in one.slots.values()) or not one.slots:
            self.broken("S10", f"{name} and has a step of a chat, one that is cancelled, or none")
        if not any(book.chat_runs(device) for device in one.devices):
            self.broken("S10", f"{name} and no chat generates beside it")
        if any(grant.stood >= book.policy.pause_limit_seconds - 1e-9 for grant in one.slots.values()):
            self.broken("S10", f"{name} and a step of it has stood for as long as it may")

    def _judge_resume(self, command: ResumeInstance) -> None:
        one = self.book.instances.get(command.instance_id)
        if one is not None and one.state == "exited":
            return  # it died while it stood
        if one is None or one.paused_at is None:
            self.broken("S10", f"instance {command.instance_id} is told to go on and does not stand")

    def _judge_grant(self, command: GrantStep) -> None:
        note = self.book.jobs.get(command.grant.job_id)
        if note is not None and not note.low:
            self._must_run(command.grant.instance_id, f"chat {note.job.id} is granted a slot of")

    def _judge_stop(self, command: StopInstance) -> None:
        self._must_run(command.instance_id, "told to stop is")

    def _must_run(self, instance_id: InstanceId, what: str) -> None:
        if instance_id in self.book.paused:
            self.broken("S10", f"{what} instance {instance_id}, which stands paused")

    def _judge_abort(self, command: AbortStep) -> None:
        book, grant = self.book, self.book.grants.get(command.grant_id)
        if grant is None or grant.over or grant.abort_asked:
            self.broken("S11", f"grant {command.grant_id} is aborted, which is over, aborted or unknown")
            return
        name = f"a step of job {grant.job.job.id} is aborted"
        self._must_run(grant.instance.id, f"{name} on")
        if book.policy.abort_after_seconds is None:
            self.broken("S11", f"{name}, which is switched off")
        if not grant.job.low or grant.answered:
            self.broken("S11", f"{name}, which is a chat's or has begun to answer")
        if grant.job.aborts >= MOST_ABORTS:
            self.broken("S11", f"{name} for the {grant.job.aborts + 1}. time")
        if not any(not note.low for note in book.waiting()):
            self.broken("S11", f"{name} and no chat waits")

    def settled(self, waits: Waits) -> None:
        """What stands does so for a chat, has no step that may not stand, and not for too long."""
        del waits
        if self.book.paused:
            for one in list(self.book.paused.values()):
                self._judge_standing(one)

    def _judge_standing(self, one: InstanceNote) -> None:
        book = self.book
        name = f"instance {one.id} of {one.model} stands paused"
        if not any(book.chat_runs(device) for device in one.devices):
            self.broken("S10", f"{name} and no chat generates beside it")
        if any(grant.over for grant in one.slots.values()) or not one.slots:
            self.broken("S10", f"{name} with a step whose client has left, or with none")
        if one.paused_at is None:
            return
        limit = book.policy.pause_limit_seconds + SLACK_SECONDS
        for grant in one.slots.values():
            stood = grant.stood + book.now - max(one.paused_at, grant.at)
            if stood > limit:
                self.broken("S10", f"{name}, a step of job {grant.job.job.id} for {stood:.3f}s in all")
