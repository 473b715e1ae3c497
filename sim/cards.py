"""Cards in plain objects: memory, what reads it, and who else is on them.

Owns the true state of each card and how far a reading may be from it: memory that comes back late, two calls that do
not agree, readings that lie, devices that do not answer or are gone for a while. It knows processes as holders only.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from gridsched.core.events import DeviceBack, DeviceLost, DeviceRead, DevicesChanged
from gridsched.core.ids import DeviceName, InstanceId
from sim.faults import FaultPlan
from sim.moments import Act, Moments
from sim.workload import Scenario

POLL_SECONDS = 1.0
QUIET_POLL_SECONDS = 15.0  # when nobody asks any more and time alone is waited for
IDLE_POLL_SECONDS = 1800.0  # when a day is waited for
BETWEEN_CALLS_SECONDS = 0.3
NO_DIFFERENCE: frozenset[InstanceId] = frozenset()
Held = dict[DeviceName, int]


@dataclass(slots=True)
class Card:
    """One card. `foreign` is what programs outside hold, in bytes; `lie` what it says of itself in place of the truth;
    `gone`, that it is not there; `lost`, that it does not answer, so that nothing of it can be verified."""

    name: DeviceName
    total: int
    foreign: int = 0
    lie: DeviceRead | None = None
    gone: bool = False
    lost: bool = False


@dataclass(slots=True)
class Cards:
    """All cards of a run. `holders` are processes and what they hold; `lagging` those that are gone and whose memory
    is not back; `on_answer` is what is done when a card that was lost answers again."""

    scenario: Scenario
    moments: Moments
    faults: FaultPlan
    holders: dict[InstanceId, Held] = field(default_factory=dict)
    lagging: dict[InstanceId, Held] = field(default_factory=dict)
    cards: dict[DeviceName, Card] = field(init=False)
    poll_seconds: float = POLL_SECONDS
    silent_until: float = 0.0
    on_vanish: Callable[[DeviceName], None] = lambda _: None
    on_answer: list[Act] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cards = {one.name: Card(one.name, one.total_bytes) for one in self.scenario.devices}

    # --- memory -------------------------------------------------------------------------------------------------------

    def take(self, instance_id: InstanceId, wants: Held) -> bool:
        """Have a process hold so much; False, and nothing taken, where a card has not enough or is not there."""
        held = self.holders.get(instance_id, {})
        for name, wanted in wants.items():
            if self.cards[name].gone or self.free(name) < wanted - held.get(name, 0):
                return False
        self.holders[instance_id] = wants
        return True

    def let_go(self, instance_id: InstanceId) -> None:
        """A process is gone; its memory is not back yet."""
        self.lagging[instance_id] = self.holders.pop(instance_id, {})

    def give_back(self, instance_id: InstanceId) -> None:
        """The memory of a process that is gone is back; read the cards at once, as whoever verifies it does."""
        self._read(self.lagging.pop(instance_id))

    def free(self, name: DeviceName) -> int:
        """Bytes that are truly free."""
        return self.cards[name].total - self._used(name)

    def _used(self, name: DeviceName) -> int:
        """What is held by us, by the gone whose memory lags, and by programs outside."""
        used = self.cards[name].foreign
        for held in self.holders.values():
            used += held.get(name, 0)
        for held in self.lagging.values():
            used += held.get(name, 0)
        return min(used, self.cards[name].total)

    # --- readings -----------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Read all cards, again and again."""
        if self.moments.now >= self.silent_until:
            self._read(self.cards)
        self.moments.later(self.poll_seconds, self.poll)

    def _read(self, names: Iterable[DeviceName]) -> None:
        for name in names:
            card = self.cards[name]
            if card.gone or card.lost:
                continue
            if card.lie is not None:
                self.moments.post(card.lie, lag=False)
            elif self.faults.calls_differ():
                # The total of one moment, and what each process holds a moment later.
                self.moments.later(BETWEEN_CALLS_SECONDS, partial(self._say, card, self._used(name)))
            else:
                self._say(card, self._used(name))

    def _say(self, card: Card, used: int) -> None:
        if not card.gone and not card.lost:
            held = self._held(card.name)
            grown = frozenset(one for one, _ in held) if "differences" in self.scenario.features else NO_DIFFERENCE
            self.moments.post(DeviceRead(card.name, card.total, used, held, grown), lag=False)

    def _held(self, name: DeviceName) -> tuple[tuple[InstanceId, int], ...]:
        return tuple([(holder, held[name]) for holder, held in self.holders.items() if name in held])

    # --- faults -------------------------------------------------------------------------------------------------------

    def intrude(self) -> None:
        """A program outside takes what it can get, and gives it back."""
        card = self.cards[self.faults.pick("external").choice(sorted(self.cards))]
        wanted, seconds = self.faults.external()
        taken = min(wanted, self.free(card.name))
        card.foreign += taken

        def leave() -> None:
            card.foreign = max(0, card.foreign - taken)

        self.moments.later(seconds, leave)

    def fall_silent(self) -> None:
        """No card can be read for a while."""
        self.silent_until = self.moments.now + self.faults.silence_seconds()

    def begin_to_lie(self) -> None:
        """A card goes on saying what it said, or says what is not so."""
        rng = self.faults.pick("lies")
        card = self.cards[rng.choice(sorted(self.cards))]
        used, held = self._used(card.name), self._held(card.name)
        kind = rng.choice(("frozen", "frozen", "empty", "full", "wrong"))
        if kind == "empty":
            used, held = 0, ()
        elif kind == "full":
            used = card.total
        elif kind == "wrong":
            used, held = rng.randint(0, card.total), tuple((one, int(size * rng.uniform(0, 1.5))) for one, size in held)
        card.lie = DeviceRead(card.name, card.total, used, held)
        self.moments.later(self.faults.lie_seconds(), partial(self._stop_lying, card))

    @staticmethod
    def _stop_lying(card: Card) -> None:
        card.lie = None

    def vanish(self) -> None:
        """A card is gone, with all that runs on it, and comes back."""
        card = self.cards[self.faults.pick("vanish").choice(sorted(self.cards))]
        if card.gone:
            return
        card.gone = True
        self._say_which()
        self.on_vanish(card.name)
        self.moments.later(self.faults.vanished_seconds(), partial(self._come_back, card))

    def lose(self) -> None:
        """A card does not answer for a while; what runs there lives on, or dies with it."""
        card = self.cards[self.faults.pick("lost").choice(sorted(self.cards))]
        if card.lost:
            return
        card.lost = True
        self.moments.post(DeviceLost(card.name, "it is lost"), lag=False)
        seconds, deadly = self.faults.loss()
        if deadly:
            self.on_vanish(card.name)
        self.moments.later(seconds, partial(self._answer_again, card))

    def _answer_again(self, card: Card) -> None:
        if not card.lost:
            return
        card.lost = False
        self.moments.post(DeviceBack(card.name), lag=False)
        acts, self.on_answer = self.on_answer, []
        for act in acts:
            act()

    def can_verify(self, instance_id: InstanceId) -> bool:
        """Whether the memory of a process that is gone can be seen to be back (L5)."""
        return not any(self.cards[name].lost for name in self.lagging[instance_id])

    def _come_back(self, card: Card) -> None:
        if card.gone:
            card.gone = False
            self._say_which()

    def _say_which(self) -> None:
        there = tuple(spec for spec in self.scenario.devices if not self.cards[spec.name].gone)
        self.moments.post(DevicesChanged(there), lag=False)

    def heal(self) -> None:
        """All is there, says the truth, and is ours."""
        self.silent_until = self.moments.now
        for card in self.cards.values():
            card.foreign, card.lie = 0, None
            self._come_back(card)
            self._answer_again(card)
