"""What a stranger can know of the scheduler from its events and commands alone.

Owns the reconstruction that every checker reads: who waits, grants, processes, readings, leases, wishes. It is written
without looking at the scheduler's own books, so that a mistake there cannot hide here. It judges nothing.

What may be asked of it stands in `facts`. It is long because each kind of event and command is heard here.
"""

from collections.abc import Callable

from gridsched.core.commands import (
    AbortStep,
    AnswerRequest,
    ArmTimer,
    GrantStep,
    KeepMeasurement,
    PauseInstance,
    RejectionCode,
    RejectJob,
    ResumeInstance,
    StartInstance,
    StopInstance,
)
from gridsched.core.events import (
    AnswerBegan,
    DeviceBack,
    DeviceLost,
    DeviceRead,
    DevicesChanged,
    DrainBegan,
    FailureCause,
    FamiliesChanged,
    GrantReturned,
    HostMemoryRead,
    InstanceExited,
    InstanceReady,
    JobAbandoned,
    JobEnded,
    JobSubmitted,
    LeaseAsked,
    LeaseReleased,
    LoadAsked,
    MemoryReleased,
    ModelsChanged,
    PinAsked,
    PolicyChanged,
    ProbeDue,
    RebalanceAsked,
    SlotSettled,
    StepEnded,
    UnloadAsked,
    WishWithdrawn,
)
from gridsched.core.ids import DeviceName, GrantId, JobId
from gridsched.core.job import Job, JobClass, OutcomeKind
from sim.checkers.facts import Facts
from sim.checkers.notes import LONG_AGO, GrantNote, InstanceNote, JobNote, LeaseNote, Line, Wish, WishNote

OUT_OF_MEMORY = (FailureCause.DEVICE_OOM, FailureCause.HOST_OOM)
DONE, STALLED = OutcomeKind.DONE, OutcomeKind.STALLED
OF_NO_USE = (OutcomeKind.ENGINE_DIED, OutcomeKind.DEVICE_FAULT, OutcomeKind.STALLED)
"""Ends after which a process is begun anew."""


