"""Who may load now: one low load on the machine, one interactive beside it (L6).

Owns which plans have set a slot aside. Must never make a plan, nor drop one.
"""

from gridsched.core.instance import InstanceState
from gridsched.core.job import JobClass
from gridsched.core.placement import Obstacle, Plan
from gridsched.core.residency import Instance
from gridsched.core.state import State

PLANS_AHEAD = 4
"""S2, L6: so many chats' loads are planned at once. A guess: the fourth begins when three loads are over."""


def ends_soon(instance: Instance) -> bool:
    """A dead or stalled process that drains: nobody has to choose it for its memory to come back."""
    return instance.restarting and instance.state is InstanceState.DRAINING


class LoadSlots:
    """L6: one low load on the machine, one interactive beside it. A live plan claims its slot from when it waits for no
    step in flight any more: before that nobody can say when it needs it, and a chat on another device would wait for
    minutes."""

    def __init__(self, state: State) -> None:
        self.taken: dict[bool, str] = {}
        self._busy: Obstacle | None = None
        self._ending: list[Instance] = []
        for instance in state.instances.values():
            if instance.busy() and ends_soon(instance):
                self._ending.append(instance)
            elif instance.state is InstanceState.STARTING and instance.model.successor is not instance:
                self.taken[instance.cause_class == JobClass.INTERACTIVE] = instance.model.spec.name
        self.low_begun = False in self.taken

    def waits_for_steps(self, plan: Plan) -> bool:
        """Whether steps in flight have to end before a load can begin: its victims', or those of a process that goes by
        itself and whose memory it is to have, or whose model is to be loaded again."""
        if any(victim.busy() for victim in plan.victims):
            return True
        for instance in self._ending:
            if instance.model is plan.want.model:
                return True
            if not plan.fits_now and not set(instance.devices).isdisjoint(plan.option.devices):
                return True
        return False

    def is_far_ahead(self, plans: list[Plan]) -> Obstacle | None:
        """What keeps a chat's load from being planned: so many go before it, one at a time, that its victims would
        stand drained for nothing meanwhile."""
        if sum(plan.live and not self.waits_for_steps(plan) for plan in plans) < PLANS_AHEAD:
            return None
        return Obstacle("L6", f"{plans[0].want.model.spec.name} and others go first, loads go one at a time")

    def low_is_taken(self) -> Obstacle | None:
        """What keeps every low load from being planned: another is under way, and it would drain and claim nothing. A
        chat's plan claims its memory all the same, so that nothing slips in before it (S6a)."""
        if False in self.taken and self._busy is None:
            self._busy = Obstacle("L6", f"{self.taken[False]} is loading, low loads go one at a time")
        return self._busy

    def claim(self, plan: Plan) -> None:
        """Set the slot aside for a plan that will need it soon."""
        if plan.want.chat not in self.taken and not self.waits_for_steps(plan):
            self.taken[plan.want.chat] = plan.want.model.spec.name
