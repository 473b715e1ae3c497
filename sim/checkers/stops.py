"""R1, R3, R4a, R6, R6a, R7 and R8 at every stop of a sound process: whom it serves, and whether it may be done."""

from collections.abc import Callable, Mapping

from gridsched.core.commands import StopInstance
from gridsched.core.events import LoadAsked
from gridsched.core.job import JobClass
from sim.checkers.checker import Checker
from sim.checkers.notes import LONG_AGO, InstanceNote, JobNote

CLOSE = 1e-6


class Stops(Checker):
    """What stands is taken down for somebody only, and never by those who may not."""

    def judges(self) -> Mapping[type, Callable[..., None]]:
        """Stops."""
        return {StopInstance: self._judge}

    def _judge(self, command: StopInstance) -> None:
        one = self.book.instances.get(command.instance_id)
        if one is None or one.state != "ready" or self.book.condemned(one) or self.book.draining:
            return
        if one.model not in self.book.models or self.book.retires(one) or self.book.outdated(one):
            return
        name = f"instance {one.id} of {one.model}"
        pinned = self.book.pinned(one.model)
        wanting = one.model in self.book.lines  # of those who named a family nobody can see at which variant they wait
        if not wanting and (self.book.has_grown(one) or self._has_moved(one) or (self._is_idle(one) and not pinned)):
            return
        claimants = self._claimants(one)
        if pinned:
            self.broken("R1", f"{name} is pinned and stopped ({command.reason})")
        elif not claimants and not self._errands(one):
            if not self._is_pressed(one):
                self.broken("R3", f"{name} is stopped ({command.reason}) and nobody waits for room")
        elif all(note.low for note in claimants) and not self._person_waits():
            self._judge_low_stop(one, name, claimants)

    # --- reasons that need nobody who waits ---------------------------------------------------------------------------

    def _is_idle(self, one: InstanceNote) -> bool:
        """R6: longer than its model is kept, as configured or as its last jobs asked."""
        spec = self.book.models[one.model]
        said = self.book.ttls_said.get(one.model)
        limits = [seconds for seconds in (spec.idle_ttl_seconds, one.ttl, said) if seconds]
        idle = self.book.now - max(one.used_at, one.ready_at)
        return bool(limits) and idle >= min(limits) - CLOSE

    def _has_moved(self, one: InstanceNote) -> bool:
        """R9: whether its model serves elsewhere."""
        return any(other is not one and other.state == "ready" for other in self.book.of_model[one.model])

    def _is_pressed(self, one: InstanceNote) -> bool:
        """R6a: whether a device of it may be in a pressure state."""
        return any(self.book.surely_free(device) < 0 for device in one.devices)

    # --- reasons that are somebody ------------------------------------------------------------------------------------

    def _claimants(self, one: InstanceNote) -> list[JobNote]:
        """Those who wait for a model that is not there, and may evict."""
        return [
            note
            for note in self.book.waiting()
            if not note.job.warm_only and not note.job.no_evict and self._may_want_room(note, one)
        ]

    def _may_want_room(self, note: JobNote, one: InstanceNote) -> bool:
        """Whether a model that would do for a job is not there and could take the place."""
        book = self.book
        return any(
            name != one.model
            and name in book.models
            and book.open_instance(name) is None
            and any(set(option.devices) & set(one.devices) for option in book.models[name].options)
            for name in book.models_for(note)
        )

    def _errands(self, one: InstanceNote) -> bool:
        """Whether a load that no job asked for may want the room: a person's, a pin's, a return's."""
        book = self.book
        names = [name for name in book.models if name != one.model and book.open_instance(name) is None]
        wanted = any(book.wished(name) or book.maybe_pinned(name) or name in book.regrown for name in names)
        return wanted or book.policy.hot_yield_after_seconds is not None

    def _person_waits(self) -> bool:
        return any(isinstance(note.wish, LoadAsked) for note in self.book.wishes.values())

    def _judge_low_stop(self, one: InstanceNote, name: str, claimants: list[JobNote]) -> None:
        """Only low work, or a pin, gains by this stop."""
        book = self.book
        if book.now - one.chatted_at < book.policy.hot_window_seconds - CLOSE and not self._yields(one, claimants):
            self.broken("R1", f"{name} is hot and stopped for low work")
        higher = any(note.job_class < one.surely_for for note in claimants)
        wanting = one.model in book.lines
        young = book.now - one.ready_at < book.policy.min_residency_seconds - CLOSE
        pin = one.surely_for is JobClass.BATCH and self._errands(one)  # which competes as background
        if young and wanting and claimants and not higher and one.began_low and one.ready_at > LONG_AGO and not pin:
            self.broken("R4a", f"{name} is stopped for low work {book.now - one.ready_at:.1f}s after its load")

    def _yields(self, one: InstanceNote, claimants: list[JobNote]) -> bool:
        """R1: an idle hot model may yield to low work that has starved for long, where that is switched on."""
        after = self.book.policy.hot_yield_after_seconds
        if after is None or one.slots:
            return False
        return any(self.book.starved_for(note) >= after - CLOSE for note in claimants)
