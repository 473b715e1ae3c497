"""Door 4: events in, commands out. The whole of gridsched's judgement is behind `Scheduler.step`.

Owns the order of things inside one step: hear the event, let time take effect if its moment has come, plan if a plan's
ground has changed, serve the queues that were touched, give relief, say when to wake. Must never read a clock, a file
or a socket; time arrives as an argument and never runs backwards. The file is long because each kind of event is heard
here; what is done about it belongs to the modules of the rules.

What one event costs: a look at the queue of the model that it is about and at its instance, and at those that share a
device whose mode or turn changes. All waiting jobs are never walked, and planning runs only where some job needs a
load.
"""

from collections.abc import Callable, Iterable
from functools import partial
from math import inf

from gridsched.core import (
    aborts,
    admission,
    ahead,
    configured,
    families,
    growth,
    guard,
    keeping,
    leases,
    lifecycle,
    losses,
    outlook,
    pause,
    persons,
    planning,
    reasons,
    rebalance,
    relief,
    serving,
    views,
    waiting,
)
from gridsched.core.commands import ArmTimer, Command, LogEvent
from gridsched.core.errors import IllegalMove, InvariantViolation
from gridsched.core.events import (
    AnswerBegan,
    DeviceBack,
    DeviceLost,
    DeviceRead,
    DevicesChanged,
    DrainBegan,
    Event,
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
    StandingTold,
    StepEnded,
    TimerFired,
    UnloadAsked,
    WishWithdrawn,
)
from gridsched.core.ids import GrantId, InstanceId, JobId, ModelName
from gridsched.core.invariants import check
from gridsched.core.job import JobClass, Outcome, OutcomeKind
from gridsched.core.model import LaunchOption, ModelSpec
from gridsched.core.policy import Policy
from gridsched.core.queues import JobRecord
from gridsched.core.residency import GrantRecord, Instance, ModelState
from gridsched.core.snapshot import Explanation, Jobs, LoadView, Snapshot, WaitingView
from gridsched.core.state import State
from gridsched.core.transitions import SERVER_MOVES, JobMove, JobState, ServerMove, moved

DONE, CLIENT_GONE = OutcomeKind.DONE, OutcomeKind.CLIENT_GONE
COME_TO_NOTHING = (OutcomeKind.ENGINE_DIED, OutcomeKind.DEVICE_FAULT)
INTERACTIVE = JobClass.INTERACTIVE
ENQUEUE, COMPLETE = LogEvent.ENQUEUE, LogEvent.COMPLETE
END, WAITING = JobMove.END, JobState.WAITING
"""Members that every event asks for: looking one up in its enum costs more than the comparison."""

MOST_ROUNDS = 1_000
"""INV-23: a step takes one to three rounds. One that takes so many takes for ever."""


