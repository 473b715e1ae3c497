"""Any order of events that the outside can produce: invariants hold after each step, and a healed world serves all.

The machine plays the clients, the engine and the devices at random, within the protocol: it ends only what was
granted, makes ready only what was started, lets processes crash, stall, refuse to die and keep their memory. At the
end it heals everything and lets time pass: every job must have ended (liveness).
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gridsched.core.commands import (
    AbortStep,
    AnswerRequest,
    ArmTimer,
    Command,
    Grant,
    GrantStep,
    Log,
    LogEvent,
    PauseInstance,
    RejectJob,
    ResumeInstance,
    StartInstance,
    StopInstance,
)
from gridsched.core.events import (
    AnswerBegan,
    DeviceRead,
    DevicesChanged,
    Event,
    Failure,
    FailureCause,
    FamiliesChanged,
    GrantReturned,
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
    SlotSettled,
    StepEnded,
    TimerFired,
    UnloadAsked,
)
from gridsched.core.ids import DeviceName, GrantId, InstanceId, JobId, ModelName, RequestId
from gridsched.core.instance import InstanceState
from gridsched.core.job import NO_MEDIA, Job, JobClass, JobKind, Medium, Outcome, OutcomeKind, Quality
from gridsched.core.model import DeviceSpec, FamilySpec, Variant
from gridsched.core.policy import Eviction, Policy, QueueLimits
from gridsched.core.scheduler import Scheduler
from tests.stories.world import BACKGROUND, BATCH, CHAT, DIED, DONE, GB, model, option, spanning, ticks

CARDS = {"gpu0": 16, "gpu1": 12}
MODELS = (
    model("chat", option(6, 2)),
    model("big", option(12, 1)),
    model("ladder", option(9, 2), option(9, 2, device="gpu1"), option(4, 1)),
    model("wide", spanning({"gpu0": 5, "gpu1": 5}, 2)),
    model("pin", option(3, 2, device="gpu1"), pinned=True),
    model("short", option(3, 4, device="gpu1"), idle_ttl_seconds=20.0),
    model("never", option(40)),
)
LOW = QueueLimits(max_length=30, max_wait_seconds=600.0)
POLICY = Policy(queues={CHAT: QueueLimits(max_length=20, max_wait_seconds=900.0), BACKGROUND: LOW, BATCH: LOW})
CRASH = Failure(FailureCause.CRASHED, "it died", ("boom",))
FAMILY = FamilySpec(
    ModelName("family"),
    (
        Variant(ModelName("big"), Quality.PREFERRED, frozenset((Medium.IMAGE,))),
        Variant(ModelName("ladder"), Quality.BALANCED, frozenset((Medium.IMAGE,))),
        Variant(ModelName("short"), Quality.COMPACT),
    ),
)
POLICIES = (
    POLICY,
    replace(POLICY, background_pause=True, abort_after_seconds=0.0),
    replace(POLICY, hot_yield_after_seconds=20.0, eviction=Eviction.LRU, interactive_turn_seconds=0.0),
    replace(POLICY, background_max_starvation_seconds=0.0, batch_max_starvation_seconds=0.0, relief_slots=1),
    replace(POLICY, hot_window_seconds=1.0, min_residency_seconds=0.0, abort_after_seconds=5.0, background_share=1.0),
)
"""The defaults, and every switch turned some other way at least once."""

names = st.sampled_from([*(spec.name for spec in MODELS), FAMILY.name])
picks = st.integers(0, 1000)


class Machine(RuleBasedStateMachine):
    """The world outside. Each collection holds what the protocol allows to happen to its members."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = POLICY
        self.cards = dict(CARDS)
        self.scheduler = Scheduler(self.policy, check_invariants=True)
        self.now = 0.0
        self.timer_at: float | None = None
        self.open: set[JobId] = set()
        self.grants: dict[GrantId, Grant] = {}
        self.unsettled: list[GrantId] = []
        self.starting: list[InstanceId] = []
        self.alive: set[InstanceId] = set()
        self.told: set[InstanceId] = set()
        self.unreleased: list[InstanceId] = []
        self.standing: set[InstanceId] = set()
        self.answered: set[GrantId] = set()
        self.aborting: list[GrantId] = []
        self.forced: set[InstanceId] = set()
        self.wishes: set[RequestId] = set()
        self.last_wish = 0
        self.last_job = 0
        self.tell_devices()
        self.tell(ModelsChanged(MODELS))
        self.tell(FamiliesChanged((FAMILY,)))

    def tell_devices(self) -> None:
        """Those that are there."""
        self.tell(DevicesChanged(tuple(DeviceSpec(DeviceName(name), size * GB) for name, size in self.cards.items())))

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: Policy) -> None:
        """One of the ways in which a person may have set it up."""
        self.policy = policy
        self.tell(PolicyChanged(policy))

    def tell(self, event: Event) -> None:
        """One event now, and what the commands mean outside."""
        for command in self.scheduler.step(event, self.now):
            self._take(command)

    def _take(self, command: Command) -> None:
        match command:
            case GrantStep(grant):
                assert grant.job_id in self.open
                assert grant.instance_id in self.alive
                chat = self.scheduler.state.jobs[grant.job_id].chat
                assert not chat or grant.instance_id not in self.standing
                self.grants[grant.id] = grant
            case RejectJob(job_id):
                self.open.remove(job_id)
            case StartInstance(instance_id):
                self.starting.append(instance_id)
                self.alive.add(instance_id)
            case StopInstance(instance_id):
                busy = any(grant.instance_id == instance_id for grant in self.grants.values())
                assert not busy or instance_id in self.forced
                assert instance_id not in self.standing
                self.told.add(instance_id)
            case PauseInstance(instance_id):
                assert instance_id in self.alive - self.standing
                self.standing.add(instance_id)
            case ResumeInstance(instance_id):
                self.standing.remove(instance_id)
            case AbortStep(grant_id):
                assert grant_id in self.grants.keys() - self.answered
                self.aborting.append(grant_id)
            case AnswerRequest(request):
                self.wishes.remove(request)  # each is answered once
            case ArmTimer(at):
                assert at is None or at > self.now
                self.timer_at = at
            case _:
                pass

    # --- clients ------------------------------------------------------------------------------------------------

    @rule(
        name=names,
        job_class=st.sampled_from(JobClass),
        steps=st.sampled_from((1, 1, 3)),
        flag=st.sampled_from((None, None, "warm_only", "no_evict")),
        key=st.sampled_from(("", "", "a", "b")),
        max_wait=st.sampled_from((None, None, 3.0, 30.0)),
        quality=st.sampled_from((None, Quality.BALANCED)),
        media=st.sampled_from((NO_MEDIA, NO_MEDIA, frozenset((Medium.IMAGE,)))),
    )
    def submit(
        self,
        name: ModelName,
        job_class: JobClass,
        steps: int,
        flag: str | None,
        key: str,
        max_wait: float | None,
        quality: Quality | None,
        media: frozenset[Medium],
    ) -> None:
        """A client asks. What it says of quality and media counts for a family only."""
        self.last_job += 1
        kind = JobKind.EMBEDDINGS if steps > 1 else JobKind.CHAT
        job_id = JobId(self.last_job)
        self.open.add(job_id)
        flags: dict[str, Any] = {"warm_only": flag == "warm_only", "no_evict": flag == "no_evict"}
        if name == FAMILY.name and kind is JobKind.CHAT:
            flags |= {"quality": quality, "media": media}
        job = Job(job_id, name, job_class, kind, steps, max_wait, key=key, **flags)
        self.tell(JobSubmitted(job))

    @precondition(lambda self: self.open)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        """A client goes, waiting or between grant and taking."""
        job_id = sorted(self.open)[pick % len(self.open)]
        self.open.remove(job_id)
        held = [grant.id for grant in self.grants.values() if grant.job_id == job_id]
        for grant_id in held:
            del self.grants[grant_id]
        if held and pick % 2:
            self.tell(GrantReturned(held[0]))
        else:
            self.tell(JobAbandoned(job_id))

    @precondition(lambda self: self.grants)
    @rule(pick=picks, how=st.sampled_from(("done", "done", "done", "gone", "unsettled", "died", "stalled")))
    def end(self, pick: int, how: str) -> None:
        """A step ends, well or badly."""
        grant = self.grants.pop(sorted(self.grants)[pick % len(self.grants)])
        if how == "died":
            self.tell(StepEnded(grant.id, DIED))
        elif how == "stalled":
            self._over(grant, Outcome(OutcomeKind.STALLED))
        elif how == "unsettled" and grant.instance_id in self.alive:
            self.unsettled.append(grant.id)
            self.open.remove(grant.job_id)
            self.tell(JobEnded(grant.id, Outcome(OutcomeKind.CLIENT_GONE), settled=False))
        elif how == "gone" or grant.step == grant.steps:
            self._over(grant, DONE)
        else:
            self.tell(StepEnded(grant.id, DONE))

    def _over(self, grant: Grant, outcome: Outcome) -> None:
        self.open.remove(grant.job_id)
        self.tell(JobEnded(grant.id, outcome))

    @precondition(lambda self: self.grants)
    @rule(pick=picks)
    def answers(self, pick: int) -> None:
        """The first byte goes to a client."""
        grant_id = sorted(self.grants)[pick % len(self.grants)]
        self.answered.add(grant_id)
        self.tell(AnswerBegan(grant_id))

    @precondition(lambda self: self.aborting)
    @rule(settled=st.booleans())
    def is_taken_away(self, settled: bool) -> None:
        """The desk takes away what it was asked for, unless that has answered or ended meanwhile."""
        grant_id = self.aborting.pop(0)
        if grant_id not in self.grants or grant_id in self.answered:
            return
        grant = self.grants.pop(grant_id)
        settled = settled or grant.instance_id not in self.alive
        if not settled:
            self.unsettled.append(grant_id)
        self.tell(StepEnded(grant_id, Outcome(OutcomeKind.ABORTED, answered=False), settled))

    @precondition(lambda self: self.alive)
    @rule(pick=picks)
    def is_probed(self, pick: int) -> None:
        """Somebody is about to look at a process."""
        self.tell(ProbeDue(sorted(self.alive)[pick % len(self.alive)]))

    @precondition(lambda self: self.unsettled)
    @rule()
    def settle(self) -> None:
        """The engine is done with a cancelled step."""
        self.tell(SlotSettled(self.unsettled.pop(0)))

    # --- persons ------------------------------------------------------------------------------------------------

    def wish(self) -> RequestId:
        """The number of a new one."""
        self.last_wish += 1
        request = RequestId(self.last_wish)
        self.wishes.add(request)
        return request

    @rule(name=names)
    def a_person_loads(self, name: ModelName) -> None:
        """By hand."""
        self.tell(LoadAsked(self.wish(), name))

    @rule(name=names, force=st.booleans())
    def a_person_unloads(self, name: ModelName, force: bool) -> None:
        """Gently or not: only force may stop a process that has a step in flight (R2)."""
        model = self.scheduler.state.models.get(name)
        if force and model is not None and model.instance is not None:
            self.forced.add(model.instance.id)
        self.tell(UnloadAsked(self.wish(), name, force))

    @rule(name=names, pinned=st.booleans())
    def a_person_pins(self, name: ModelName, pinned: bool) -> None:
        """Or lets it go."""
        self.tell(PinAsked(self.wish(), name, pinned))

    @rule(name=st.sampled_from(list(CARDS)), seconds=st.sampled_from((None, 30.0)))
    def a_device_is_leased(self, name: str, seconds: float | None) -> None:
        """Somebody wants it whole."""
        self.tell(LeaseAsked(self.wish(), (DeviceName(name),), "somebody", seconds))

    @rule(name=st.sampled_from(list(CARDS)))
    def a_lease_ends(self, name: str) -> None:
        """It is given back, if there is one."""
        self.tell(LeaseReleased(self.wish(), DeviceName(name)))

    # --- the engine ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.starting)
    @rule(fails=st.sampled_from((False, False, False, True)))
    def launch_ends(self, fails: bool) -> None:
        """A process becomes ready, or does not."""
        instance_id = self.starting.pop(0)
        if instance_id not in self.alive:
            return
        if fails and instance_id not in self.told:
            self.exit(instance_id, CRASH)
        else:
            self.tell(InstanceReady(instance_id))

    @precondition(lambda self: self.told & self.alive)
    @rule()
    def dies_as_told(self) -> None:
        """A stop takes effect."""
        self.exit(min(self.told & self.alive), None)

    @precondition(lambda self: self.alive)
    @rule(pick=picks)
    def crashes(self, pick: int) -> None:
        """A process dies in service; its steps are told of it later, one by one."""
        instance_id = sorted(self.alive)[pick % len(self.alive)]
        if instance_id not in self.starting:
            self.exit(instance_id, None if instance_id in self.told else CRASH)

    def exit(self, instance_id: InstanceId, failure: Failure | None) -> None:
        """A process is gone."""
        self.alive.remove(instance_id)
        self.unreleased.append(instance_id)
        self.tell(InstanceExited(instance_id, failure))

    @precondition(lambda self: self.unreleased)
    @rule()
    def memory_is_back(self) -> None:
        """The driver has let go."""
        self.tell(MemoryReleased(self.unreleased.pop(0)))

    # --- devices and time ---------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(list(CARDS)), outside=st.sampled_from((0, 0, 1, 9)), noise=st.sampled_from((0.9, 1.0, 1.2))
    )
    def read(self, name: str, outside: int, noise: float) -> None:
        """A reading, with a game now and then, and models that take more or less than was thought."""
        device = DeviceName(name)
        if device not in self.scheduler.state.ledger.books:
            return
        page = self.scheduler.state.ledger.books[device].reservations
        held = tuple((each, int(page[each].estimate_bytes * noise)) for each in page if each in self.alive)
        used = outside * GB + sum(size for _, size in held)
        self.tell(DeviceRead(device, CARDS[name] * GB, used, held))

    @rule(gone=st.sampled_from((None, *CARDS)))
    def devices_change(self, gone: str | None) -> None:
        """A card falls off the bus, or is back."""
        self.cards = {name: size for name, size in CARDS.items() if name != gone}
        self.tell_devices()

    @rule(gone=st.sampled_from((None, None, *(spec.name for spec in MODELS))))
    def configuration_changes(self, gone: ModelName | None) -> None:
        """A model is taken out, or is back."""
        self.tell(ModelsChanged(tuple(spec for spec in MODELS if spec.name != gone)))

    @rule(policy=st.sampled_from(POLICIES))
    def policy_changes(self, policy: Policy) -> None:
        """Other figures from now on."""
        self.policy = policy
        self.tell(PolicyChanged(policy))

    @rule(seconds=st.sampled_from((0.1, 0.5, 2.0, 5.0, 40.0, 200.0)))
    def time_passes(self, seconds: float) -> None:
        """The timer fires at each of its moments."""
        until = self.now + ticks(seconds)
        while self.timer_at is not None and self.timer_at <= until:
            self.now = max(self.now, self.timer_at)
            self.timer_at = None
            self.tell(TimerFired())
        self.now = until

    @rule(seconds=st.sampled_from((0.0, 0.1, 1.0)))
    def nothing_happens_between_the_timers_moments(self, seconds: float) -> None:
        """The timer is exact: everything is decided anew before its moment, and nothing comes out differently."""
        until = self.now + ticks(seconds)
        if self.timer_at is None or until < self.timer_at:
            self.now = until
            commands = self.scheduler.step(PolicyChanged(self.policy), self.now)
            others = [one for one in commands if not (isinstance(one, Log) and one.event is LogEvent.CONFIG)]
            assert not others, others

    @invariant()
    def the_scheduler_knows_the_same_jobs(self) -> None:
        """Every open job waits or runs, and nobody else does."""
        assert set(self.scheduler.state.jobs) == self.open

    def teardown(self) -> None:
        """Heal the world: everything ends well from here on. Then every job must end."""
        self.devices_change(None)
        self.configuration_changes(None)
        for name in CARDS:
            self.a_lease_ends(name)
        for spec in MODELS:
            self.a_person_pins(spec.name, pinned=False)
        for _ in range(400):
            if not self.open and not self.wishes:
                break
            self._heal()
            self.time_passes(5.0)
        assert not self.open, [self.scheduler.waiting(job_id, self.now) for job_id in self.open]
        assert not self.wishes
        assert not any(item.state is InstanceState.DRAINING for item in self.scheduler.state.instances.values())

    def _heal(self) -> None:
        while self.unreleased or self.told & self.alive or self.starting or self.grants or self.unsettled:
            if self.unreleased:
                self.memory_is_back()
            elif self.told & self.alive:
                self.dies_as_told()
            elif self.starting:
                self.launch_ends(fails=False)
            elif self.unsettled:
                self.settle()
            else:
                self.end(0, "done")
        for name in CARDS:
            self.read(name, 0, 1.0)


EXPLORING = settings.get_current_profile_name() == "explore"
"""Whether this is not the suite but a search (`make explore`), which takes its figures from its profile."""

Machine.TestCase.settings = settings(
    settings() if EXPLORING else settings(max_examples=120, stateful_step_count=60),
    suppress_health_check=list(HealthCheck),
)
TestAnyOrderOfEvents = pytest.mark.slow(Machine.TestCase)
