"""What one instance holds on one device, and what a reading of it is worth (L2, L6b, B16, D2).

Owns the figures of one reservation and the judgement of one reading. Must never know another reservation, nor what is
free: sums are the ledger's.
"""

from dataclasses import dataclass, field
from math import inf

from gridsched.core.model import DeviceSpec

PLAUSIBLE_PART = 4
"""L2, B16: a figure under a quarter of the estimate is of something half loaded, of the wrong process, or of an engine
that went on without the device. No estimate of a launch that ran as planned was off by half."""

DIFFERENCE_TIMES = 2
"""D2: what a device's use grew by while a process came is not its alone where it is more than this many times the
estimate. A guess: estimates are seldom wrong by a tenth, those of unknown architectures by more."""

GROWTH_PART = 50
"""L2: a measurement replaces the one before where it is a fiftieth above it; less is noise and would only wear the
disk."""

GROWTH_LIMIT = 1.25
"""L6b: how much more than the larger of estimate and first measurement a process may come to hold before it is
restarted. What an engine's pools take with use stays under a tenth of a launch; a quarter is a leak, and the place of a
small model. A guess."""


@dataclass(slots=True)
class Reservation:
    """What one instance holds on one device. `bytes` is the estimate until it was measured (L2), `first_bytes` the
    first measurement; `planned_bytes` is what it was estimated, or known, to take before it was there, then what a
    driver has told of it: what a device's use grew by never makes less of it.

    `read_bytes` is the last reading, None where it could not be read; `grown`, that it is no driver's figure but what
    the device's use grew by, and `by_difference`, that `bytes` was measured so (D2). `held_bytes` is the same where it
    is believed; `settled_at` is when its launch was over. `doubted`: that a reading was no measurement has been told.
    `seen`: the device was read since it began.
    """

    estimate_bytes: int
    bytes: int
    measured: bool = False
    first_bytes: int = 0
    held_bytes: int | None = None
    settled_at: float = inf
    going: bool = False
    lost: bool = False
    doubted: bool = False
    read_bytes: int | None = None
    grown: bool = False
    by_difference: bool = False
    seen: bool = False
    planned_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.planned_bytes = max(self.estimate_bytes, self.bytes)

    @property
    def overgrown(self) -> bool:
        """L6b: whether it holds more than it may before it is started anew."""
        limit_bytes = GROWTH_LIMIT * self.estimate_bytes
        if not self.measured or self.by_difference:  # what a device's use grew by proves no leak
            return False
        return self.planned_bytes > limit_bytes and self.planned_bytes > GROWTH_LIMIT * self.first_bytes

    def is_news(self, held_bytes: int) -> bool:
        """The first measurement always is; later ones where the process has grown, and a driver's that ends what was
        set aside because of the device's use."""
        settles = not self.grown and self.bytes > self.planned_bytes
        return not self.measured or settles or self._has_grown(held_bytes)

    def may_hold(self, read_bytes: int, spec: DeviceSpec, now: float) -> bool:
        """Whether a figure may be all that a process holds (B16, D2, D4, D14). Far less, once it is there, is of an
        engine that went on without the device, or of memory that the driver does not count; far more, where it is what
        the device's use grew by, is somebody else's too. Not believing it is safe: what was reserved stands for it, and
        no more is free than the device says. Of memory that is held as it is touched far less says nothing.
        """
        plausible = read_bytes * PLAUSIBLE_PART >= self.estimate_bytes
        if self.grown:
            return plausible and read_bytes <= DIFFERENCE_TIMES * self.estimate_bytes
        return plausible or spec.held_as_touched or now < self.settled_at

    def is_charged(self, held_bytes: int) -> bool:
        """Whether what it holds now is to be set aside for it whatever was measured. What the device's use grew by
        beyond what was planned may be somebody else's for a while: it is followed up and down."""
        if self.grown and max(held_bytes, self.bytes) > self.planned_bytes:
            return held_bytes != self.bytes
        return not self.measured and self._has_grown(held_bytes)

    def charged_bytes(self, held_bytes: int) -> int:
        """What is set aside for what it holds now. Where more was for a while, it falls back to what was planned, or
        measured first, and no lower; nothing is set aside that was neither planned nor is held (R6a)."""
        floor_bytes = self.first_bytes if self.by_difference else self.planned_bytes
        return max(held_bytes, min(self.bytes, floor_bytes))

    def is_measured_by(self, held_bytes: int, estimate_bytes: int, least_bytes: int) -> bool:
        """L2: whether a figure says what the launch takes. What the device's use grew by says at most so much: beyond
        the estimate it is not kept, or one burst of another program would keep a model out for ever (D2, A11)."""
        if self.grown and held_bytes > max(estimate_bytes, least_bytes):
            return False
        return held_bytes * PLAUSIBLE_PART >= estimate_bytes

    def _has_grown(self, held_bytes: int) -> bool:
        return held_bytes > self.bytes + self.bytes // GROWTH_PART

    @property
    def ours_bytes(self) -> int:
        """What of a device's used bytes is this instance's: the reading; what it reserved where it could not be read,
        or is gone without its memory being back; nothing where they were read before it began."""
        if self.held_bytes is not None:
            return self.held_bytes
        return self.bytes if self.seen else 0
