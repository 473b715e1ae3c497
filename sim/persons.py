"""Persons who load, unload, pin and lease, at random.

Owns the wishes of a run and how many of them were answered. A person who leases without a duration releases some time
later; when the world is healed nobody wishes for anything more, and what was leased is released.
"""

from functools import partial

from gridsched.core.commands import AnswerRequest
from gridsched.core.events import (
    LeaseAsked,
    LeaseReleased,
    LoadAsked,
    PinAsked,
    RebalanceAsked,
    UnloadAsked,
    WishWithdrawn,
)
from gridsched.core.ids import DeviceName, ModelName, RequestId
from sim.moments import Moments
from sim.workload import UNKNOWN, Scenario, chance, generator

MEAN_SECONDS = 9.0  # between two wishes: many for a machine, few beside its jobs
WISHES = ("load", "load", "unload", "unload", "pin", "unpin", "lease", "lease", "rebalance", "withdraw")
NOWHERE = DeviceName("gpu9")


class Persons:
    """Those who wish. `open_wishes` are not answered yet."""

    def __init__(self, scenario: Scenario, moments: Moments) -> None:
        self.open_wishes: set[RequestId] = set()
        self.unpinned: set[ModelName] = set()
        self._moments = moments
        self._rng = generator(scenario.seed, "persons")
        self._models = [spec.name for spec in scenario.models]
        self._ladders = {spec.name: spec.options for spec in scenario.models}
        self._devices = [spec.name for spec in scenario.devices]
        self._made = 0
        self._last: RequestId | None = None
        self._content = "persons" not in scenario.features

    def begin(self) -> None:
        """Wish for something, again and again."""
        if self._content:
            return
        self._moments.later(self._rng.expovariate(1 / MEAN_SECONDS), self._wish)

    def be_content(self) -> None:
        """Wish for nothing more, and give back every device."""
        if self._content:
            return
        self._content = True
        for device in self._devices:
            self._moments.post(LeaseReleased(self._number(), device))

    def answer(self, command: AnswerRequest) -> None:
        """What came of a wish."""
        self.open_wishes.discard(command.request)

    def _number(self) -> RequestId:
        self._made += 1
        request = RequestId(self._made)
        self.open_wishes.add(request)
        return request

    def _wish(self) -> None:
        if self._content:
            return
        rng = self._rng
        model = UNKNOWN if chance(rng, 0.03) else rng.choice(self._models)
        wish = rng.choice(WISHES)
        if wish == "load":
            self._load(model)
        elif wish == "unload":
            self._moments.post(UnloadAsked(self._number(), model, force=chance(rng, 0.4)))
        elif wish == "lease":
            self._lease()
        elif wish == "rebalance":
            self._moments.post(RebalanceAsked(self._number()))
        elif wish == "withdraw":
            self._withdraw()
        else:
            self._moments.post(PinAsked(self._number(), model, pinned=wish == "pin", keep=chance(rng, 0.5)))
        self.begin()

    def _load(self, model: ModelName) -> None:
        """By its ladder, or by one launch of it, for as long as it says or for so long of idleness."""
        rng = self._rng
        ladder = self._ladders.get(model, ())
        options = (rng.choice(ladder),) if ladder and chance(rng, 0.3) else ()
        ttl_seconds = rng.uniform(2, 30) if chance(rng, 0.2) else None
        self._last = self._number()
        self._moments.post(LoadAsked(self._last, model, options, ttl_seconds))

    def _withdraw(self) -> None:
        """The last load or lease that was asked for is wanted no more, fulfilled or not."""
        if self._last is not None:
            self._moments.post(WishWithdrawn(self._last))
            self.open_wishes.discard(self._last)
            self._last = None

    def _lease(self) -> None:
        rng = self._rng
        device = NOWHERE if chance(rng, 0.03) else rng.choice(self._devices)
        seconds = rng.uniform(1, 25)
        ends_itself = chance(rng, 0.5)
        devices = (device, rng.choice(self._devices)) if chance(rng, 0.2) else (device,)
        self._last = self._number()
        self._moments.post(LeaseAsked(self._last, devices, "somebody", seconds if ends_itself else None))
        if not ends_itself or chance(rng, 0.2):
            for each in dict.fromkeys(devices):
                self._moments.later(seconds * rng.uniform(0.1, 1.5), partial(self._release, each))

    def _release(self, device: DeviceName) -> None:
        if not self._content:
            self._moments.post(LeaseReleased(self._number(), device))
