"""P6a and L6d: how many processes are started in a minute, and none of a model that is in back-off."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping

from gridsched.core.commands import StartInstance, StopInstance
from gridsched.core.events import FailureCause, InstanceExited, InstanceReady, LoadAsked, ModelsChanged
from gridsched.core.ids import InstanceId, ModelName
from sim.checkers.checker import Checker, Violation
from sim.checkers.facts import Facts
from sim.checkers.notes import LONG_AGO

MINUTE = 60.0
CLOSE = 1e-6
DEATHS, WINDOW_SECONDS = 5, 600.0  # so many that nobody asked for may fall into so long
LEAST_SECONDS: Mapping[FailureCause, float] = {
    FailureCause.DEVICE_OOM: 10.0,
    FailureCause.CRASHED: 10.0,
    FailureCause.DRIVER_FAULT: 30.0,
    FailureCause.START_TIMEOUT: 60.0,
}
"""The first back-off after those causes that the world knows; each further one is longer."""


class Starts(Checker):
    """Every start, by the clock. A process that was told to stop fails no more, whatever its end says."""

    def __init__(self, book: Facts, found: list[Violation]) -> None:
        super().__init__(book, found)
        self._of_late: deque[float] = deque()
        self._untold: dict[InstanceId, str] = {}  # starting or ready
        self._deaths: defaultdict[ModelName, list[float]] = defaultdict(list)
        self._until: dict[ModelName, float] = {}
        self._launches: dict[ModelName, tuple[str, list[str]]] = {}

    def hears(self) -> Mapping[type, Callable[..., None]]:
        """Ends, and what ends a back-off."""
        return {
            InstanceReady: self._ready,
            InstanceExited: self._exited,
            LoadAsked: lambda event: self._forgive(event.model),
            ModelsChanged: self._models_changed,
        }

    def judges(self) -> Mapping[type, Callable[..., None]]:
        """Starts; stops are remembered."""
        return {StartInstance: self._judge, StopInstance: self._told}

    def _judge(self, start: StartInstance) -> None:
        now, limit = self.book.now, self.book.policy.starts_per_minute
        while self._of_late and self._of_late[0] <= now - MINUTE + CLOSE:
            self._of_late.popleft()
        self._of_late.append(now)
        if len(self._of_late) > limit:
            self.broken("P6a", f"{len(self._of_late)} processes are started within a minute, {limit} may be")
        if now < self._until.get(start.model, LONG_AGO) - CLOSE:
            self.broken("L6d", f"{start.model} is loaded, and is in back-off until {self._until[start.model]:.3f}s")
        if self.book.instance_of(start.model) is None:  # else one that is to move, whose failure is nobody's
            self._untold[start.instance_id] = "starting"

    def _told(self, stop: StopInstance) -> None:
        self._untold.pop(stop.instance_id, None)

    def _ready(self, event: InstanceReady) -> None:
        if event.instance_id in self._untold:
            self._untold[event.instance_id] = "ready"

    def _exited(self, event: InstanceExited) -> None:
        was = self._untold.pop(event.instance_id, None)
        if was is None or event.failure is None:
            return
        name, now = self.book.instances[event.instance_id].model, self.book.now
        if was == "ready":
            deaths = self._deaths[name]
            deaths.append(now)
            if sum(at > now - WINDOW_SECONDS + CLOSE for at in deaths) <= DEATHS:
                return
        self._until[name] = now + LEAST_SECONDS[event.failure.cause]

    def _forgive(self, model: ModelName) -> None:
        """A person's load, or a configuration without it, has all forgotten."""
        self._until.pop(model, None)
        self._deaths.pop(model, None)

    def _models_changed(self, event: ModelsChanged) -> None:
        launches = {spec.name: (spec.launched_with, [option.key for option in spec.options]) for spec in event.models}
        for name in {*self._until, *self._deaths}:
            if launches.get(name) != self._launches.get(name):  # whoever has mended it is not to wait
                self._forgive(name)
        self._launches = launches
