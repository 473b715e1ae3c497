"""Which models come and which go: plans made oldest job first, then carried out (S2, S6a-c, R2 to R4a, L6, L6c, L7).

Owns the walk. All plans are dissolved and made anew each time, so that nothing remembers a reason that has passed:
what an older plan began and a new one does not need is undone. Runs only when something that a plan rests on has
changed; an event about a ready model never comes here unless some job waits for a load.
"""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from gridsched.core import (
    admission,
    cost,
    eviction,
    leases,
    lifecycle,
    losses,
    pins,
    pressure,
    rebalance,
    refusing,
    waiting,
    yielding,
)
from gridsched.core.commands import LogEvent
from gridsched.core.ids import DeviceName, InstanceId, ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.load_slots import LoadSlots, ends_soon
from gridsched.core.model import LaunchOption
from gridsched.core.placement import Choice, Draft, Obstacle, Plan, Want, plan_for
from gridsched.core.queues import Rank
from gridsched.core.residency import Instance
from gridsched.core.state import State
from gridsched.core.wants import wants_of

STARTING, DRAINING = InstanceState.STARTING, InstanceState.DRAINING
"""States that every planning asks each instance for."""

DRAIN_MARGIN = 2.0
"""A6: a drain may take this much longer than was expected before another victim is thought of. A guess: single steps
often take twice the mean."""

SHORTEST_DRAIN_SECONDS = 5.0
"""A6: nor before so long, because a choice that changes costs more than a short wait."""

COMES_BACK_SECONDS = 300.0
"""S6c: a load that is asked for again so soon after one was given up is finished, whoever leaves. A client that waits
for less than half of a load, and tries again, would otherwise never be served."""


def replan(state: State) -> None:
    """Dissolve all plans, make them anew, and do what they ask for."""
    state.replan_due = False
    if state.draining:
        _dissolve(state)
        _stop_idle(state, "P8", "the server is going away", removed_only=False)
        return
    if state.leases:
        leases.end_due(state)
    if state.pins:
        pins.tend(state)
    _abort_orphaned_loads(state)
    if state.moving:
        rebalance.give_up(state)
    _stop_idle(state, "S9", "its model is gone from the configuration", removed_only=True)
    plans = _make_plans(state)
    _undo_needless_drains(state, plans)
    if plans:
        for plan in plans:
            if plan.live:
                _clear_the_way(state, plan)
        _begin_loads(state, plans)
    _watch_the_rest(state)
    pressure.relieve(state)
    # What was begun and stopped above is in the plans already. The waiting jobs of a model that had to go are not, nor
    # is what a refusal leaves behind.
    state.replan_due = _somebody_lost_its_model(state) or _low_slot_went(state, plans) or state.keys.stale
    refusing.refuse(state)
    if state.pins or state.leases:
        state.plan_wake_at = min(state.plan_wake_at, pins.next_at(state), leases.next_at(state))
    rebalance.look(state)


# --- making plans -----------------------------------------------------------------------------------------------


def _make_plans(state: State) -> list[Plan]:
    """The plans of all wants. Where one start is left (P6a), and low work that starves has a plan beside the chats', it
    is low work's (S5): the chats wait for the next one, and what they will need is kept for them."""
    wants = wants_of(state)
    _walk(state, wants)
    bar = state.start_bar(chat=True, starved=True)
    if bar is not None and _is_starved_of_a_start(state):
        _walk(state, wants, _Kept(bar, frozenset(plan.want.model.name for plan in state.plans if plan.live)))
        if not _is_starved_of_a_start(state):  # it was to have what victims of the chats free
            _walk(state, wants)
    return state.plans


def _is_starved_of_a_start(state: State) -> bool:
    """S5: whether low work that starves could be loaded."""
    return any(plan.live and plan.want.starved(state.now) for plan in state.plans)


