"""S4, S5 and S5a: low steps in interactive mode only as relief, one turn at a time, within their share of the time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gridsched.core.commands import Grant, GrantStep
from gridsched.core.events import GrantReturned, InstanceExited, JobAbandoned, JobEnded, SlotSettled, StepEnded
from gridsched.core.ids import DeviceName, GrantId
from sim.checkers.checker import Checker, Violation
from sim.checkers.facts import Facts
from sim.checkers.notes import LONG_AGO, InstanceNote, JobNote

CLOSE = 1e-6
ENDS = (StepEnded, JobEnded, GrantReturned, JobAbandoned, SlotSettled, InstanceExited)


@dataclass(slots=True)
class Turn:
    """The last relief turn on a device: begun and ended when, and which of its grants still run. Its length is without
    the time that it stood paused (S10)."""

    step: int
    instance: InstanceNote
    began_at: float
    stood_before: float
    grants: set[GrantId] = field(default_factory=set)
    size: int = 0
    ended_at: float = LONG_AGO
    length: float = 0.0


class Relief(Checker):
    """Follows the turns of each device."""

    def __init__(self, book: Facts, found: list[Violation]) -> None:
        super().__init__(book, found)
        self._turns: dict[DeviceName, Turn] = {}

    def hears(self) -> Mapping[type, Callable[..., None]]:
        """Whatever may end a step."""
        return dict.fromkeys(ENDS, self._something_ended)

    def judges(self) -> Mapping[type, Callable[..., None]]:
        """Grants."""
        return {GrantStep: self._judge_grant}

    def _something_ended(self, event: object) -> None:
        """A turn ends with the last of its steps."""
        del event
        grants = self.book.grants
        for turn in self._turns.values():
            if not turn.grants:
                continue
            turn.grants = {one for one in turn.grants if one in grants and not grants[one].over}
            if not turn.grants:
                turn.ended_at = self.book.now
                stood = turn.instance.stood_by(turn.ended_at) - turn.stood_before
                turn.length = turn.ended_at - turn.began_at - stood

    def _judge_grant(self, command: GrantStep) -> None:
        """Judge a low grant where a device of it is surely in interactive mode."""
        book = self.book
        note, instance = book.jobs.get(command.grant.job_id), book.instances.get(command.grant.instance_id)
        if note is None or instance is None or not note.low:
            return
        reasons = ((device, book.interactive_mode(device)) for device in instance.devices)
        held = {device: why for device, why in reasons if why}
        if not held:
            return
        limit = book.policy.background_max_starvation_seconds
        starved = book.starved_for(note)
        if limit <= 0 or starved < limit - CLOSE:
            why = ", ".join(f"{device}: {text}" for device, text in held.items())
            what = f"low job {note.job.id} ({starved:.3f}s without progress)"
            self.broken("S4", f"{what} starts in interactive mode ({why})")
            return
        for device in held:
            self._judge_turn(device, command.grant, instance)
        if len(instance.devices) == 1:
            self._judge_choice(note, instance)

    def _judge_turn(self, device: DeviceName, grant: Grant, instance: InstanceNote) -> None:
        book, turn = self.book, self._turns.get(device)
        if turn is not None and turn.step == book.step and turn.instance is instance:
            turn.size += 1
            turn.grants.add(grant.id)
            if turn.size > book.policy.relief_slots:
                self.broken("S5", f"a relief turn on {device} has {turn.size} steps")
            return
        if turn is not None and turn.grants:
            self.broken("S5", f"a second relief turn begins on {device} with job {grant.job_id} before the first ends")
        elif turn is not None and turn.ended_at > LONG_AGO:
            pause = turn.length * (1 / book.policy.background_share - 1)
            if book.now < turn.ended_at + pause - CLOSE:
                since = book.now - turn.ended_at
                what = f"a relief turn on {device} begins {since:.3f}s after the last"
                self.broken("S5a", f"{what}, {pause:.3f}s are due")
        self._turns[device] = Turn(book.step, instance, book.now, instance.stood_by(book.now), {grant.id}, 1)

    def _judge_choice(self, note: JobNote, instance: InstanceNote) -> None:
        """The turn goes to the longest starved that can run: nobody who could run is starved for longer. With several
        keys they have it in turn."""
        book = self.book
        if self._turns[instance.devices[0]].size > 1:
            return
        for other in book.waiting():
            if other is note or not other.low or other.progress_at >= note.progress_at - CLOSE:
                continue
            there = book.open_instance(other.model)
            if there is None or there is instance or other.job.key != note.job.key:
                continue
            if there.devices == instance.devices and not self._kept(there) and not book.may_be_drained(other):
                self.broken("S5", f"job {note.job.id} is relieved before {other.job.id}, which is starved longer")

    def _kept(self, there: InstanceNote) -> bool:
        """Whether all free slots of an instance may be kept for chats."""
        spec = self.book.models.get(there.model)
        kept = 1 if spec is None or spec.reserved_slots is None else spec.reserved_slots
        return there.free_slots <= kept
