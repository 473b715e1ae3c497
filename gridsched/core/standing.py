"""What persons asked for that outlives the server: words about pins, and leases. Owns this vocabulary, no behaviour.

`keeping` makes a picture of it and takes one up again. Times are the actor's clock, in seconds, inside the core; on
disk they are the wall clock's.
"""

from dataclasses import dataclass, field, replace

from gridsched.core.ids import DeviceName, ModelName


@dataclass(frozen=True, slots=True)
class Word:
    """What a person said of one model (R7): `pin`, None for as configured, and `put_down`, that she unloaded it.
    `configured` is what the configuration said then of its being pinned: once that is another, the word is over."""

    model: ModelName
    pin: bool | None
    put_down: bool
    configured: bool


@dataclass(frozen=True, slots=True)
class OwnerProcess:
    """The process whose end ends a lease (R8), by number, start and boot (P4)."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class KeptLease:
    """One lease (R8). `until` is when it ends by time; None before it is held, and where only a release or its
    owner's end does. `displaced` are the models that it sent away and that come back at its end."""

    device: DeviceName
    owner: str
    seconds: float | None = None
    until: float | None = None
    process: OwnerProcess | None = None
    displaced: tuple[ModelName, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """All of it."""

    words: tuple[Word, ...] = ()
    leases: tuple[KeptLease, ...] = ()

    def by_clock(self, ahead_seconds: float) -> "Standing":
        """The same by a clock that is so far ahead."""
        leases = tuple(
            lease if lease.until is None else replace(lease, until=lease.until + ahead_seconds) for lease in self.leases
        )
        return replace(self, leases=leases)


@dataclass(slots=True)
class Kept:
    """What is kept of it: what was `told` last, the `words` whose models are not here, the `leases` of before the start
    that are not taken up yet, and whether all that may be another by now."""

    told: Standing = field(default_factory=Standing)
    words: dict[ModelName, Word] = field(default_factory=dict)
    leases: tuple[KeptLease, ...] = ()
    due: bool = False