class Scheduler:
    """The pure state machine. One owner calls it, from one task (S7).

    `check_invariants` checks every numbered invariant after every step, `guarded` what the step's own commands rest on
    (`guard`), which is cheap enough for production. Both raise InvariantViolation with the story.
    """

    def __init__(self, policy: Policy | None = None, *, check_invariants: bool = False, guarded: bool = False) -> None:
        self._state = State(policy or Policy())
        self._check_invariants = check_invariants
        self._guarded = guarded
        self._look_after_steps(self._state.policy)
        self._handlers: dict[type, Callable[..., None]] = {
            JobSubmitted: self._job_submitted,
            JobAbandoned: self._job_abandoned,
            GrantReturned: self._grant_returned,
            StepEnded: self._step_ended,
            AnswerBegan: self._answer_began,
            JobEnded: self._job_ended,
            SlotSettled: self._slot_settled,
            InstanceReady: self._instance_ready,
            InstanceExited: self._instance_exited,
            MemoryReleased: self._memory_released,
            ProbeDue: self._probe_due,
            DeviceLost: partial(losses.lost, self._state),
            DeviceBack: self._device_back,
            HostMemoryRead: partial(growth.host_read, self._state),
            LoadAsked: partial(persons.load_asked, self._state),
            UnloadAsked: partial(persons.unload_asked, self._state),
            PinAsked: partial(persons.pin_asked, self._state),
            LeaseAsked: partial(leases.asked, self._state),
            LeaseReleased: partial(leases.released, self._state),
            WishWithdrawn: partial(persons.withdrawn, self._state),
            RebalanceAsked: partial(rebalance.asked, self._state),
            StandingTold: partial(keeping.told, self._state),
            DeviceRead: self._device_read,
            DevicesChanged: self._devices_changed,
            ModelsChanged: self._models_changed,
            FamiliesChanged: self._families_changed,
            PolicyChanged: self._policy_changed,
            DrainBegan: self._drain_began,
            TimerFired: self._timer_fired,
        }

    # --- the door -----------------------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> tuple[Command, ...]:
        """Take in one event that was heard at `now` (seconds) and give what is to be done, in order.

        Raises IllegalMove for an event that makes no sense where it meets the state, InvariantViolation for a bug of
        the scheduler's own. Both carry the story. Ordinary refusals are commands.
        """
        state = self._state
        state.now = max(state.now, now)
        state.out = []
        state.story.begin(state.now, state.out)
        self._handlers[type(event)](event)
        if state.now >= state.wake_at:
            self._let_time_take_effect()
        if state.touched or state.replan_due or state.turned or state.reliefs.come:
            self._settle()
        while state.entered:
            self._remember_deadlines()
            if state.deadlines.next_at() > state.now:
                break
            # S9: somebody may not wait at all, or no longer under a new policy.
            self._let_time_take_effect()
            self._settle()
        wake_at = self._next_wake()
        if self._takes_away:
            wake_at = min(wake_at, aborts.review(state))
        if self._pauses:
            wake_at = min(wake_at, pause.review(state))
        if wake_at != state.wake_at:
            state.wake_at = wake_at
            state.out.append(ArmTimer(None if wake_at == inf else wake_at))
        keeping.tell(state)
        if self._guarded:
            guard.check_step(state)
        if self._check_invariants:
            check(self)
        return tuple(state.out)

    def snapshot(self, now: float) -> Snapshot:
        """A frozen picture of everything."""
        return views.snapshot(self._state, now)

    def waiting(self, job_id: JobId, now: float) -> WaitingView | None:
        """Why a job waits, None for one that does not."""
        return views.waiting(self._state, job_id, now)

    def said(self, job_id: JobId, now: float) -> str | None:
        """What a comment line says of a waiting job (H3), None for one that does not wait."""
        return views.said(self._state, job_id, now)

    def jobs(self, now: float, most: int | None = None) -> Jobs:
        """All living jobs; of those that wait no more than the first `most` of each class."""
        return views.jobs(self._state, now, most)

    def explain(self, job_id: JobId, now: float) -> Explanation | None:
        """How a job stands that lives; None for every other."""
        return views.explain(self._state, job_id, now)

    def outlook(self, model: ModelName, now: float, options: tuple[LaunchOption, ...] | None = None) -> LoadView | None:
        """What a person's load of a model would come to now; None for one that is not there. With `options` it is
        launched by these instead of its ladder, in place of the process that it may have."""
        return outlook.of_load(self._state, model, now, options)

    def in_back_off(self, model: ModelName, now: float) -> bool:
        """L6d: whether its loads fail, and it is not tried again yet."""
        known = self._state.models.get(model)
        return known is not None and known.retry_at > now

    def outdated(self, specs: Iterable[ModelSpec]) -> tuple[ModelName, ...]:
        """The models with a process whose launch there would be no more if these were the models."""
        models = self._state.models
        known = ((models[spec.name], spec) for spec in specs if spec.name in models)
        pairs = ((model.instance, spec) for model, spec in known if model.instance is not None)
        return tuple(spec.name for instance, spec in pairs if configured.is_outdated(instance, spec))

    def story(self, job_id: JobId | None = None, *, instance_id: InstanceId | None = None) -> tuple[str, ...]:
        """What was decided lately about a job or an instance, a line each."""
        return self._state.story.of(job_id, instance_id)

    @property
    def state(self) -> State:
        """For the invariants and for tests: to be looked at, never to be changed."""
        return self._state

    def _look_after_steps(self, policy: Policy) -> None:
        """Whether running steps may be paused or taken away at all; if not, no event pays for the question."""
        self._pauses = policy.background_pause
        self._takes_away = policy.abort_after_seconds is not None

    # --- inside a step ------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Serve and plan until nothing is left to be looked at; then relief, which starts only low steps."""
        state = self._state
        for _ in range(MOST_ROUNDS):
            if state.replan_due:
                families.aim(state)
                planning.replan(state)
                if state.groups:  # R10: what others claim now may send them elsewhere
                    families.aim(state)
            touched = state.touched
            state.touched = {}
            self._serve(touched)
            if state.stirred:
                self._watch_modes()
            self._look_ahead(touched)
            if not state.touched and not state.replan_due:
                if state.reliefs.come:
                    relief.give_turns(state)
                if not state.replan_due and not state.turned:
                    if not state.wakes.come:
                        return
                    # What kept an idle model is over, and its time has passed meanwhile (R6): now that all is settled,
                    # because who left its queue within this step may be back in it.
                    self._act_on_moments()
        raise InvariantViolation(f"INV-23: after {MOST_ROUNDS} rounds there is still something to do", self.story())

    def _serve(self, touched: dict[ModelName, ModelState]) -> None:
        """Chats of all touched models go before low work of any, so that a chat that has to wait holds its device."""
        state = self._state
        for model in touched.values():
            if model.queue.chats or model.held:
                serving.serve_chats(state, model)
        for model in touched.values():
            if model.queue.low:
                serving.serve_low(state, model)
        if state.leases:
            leases.advance(state)

    def _watch_modes(self) -> None:
        """S4: announce devices that enter or leave interactive mode, and have looked at what that holds or frees."""
        state = self._state
        now = state.now
        stirred, state.stirred = state.stirred, {}
        if len(stirred) > 1:  # always in the order of the devices
            stirred = {device: mode for device, mode in state.modes.items() if device in stirred}
        for mode in stirred.values():
            state.tails.set(mode.device, ahead.tail_at(mode, now), now)
            active = mode.active(now)
            if active is mode.announced:
                continue
            mode.announce(active, now)
            state.say_of_device(LogEvent.MODE, mode.device, "S4", interactive=active)
            state.turned[mode.device] = mode
            state.replan_due = state.replan_due or state.low_plans_matter or bool(state.groups)
            if active:
                continue
            for model in state.waiting_models.values():
                if model.instance is not None and mode in model.instance.modes:
                    state.touched[model.name] = model

    def _look_ahead(self, touched: dict[ModelName, ModelState]) -> None:
        """Have an eye on when time could next change something: for the touched models, and on the devices where a mode
        or a turn has changed."""
        state = self._state
        for model in touched.values():
            if model.instance is not None:
                ahead.look(state, model.instance)
            for instance in model.leaving:
                ahead.look(state, instance)
        if state.turned:
            turned, state.turned = state.turned, {}
            for device in turned:
                for instance in state.instances_on(device):
                    if instance.model.name not in touched:
                        ahead.look(state, instance)

    def _remember_deadlines(self) -> None:
        """S9: only jobs not granted in the step of their arrival ever wait; what holds them is noted (S9b)."""
        state = self._state
        for record in state.entered:
            if record.grant_id is not None or record.state is not WAITING:
                continue
            if record.group is not None:
                state.unplaced = True  # from now on whatever changes plans has its group looked at (R10)
            record.held = reasons.reason(state, record, state.models[record.model], state.now)
            longest_seconds = record.job.max_wait_seconds
            of_class_seconds = state.policy.queues[record.job.job_class].max_wait_seconds
            if longest_seconds is None or (of_class_seconds is not None and of_class_seconds < longest_seconds):
                longest_seconds = of_class_seconds
            if longest_seconds is not None:
                record.deadline = record.place + longest_seconds + record.lost_seconds
                state.deadlines.push(record, sum(count.waiting for count in state.counts))
        state.entered.clear()

    # --- time ---------------------------------------------------------------------------------------------------

    def _let_time_take_effect(self) -> None:
        """Something is due: of the deadlines, the instances, or the plans."""
        state = self._state
        now = state.now
        state.tails.next_at(now)
        for device in state.tails.come:
            state.stirred[device] = state.modes[device]
        self._watch_modes()
        for record in state.deadlines.due(now):
            model = state.models[record.model]
            waiting.reject(state, record, admission.wait_is_over(state, record, model), "S9")
        state.reliefs.next_at(now)
        state.wakes.next_at(now)
        self._act_on_moments()
        if state.plan_wake_at <= now or (state.groups and families.next_at(state) <= now):
            state.replan_due = True

    def _act_on_moments(self) -> None:
        """Of the instances whose moment has come."""
        state = self._state
        now = state.now
        for instance_id in sorted(state.wakes.come):
            instance = state.instances[instance_id]
            state.touch(instance.model)
            if instance.settle_by <= now:
                serving.give_up_slots(state, instance)
            if instance.release_by <= now:
                lifecycle.give_up_for_lost(state, instance)
            if ahead.idle_until(instance) <= now:
                lifecycle.stop(state, instance, "R6", "idle")
            elif rebalance.movable_at(instance) <= now:
                state.replan_due = True

    def _next_wake(self) -> float:
        """The earliest moment after now at which time alone could change a decision."""
        state = self._state
        now = state.now
        wake_at = state.deadlines.next_at() if state.deadlines.heap else inf
        if now < state.plan_wake_at < wake_at:
            wake_at = state.plan_wake_at
        if state.groups and now < (families_at := families.next_at(state)) < wake_at:
            wake_at = families_at
        # Mostly there is nothing in two of them, and every event comes here.
        if state.tails.heap and (tail_at := state.tails.next_at(now)) < wake_at:
            wake_at = tail_at
        if state.wakes.heap and (look_at := state.wakes.next_at(now)) < wake_at:
            wake_at = look_at
        if state.reliefs.heap and (relief_at := state.reliefs.next_at(now)) < wake_at:
            wake_at = relief_at
        return wake_at

    # --- jobs ---------------------------------------------------------------------------------------------------

    def _job_submitted(self, event: JobSubmitted) -> None:
        state = self._state
        job = event.job
        if job.id in state.jobs:
            raise self._illegal(f"job {job.id} is submitted twice", job.id)
        state.last_number += 1
        record = JobRecord(job, state.now, state.last_number, job.job_class is INTERACTIVE, job.model)
        if state.families and job.model in state.families:
            model, unsupported = families.stand(state, record, state.families[job.model])
        else:
            model, unsupported = state.models.get(job.model), None
        refusal = unsupported or admission.refusal_on_arrival(state, job, model)
        if refusal is not None or model is None:
            refusal = refusal or admission.model_not_found(job.model)
            waiting.tell_rejection(state, record, refusal, admission.ARRIVAL_RULES[refusal.code])
            return
        state.jobs[job.id] = record
        if record.group is None:
            state.say_of_job(ENQUEUE, record, None)
        else:
            record.model = model.name
            state.say_of_job(ENQUEUE, record, "R10", {"family": job.model})
        waiting.enter(state, record, model)

    def _job_abandoned(self, event: JobAbandoned) -> None:
        record = self._state.jobs.get(event.job_id)
        if record is not None:  # else its rejection and its leaving have crossed
            serving.abandon(self._state, record)

    def _grant_returned(self, event: GrantReturned) -> None:
        state = self._state
        entry = self._grant(event.grant_id)
        state.say_of_job(LogEvent.CANCEL, entry.record, "S7")
        serving.end_job(state, entry, JobMove.RETURN)

    def _step_ended(self, event: StepEnded) -> None:
        state = self._state
        entry = self._grant(event.grant_id)
        outcome = event.outcome
        instance = entry.instance
        self._say_end(LogEvent.STEP, entry, outcome)
        serving.note_outcome(state, instance, outcome)
        record = serving.end_step(state, entry, settled=event.settled or instance.exited)
        model = instance.model
        if outcome.kind is DONE and record.step < record.job.steps:
            record.step += 1
            record.place = state.now
            state.last_number += 1
            record.number = state.last_number
            record.lost_seconds = 0.0
            again = False
        elif _runs_again(record, outcome):
            record.lost_seconds += state.now - entry.granted_at
            again = True
        else:
            refusal = admission.upstream_error(record, outcome, instance.failure)
            waiting.reject_between(state, record, refusal, "P5")
            return
        self._wait_on(record, model, at_old_place=again)

    def _wait_on(self, record: JobRecord, model: ModelState, *, at_old_place: bool) -> None:
        """A job that was served in part waits for its next answer, unless there can be none. One of a family may be
        bound anew (R10)."""
        state = self._state
        if record.group is not None:
            model = families.stand_again(state, record, model)
        if state.draining:
            waiting.reject_between(state, record, admission.draining(), "P8")
        elif model.retry_at > state.now:
            waiting.reject_between(state, record, admission.model_failed(model, state.now), "L6d")
        else:
            waiting.enter(state, record, model, at_old_place=at_old_place)

    def _answer_began(self, event: AnswerBegan) -> None:
        entry = self._state.grants.get(event.grant_id)
        if entry is not None:  # else its end has crossed this
            aborts.answer_began(entry)

    def _job_ended(self, event: JobEnded) -> None:
        state = self._state
        entry = self._grant(event.grant_id)
        gone = event.outcome.kind is CLIENT_GONE
        self._say_end(LogEvent.CANCEL if gone else COMPLETE, entry, event.outcome)
        serving.note_outcome(state, entry.instance, event.outcome)
        settled = event.settled or entry.instance.exited
        serving.end_job(state, entry, END if settled else JobMove.END_UNSETTLED)

    def _slot_settled(self, event: SlotSettled) -> None:
        entry = self._state.grants.get(event.grant_id)
        if entry is None:  # its process has exited meanwhile, and all its slots with it
            return
        serving.settle(self._state, entry)

    def _say_end(self, event: LogEvent, entry: GrantRecord, outcome: Outcome) -> None:
        state = self._state
        instance = entry.instance
        seconds = state.now - entry.granted_at
        if instance.paused or entry.stood_seconds:
            seconds -= pause.stood_seconds(state, entry)
        figures: dict[str, object] = {
            "ms": serving.in_ms(seconds),
            "status": outcome.status,
            "instance": instance.id,
        }
        if outcome.kind is DONE:
            if not entry.record.job.looks:
                job_class = entry.record.job.job_class
                instance.model.pace.note(job_class, seconds)
                instance.model.use.note(job_class, state.now)
        else:
            figures["outcome"] = outcome.kind.value
        state.say_of_job(event, entry.record, None, figures)

    def _grant(self, grant_id: GrantId) -> GrantRecord:
        entry = self._state.grants.get(grant_id)
        if entry is None or entry.over:
            raise self._illegal(f"grant {grant_id} is not outstanding", entry.record.job.id if entry else None)
        return entry

    def _illegal(self, message: str, job_id: JobId | None = None, instance_id: InstanceId | None = None) -> IllegalMove:
        return IllegalMove(message, self._state.story.of(job_id, instance_id))

    # --- instances ----------------------------------------------------------------------------------------------

    def _instance(self, instance_id: InstanceId) -> Instance:
        instance = self._state.instances.get(instance_id)
        if instance is None:
            raise self._illegal(f"there is no instance {instance_id}", instance_id=instance_id)
        return instance

    def _instance_ready(self, event: InstanceReady) -> None:
        instance = self._instance(event.instance_id)
        instance.allocated = event.allocated
        self._lawfully(lifecycle.became_ready, instance)
        if instance.model.successor is instance:
            rebalance.arrived(self._state, instance)
        if self._state.leases:
            leases.is_back(self._state, instance.model)

    def _instance_exited(self, event: InstanceExited) -> None:
        instance = self._instance(event.instance_id)
        if instance.exited:
            raise self._illegal(f"instance {instance.id} exits twice", instance_id=instance.id)
        lifecycle.exited(self._state, instance, event.failure, event.log_tail)
        for entry in [item for item in instance.grants.values() if item.over]:
            serving.settle(self._state, entry)

    def _memory_released(self, event: MemoryReleased) -> None:
        instance = self._instance(event.instance_id)
        self._lawfully(lifecycle.memory_released, instance)

    def _probe_due(self, event: ProbeDue) -> None:
        instance = self._state.instances.get(event.instance_id)
        if instance is not None:  # else it has ended meanwhile
            pause.keep_awake(self._state, instance)

    def _lawfully(self, move: Callable[[State, Instance], None], instance: Instance) -> None:
        """Make a move, and add the instance's story where the tables do not allow it."""
        try:
            move(self._state, instance)
        except IllegalMove as bug:
            raise self._illegal(str(bug), instance_id=instance.id) from bug

    # --- devices, configuration, the end ------------------------------------------------------------------------

    def _device_read(self, event: DeviceRead) -> None:
        lifecycle.device_read(self._state, event)
        growth.watch(self._state, event.device)

    def _device_back(self, event: DeviceBack) -> None:
        losses.back(self._state, event)
        configured.replace_outdated(self._state)  # what could not be loaded there again meanwhile

    def _devices_changed(self, event: DevicesChanged) -> None:
        state = self._state
        state.ledger.set_devices(event.devices, event.host)
        for spec in event.devices:
            state.mode_of(spec.name)
        leases.end_gone(state)
        names = ", ".join(spec.name for spec in event.devices)
        self._configured("devices", names)

    def _models_changed(self, event: ModelsChanged) -> None:
        configured.models_changed(self._state, event.models)
        self._configured("models", str(len(event.models)))

    def _families_changed(self, event: FamiliesChanged) -> None:
        families.changed(self._state, event.families)
        self._configured("families", ", ".join(family.name for family in event.families))

    def _policy_changed(self, event: PolicyChanged) -> None:
        state = self._state
        state.policy = event.policy
        self._look_after_steps(event.policy)
        pause.review(state)
        waiting_jobs = [record for model in state.waiting_models.values() for record in model.queue]
        state.deadlines.rebuild(())
        state.entered.extend(waiting_jobs)
        self._configured("policy", "changed")

    def _configured(self, what: str, figure: str) -> None:
        state = self._state
        state.say_of_configuration(what, figure)
        state.replan_due = True
        for model in state.waiting_models.values():
            state.touch(model)

    def _drain_began(self, event: DrainBegan) -> None:  # noqa: ARG002 - it says all by having come
        state = self._state
        state.server = moved(SERVER_MOVES, state.server, ServerMove.DRAIN)
        state.draining = True
        for model in list(state.waiting_models.values()):
            for record in list(model.queue):
                waiting.reject(state, record, admission.draining(), "P8")
        persons.refuse_all(state)
        leases.refuse_all(state)
        state.replan_due = True

    def _timer_fired(self, event: TimerFired) -> None:
        """Time takes effect in every step whose moment has come, not only in this one."""


def _runs_again(record: JobRecord, outcome: Outcome) -> bool:
    """Whether a step that came to nothing is begun anew: taken away for a chat (S11), or its engine died, once (P5)."""
    if outcome.answered:
        return False
    if outcome.kind in COME_TO_NOTHING and not record.ran_again:
        record.ran_again = True
        return True
    return outcome.kind is OutcomeKind.ABORTED