def _walk(state: State, wants: list[Want], kept: "_Kept | None" = None) -> None:
    """Chats first: what they hold (S4) and claim (S6a) must be known before low work is looked at."""
    _dissolve(state)
    for model in state.wanted_models().values():
        model.want = model.obstacle = None
        model.next_at = inf
    walk = _Walk(state, kept)
    walk.chats([want for want in wants if want.chat])
    for model in (state.waiting_models | state.touched).values():
        if model.queue.chats or model.held:
            waiting.hold_devices(state, model)
    low = [want for want in wants if not want.chat]
    walk.low(low)
    state.low_plans_matter = not walk.slots.low_begun and bool(low)
    state.plans = walk.plans


def _dissolve(state: State) -> None:
    """No plan claims or waits for anything any more."""
    for plan in state.plans:
        plan.want.model.plan = None
    state.plans = []
    state.watched = {}
    state.unplaced = False
    state.plan_wake_at = inf


def _may_be_victim(instance: Instance) -> bool:
    in_the_way = (InstanceState.STARTING, InstanceState.READY, InstanceState.DRAINING)
    return instance.state in in_the_way and not instance.restarting


def _draft(state: State) -> Draft:
    """What there is before any claim."""
    return Draft.of(state.ledger, [item for item in state.instances.values() if ends_soon(item)])


def prospect(state: State, want: Want) -> Plan | Obstacle:
    """What a want would be given now, behind the claims of older plans as they stand. Changes nothing (R10)."""
    return _find(state, want, _draft_behind(state, _older(state, want)))


def _older(state: State, want: Want) -> list[Plan]:
    """The plans of other models that go before a want."""
    name = want.model.name
    return [
        plan
        for plan in state.plans
        if plan.live and plan.want.rank < want.rank and plan.want.model.plan is plan and plan.want.model.name != name
    ]


def _draft_behind(state: State, older: list[Plan]) -> Draft:
    draft = _draft(state)
    for plan in older:
        if all(device in draft.now for device, _ in plan.needs):
            draft.claim(plan, state.ledger)
    return draft


def outlook(state: State, want: Want, gone: Instance | None = None) -> Plan | Obstacle:
    """What a person's load would come to now, and what it would wait for: `prospect`, with the turns of others (R4b)
    and the loads before it (L6). `gone` is the model's own process, if that is to be replaced. Changes nothing."""
    older = [plan for plan in _older(state, want) if plan.want.chat]
    slots = LoadSlots(state)
    if (barred := slots.is_far_ahead(older)) is not None:
        return barred
    for plan in older:
        slots.claim(plan)
    draft = _draft_behind(state, older)
    if gone is not None:
        draft.taken.add(gone.id)
        for device, held_bytes in state.ledger.bytes_of(gone.id).items():
            draft.later[device] += held_bytes
    turn: Obstacle | None = None
    found = _find(state, want, draft)
    if isinstance(found, Obstacle) and found.but_for == "turn":
        turn, found = found, _find(state, want, draft, patient=True)
    if isinstance(found, Plan):
        found.held = turn or state.start_bar(chat=True, starved=_is_starved_of_a_start(state))
        found.waits = _waits_for_memory(found)
        found.waits = _kept_from_beginning(state, found, slots.taken)
    return found


class _Judge:
    """What planning knows of a want (`placement.Judge`). `patient`: once the turns of other chats are over (R4b)."""

    def __init__(self, state: State, want: Want, draft: Draft, *, patient: bool) -> None:
        self._state = state
        self._want = want
        self._draft = draft
        self._patient = patient
        self._relieved = want.chat or want.starved_at <= state.now

    def kept_from(self, option: LaunchOption) -> Obstacle | None:
        """D6, R8: nothing loads on a device that is lost or leased. S4, S5: on one in interactive mode low work loads
        only as relief, once its job is starved."""
        state = self._state
        if state.lost or state.leases:
            barred = losses.bar(state, option) or leases.bar(state, option)
            if barred is not None:
                return barred
        if self._relieved or not _in_interactive_mode(state, option):
            return None
        devices = ", ".join(option.devices)
        return Obstacle("S4", f"people chat on {devices}", self._want.starved_at)

    def crowd(self, option: LaunchOption) -> tuple[int, ...]:
        """A chat is disturbed by whatever works beside it, so those that people use, or wait for while they load, count
        before all others. One device before several; and before all, memory that the device itself says is free (L3),
        because a load waits for the other."""
        state = self._state
        ids = {each for device in option.devices for each in state.ledger.books[device].reservations}
        there = [state.instances[each] for each in ids]
        used = sum(1 for item in there if item.hot(state.now) or item.model.queue.chats)
        waits = not state.ledger.really_free(state.ledger.needs(option))
        return (waits, len(option.devices), used, len(ids))

    def choose(self, lacking: dict[DeviceName, int]) -> Choice | Obstacle:
        """R1 to R5."""
        return eviction.choose(self._state, self._want, lacking, self._draft, patient=self._patient)