class Book(Facts):
    """Hears every event and notes every command: `hearing` and `noting` say by which method, for whoever hands them on
    after the time has been set with `turn_to`."""

    def __init__(self) -> None:
        super().__init__()
        self.hearing: dict[type, Callable[..., None]] = {
            JobSubmitted: self._submitted,
            JobAbandoned: self._abandoned,
            GrantReturned: self._returned,
            StepEnded: self._step_ended,
            JobEnded: self._job_ended,
            AnswerBegan: self._answer_began,
            SlotSettled: self._settled,
            InstanceReady: self._ready,
            InstanceExited: self._exited,
            MemoryReleased: self._released,
            ProbeDue: self._probe,
            LoadAsked: self._load_asked,
            UnloadAsked: self._unload_asked,
            PinAsked: self._pin_asked,
            LeaseAsked: self._lease_asked,
            RebalanceAsked: self._rebalance_asked,
            WishWithdrawn: self._wish_withdrawn,
            LeaseReleased: self._lease_released,
            DeviceRead: self._read,
            HostMemoryRead: self._host_read,
            DeviceLost: self._device_lost,
            DeviceBack: self._device_back,
            DevicesChanged: self._devices_changed,
            ModelsChanged: self._models_changed,
            FamiliesChanged: self._families_changed,
            PolicyChanged: self._policy_changed,
            DrainBegan: self._drain_began,
        }
        self.noting: dict[type, Callable[..., None]] = {
            GrantStep: self._note_grant,
            RejectJob: self._note_rejection,
            StartInstance: self._note_start,
            StopInstance: self._note_stop,
            PauseInstance: self._note_pause,
            ResumeInstance: self._note_resume,
            AbortStep: self._note_abort,
            AnswerRequest: self._note_answer,
            KeepMeasurement: self._note_measurement,
            ArmTimer: self._note_timer,
        }

    def turn_to(self, now: float) -> None:
        """The next step begins."""
        self.now = now
        self.step += 1
        if self.leases:
            self._end_leases()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted) -> None:
        job = event.job
        low = job.job_class is not JobClass.INTERACTIVE
        note = JobNote(job, self.now, self.now, low, job.job_class, job.model)
        key = low, job.key
        note.ahead = self.steps_of_key[key]
        self.steps_of_key[key] = note.ahead + job.steps
        self.jobs[job.id] = note
        self.chats += not low
        self._count_unserved(job, 1)
        self._enter(note)

    def _count_unserved(self, job: Job, change: int) -> None:
        self.unserved[job.job_class] += change
        self.unserved_of_key[job.job_class, job.key] += change

    def _enter(self, note: JobNote) -> None:
        line = self.lines.get(note.model)
        if line is None:
            line = self.lines[note.model] = Line()
        line.jobs[note.job.id] = note
        line.chats += not note.low

    def _leave(self, note: JobNote) -> None:
        line = self.lines[note.model]
        del line.jobs[note.job.id]
        line.chats -= not note.low
        if not line.jobs:
            del self.lines[note.model]

    def _returned(self, event: GrantReturned) -> None:
        self._end_step(event.grant_id, None, settled=True, over="returned")

    def _step_ended(self, event: StepEnded) -> None:
        self._end_step(event.grant_id, event.outcome.kind, settled=event.settled)

    def _job_ended(self, event: JobEnded) -> None:
        kind = event.outcome.kind
        self._end_step(event.grant_id, kind, settled=event.settled, over=kind._value_)

    def _answer_began(self, event: AnswerBegan) -> None:
        grant = self.grants.get(event.grant_id)
        if grant is not None:
            grant.answered = True
            grant.job.aborts -= grant.abort_asked  # the answer and the abort have crossed: it was none
            grant.abort_asked = False

    def _settled(self, event: SlotSettled) -> None:
        self._free_slot(event.grant_id)

    def _abandoned(self, event: JobAbandoned) -> None:
        """The client has left. If that crossed a grant on its way, the grant never was taken and its slot is free."""
        note = self.jobs.get(event.job_id)
        if note is not None and note.grant is not None:
            self._end_step(note.grant.id, None, settled=True, over="abandoned")
        else:
            self._close(event.job_id, "abandoned")

    def _end_step(self, grant_id: GrantId, kind: OutcomeKind | None, *, settled: bool, over: str = "") -> None:
        grant = self.grants.get(grant_id)
        if grant is None:
            return
        note, instance = grant.job, grant.instance
        self._take_over(grant)
        if note.grant is grant:
            note.grant = None
            if not over and not note.ended:
                self._enter(note)
        if kind is DONE:
            note.progress_at = self.now
            note.steps_done = max(note.steps_done, grant.step)
            instance.served = True
        elif kind in OF_NO_USE:
            note.deaths += 1
            grant.stalled = kind is STALLED
            instance.suspect = True
        if kind is not None:
            self._mark_use(instance, note)
        if over:
            self._close(note.job.id, over)
        if settled:
            self._free_slot(grant_id)

    def _take_over(self, grant: GrantNote) -> None:
        if not grant.over:
            grant.over, grant.over_at = True, self.now
            grant.instance.over += 1
            grant.instance.chats -= not grant.job.low

    def _mark_use(self, instance: InstanceNote, note: JobNote) -> None:
        """A step that ran has ended: the tail and the last use begin now."""
        instance.used_at = self.now
        if note.job.ttl_seconds:
            instance.ttl = note.job.ttl_seconds
        if not note.low:
            instance.chatted_at = self.now
            for device in instance.devices:
                self.tail_from[device] = self.now, self.now + self.policy.interactive_cooldown_seconds

    def _free_slot(self, grant_id: GrantId) -> None:
        grant = self.grants.pop(grant_id, None)
        if grant is not None and grant.instance.slots.pop(grant_id, None) is not None:
            grant.instance.over -= grant.over

    def _close(self, job_id: JobId, how: str) -> None:
        note = self.jobs.pop(job_id, None)
        if note is None:
            return
        note.ended = self.closed[job_id] = how
        self.chats -= not note.low
        self.steps_of_key[note.low, note.job.key] -= note.job.steps
        if note.first_granted_at is None:
            self._count_unserved(note.job, -1)
        line = self.lines.get(note.model)
        if line is not None and job_id in line.jobs:
            self._leave(note)

    # --- processes ----------------------------------------------------------------------------------------------------

    def _ready(self, event: InstanceReady) -> None:
        one = self.instances[event.instance_id]
        if one.state == "starting":
            one.state, one.ready_at = "ready", self.now
            self.version += 1

    def _exited(self, event: InstanceExited) -> None:
        one = self.instances[event.instance_id]
        if event.failure is not None or self.condemned(one):
            self.failed_at[one.model] = self.now
        if event.failure is not None and event.failure.cause in OUT_OF_MEMORY:
            self.starved_models.add(one.model)
        if one.stopped_at == LONG_AGO:
            self._going(one)
        self._displaced_by_leases(one)
        one.state = "exited"
        self.shrunk_at = self.now
        self._stand_no_more(one)
        for grant in one.slots.values():
            if grant.over:
                self.grants.pop(grant.id, None)
        one.slots.clear()
        one.over = 0

    def _going(self, one: InstanceNote) -> None:
        """A process goes away, told to or not."""
        one.stopped_at = self.shrunk_at = self.now
        self.version += 1
        for device in one.devices:
            self.stop_at[device] = self.now

    def _released(self, event: MemoryReleased) -> None:
        one = self.instances.pop(event.instance_id, None)
        if one is not None:
            self.of_model[one.model].remove(one)
            self.version += 1

    def _probe(self, event: ProbeDue) -> None:
        one = self.instances.get(event.instance_id)
        if one is not None:
            one.probed_at = self.now

    def _read(self, read: DeviceRead) -> None:
        device = read.device
        self.readings[device] = read
        self.read_at[device] = self.now
        self.version += 1
        held = dict(read.held)
        for one in self.instances.values():
            if device in one.devices:
                size = held.get(one.id)
                if size is None:
                    one.unread.add(device)
                    continue
                one.held[device] = size
                one.kinds.add(one.id in read.by_difference)
                one.unread.discard(device)
                if size > one.peak.get(device, 0):
                    one.peak[device] = size

    def _host_read(self, event: HostMemoryRead) -> None:
        for instance_id, size in event.held:
            one = self.instances.get(instance_id)
            if one is not None:
                one.host_held = size

    def _device_lost(self, event: DeviceLost) -> None:
        self.lost_devices.add(event.device)
        self.version += 1

    def _device_back(self, event: DeviceBack) -> None:
        self.lost_devices.discard(event.device)
        self.version += 1

    # --- configuration and persons ------------------------------------------------------------------------------------

    def _devices_changed(self, event: DevicesChanged) -> None:
        self.devices = {device.name: device for device in event.devices}
        self.readings = {name: read for name, read in self.readings.items() if name in self.devices}
        for device in self.leases.keys() - self.devices.keys():  # a lease ends with its device
            self._lease_ends(device)
        self.version += 1

    def _models_changed(self, event: ModelsChanged) -> None:
        before = self.models
        self.models = {model.name: model for model in event.models}
        self.forgotten |= (before.keys() - self.models.keys()) & (self.pin_said.keys() | self.put_down)
        self.regrown |= {one.model for one in self.instances.values() if self.outdated(one)}
        self.version += 1

    def _families_changed(self, event: FamiliesChanged) -> None:
        """Who waits for a family that is gone waits on for the variant where it stands: it is remembered."""
        names = {family.name for family in event.families}
        self.families |= {family.name: family for family in event.families}
        for note in self.jobs.values():
            note.stray = note.stray or (note.model in self.families and note.model not in names)
        self.gone_families = self.families.keys() - names
        self.version += 1

    def _policy_changed(self, event: PolicyChanged) -> None:
        self.policy = event.policy
        self.version += 1

    def _drain_began(self, event: DrainBegan) -> None:
        del event
        self.draining = True
        self.leases.clear()

    def _wish(self, wish: Wish) -> None:
        self.wishes[wish.request] = WishNote(wish, self.now)

    def _load_asked(self, event: LoadAsked) -> None:
        self._wish(event)
        self.put_down.discard(event.model)
        if event.ttl_seconds:
            self.ttls_said[event.model] = min(event.ttl_seconds, self.ttls_said.get(event.model, event.ttl_seconds))

    def _rebalance_asked(self, event: RebalanceAsked) -> None:
        self._wish(event)
        self.rebalance_asked_at = self.now

    def _unload_asked(self, event: UnloadAsked) -> None:
        self._wish(event)
        if self.pinned(event.model):
            self.wishes[event.request].put_down = True
            self.put_down.add(event.model)
        if event.force:
            for one in self.of_model.get(event.model, ()):
                one.forced = True

    def _pin_asked(self, event: PinAsked) -> None:
        self._wish(event)
        note = self.wishes[event.request]
        model = event.model
        note.before = self.pin_said.get(model), model in self.put_down, model in self.forgotten
        self.pin_said[model] = event.pinned
        self.forgotten.discard(model)
        if event.pinned:
            self.put_down.discard(model)

    def _lease_asked(self, event: LeaseAsked) -> None:
        self._wish(event)
        for device in event.devices:
            self.leases.setdefault(device, LeaseNote(event, self.now))

    def _wish_withdrawn(self, event: WishWithdrawn) -> None:
        """Who had not been answered yet is no more."""
        if self.wishes.pop(event.request, None) is None:
            return
        for device, lease in list(self.leases.items()):
            if lease.asked.request == event.request:
                self._lease_ends(device)

    def _end_leases(self) -> None:
        """A lease with a duration ends by itself."""
        for device, lease in list(self.leases.items()):
            seconds, began = lease.asked.seconds, lease.held_at
            if seconds is not None and began is not None and self.now >= began + seconds - 1e-6:
                self._lease_ends(device)

    def _lease_released(self, event: LeaseReleased) -> None:
        self._wish(event)
        self._lease_ends(event.device)

    def _lease_ends(self, device: DeviceName) -> None:
        """What it sent away may come back."""
        lease = self.leases.pop(device, None)
        if lease is not None:
            self.displaced.update(dict.fromkeys(lease.displaced, self.now))

    # --- commands -----------------------------------------------------------------------------------------------------

    def _note_grant(self, command: GrantStep) -> None:
        grant = command.grant
        job, instance = self.jobs.get(grant.job_id), self.instances.get(grant.instance_id)
        if job is None or instance is None:
            return
        if job.grant is None:
            self._leave(job)
        note = GrantNote(grant.id, job, instance, grant.step, self.now)
        job.grant = self.grants[grant.id] = instance.slots[grant.id] = note
        instance.chats += not job.low
        if job.first_granted_at is None:
            job.first_granted_at = self.now
            self._count_unserved(job.job, -1)

    def _note_rejection(self, command: RejectJob) -> None:
        self._close(command.job_id, command.rejection.code._value_)

    def _note_start(self, command: StartInstance) -> None:
        notes = list(self.wanting(command.model))
        others = [JobClass.INTERACTIVE] if self.wished(command.model) else []
        if not others and self.pinned(command.model):
            others = [JobClass.BACKGROUND]
        here = [note for note in notes if self.models_for(note) == (command.model,) and not note.job.warm_only]
        option = command.option
        one = InstanceNote(
            command.instance_id,
            command,
            self.now,
            min((*others, *(note.job_class for note in notes)), default=None),
            min((*others, *(note.job_class for note in here)), default=JobClass.BATCH),
            self.need_of(option),
            command.model,
            option.devices,
            option.parallel,
        )
        one.anew = one.model in self.regrown
        spec = self.models.get(one.model)
        one.launched_with = spec.launched_with if spec is not None else ""
        self.regrown.discard(one.model)
        self.instances[one.id] = one
        self.of_model.setdefault(one.model, []).append(one)
        self.version += 1

    def _note_stop(self, command: StopInstance) -> None:
        one = self.instances.get(command.instance_id)
        if one is None:
            return
        if (
            self.has_grown(one) or self.outdated(one) or (one.anew and one.state == "starting")
        ):  # that load begins elsewhere
            self.regrown.add(one.model)
        self._displaced_by_leases(one)
        if one.state != "exited":
            one.state = "stopping"
        self._stand_no_more(one)
        self._going(one)

    def _displaced_by_leases(self, one: InstanceNote) -> None:
        """What was ready and goes, or dies on its way, from a leased device may come back at the lease's end; so may
        what was on its way back from another lease."""
        back = one.state == "starting" and one.model in self.displaced
        for device in one.devices if one.state == "ready" or back else ():
            if device in self.leases:
                self.leases[device].displaced.add(one.model)

    def _note_pause(self, command: PauseInstance) -> None:
        one = self.instances.get(command.instance_id)
        if one is not None and one.paused_at is None:
            one.paused_at = self.now
            self.paused[one.id] = one

    def _note_resume(self, command: ResumeInstance) -> None:
        one = self.instances.get(command.instance_id)
        if one is not None:
            self._stand_no_more(one)

    def _stand_no_more(self, one: InstanceNote) -> None:
        if one.paused_at is None:
            return
        for grant in one.slots.values():
            grant.stood += self.now - max(one.paused_at, grant.at)
        one.stood += self.now - one.paused_at
        one.paused_at = None
        del self.paused[one.id]

    def _note_abort(self, command: AbortStep) -> None:
        grant = self.grants.get(command.grant_id)
        if grant is not None:
            grant.abort_asked = True
            grant.job.aborts += 1

    def _note_answer(self, command: AnswerRequest) -> None:
        note = self.wishes.pop(command.request, None)
        self.answered.add(command.request)
        if note is None:
            return
        wish, refused = note.wish, command.rejection is not None
        if isinstance(wish, LeaseAsked):
            self._lease_answered(wish, refused=refused)
        elif isinstance(wish, UnloadAsked):
            self._unload_answered(note, wish, command)
        elif isinstance(wish, PinAsked) and refused:
            said, was_down, was_forgotten = note.before
            self.pin_said.pop(wish.model, None)
            if said is not None:
                self.pin_said[wish.model] = said
            if was_down:
                self.put_down.add(wish.model)
            if was_forgotten:
                self.forgotten.add(wish.model)

    def _lease_answered(self, wish: LeaseAsked, *, refused: bool) -> None:
        for device in wish.devices:
            lease = self.leases.get(device)
            if lease is not None and lease.asked.request == wish.request:
                if refused:
                    self._lease_ends(device)
                else:
                    lease.held_at = self.now

    def _unload_answered(self, note: WishNote, wish: UnloadAsked, command: AnswerRequest) -> None:
        """One that was refused has changed nothing; one that was not keeps its model from coming back after a lease."""
        if command.rejection is None:
            self.displaced.pop(wish.model, None)
            for lease in self.leases.values():
                lease.displaced.discard(wish.model)
        elif note.put_down and command.rejection.code is not RejectionCode.UNLOAD_UNVERIFIED:
            self.put_down.discard(wish.model)

    def _note_measurement(self, command: KeepMeasurement) -> None:
        if command.measured_bytes:
            self.measured[command.option_key] = command.measured_bytes
        else:
            self.measured.pop(command.option_key, None)

    def _note_timer(self, command: ArmTimer) -> None:
        self.timer_at = command.at
