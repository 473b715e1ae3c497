"""S6a, S6c, L6 at every start; R1, R3, R4, R4a at every stop."""

from collections.abc import Callable

from gridsched.core.commands import Command, StartInstance, StopInstance
from gridsched.core.ids import DeviceName
from gridsched.core.job import JobClass
from sim.checkers.book import LONG_AGO, InstanceNote, JobNote
from sim.checkers.checker import Checker

CLOSE = 1e-6
FREEZE_SECONDS = 12.0  # L3: for at most 10 s after a stop, what others hold may be seen as it was before; and two polls


class Loads(Checker):
    """Loads happen once, a few at a time and for somebody; what stands is taken down for somebody only."""

    def decided(self, command: Command) -> None:
        """Judge a start or a stop."""
        if isinstance(command, StartInstance):
            self._judge_start(command)
        elif isinstance(command, StopInstance):
            one = self.book.instances.get(command.instance_id)
            if one is not None and one.state == "ready" and not self.book.condemned(one):
                self._judge_stop(one, command.reason)

    # --- starts -------------------------------------------------------------------------------------------------------

    def _judge_start(self, start: StartInstance) -> None:
        other = self.book.instance_of(start.model)
        if other is not None:
            self.broken("S6c", f"{start.model} is loaded while instance {other.start.instance_id} is {other.state}")
        wanting = [note for note in self.book.waiting() if note.job.model == start.model]
        loaders = [note for note in wanting if not note.job.warm_only]
        spec = self.book.models.get(start.model)
        if not loaders and not (spec and spec.pinned):
            self.broken("S9", f"{start.model} is loaded although nobody waits who may cause a load")
        low = all(note.job.job_class.is_low for note in loaders)
        loading = [one for one in self.book.living() if one.state == "starting"]
        same = [one for one in loading if self._is_low(one) == low and self._began_low(one) == low]
        if same:
            kind = "low" if low else "interactive"
            self.broken("L6", f"a second {kind} load begins ({start.model}) while {same[0].model} is loading")
        if low:
            self._judge_low_start(start)

    @staticmethod
    def _began_low(one: InstanceNote) -> bool:
        """Whether no chat waited when the load began."""
        return one.for_class is None or one.for_class.is_low

    def _is_low(self, one: InstanceNote) -> bool:
        """Whether no chat waits for a load."""
        return not any(note.job.model == one.model and not note.job.job_class.is_low for note in self.book.waiting())

    def _judge_low_start(self, start: StartInstance) -> None:
        """S6a: a low load leaves what the first chat could load with at this moment. While something is being freed,
        the chat's plan may rest on that instead; and younger chats may have no plan beside the first one's claim."""
        if self._something_ends():
            return
        chats = (note for note in self.book.waiting() if not note.job.job_class.is_low and not note.job.warm_only)
        missing = (note for note in chats if self.book.instance_of(note.job.model) is None)
        note = min(missing, key=lambda one: (one.arrived_at, one.job.id), default=None)
        spec = self.book.models.get(note.job.model) if note is not None else None
        if note is None or spec is None:
            return
        taken = self.book.need_of(start.option)
        fits = any(self._fits(self.book.need_of(option)) for option in spec.options)
        if fits and not any(self._might_fit(self.book.need_of(option), taken) for option in spec.options):
            self.broken("S6a", f"low load of {start.model} takes what chat {note.job.id} needs for {spec.name}")

    def _something_ends(self) -> bool:
        """Whether memory is being freed, or soon will be by a process that is dead or stalled."""
        everyone = self.book.instances.values()
        return any(one.state in ("stopping", "exited") or self.book.condemned(one) for one in everyone)

    def _fits(self, need: dict[DeviceName, int]) -> bool:
        """Whether a load surely fits."""
        return all(want <= self._free(device, max) for device, want in need.items())

    def _might_fit(self, need: dict[DeviceName, int], taken: dict[DeviceName, int]) -> bool:
        """Whether a load could still fit beside another."""
        return all(want <= self._free(device, min) - taken.get(device, 0) for device, want in need.items())

    def _free(self, device: DeviceName, of_two: Callable[[int, int], int]) -> int:
        """What is free to plan with, where `of_two` chooses between an estimate and a reading of what a process takes:
        the larger gives what is surely free, the smaller what may be."""
        spec, read = self.book.devices.get(device), self.book.readings.get(device)
        if spec is None or read is None:
            return 0
        here = [one for one in self.book.instances.values() if device in one.start.option.devices]
        ours = sum(of_two(one.needs(device), one.held.get(device, one.needs(device))) for one in here)
        external = max(0, read.used_bytes - sum(held for _, held in read.held))
        return read.total_bytes - spec.headroom_bytes - external - ours

    # --- loads that do not begin --------------------------------------------------------------------------------------

    def settled(self) -> None:
        """S2: the first who waits for a model that is not there has it loaded at once, where it surely fits."""
        if self.book.draining or self.book.now - self.book.shrunk_at < FREEZE_SECONDS:
            return
        missing = [note for note in self.book.waiting() if self.book.open_instance(note.job.model) is None]
        if not missing:
            return
        first = min(missing, key=lambda note: (note.job.job_class, note.arrived_at, note.job.id))
        loading = any(one.state == "starting" for one in self.book.living())
        spec = self.book.models.get(first.job.model)
        if loading or self._something_ends() or spec is None or first.job.warm_only or spec.name in self.book.failed_at:
            return
        if self.book.instance_of(spec.name) is not None or (first.job.job_class.is_low and self._chat_near(first)):
            return
        if any(self._free(device, max) < 0 for device in self.book.devices):
            return
        if any(self._fits(self.book.need_of(option)) for option in spec.options):
            self.broken("S2", f"job {first.job.id} is first, {spec.name} fits, nothing is loading, and no load begins")

    def _chat_near(self, note: JobNote) -> bool:
        """Whether a chat lives, or has just lived: then much may hold a low load."""
        chats = any(not other.job.job_class.is_low for other in self.book.jobs.values())
        tails = any(self.book.tail_until(device) >= self.book.now for device in self.book.devices)
        return chats or tails or note.job.no_evict

    # --- stops --------------------------------------------------------------------------------------------------------

    def _judge_stop(self, one: InstanceNote, reason: str) -> None:
        """A sound process is stopped: for being idle, for its model being gone, or for somebody who needs room."""
        spec = self.book.models.get(one.model)
        if spec is None or self.book.draining:
            return
        name = f"instance {one.start.instance_id} of {one.model}"
        wanting = [note for note in self.book.waiting() if note.job.model == one.model]
        idle = self.book.now - max(one.used_at, one.ready_at)
        if spec.idle_ttl_seconds is not None and idle >= spec.idle_ttl_seconds - CLOSE and not wanting:
            return
        claimants = self._claimants(one)
        if not claimants:
            if not self._pressed(one):
                self.broken("R3", f"{name} is stopped ({reason}) and nobody waits for room")
            return
        if spec.pinned:
            self.broken("R1", f"{name} is pinned and stopped ({reason})")
        if all(note.job.job_class.is_low for note in claimants):
            self._judge_low_stop(one, name, wanting, claimants)

    def _claimants(self, one: InstanceNote) -> list[JobNote]:
        """Those who wait for a model that is not there, and may evict."""
        return [
            note
            for note in self.book.waiting()
            if note.job.model != one.model
            and not note.job.warm_only
            and not note.job.no_evict
            and (there := self.book.models.get(note.job.model)) is not None
            and any(set(option.devices) & set(one.start.option.devices) for option in there.options)
            and self.book.open_instance(note.job.model) is None
        ]

    def _pressed(self, one: InstanceNote) -> bool:
        """Whether a device of it may be in a pressure state (R6a)."""
        return any(self._free(device, max) < 0 for device in one.start.option.devices)

    def _judge_low_stop(self, one: InstanceNote, name: str, wanting: list[JobNote], claimants: list[JobNote]) -> None:
        """Only low work gains by this stop."""
        if self.book.now - one.chatted_at < self.book.policy.hot_window_seconds - CLOSE:
            self.broken("R1", f"{name} is hot and stopped for low work")
        began_for = JobClass.BATCH if one.for_class is None else one.for_class
        higher = any(note.job.job_class < began_for for note in claimants)
        young = self.book.now - one.ready_at < self.book.policy.min_residency_seconds - CLOSE
        if young and wanting and not higher and self._began_low(one) and one.ready_at > LONG_AGO:
            self.broken("R4a", f"{name} is stopped for low work {self.book.now - one.ready_at:.1f}s after its load")
