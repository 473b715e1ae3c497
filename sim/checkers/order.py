"""Who goes first: S1 and S2 at every grant, S6b and S7 after every step."""

from gridsched.core.commands import Command, Grant, GrantStep
from gridsched.core.job import JobClass
from sim.checkers.book import InstanceNote, JobNote
from sim.checkers.checker import Checker


class Order(Checker):
    """First in, first out within class and model; a higher class first; and nobody waits beside a free slot."""

    def decided(self, command: Command) -> None:
        """Judge a grant against all who wait for the same model."""
        if not isinstance(command, GrantStep):
            return
        note = self.book.jobs.get(command.grant.job_id)
        instance = self.book.instances.get(command.grant.instance_id)
        if note is None or instance is None:
            return
        for other in self.book.waiting():
            if other is not note and other.job.model == note.job.model:
                self._judge_pair(command.grant, note, other, instance)

    def _judge_pair(self, grant: Grant, note: JobNote, other: JobNote, instance: InstanceNote) -> None:
        mine, theirs = note.job, other.job
        if mine.job_class == theirs.job_class:
            first = note.first_granted_at is None and other.first_granted_at is None
            if first and other.arrived_at <= note.arrived_at and theirs.id < mine.id:
                self.broken("S2", f"{mine.job_class.label} job {mine.id} is granted before the older {theirs.id}")
        elif theirs.job_class < mine.job_class and not self._may_overtake(note, other, instance):
            what = f"{mine.job_class.label} job {mine.id} (grant {grant.id}) goes before"
            self.broken("S1", f"{what} {theirs.job_class.label} job {theirs.id}, which waits for the same model")

    def _may_overtake(self, note: JobNote, other: JobNote, instance: InstanceNote) -> bool:
        """Relief lifts S1 for starved low work; S5b lifts it between background and batch."""
        relief = self.book.policy.background_max_starvation_seconds
        starved = relief > 0 and self.book.starved_for(note) >= relief - 1e-6
        mode = any(self.book.maybe_interactive(device) for device in instance.start.option.devices)
        if starved and mode:
            return True
        limit = self.book.policy.batch_max_starvation_seconds
        batch = note.job.job_class is JobClass.BATCH and other.job.job_class is JobClass.BACKGROUND
        return batch and limit > 0 and self.book.starved_for(note) >= limit - 1e-6

    def settled(self) -> None:
        """A job whose model is ready with a free slot does not wait, unless something older or higher may be why."""
        for note in self.book.waiting():
            instance = self.book.open_instance(note.job.model)
            if instance is None or instance.free_slots < 1 or note.job.model not in self.book.models:
                continue
            if self.book.may_be_drained(note):
                continue
            if not note.job.job_class.is_low:
                self.broken("S7", f"chat {note.job.id} waits beside a free slot of {note.job.model}")
            elif self._is_free_for_low(note, instance):
                what = f"{note.job.job_class.label} job {note.job.id} waits beside a free slot of {note.job.model}"
                self.broken("S6b", f"{what} and no chat is there")
            elif not self._will_be_woken(note, instance):
                what = f"job {note.job.id} waits for the tail's end at {self._tail(instance):.3f}"
                self.broken("S4", f"{what} and the timer stands at {self.book.timer_at}")

    def _is_free_for_low(self, note: JobNote, instance: InstanceNote) -> bool:
        """Whether no chat and no tail is on the instance's devices and a slot is free that is not kept for chats."""
        if any(not other.job.job_class.is_low for other in self.book.jobs.values()):
            return False
        if any(self.book.tail_until(device) > self.book.now for device in instance.start.option.devices):
            return False
        return self._slot_for_low(note, instance)

    def _slot_for_low(self, note: JobNote, instance: InstanceNote) -> bool:
        """A slot beyond those kept for chats, of which an automatic setting keeps at most one, and nobody ahead."""
        spec = self.book.models[note.job.model]
        kept = spec.reserved_slots if spec.reserved_slots is not None else int(instance.start.option.parallel > 1)
        ahead = sum(
            other.job.model == note.job.model and other.job.job_class < note.job.job_class
            for other in self.book.waiting()
        )
        return instance.free_slots - ahead > kept

    def _tail(self, instance: InstanceNote) -> float:
        return max(self.book.tail_until(device) for device in instance.start.option.devices)

    def _will_be_woken(self, note: JobNote, instance: InstanceNote) -> bool:
        """S4: the timer is exact. Where only a tail holds the job, the timer must stand at its end or before."""
        if any(not other.job.job_class.is_low for other in self.book.jobs.values()):
            return True
        if self._tail(instance) <= self.book.now or not self._slot_for_low(note, instance):
            return True
        return self.book.timer_at is not None and self.book.timer_at <= self._tail(instance) + 1e-6