def _find(state: State, want: Want, room: Draft, *, patient: bool = False) -> Plan | Obstacle:
    rungs = admission.usable_rungs(state.ledger, want.model)
    return plan_for(want, rungs, room, _Judge(state, want, room, patient=patient))


class _Kept(NamedTuple):
    """The last start is kept from chats (S5). Those `ahead` would have begun or drained now: of all that wait for the
    next one, they are the ones whose memory is kept for them."""

    bar: Obstacle
    ahead: frozenset[ModelName]


class _Walk:
    """One walk over the wants: what is left for the next, and the plans so far. `turns` are those of chats that wait
    for the turn of other chats (R4b), known once all chats' wants have been looked at. A plan that may not start a
    process yet (P6a) drains nobody: they would be missed for nothing."""

    def __init__(self, state: State, kept: _Kept | None) -> None:
        self._state = state
        self._draft = _draft(state)
        self.slots = LoadSlots(state)
        self._kept = kept
        self.plans: list[Plan] = []
        self._turns: list[tuple[Plan, float]] = []

    def chats(self, wants: list[Want]) -> None:
        """Plan those that people wait for."""
        for want in wants:
            self._add_unless(want, self.slots.is_far_ahead(self.plans))
        for plan in self.plans:
            if plan.held is not None and not self._is_passed_over(plan):
                # A start may come free (P6a): what low work had loaded would go again.
                self._turns.append((plan, -inf if plan.held.rule == "P6a" else plan.held.until))

    def _is_passed_over(self, plan: Plan) -> bool:
        """Whether it would not have come to a start either if that were not kept from it."""
        return self._kept is not None and plan.held is self._kept.bar and plan.want.model.name not in self._kept.ahead

    def low(self, wants: list[Want]) -> None:
        """Plan the others."""
        for want in wants:
            self._add_unless(want, self.slots.low_is_taken())

    def _add_unless(self, want: Want, barred: Obstacle | None) -> None:
        """Plan one want, unless there is no need to look because its load could not begin for long. A job that may not
        have others go for it is told whether it has a plan at all (S9)."""
        if barred is None or want.model.queue.no_evict:
            self._add(want)
        else:
            model = want.model
            model.want, model.obstacle, model.next_at = want, barred, want.next_at

    def _add(self, want: Want) -> None:
        """Plan one want; set a live plan's claim aside."""
        state, model = self._state, want.model
        model.want, model.next_at = want, want.next_at
        room = self._draft if want.chat or not self._turns else self._room_beside_turns(want)
        turn: Obstacle | None = None
        found = want.bar or _find(state, want, room)
        if isinstance(found, Obstacle) and found.but_for == "turn":
            turn, found = found, _find(state, want, room, patient=True)
        if isinstance(found, Plan):
            found = _not_agreed(found) or found
        if isinstance(found, Obstacle):
            model.obstacle = found
            model.next_at = min(model.next_at, found.until, yielding.say_if_starved(state, want, found))
            return
        plan = found
        plan.relief = not want.chat and _in_interactive_mode(state, plan.option)
        plan.held = turn or (None if want.chat else self.slots.low_is_taken())
        plan.held = plan.held or (self._kept.bar if self._kept and want.chat else state.start_bar(chat=want.chat))
        if plan.held is not None:
            model.next_at = min(model.next_at, plan.held.until)
        devices = dict.fromkeys(plan.option.devices)
        for victim in plan.victims:
            devices.update(dict.fromkeys(victim.devices))
        plan.modes = tuple(state.mode_of(device) for device in devices)
        model.plan = plan
        self.plans.append(plan)
        if plan.live:
            self._draft.claim(plan, state.ledger)
            self.slots.claim(plan)

    def _room_beside_turns(self, want: Want) -> Draft:
        """S6a, B2: a chat that waits for the turn of other chats (R4b) claims nothing yet, but what it will need is
        kept from a low load that would not be done by then. Gives what is left, and notes when that could become
        less."""
        state, model = self._state, want.model
        load_seconds = state.load_seconds(model, model.spec.options[0])
        kept: list[Plan] = []
        for plan, until in self._turns:
            latest_at = until - load_seconds
            if latest_at <= state.now:
                kept.append(plan)
            else:
                model.next_at = min(model.next_at, latest_at)
        return self._draft.less(kept, state.ledger) if kept else self._draft


