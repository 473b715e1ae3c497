"""Models that take each other's memory again and again (R4a): noticed, counted in seconds, and said.

Owns the memory of the loads of the last five minutes and the event about them. Must never keep anybody from being
loaded: turns do that (R4a, R4b). Told of loads that have become ready, so one that was taken away does not count (B3).
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from math import ceil, inf
from typing import TYPE_CHECKING

from gridsched.core.commands import Log, LogEvent
from gridsched.core.ids import ModelName
from gridsched.core.job import JobClass

if TYPE_CHECKING:  # the state holds the loads
    from gridsched.core.residency import Instance
    from gridsched.core.state import State

WINDOW_SECONDS = 300.0
"""R4a: how far back it looks, and how long it keeps silent about a model that it has told of."""

MOST_LOADS = 5
"""R4a: more loads of one model in the window are thrash."""

MOST_SHARE = 0.2
"""R4a: loads of models that were loaded before in the window, and evicted since, may take this part of it."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load that has become ready. `again`: the model had been evicted before."""

    at: float
    model: ModelName
    seconds: float
    again: bool
    chat: bool


@dataclass(slots=True)
class Loads:
    """The loads of the last window, oldest first; `evicted` are the models that went for others and have not come back;
    `told_at` is when each was last told of, in seconds."""

    recent: deque[Load] = field(default_factory=deque)
    evicted: set[ModelName] = field(default_factory=set)
    told_at: dict[ModelName, float] = field(default_factory=dict)


def evicted(state: "State", instance: "Instance") -> None:
    """It goes because another model needs its memory."""
    state.loads.evicted.add(instance.model.name)


def became_ready(state: "State", instance: "Instance") -> None:
    """A load is over: count it, and say so where it is one too many. Costs a look at the loads of the window."""
    loads = state.loads
    now = state.now
    name = instance.model.name
    again = name in loads.evicted
    loads.evicted.discard(name)
    chat = instance.cause_class == JobClass.INTERACTIVE
    loads.recent.append(Load(now, name, now - instance.started_at, again, chat))
    while loads.recent[0].at <= now - WINDOW_SECONDS:
        loads.recent.popleft()
    if not again:
        return
    reloads = [load for load in loads.recent if load.again]
    models = {load.model for load in reloads}
    often = sum(1 for load in loads.recent if load.model == name) > MOST_LOADS
    dear = sum(load.seconds for load in reloads) > MOST_SHARE * WINDOW_SECONDS
    news = any(now - loads.told_at.get(model, -inf) >= WINDOW_SECONDS for model in models)
    if (often or dear) and news:
        loads.told_at = dict.fromkeys(models, now)
        _say(state, reloads)


def _say(state: "State", reloads: list[Load]) -> None:
    """Who alternates, what it costs, and what ends it."""
    counts = Counter(str(load.model) for load in state.loads.recent)
    seconds = sum(load.seconds for load in reloads)
    models = sorted({str(load.model) for load in reloads})
    figures: dict[str, object] = {
        "models": models,
        "loads": {model: counts[model] for model in models},
        "seconds": round(seconds, 1),
        "share": round(seconds / WINDOW_SECONDS, 3),
        "setting": _setting(state, reloads),
    }
    state.say(Log(LogEvent.THRASH, model=reloads[-1].model, rule="R4a", figures=figures))


def _setting(state: "State", reloads: list[Load]) -> str:
    """The turns of those who make most of the loads, as long as it takes; or less memory, where they are that long."""
    mean_seconds = sum(load.seconds for load in reloads) / len(reloads)
    enough_seconds = max(mean_seconds * (1 / MOST_SHARE - 1), WINDOW_SECONDS / (2 * MOST_LOADS))
    chats = 2 * sum(load.seconds for load in reloads if load.chat) > sum(load.seconds for load in reloads)
    name, has_seconds = "scheduler.min_residency", state.policy.min_residency_seconds
    if chats:
        turn_seconds = state.policy.interactive_turn_seconds
        name, has_seconds = "scheduler.interactive_turn", mean_seconds if turn_seconds is None else turn_seconds
    if has_seconds < enough_seconds:
        return f"{name}: {ceil(enough_seconds)}s"
    return "models.*.ctx_size: less, so that they fit side by side"
