"""S4, S5 and S5a: low steps in interactive mode only as relief, one turn at a time, within their share of the time."""

from dataclasses import dataclass, field

from gridsched.core.commands import Command, Grant, GrantStep
from gridsched.core.events import Event
from gridsched.core.ids import DeviceName, GrantId
from sim.checkers.book import LONG_AGO, Book, InstanceNote, JobNote
from sim.checkers.checker import Checker, Violation

CLOSE = 1e-6


@dataclass(slots=True)
class Turn:
    """The last relief turn on a device: begun and ended when, and which of its grants still hold a slot."""

    step: int
    instance: InstanceNote
    began_at: float
    grants: set[GrantId] = field(default_factory=set)
    size: int = 0
    ended_at: float = LONG_AGO


class Relief(Checker):
    """Follows the turns of each device."""

    def __init__(self, book: Book, found: list[Violation]) -> None:
        super().__init__(book, found)
        self._turns: dict[DeviceName, Turn] = {}

    def heard(self, event: Event) -> None:
        """A turn ends with the last of its steps."""
        del event
        for turn in self._turns.values():
            running = {one for one in turn.grants if one in self.book.grants and not self.book.grants[one].over}
            if turn.grants and not running:
                turn.ended_at = self.book.now
            turn.grants = running

    def decided(self, command: Command) -> None:
        """Judge a low grant where a device of it is surely in interactive mode."""
        if not isinstance(command, GrantStep):
            return
        note = self.book.jobs.get(command.grant.job_id)
        instance = self.book.instances.get(command.grant.instance_id)
        if note is None or instance is None or not note.job.job_class.is_low:
            return
        reasons = {device: self.book.interactive_mode(device) for device in instance.start.option.devices}
        held = {device: why for device, why in reasons.items() if why}
        if not held:
            return
        why = ", ".join(f"{device}: {text}" for device, text in held.items())
        limit = self.book.policy.background_max_starvation_seconds
        starved = self.book.starved_for(note)
        if limit <= 0 or starved < limit - CLOSE:
            self.broken(
                "S4", f"low job {note.job.id} ({starved:.3f}s without progress) starts in interactive mode ({why})"
            )
            return
        for device in held:
            self._judge_turn(device, command.grant, instance)
        if len(instance.start.option.devices) == 1:
            self._judge_choice(note, instance)

    def _judge_turn(self, device: DeviceName, grant: Grant, instance: InstanceNote) -> None:
        turn = self._turns.get(device)
        if turn is not None and turn.step == self.step and turn.instance is instance:
            turn.size += 1
            turn.grants.add(grant.id)
            if turn.size > self.book.policy.relief_slots:
                self.broken("S5", f"a relief turn on {device} has {turn.size} steps")
            return
        if turn is not None and turn.grants:
            self.broken(
                "S5", f"a second relief turn begins on {device} with job {grant.job_id} before the first has ended"
            )
        elif turn is not None and turn.ended_at > LONG_AGO:
            pause = (turn.ended_at - turn.began_at) * (1 / self.book.policy.background_share - 1)
            if self.book.now < turn.ended_at + pause - CLOSE:
                since = self.book.now - turn.ended_at
                self.broken(
                    "S5a", f"a relief turn on {device} begins {since:.3f}s after the last, {pause:.3f}s are due"
                )
        self._turns[device] = Turn(self.step, instance, self.book.now, {grant.id}, 1)

    def _judge_choice(self, note: JobNote, instance: InstanceNote) -> None:
        """The turn goes to the longest starved that can run: nobody who could run is starved for longer."""
        turn = self._turns[instance.start.option.devices[0]]
        if turn.size > 1:
            return
        for other in self.book.waiting():
            there = self.book.open_instance(other.job.model)
            if other is note or not other.job.job_class.is_low or there is None or there is instance:
                continue
            if (
                there.start.option.devices != instance.start.option.devices
                or self._kept(there)
                or self.book.may_be_drained(other)
            ):
                continue
            if other.progress_at < note.progress_at - CLOSE:
                self.broken("S5", f"job {note.job.id} is relieved before {other.job.id}, which is starved longer")

    def _kept(self, there: InstanceNote) -> bool:
        """Whether all free slots of an instance may be kept for chats."""
        spec = self.book.models.get(there.model)
        kept = 1 if spec is None or spec.reserved_slots is None else spec.reserved_slots
        return there.free_slots <= kept