def _not_agreed(plan: Plan) -> Obstacle | None:
    """Where a person has said who may go for a load, nobody else does."""
    errand = plan.want.model.errand
    if errand is None or errand.may_go is None or plan.want.job is not None:
        return None
    others = sorted({str(victim.model.name) for victim in plan.victims} - errand.may_go)
    return Obstacle("R7", f"{', '.join(others)} {admission.MUST_GO}", but_for="consent") if others else None


def _in_interactive_mode(state: State, option: LaunchOption) -> bool:
    for device in option.devices:
        mode = state.modes.get(device)
        if mode is not None and mode.active(state.now):
            return True
    return False


# --- carrying them out ------------------------------------------------------------------------------------------


def _undo_needless_drains(state: State, plans: list[Plan]) -> None:
    """R2, R3, S6c: whatever drains for nobody any more takes work again."""
    draining = [item for item in state.instances.values() if item.state is DRAINING and not item.restarting]
    if not draining:
        return
    needed = {victim.id for plan in plans if plan.live for victim in plan.victims}
    for instance in draining:
        if instance.id not in needed:
            lifecycle.undrain(state, instance)


def _clear_the_way(state: State, plan: Plan) -> None:
    """Have a live plan's victims go: idle ones at once, busy ones when their steps have ended (R2)."""
    model = plan.want.model
    reason = f"{model.spec.name} needs its memory"
    for victim in plan.victims:
        if victim.state is InstanceState.STARTING:
            _abort_for_chat(state, plan, victim)
        elif not victim.busy():
            terms = cost.terms_of(state, victim, plan.want.load_class)
            if not plan.want.chat and victim.hot(state.now):
                yielding.yielded(state, victim, plan)
            lifecycle.stop(state, victim, "R1", reason, LogEvent.EVICT, **terms.figures())
        else:
            _let_drain(state, plan, victim, reason)
    plan.waits = _waits_for_memory(plan)


def _waits_for_memory(plan: Plan) -> tuple[str, str]:
    """What keeps the memory of a plan from being there; empty where it is."""
    busy = sorted(victim.model.spec.name for victim in plan.victims if victim.busy())
    if busy:
        return "R2", f"running steps of {', '.join(busy)} end first"
    return ("", "") if plan.fits_now else ("R3", "memory is being freed")


def _let_drain(state: State, plan: Plan, victim: Instance, reason: str) -> None:
    """R2, A6: a busy victim takes no new step. When it should be done, and is not, the choice is made anew."""
    terms = cost.terms_of(state, victim, plan.want.load_class)
    if victim.state is InstanceState.READY:
        lifecycle.drain(state, victim, "R2", reason, **terms.figures())
        victim.drain_until = -inf
    if victim.drain_until <= state.now:
        victim.drain_until = state.now + max(SHORTEST_DRAIN_SECONDS, DRAIN_MARGIN * terms.drain_seconds)
    plan.want.model.next_at = min(plan.want.model.next_at, victim.drain_until)


