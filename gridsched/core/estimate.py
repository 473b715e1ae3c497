"""When a waiting job will be granted, as far as that can be said honestly (S9b).

Owns the forecast: from this moment on as if nobody else came and everything took as long as it did lately. Slots come
free when the steps on them end by their model's pace, loads take their measured time one after the other (L6), queues
go in their order, low work waits for the tail (S4) or has relief turns in their share (S5, S5a). A moment that rests on
something unmeasured is `inf`, and whatever comes behind it too: nothing is said then.

Pure, changes nothing, and must never be asked inside a step: it walks all waiting jobs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import islice
from math import inf
from operator import attrgetter

from gridsched.core.ids import DeviceName, JobId, ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.keys import KeyTurns
from gridsched.core.modes import DeviceMode
from gridsched.core.placement import Plan
from gridsched.core.queues import JobRecord, ModelQueue
from gridsched.core.residency import READY, GrantRecord, Instance, ModelState
from gridsched.core.state import State

STOP_SECONDS = 1.0
"""From telling a process to stop to its memory being verified back. A guess; real ones are mostly faster."""

OVERDUE_PART = 10
"""A load that takes longer than the last one is taken to need a tenth of it more. A guess."""

LONE_PART = 1.5
"""A mode that has lasted for more than this many chats with their tails is a conversation. A guess."""


def forecast(state: State, now: float, most: int | None = None) -> Mapping[JobId, float]:
    """When each waiting job will be granted, on the actor's clock. Who cannot be told anything is missing; and who is
    not among the first `most` of a class at a model may be."""
    return _Forecast(state, now, most).run()


@dataclass(slots=True, eq=False)
class _Lane:
    """One model's slots: heaps of when each is free next, all of them and those that low work may take. `modes` are
    the devices it is on."""

    model: ModelState
    modes: tuple[DeviceMode, ...]
    slots: list[float]
    low_slots: list[float]

    def take(self, at: float, seconds: float, *, low: bool) -> None:
        """A step of this length begins on the slot that is free first."""
        heapreplace(self.slots, at + seconds)
        if low:
            heapreplace(self.low_slots, at + seconds)

    def low_at(self) -> float:
        """When low work finds a slot."""
        return max(self.slots[0], self.low_slots[0]) if self.low_slots else inf


class _Starved:
    """The low jobs of a lane as relief takes them (S5): each key's longest starved competes, keys in turn."""

    def __init__(self, queue: ModelQueue, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._lines: dict[str, list[JobRecord]] = {}
        low = sorted((record for record in queue if not record.chat), key=attrgetter("place"))
        for record in reversed(low):
            self._lines.setdefault(record.job.key, []).append(record)

    def next_at(self) -> float:
        """When the next one is starved; inf where nobody waits."""
        return min((line[-1].place + self._limit_seconds for line in self._lines.values()), default=inf)

    def first(self, at: float, keys: KeyTurns) -> JobRecord:
        """Who is next of those that are starved at a moment, which must not be before `next_at`."""
        heads = (line[-1] for line in self._lines.values() if line[-1].place + self._limit_seconds <= at)
        return min(heads, key=keys.relief_rank)

    def take(self, at: float, keys: KeyTurns) -> JobRecord:
        """The same, relieved."""
        record = self.first(at, keys)
        keys.relieved(record.job.key)
        line = self._lines[record.job.key]
        line.pop()
        if not line:
            del self._lines[record.job.key]
        return record


class _Forecast:
    def __init__(self, state: State, now: float, most: int | None) -> None:
        self._state = state
        self._now = now
        self._most = most
        self._granted_at: dict[JobId, float] = {}
        self._chats_end: dict[DeviceName, float] = {}

    def run(self) -> Mapping[JobId, float]:
        """Play it all, chats first (S1)."""
        ready_at = _ready_times(self._state, self._now)
        self._note_running_chats()
        models = self._state.waiting_models.values()
        there = [model for model in models if model.instance is not None or model.name in ready_at]
        lanes: list[_Lane] = []
        for model in (*there, *(model for model in models if model not in there)):
            lane = self._lane(model, ready_at[model.name] if model.name in ready_at else self._ready_after_older(model))
            if lane is not None:
                self._serve_chats(lane)
                lanes.append(lane)
        low_lanes = [lane for lane in lanes if lane.model.queue.low]
        ends = {mode.device: self._mode_ends_at(mode) for mode in self._state.modes.values()}
        held = [lane for lane in low_lanes if self._held_until(lane, ends) > self._now]
        self._give_turns([lane for lane in held if not _filled_by_chats(lane.model)], ends)
        for lane in low_lanes:
            self._serve_low(lane, self._held_until(lane, ends))
        return {job_id: at for job_id, at in self._granted_at.items() if at < inf}

    # --- slots --------------------------------------------------------------------------------------------------

    def _lane(self, model: ModelState, ready_at: float) -> _Lane | None:
        """None for a model of which nobody can say when it will be there."""
        now = self._now
        instance = model.instance
        if instance is not None and instance.state is READY:
            ends = [now + _rest_seconds(entry, now) for entry in instance.grants.values()]
            low_ends = [now + _rest_seconds(entry, now) for entry in instance.grants.values() if not entry.record.chat]
            slots = ends + [now] * (instance.parallel - len(ends))
            allowed = instance.parallel - instance.reserved_slots(now)
            low_slots = sorted(low_ends)[max(0, len(low_ends) - allowed) :] + [now] * (allowed - len(low_ends))
            lane = _Lane(model, instance.modes, slots, low_slots if allowed > 0 else [])
        elif ready_at < inf:
            option = model.spec.options[0]
            if instance is not None:
                option = instance.option
            elif model.plan is not None:
                option = model.plan.option
            kept = model.spec.reserved_slots or (1 if model.queue.chats and option.parallel > 1 else 0)
            slots = [ready_at] * option.parallel
            modes = tuple(self._state.mode_of(device) for device in option.devices)
            lane = _Lane(model, modes, slots, slots[: max(0, option.parallel - kept)])
        else:
            return None
        heapify(lane.slots)
        heapify(lane.low_slots)
        return lane

    def _note_running_chats(self) -> None:
        for entry in self._state.grants.values():
            if entry.record.chat and not entry.over:
                self._chat_ends(entry.instance.modes, self._now + _rest_seconds(entry, self._now))

    def _chat_ends(self, modes: Iterable[DeviceMode], at: float) -> None:
        for mode in modes:
            self._chats_end[mode.device] = max(at, self._chats_end.get(mode.device, -inf))

    def _serve_chats(self, lane: _Lane) -> None:
        seconds = _step_seconds(lane.model, JobClass.INTERACTIVE)
        for record in lane.model.queue.in_turn(JobClass.INTERACTIVE):
            at = lane.slots[0]
            self._granted_at[record.job.id] = at
            lane.take(at, seconds, low=False)
            self._chat_ends(lane.modes, at + seconds)

    def _ready_after_older(self, model: ModelState) -> float:
        """S2: a chat's load that waits for older chats of a model in its way: when the last of them has been served."""
        obstacle = model.obstacle
        first = next(iter(model.queue.chats.values()), None)
        if obstacle is None or obstacle.rule != "S2" or first is None:
            return inf
        ends = [self._now]
        for instance in (self._state.instances[each] for each, _ in obstacle.watched if each in self._state.instances):
            ends += (self._now + _rest_seconds(entry, self._now) for entry in instance.grants.values())
            seconds = _step_seconds(instance.model, JobClass.INTERACTIVE)
            older = (record for record in instance.model.queue.chats.values() if record.rank < first.rank)
            ends += (self._granted_at.get(record.job.id, inf) + seconds for record in older)
        return max(ends) + STOP_SECONDS + self._state.load_seconds(model, model.spec.options[0])

    # --- low work -----------------------------------------------------------------------------------------------

    def _mode_ends_at(self, mode: DeviceMode) -> float:
        """S4. The tail of one chat ends when it ends. While people go on chatting a mode ends after its usual time, and
        one that lasts longer is expected to go on for as long as it is over that. Before the first has ended, nobody
        knows."""
        now = self._now
        if not mode.active(now):
            return -inf
        tail_seconds = self._state.policy.interactive_cooldown_seconds
        certain = max(mode.tail_until, self._chats_end.get(mode.device, -inf) + tail_seconds)
        only_tail = not mode.chats_running and not mode.chats_waiting
        if only_tail and now - mode.since <= LONE_PART * (self._chat_seconds(mode) + tail_seconds):
            return certain
        if not mode.periods and not only_tail:
            return inf
        usual = mode.since + mode.mean_seconds
        return max(certain, usual if usual > now else 2 * now - usual)

    def _chat_seconds(self, mode: DeviceMode) -> float:
        """The longest mean chat of the models on a device."""
        here = (item.model for item in self._state.instances.values() if mode in item.modes)
        return max((model.pace.step_seconds(JobClass.INTERACTIVE) or 0.0 for model in here), default=0.0)

    def _held_until(self, lane: _Lane, ends: Mapping[DeviceName, float]) -> float:
        return max((ends[mode.device] for mode in lane.modes), default=-inf)

    def _give_turns(self, lanes: list[_Lane], ends: Mapping[DeviceName, float]) -> None:
        """S5, S5a: one turn at a time on a device, to the longest starved of those that can run then. Ends where the
        mode does."""
        policy = self._state.policy
        limit_seconds = policy.background_max_starvation_seconds
        if not limit_seconds:
            return
        stood_seconds = policy.pause_limit_seconds if policy.background_pause else 0.0
        gates = {mode.device: self._gate(mode) for lane in lanes for mode in lane.modes}
        keys = self._state.keys.ahead()
        starved = {lane: _Starved(lane.model.queue, limit_seconds) for lane in lanes}

        def next_turn(lane: _Lane) -> tuple[float, tuple[int, float, int]]:
            gate = max((gates[mode.device] for mode in lane.modes if ends[mode.device] > self._now), default=-inf)
            at = max(gate, lane.low_at(), starved[lane].next_at(), self._now)
            return at, keys.relief_rank(starved[lane].first(at, keys))

        while lanes:
            lane = min(lanes, key=next_turn)
            at, _ = next_turn(lane)
            if at >= self._held_until(lane, ends) or at == inf:
                lanes.remove(lane)
                continue
            waiting = starved[lane]
            seconds = lane.model.pace.turn_seconds(waiting.first(at, keys).job.job_class) or inf
            for _ in range(policy.relief_slots):
                if waiting.next_at() > at or lane.low_at() > at:
                    break
                self._granted_at[waiting.take(at, keys).job.id] = at
                lane.take(at, stood_seconds + seconds, low=True)
            for mode in lane.modes:
                gates[mode.device] = at + stood_seconds + seconds / policy.background_share
            if waiting.next_at() == inf:
                lanes.remove(lane)

    def _gate(self, mode: DeviceMode) -> float:
        """When the next turn may begin on a device."""
        turn = mode.turn
        if turn is None:
            return mode.next_turn_at
        instance = self._state.instances[turn.instance_id]
        rests = [_rest_seconds(entry, self._now) for entry in instance.grants.values() if entry.turn is turn]
        over_at = self._now + max(rests, default=0.0)
        if over_at == inf:  # times a share of 1 it would be no number
            return inf
        return over_at + (over_at - turn.began_at - turn.stood_seconds) * (1 / self._state.policy.background_share - 1)

    def _serve_low(self, lane: _Lane, held_until: float) -> None:
        """Those that had no turn: class by class once no chat holds their devices. There may be thousands, whose steps
        come one after the other: this loop is as short as it can be."""
        queue, granted_at = lane.model.queue, self._granted_at
        slots, low_slots = lane.slots, lane.low_slots
        for job_class, behind in ((JobClass.BACKGROUND, queue.batch), (JobClass.BATCH, ())):
            seconds = _step_seconds(lane.model, job_class)
            # Whoever comes after the last that is asked for delays only those behind.
            for record in islice(queue.in_turn(job_class), None if behind else self._most):
                if record.job.id in granted_at:
                    continue
                if not low_slots:
                    return
                at = max(slots[0], low_slots[0], held_until)
                if at == inf:
                    return
                granted_at[record.job.id] = at
                heapreplace(slots, at + seconds)
                heapreplace(low_slots, at + seconds)


def _filled_by_chats(model: ModelState) -> bool:
    """People leave low work no slot of this model while they go on: chats wait for one, or have all but one."""
    instance = model.instance
    if model.queue.chats or instance is None:
        return bool(model.queue.chats)
    return sum(entry.record.chat for entry in instance.grants.values()) >= max(1, instance.parallel - 1)


def _step_seconds(model: ModelState, job_class: JobClass) -> float:
    seconds = model.pace.step_seconds(job_class)
    return inf if seconds is None else seconds


def _rest_seconds(entry: GrantRecord, now: float) -> float:
    """What a running step still needs. The step of a client that has left ends any moment."""
    if entry.over:
        return 0.0
    ran_seconds = now - entry.granted_at - entry.stood_seconds
    rest = entry.instance.model.pace.rest_seconds(entry.record.job.job_class, ran_seconds)
    return inf if rest is None else rest


# --- loads ------------------------------------------------------------------------------------------------------


def _ready_times(state: State, now: float) -> Mapping[ModelName, float]:
    """When each model that is loading, planned, or kept from it by time alone will be ready."""
    found: dict[ModelName, float] = {}
    slot_at = {True: now, False: now}
    for instance in state.instances.values():
        if instance.state is InstanceState.STARTING:
            found[instance.model.name] = at = _loaded_at(state, instance, now)
            chat = instance.cause_class == JobClass.INTERACTIVE
            slot_at[chat] = max(slot_at[chat], at)
    for plan in state.plans:
        model, chat = plan.want.model, plan.want.chat
        if model.plan is plan:
            begins_at = max(slot_at[chat], _cleared_at(plan, now))
            if plan.held is not None and plan.held.until < inf:
                begins_at = max(begins_at, plan.held.until + STOP_SECONDS)
            found[model.name] = slot_at[chat] = begins_at + state.load_seconds(model, plan.option)
    for model in state.waiting_models.values():
        obstacle = model.obstacle
        if obstacle is not None and now < obstacle.until < inf:
            found[model.name] = obstacle.until + STOP_SECONDS + state.load_seconds(model, model.spec.options[0])
    return found


def _loaded_at(state: State, instance: Instance, now: float) -> float:
    seconds = state.load_seconds(instance.model, instance.option)
    return max(instance.started_at + seconds, now + seconds / OVERDUE_PART)


def _cleared_at(plan: Plan, now: float) -> float:
    """When the memory of a plan is there: its victims' steps end (R2), they stop, and the memory is verified back."""
    if plan.fits_now:
        return now
    rests = [_rest_seconds(entry, now) for victim in plan.victims for entry in victim.grants.values()]
    return now + max(rests, default=0.0) + STOP_SECONDS
