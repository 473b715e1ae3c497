"""What each device remembers of chats and relief: interactive mode (S4), the turn (S5), the share (S5a).

Owns one small record a device and the turn. Must never know instances or jobs: it is told what starts and ends.
"""

from dataclasses import dataclass
from math import inf

from gridsched.core.ids import DeviceName, InstanceId

PERIODS = 8
"""Over how many interactive periods the mean looks back. A guess: some conversations."""


@dataclass(slots=True, eq=False)
class DeviceMode:
    """`chats_running` counts interactive grants there, `chats_waiting` the models whose waiting chats hold it.

    `tail_until` is when the last chat that ran stops counting. `announced` is the mode that the log was told, `since`
    when it began; `periods` interactive ones have ended, of `mean_seconds` (a moving average over some).
    `batch_lifted_at` is when a batch job last competed as background there (S5b).
    """

    device: DeviceName
    chats_running: int = 0
    chats_waiting: int = 0
    tail_until: float = -inf
    announced: bool = False
    since: float = -inf
    periods: int = 0
    mean_seconds: float = 0.0
    turn: "Turn | None" = None
    next_turn_at: float = -inf
    batch_lifted_at: float = -inf

    def active(self, now: float) -> bool:
        """Whether no low step may start here (S4). The tail ends at its very moment: a step may start then."""
        return self.chats_running > 0 or self.chats_waiting > 0 or now < self.tail_until

    def announce(self, active: bool, now: float) -> None:
        """The log is told of another mode; how long people usually go on is remembered for estimates (S9b)."""
        if self.announced and not active:
            self.periods = min(self.periods + 1, PERIODS)
            self.mean_seconds += (now - self.since - self.mean_seconds) / self.periods
        self.announced = active
        self.since = now


@dataclass(slots=True, eq=False)
class Turn:
    """One relief turn: the devices it is charged to, how many of its steps are still under way, and how long they stood
    in pauses, which is not charged (S10)."""

    instance_id: InstanceId
    modes: tuple[DeviceMode, ...]
    began_at: float
    steps: int
    outstanding: int
    stood_seconds: float = 0.0

    def step_over(self, now: float, share: float) -> bool:
        """A step of the turn has really ended. The last one ends the turn: after a length of d the next waits
        d·(1/share - 1) (S5a). True when the turn is over."""
        self.outstanding -= 1
        if self.outstanding:
            return False
        pause_seconds = self.seconds(now) * (1.0 / share - 1.0)
        for mode in self.modes:
            mode.turn = None
            mode.next_turn_at = now + pause_seconds
        return True

    def seconds(self, now: float) -> float:
        """How long it has run, without pauses."""
        return now - self.began_at - self.stood_seconds
