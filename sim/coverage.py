"""What a run has met: moves of the scheduler's tables, pairs of a state and an event, kinds of decisions.

Owns the counting and the lists of all that could be met. It watches and never judges. Moves are counted by standing in
for the one function that reads the tables, so that the scheduler pays nothing when nobody counts.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum

from gridsched.core import transitions
from gridsched.core.commands import Command, Log, LogEvent
from gridsched.core.events import (
    Event,
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
    PinAsked,
    ProbeDue,
    SlotSettled,
    StepEnded,
    UnloadAsked,
)
from gridsched.core.ids import DeviceName, GrantId, InstanceId, ModelName
from gridsched.core.job import OutcomeKind
from sim.checkers.book import Book

Table = Mapping[Enum, Mapping[Enum, Enum]]
MODEL_STATES = ("unknown", "cold", "starting", "ready", "full", "leaving")
INSTANCE_STATES = ("starting", "ready", "stopping", "exited")
STATES: Mapping[str, tuple[str, ...]] = {
    "JobSubmitted": (*MODEL_STATES, "family"),
    "JobAbandoned": ("waiting", "granted", "over"),
    "GrantReturned": ("ready", "stopping", "exited"),
    "StepEnded": ("ready", "exited", "aborted"),
    "JobEnded": ("ready", "exited", "unsettled"),
    "SlotSettled": ("ready", "gone"),
    "InstanceReady": ("starting", "stopping"),
    "InstanceExited": ("starting", "ready", "stopping", "paused"),
    "MemoryReleased": ("exited", "lost"),
    "ProbeDue": ("ready", "paused"),
    "LoadAsked": MODEL_STATES,
    "UnloadAsked": MODEL_STATES,
    "PinAsked": MODEL_STATES,
    "LeaseAsked": ("free", "asked", "held"),
    "LeaseReleased": ("free", "asked", "held"),
}


def _tables() -> Iterator[Table]:
    return (table for name, table in vars(transitions).items() if name.endswith("_MOVES"))


NAMES = {
    (id(state), id(move)): f"{type(state).__name__} {state.name} {move.name}"
    for table in _tables()
    for state, moves in table.items()
    for move in moves
}
"""Of moves, by the identity of their members: to hash one, or to name it, costs as much as the move."""
ALL_MOVES = tuple(NAMES.values())
ALL_PAIRS = tuple(f"{event} {state}" for event, states in STATES.items() for state in states)
ALL_DECISIONS = tuple(event.value for event in LogEvent)


class Coverage:
    """Looks on at a run through the book of its checkers, to be called before they are. `met` counts it all."""

    def __init__(self, book: Book) -> None:
        self.met: Counter[str] = Counter()
        self._book = book
        self._states: dict[type, Callable[..., str]] = {
            JobSubmitted: lambda event: self._of_model(event.job.model),
            JobAbandoned: self._of_job,
            GrantReturned: lambda event: self._of_grant(event.grant_id),
            StepEnded: self._of_step,
            JobEnded: lambda event: self._of_grant(event.grant_id) if event.settled else "unsettled",
            SlotSettled: lambda event: "ready" if event.grant_id in self._book.grants else "gone",
            InstanceReady: lambda event: self._of_instance(event.instance_id),
            InstanceExited: lambda event: self._of_instance(event.instance_id),
            MemoryReleased: self._of_released,
            ProbeDue: lambda event: self._of_instance(event.instance_id),
            LoadAsked: lambda event: self._of_model(event.model),
            UnloadAsked: lambda event: self._of_model(event.model),
            PinAsked: lambda event: self._of_model(event.model),
            LeaseAsked: lambda event: self._of_device(event.devices[0]),
            LeaseReleased: lambda event: self._of_device(event.device),
        }

    def saw(self, event: Event, commands: tuple[Command, ...], now: float) -> None:
        """One step has been made."""
        del now
        state = self._states.get(type(event))
        if state is not None:
            self.met[f"{type(event).__name__} {state(event)}"] += 1
        for command in commands:
            if type(command) is Log:
                self.met[command.event._value_] += 1

    @contextmanager
    def counting_moves(self) -> Iterator[None]:
        """Count the moves that are made meanwhile."""
        original = transitions.moved
        made: Counter[tuple[int, int]] = Counter()

        def counted(table: Table, state: Enum, move: Enum) -> Enum:
            after = original(table, state, move)
            made[id(state), id(move)] += 1
            return after

        core = [module for name, module in sys.modules.items() if name.startswith("gridsched.core.")]
        places = [module for module in core if getattr(module, "moved", None) is original]
        try:
            for module in places:
                vars(module)["moved"] = counted
            yield
        finally:
            for module in places:
                vars(module)["moved"] = original
            self.met.update({NAMES[pair]: count for pair, count in made.items()})

    # --- the state that an event meets --------------------------------------------------------------------------------

    def _of_model(self, name: ModelName) -> str:
        book = self._book
        if name in book.families:
            return "family"
        if name not in book.models:
            return "unknown"
        one = book.instance_of(name)
        if one is None:
            return "cold"
        if one.state == "ready":
            return "ready" if one.free_slots else "full"
        return "starting" if one.state == "starting" else "leaving"

    def _of_job(self, event: JobAbandoned) -> str:
        note = self._book.jobs.get(event.job_id)
        if note is None:
            return "over"
        return "waiting" if note.grant is None else "granted"

    def _of_step(self, event: StepEnded) -> str:
        return "aborted" if event.outcome.kind is OutcomeKind.ABORTED else self._of_grant(event.grant_id)

    def _of_grant(self, grant_id: GrantId) -> str:
        grant = self._book.grants.get(grant_id)
        return "unknown" if grant is None else grant.instance.state

    def _of_instance(self, instance_id: InstanceId) -> str:
        one = self._book.instances.get(instance_id)
        if one is None:
            return "unknown"
        return one.state if one.paused_at is None else "paused"

    def _of_released(self, event: MemoryReleased) -> str:
        one = self._book.instances.get(event.instance_id)
        if one is None:
            return "unknown"
        return "lost" if self._book.lost(one) else one.state

    def _of_device(self, device: DeviceName) -> str:
        lease = self._book.leases.get(device)
        if lease is None:
            return "free"
        return "asked" if lease.held_at is None else "held"
