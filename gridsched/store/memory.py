"""A store that ends with its process, for `--sim` and for tests. Owns what it is told, and no file."""

from collections.abc import Mapping
from dataclasses import replace

from gridsched.ports import Account, Measurement


class MemoryStore:
    """A `ports.Store` without a disk; `measurements()` says also what was kept since the start."""

    def __init__(self, kept: Mapping[str, Measurement] | None = None) -> None:
        self._kept = dict(kept or {})

    def measurements(self) -> Mapping[str, Measurement]:
        """Everything kept, by option key."""
        return dict(self._kept)

    async def keep_measurement(
        self, option_key: str, measured_bytes: tuple[int, ...], account: Account | None = None
    ) -> None:
        """Replace the measurement of an option, and of what it is."""
        known = self._kept.get(option_key, Measurement())
        self._kept[option_key] = replace(known, measured_bytes=measured_bytes, account=account)

    async def keep_load_time(self, option_key: str, load_seconds: float) -> None:
        """Replace the load time of an option."""
        self._kept[option_key] = replace(self._kept.get(option_key, Measurement()), load_seconds=load_seconds)