def _abort_for_chat(state: State, plan: Plan, victim: Instance) -> None:
    """L6c: the rest of a low load that would take long is not waited for; a short one is, and evicted when ready."""
    rest_of = state.load_seconds(victim.model, victim.option)
    own_seconds = state.load_seconds(plan.want.model, plan.option)
    if not eviction.load_is_worth_aborting(victim, rest_of, own_seconds, state.now):
        return
    holder = victim.cause or victim.model.errand
    if holder is not None:
        holder.aborted_loads += 1
    lifecycle.stop(state, victim, "L6c", f"a chat's {plan.want.model.spec.name} goes first")


def _begin_loads(state: State, plans: list[Plan]) -> None:
    """Start what can start, oldest first."""
    slots = LoadSlots(state)
    for plan in plans:
        if not plan.live:
            continue
        plan.waits = _kept_from_beginning(state, plan, slots.taken)
        late = None if plan.waits[0] else state.start_bar(chat=plan.want.chat)
        if late is not None:  # the last start went to another, a moment ago
            plan.waits = late.rule, late.reason
            plan.want.model.next_at = min(plan.want.model.next_at, late.until)
        elif not plan.waits[0]:
            lifecycle.start(state, plan)
        slots.claim(plan)


def _kept_from_beginning(state: State, plan: Plan, taken: Mapping[bool, str]) -> tuple[str, str]:
    """What a live plan waits for before its load may begin; empty where it may begin now."""
    if plan.want.chat in taken:
        return "L6", f"{taken[plan.want.chat]} is loading"
    if not plan.fits_now:
        return plan.waits
    if plan.want.model.old_process_lives():
        return "P5", "its old process has to end first"
    if not state.ledger.really_free(plan.needs):
        return "L3", "the device says that its memory is not free yet"
    return "", ""


def _watch_the_rest(state: State) -> None:
    """What the jobs wait for whose loads could not begin: whose queues and slots, and which moment."""
    rest = [model for model in state.wanted_models().values() if model.unplaced()]
    state.unplaced = bool(rest)
    state.plan_wake_at = min((model.next_at for model in rest), default=inf)
    watched: dict[InstanceId, Rank] = {}
    state.watched = watched
    for model in rest:
        obstacle = model.plan.held if model.plan is not None else model.obstacle
        for instance_id, rank in obstacle.watched if obstacle is not None else ():
            if instance_id not in watched or rank < watched[instance_id]:
                watched[instance_id] = rank


def _somebody_lost_its_model(state: State) -> bool:
    for model in state.wanted_models().values():
        if model.plan is None and model.obstacle is None and model.unplaced() and not model.removed:
            return True
    return False


def _low_slot_went(state: State, plans: list[Plan]) -> bool:
    """L6: a low load has begun. Other low plans let their victims be, and what any low load waited for matters no
    more."""
    if not any(not plan.want.chat and plan.want.model.plan is not plan for plan in plans):
        return False
    wants = (model.want for model in state.wanted_models().values() if model.unplaced())
    return any(want is not None and not want.chat for want in wants)


def _abort_orphaned_loads(state: State) -> None:
    """S6c: a load that nobody may hold any more is aborted under half way, and finished further on; or when another was
    aborted a while ago, because whoever came back for this one will come back again."""
    for instance in [item for item in state.instances.values() if item.state is STARTING]:
        model = instance.model
        if model.pinned or model.errand is not None or model.successor is instance:
            continue
        queue = model.queue
        half = instance.started_at + state.load_seconds(instance.model, instance.option) / 2
        again = state.now < model.given_up_at + COMES_BACK_SECONDS
        if queue.count == queue.warm_only and state.now < half and not again:
            model.given_up_at = state.now
            lifecycle.stop(state, instance, "S6c", "nobody waits for it any more")


def _stop_idle(state: State, rule: str, reason: str, *, removed_only: bool) -> None:
    """Stop what has no step in flight: of models that are gone, or everything when the server goes away."""
    for instance in [item for item in state.instances.values() if item.model.removed or not removed_only]:
        if removed_only and instance.model.queue.count:
            continue
        if _may_be_victim(instance) and not instance.busy():
            lifecycle.stop(state, instance, rule, reason)
