"""What the watchdog has done, counted since it began: gateways started again and why, configurations rolled back.

The keeper's main thread writes here, the metrics page reads; a count never goes down. Decides nothing.
"""

from dataclasses import dataclass, field

REASONS = ("asked", "crashed", "wedged", "hung", "configuration", "in_use")
"""Why a gateway was started after one that had ended. `asked` is also one that asks for it itself, by its exit code."""


@dataclass(slots=True)
class Tally:
    """The counts. `reason` is why the next start is one again, empty where it is the first."""

    restarts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    rollbacks: int = 0
    reason: str = ""

    def started(self) -> None:
        """A gateway was started."""
        if self.reason:
            self.restarts[self.reason] += 1
        self.reason = ""
