"""Who goes first: S1 and S2 at every grant, S6b and S7 after every step."""

from collections import Counter
from collections.abc import Callable, Mapping

from gridsched.core.commands import GrantStep
from gridsched.core.ids import JobId, ModelName
from gridsched.core.job import Job, JobClass
from sim.checkers.checker import Checker, Violation, Waits
from sim.checkers.facts import Facts
from sim.checkers.notes import InstanceNote, JobNote, Line

TURNS_OF_ANOTHER = 3  # a key that is served twice before one that came no later: a turn each, and one that crossed


class Order(Checker):
    """First in, first out within class, key and model; keys in turn; a higher class first; and nobody waits beside a
    free slot."""

    def __init__(self, book: Facts, found: list[Violation]) -> None:
        super().__init__(book, found)
        self._passed: Counter[tuple[JobId, str]] = Counter()  # how often another key was served before a job (S2)
        self._low_step_of: dict[str, int] = {}  # when a low step of a key was last granted, whatever its model

    def judges(self) -> Mapping[type, Callable[..., None]]:
        """Grants."""
        return {GrantStep: self._judge_grant}

    def _judge_grant(self, command: GrantStep) -> None:
        """Judge a grant against all who wait for the same name."""
        note = self.book.jobs.get(command.grant.job_id)
        instance = self.book.instances.get(command.grant.instance_id)
        if note is None or instance is None:
            return
        line = self.book.lines.get(note.model)
        if line is None:
            return
        family = note.model in self.book.families
        for other in line.jobs.values():
            if other is not note and not (family and not _alike(note, other)):
                self._judge_pair(note, other, instance)
        if note.low:
            self._low_step_of[note.job.key] = self.book.step

    def _judge_pair(self, note: JobNote, other: JobNote, instance: InstanceNote) -> None:
        if note.job_class == other.job_class:
            both_new = note.first_granted_at is None and other.first_granted_at is None
            if both_new and not self._had_its_turn(note, other, instance):
                self._judge_peers(note, other)
        elif other.job_class < note.job_class and not self._may_overtake(note, other, instance):
            what = f"{note.job_class.label} job {note.job.id} goes before"
            self.broken("S1", f"{what} {other.job_class.label} job {other.job.id}, which waits for the same model")

    def _judge_peers(self, note: JobNote, other: JobNote) -> None:
        mine, theirs = note.job, other.job
        if mine.key == theirs.key:
            if other.arrived_at <= note.arrived_at and theirs.id < mine.id:
                self.broken("S2", f"{note.job_class.label} job {mine.id} is granted before the older {theirs.id}")
        elif theirs.id < mine.id:
            # Whoever came later with another key has its turn, but not again and again.
            self._passed[theirs.id, mine.key] += 1
            times = self._passed[theirs.id, mine.key]
            if times > other.ahead + TURNS_OF_ANOTHER:
                what = f"job {theirs.id} of key {theirs.key!r} has been passed {times} times by {mine.key!r}"
                self.broken("S2", f"{what}, although {other.ahead} steps of its key were before it")

    def _had_its_turn(self, note: JobNote, other: JobNote, instance: InstanceNote) -> bool:
        """S5: relief goes to keys in turn over all models: the other's may have had its own elsewhere, where a slot was
        free for it."""
        if note.job.key == other.job.key or not self._may_be_relief(note, instance):
            return False
        return self._low_step_of.get(other.job.key, 0) > self._low_step_of.get(note.job.key, 0)

    def _may_be_relief(self, note: JobNote, instance: InstanceNote) -> bool:
        relief = self.book.policy.background_max_starvation_seconds
        starved = note.low and relief > 0 and self.book.starved_for(note) >= relief - 1e-6
        return starved and any(self.book.maybe_interactive(device) for device in instance.devices)

    def _may_overtake(self, note: JobNote, other: JobNote, instance: InstanceNote) -> bool:
        """Relief lifts S1 for starved low work; S5b lifts it between background and batch."""
        if self._may_be_relief(note, instance):
            return True
        book = self.book
        limit = book.policy.batch_max_starvation_seconds
        batch = note.job_class is JobClass.BATCH and other.job_class is JobClass.BACKGROUND
        return batch and limit > 0 and book.starved_for(note) >= limit - 1e-6

    def settled(self, waits: Waits) -> None:
        """A job whose model is ready with a free slot does not wait, unless something older or higher may be why."""
        book = self.book
        for name, line, instance in waits:
            if instance is None or instance.free_slots < 1 or (not line.chats and book.chats):
                continue
            if name in book.models and not (book.leases and any(device in book.leases for device in instance.devices)):
                self._judge_line(name, line, instance)

    def _judge_line(self, name: ModelName, line: Line, instance: InstanceNote) -> None:
        for note in line.jobs.values():
            if (note.low and self.book.chats) or self.book.may_be_drained(note):
                continue
            if not note.low:
                self.broken("S7", f"chat {note.job.id} waits beside a free slot of {name}")
            elif not self._slot_for_low(note, line, instance):
                continue
            elif (tail := max(self.book.tail_until(device) for device in instance.devices)) <= self.book.now:
                what = f"{note.job_class.label} job {note.job.id} waits beside a free slot of {name}"
                self.broken("S6b", f"{what} and no chat is there")
            elif self.book.timer_at is None or self.book.timer_at > tail + 1e-6:
                what = f"job {note.job.id} waits for the tail's end at {tail:.3f}"
                self.broken("S4", f"{what} and the timer stands at {self.book.timer_at}")

    def _slot_for_low(self, note: JobNote, line: Line, instance: InstanceNote) -> bool:
        """A slot beyond those kept for chats, of which an automatic setting keeps at most one, and nobody ahead."""
        spec = self.book.models[instance.model]
        kept = spec.reserved_slots if spec.reserved_slots is not None else int(instance.parallel > 1)
        ahead = sum(other.job_class < note.job_class for other in line.jobs.values())
        return instance.free_slots - ahead > kept


def _alike(note: JobNote, other: JobNote) -> bool:
    """Whether two jobs of a family are aimed at the same variant."""
    return _aim(note.job) == _aim(other.job) and not note.stray and not other.stray


def _aim(job: Job) -> tuple[object, ...]:
    return (job.job_class, job.quality, job.media, job.warm_only, job.no_evict)
