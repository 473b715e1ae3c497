"""S6a, S6c and L6 at every start, and S2 where a load does not begin."""

from collections.abc import Callable, Mapping

from gridsched.core.commands import StartInstance
from gridsched.core.ids import DeviceName, JobId
from gridsched.core.job import JobClass
from gridsched.core.policy import Policy
from sim.checkers.checker import Checker, Violation, Waits
from sim.checkers.facts import Facts
from sim.checkers.notes import LONG_AGO, InstanceNote, JobNote

FREEZE_SECONDS = 12.0  # L3: for at most 10 s after a stop, what others hold may be seen as it was before; and two polls
COMES_BACK_SECONDS = 660.0  # R8: it is given up ten minutes after the lease; one that gave way to a chat begins anew
MOVE_IDLE_SECONDS = 300.0  # R9: what has been idle for so long may be loaded elsewhere beside itself


class Loads(Checker):
    """Loads happen once, a few at a time and for somebody."""

    def __init__(self, book: Facts, found: list[Violation]) -> None:
        super().__init__(book, found)
        self._judged: tuple[JobId, int] | None = None

    def judges(self) -> Mapping[type, Callable[..., None]]:
        """Starts."""
        return {StartInstance: self._judge_start}

    # --- loads that begin ---------------------------------------------------------------------------------------------

    def _judge_start(self, start: StartInstance) -> None:
        book = self.book
        lost = [device for device in start.option.devices if device in book.lost_devices]
        if lost:
            self.broken("D6", f"{start.model} is loaded on {lost[0]}, which does not answer")
        other = book.instance_of(start.model)
        if other is not None and not self._moves(other):
            self.broken("S6c", f"{start.model} is loaded while instance {other.id} is {other.state}")
        loaders = [note for note in book.wanting(start.model) if not note.job.warm_only]
        errand = book.wished(start.model) or book.maybe_pinned(start.model) or start.model in book.regrown
        errand = errand or self._comes_back(start)
        if not loaders and not errand and other is None and not self._returns(start):
            self.broken("S9", f"{start.model} is loaded although nobody waits who may cause a load")
        low = all(note.low for note in loaders) and not book.wished(start.model)
        same = [one for one in book.living() if one.state == "starting" and self._is_low(one) == low]
        same = [one for one in same if (one.began_low if low else one.surely_for is JobClass.INTERACTIVE)]
        if same and not self._families_wait():
            kind = "low" if low else "interactive"
            self.broken("L6", f"a second {kind} load begins ({start.model}) while {same[0].model} is loading")
        if low:
            self._judge_low_start(start)

    def _moves(self, other: InstanceNote) -> bool:
        """R9: whether a model may be on its way to another device, beside itself."""
        idle = self.book.now - max(other.used_at, other.ready_at)
        if self.book.rebalance_asked_at == self.book.now:  # a person wants it looked at now
            idle = MOVE_IDLE_SECONDS
        return other.state == "ready" and not other.slots and idle >= MOVE_IDLE_SECONDS - 1e-6

    def _comes_back(self, start: StartInstance) -> bool:
        """R8: what had to go for a lease comes back after its end, for a while."""
        ended_at = self.book.displaced.get(start.model, LONG_AGO)
        return self.book.now <= ended_at + COMES_BACK_SECONDS

    def _returns(self, start: StartInstance) -> bool:
        """R1: a hot model that has yielded to low work comes back by itself."""
        return self.book.policy.hot_yield_after_seconds is not None and start.model in self.book.models

    def _families_wait(self) -> bool:
        """R10: whether jobs of a family wait, of which nobody can see at which variant they are aimed."""
        return any(name in self.book.families for name in self.book.lines)

    def _is_low(self, one: InstanceNote) -> bool:
        """Whether neither a chat nor a person waits for a load."""
        return all(note.low for note in self.book.wanting(one.model)) and not self.book.wished(one.model)

    def _judge_low_start(self, start: StartInstance) -> None:
        """S6a: a low load leaves what the first chat could load with at this moment. While something is being freed, or
        was a moment ago, the chat's plan may rest on that instead; and younger chats may have no plan beside the first
        one's claim."""
        book = self.book
        if not book.chats or self._something_ends() or book.leases or book.now - book.shrunk_at < FREEZE_SECONDS:
            return
        chats = (note for note in book.waiting() if not note.low and not note.job.warm_only)
        missing = (note for note in chats if note.model in book.models and book.instance_of(note.model) is None)
        note = min(missing, key=lambda one: (one.arrived_at, one.job.id), default=None)
        if (
            note is None or self._keys_compete() or note.model in book.starved_models
        ):  # whose need has been raised (L6a)
            return
        spec = book.models[note.model]
        taken = book.need_of(start.option)
        fits = any(self._fits(book.need_of(option)) for option in spec.options)
        if fits and not any(self._might_fit(book.need_of(option), taken) for option in spec.options):
            self.broken("S6a", f"low load of {start.model} takes what chat {note.job.id} needs for {spec.name}")

    def _keys_compete(self) -> bool:
        """Whether several keys' chats wait: whose turn it is cannot be seen from outside."""
        return len({note.job.key for note in self.book.waiting() if not note.low}) > 1

    def _something_ends(self) -> bool:
        """Whether memory is being freed, or soon will be by a process that is dead or stalled."""
        for one in self.book.instances.values():
            if one.state in ("stopping", "exited") or self.book.condemned(one):
                return True
        return False

    def _fits(self, need: dict[DeviceName, int]) -> bool:
        """Whether a load surely fits."""
        return all(self._answers(device) and want <= self.book.surely_free(device) for device, want in need.items())

    def _answers(self, device: DeviceName) -> bool:
        """D6: whether anything may be loaded there."""
        return device not in self.book.lost_devices

    def _might_fit(self, need: dict[DeviceName, int], taken: dict[DeviceName, int]) -> bool:
        """Whether a load could still fit beside another."""
        room = {device: self.book.maybe_free(device) - taken.get(device, 0) for device in need}
        return all(self._answers(device) and want <= room[device] for device, want in need.items())

    # --- loads that do not begin --------------------------------------------------------------------------------------

    def settled(self, waits: Waits) -> None:
        """S2: the first who waits for a model that is not there has it loaded at once, where it surely fits."""
        book = self.book
        if not waits or book.draining or book.now - book.shrunk_at < FREEZE_SECONDS:
            return
        first = self._first_missing(waits)
        # What is judged below rests on memory and processes alone: while they stay, so does the judgement.
        if first is None or self._judged == (first.job.id, book.version) or self._is_excused(first):
            return
        self._judged = first.job.id, book.version
        if any(book.surely_free(device) < 0 for device in book.devices):
            return
        if any(self._fits(book.need_of(option)) for option in book.models[first.model].options):
            self.broken("S2", f"job {first.job.id} is first, {first.model} fits, nothing is loading, no load begins")

    def _first_missing(self, waits: Waits) -> JobNote | None:
        """The first whose model is not there, by class and arrival. With families, or with keys that compete, who is
        first cannot be seen from outside."""
        first: JobNote | None = None
        keys = set()
        for name, line, instance in waits:
            if instance is not None:
                continue
            if name in self.book.families:
                return None
            for note in line.jobs.values():
                keys.add(note.job.key)
                if first is None or (note.job_class, note.arrived_at, note.job.id) < (
                    first.job_class,
                    first.arrived_at,
                    first.job.id,
                ):
                    first = note
        return None if len(keys) > 1 else first

    def _is_excused(self, first: JobNote) -> bool:
        """Whether there is a reason, or may be one, for which its load does not begin yet."""
        book = self.book
        spec = book.models.get(first.model)
        if book.policy.starts_per_minute < Policy().starts_per_minute:  # it may have to wait for a start (P6a)
            return True
        if spec is None or first.job.warm_only or spec.name in book.failed_at or book.leases:
            return True
        if book.wishes:
            return True
        if any(one.state == "starting" for one in book.living()) or self._something_ends():
            return True
        return book.instance_of(spec.name) is not None or (first.low and self._chat_near(first))

    def _chat_near(self, note: JobNote) -> bool:
        """Whether a chat lives, or has just lived: then much may hold a low load."""
        book = self.book
        tails = any(book.tail_until(device) >= book.now for device in book.devices)
        return book.chats > 0 or tails or note.job.no_evict or any(book.maybe_pinned(name) for name in book.models)
