"""What a failure means for the next load of a model, as data: how long it is not tried, and when deaths are too many
(P6a, L6d, B1).

Owns the table by cause and the count of deaths in service. Pure arithmetic: must never refuse, start or stop anything.

A cause that passes by itself is tried again soon; one that somebody has to mend first later, because each try costs a
load; whoever has mended it need not wait: another file or other flags, or a person's load, end the back-off.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gridsched.core.events import FailureCause

FIRST_SECONDS: Mapping[FailureCause, float] = {
    FailureCause.DEVICE_OOM: 10.0,
    FailureCause.HOST_OOM: 10.0,
    FailureCause.CRASHED: 10.0,
    FailureCause.KILLED: 10.0,
    FailureCause.DRIVER_FAULT: 30.0,
    FailureCause.START_TIMEOUT: 60.0,
    FailureCause.BAD_FLAGS: 60.0,
    FailureCause.MISSING_FILE: 60.0,
    FailureCause.DAMAGED_FILE: 60.0,
    FailureCause.UNKNOWN_ARCHITECTURE: 60.0,
    FailureCause.CPU_FALLBACK: 120.0,
}
"""L6d: the back-off after a first failure; each further one in a row, of whatever cause, doubles it. Guesses: a driver
comes back within half a minute; a start that took its whole time, or a card that the engine did not see, costs much to
try again."""

LONGEST_SECONDS = 900.0
"""L6d: no back-off is longer."""

CRASHES_IN_A_ROW = 2
"""L6d: this many deaths without a served step between them count as a failed load; a first one is simply begun anew."""

DEATHS = 5
WINDOW_SECONDS = 600.0
"""L6d: more deaths than this in so long count as a failed load, too, whatever was served between them."""


def back_off_seconds(cause: FailureCause, failures: int) -> float:
    """How long a model is not loaded after a failure that comes after so many others in a row."""
    return min(LONGEST_SECONDS, FIRST_SECONDS[cause] * 2.0 ** min(failures, 64))


@dataclass(slots=True)
class Deaths:
    """When processes of a model died in service that nobody had told to end: the last ones that may matter."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=DEATHS + 1))

    def too_many(self, now: float) -> bool:
        """Whether more than may be fall into the window."""
        return len(self.times) > DEATHS and self.times[0] + WINDOW_SECONDS > now
