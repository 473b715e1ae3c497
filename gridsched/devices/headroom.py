"""The part of a device that is never planned (L4). Owns the arithmetic of `devices.headroom`, nothing else."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Headroom:
    """A share of the device (0 to 1), a size, or both together. The configuration's default is 5 % of each device."""

    share: float = 0.05
    size_bytes: int = 0

    def of(self, total_bytes: int) -> int:
        """Bytes of a device of this size that stay unplanned, never more than there are."""
        return min(total_bytes, round(total_bytes * self.share) + self.size_bytes)
