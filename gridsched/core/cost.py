"""What an eviction costs (R5): the price of each victim, from measured loads, use and steps.

Owns the formula and its constants. Must never choose anybody: `eviction` compares what is told here.

    price = reload seconds x probability of reuse x class weight + seconds until it is drained x weight of who waits

in seconds of waiting, weighed by who waits. The first term is what the model's own users will wait for its next load,
the second what the job waits that needs the memory.

- *Reload seconds*: the last load of the same launch in this run, else what the model says of itself.
- *Probability of reuse*: e-folding sums of ended steps give n, the steps of the last `MEMORY_SECONDS`; at that rate at
  least one comes in the next ones with 1 - exp(-n) (Poisson). 1 where jobs wait for it now.
- *Class weight*: the mean weight of those steps; the weight of the first waiting class where jobs wait.
- *Drain*: the longest rest of its running steps. A step that has outlived its mean is expected to take as long again as
  it is over it: what is hung becomes dearer, not cheaper, with every second (A6).
"""

from math import exp, inf
from typing import TYPE_CHECKING

from gridsched.core.job import JobClass
from gridsched.core.record import record

if TYPE_CHECKING:  # the model's record holds its use
    from gridsched.core.residency import GrantRecord, Instance, ModelState
    from gridsched.core.state import State

MEMORY_SECONDS = 600.0
"""How long use is remembered: a step counts 1 when it ends and 1/e after this. A guess: twice the time a model is hot
(R1), so that the habit of a conversation outlives its pauses."""

CLASS_WEIGHTS = (4.0, 1.0, 0.25)
"""What a second of waiting weighs, by class. A guess: a person's is worth some of a program's, which is worth some of
a night's batch."""

UNKNOWN_STEP_SECONDS = 10.0
"""How long a step is taken to last of a model that has served none: a guess, on the long side of a chat."""


class Use:
    """How much a model is used, and by whom: `steps` counts ended steps, `weight` sums their classes' weights, both
    fading, as of `at` (seconds)."""

    __slots__ = ("at", "steps", "weight")

    def __init__(self) -> None:
        self.steps = 0.0
        self.weight = 0.0
        self.at = -inf

    def note(self, job_class: JobClass, now: float) -> None:
        """A step of this class has ended."""
        kept = exp((self.at - now) / MEMORY_SECONDS)
        self.steps = self.steps * kept + 1.0
        self.weight = self.weight * kept + CLASS_WEIGHTS[job_class]
        self.at = now

    def reuse(self, now: float) -> float:
        """How probable it is that a step comes in the next `MEMORY_SECONDS`."""
        return 1.0 - exp(-self.steps * exp((self.at - now) / MEMORY_SECONDS)) if self.steps else 0.0

    def class_weight(self) -> float:
        """The mean weight of those who use it; 0 before anybody has."""
        return self.weight / self.steps if self.steps else 0.0


@record
class Terms:
    """The terms of one victim's price, as R5 names them."""

    reload_seconds: float
    reuse: float
    class_weight: float
    drain_seconds: float
    waiting_weight: float

    @property
    def price_seconds(self) -> float:
        """Weighed seconds of waiting."""
        return self.reload_seconds * self.reuse * self.class_weight + self.drain_seconds * self.waiting_weight

    def figures(self) -> dict[str, float]:
        """Rounded, for the decision log and for `explain`."""
        return {
            "price": round(self.price_seconds, 2),
            "reload_s": round(self.reload_seconds, 2),
            "reuse": round(self.reuse, 3),
            "class_weight": round(self.class_weight, 2),
            "drain_s": round(self.drain_seconds, 2),
            "waiting_weight": self.waiting_weight,
        }


def terms_of(state: "State", instance: "Instance", waiting_class: int) -> Terms:
    """What it costs now to have an instance go for a job of a class."""
    model = instance.model
    reuse, class_weight = _demand(model, state.now)
    reload_seconds = state.load_seconds(model, instance.option)
    drain_seconds = drain_seconds_of(instance, state.now)
    return Terms(reload_seconds, reuse, class_weight, drain_seconds, CLASS_WEIGHTS[waiting_class])


def _demand(model: "ModelState", now: float) -> tuple[float, float]:
    """How probable it is that the model is wanted again, and the weight of those who will."""
    for job_class, queue in enumerate(model.queue.by_class):
        if queue:
            return 1.0, CLASS_WEIGHTS[job_class]
    return model.use.reuse(now), model.use.class_weight()


def drain_seconds_of(instance: "Instance", now: float) -> float:
    """How long until its last running step ends; 0 for an idle one."""
    return max((_rest_seconds(entry, now) for entry in instance.grants.values()), default=0.0)


def _rest_seconds(entry: "GrantRecord", now: float) -> float:
    mean_seconds = entry.instance.model.pace.step_seconds(entry.record.job.job_class)
    if mean_seconds is None:
        mean_seconds = UNKNOWN_STEP_SECONDS
    return abs(mean_seconds - (now - entry.granted_at - entry.stood_seconds))
