"""Clients that never pause: each asks again as soon as it was answered.

Owns closed loops on top of a `World`. A client's *gap* is the longest time in which it made no progress: from its
asking, or the end of its last step, to the start of the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from gridsched.core.commands import Command, LogEvent, RejectJob
from gridsched.core.events import Event, JobEnded, StepEnded
from gridsched.core.ids import JobId
from gridsched.core.job import JobClass
from tests.stories.world import World


@dataclass(eq=False)
class Client:
    """One that asks again `think` seconds after each answer. `progress`: ends of its steps; `served`: its jobs."""

    name: str
    job_class: JobClass
    steps: int = 1
    think: float = 0.0
    job: JobId | None = None
    asked_at: list[float] = field(default_factory=list)
    progress: list[float] = field(default_factory=list)
    served: int = 0


class Crowd:
    """Clients in a world. `rejected` are the jobs that were refused, which no client expects."""

    def __init__(self, world: World, *clients: Client) -> None:
        self.world = world
        self.clients = clients
        self.rejected: list[JobId] = []
        self._of: dict[JobId, Client] = {}
        self._tell = world.tell
        world.tell = self._heard  # type: ignore[method-assign]  # the engine's deeds go through the world's own door

    def begin(self) -> None:
        """All ask, in their order."""
        for client in self.clients:
            self._ask(client)

    def _ask(self, client: Client) -> None:
        client.asked_at.append(self.world.now)
        client.job = self.world.submit(client.name, client.job_class, steps=client.steps)
        self._of[client.job] = client

    def _heard(self, event: Event) -> tuple[Command, ...]:
        job_id = None
        if isinstance(event, JobEnded | StepEnded):
            job_id = self.world.scheduler.state.grants[event.grant_id].record.job.id
        commands = self._tell(event)
        client = self._of.get(job_id) if job_id is not None else None
        if client is not None:
            client.progress.append(self.world.now)
            if isinstance(event, JobEnded):
                client.served += 1
                self.world.later(client.think, lambda: self._ask(client))
        self.rejected += [item.job_id for item in commands if isinstance(item, RejectJob)]
        return commands

    def gap(self, client: Client) -> float:
        """The longest time without progress, the one that is still running included."""
        moments = sorted([*client.asked_at, *client.progress, self.world.now])
        return max((later - earlier for earlier, later in pairwise(moments)), default=0.0)

    def longest_gap(self, job_class: JobClass) -> float:
        """Of all clients of a class."""
        return max(self.gap(client) for client in self.clients if client.job_class is job_class)

    def turns(self) -> list[Mapping[str, object]]:
        """The relief turns that are over, with their lengths."""
        return [log.figures for _, log in self.world.logged(LogEvent.RELIEF) if log.figures.get("turn") == "over"]
