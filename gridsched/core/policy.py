"""The figures of the rules, with the defaults of the configuration. Owns no behaviour.

Seconds throughout. A None means "never" or "no limit"; where 0 switches a rule off the field says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gridsched.core.job import JobClass


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """S9: how long a class's queue may be, and how long a job of it may wait."""

    max_length: int = 256
    max_wait_seconds: float | None = None


class Eviction(Enum):
    """R5: how to choose among those of one tier."""

    COST = "cost"
    LRU = "lru"


def _default_queues() -> Mapping[JobClass, QueueLimits]:
    low = QueueLimits(max_length=1024, max_wait_seconds=24 * 3600.0)
    return {JobClass.INTERACTIVE: QueueLimits(), JobClass.BACKGROUND: low, JobClass.BATCH: low}


@dataclass(frozen=True, slots=True)
class Policy:
    """What a person may tune. Defaults are the contract's."""

    interactive_cooldown_seconds: float = 2.0  # S4
    background_max_starvation_seconds: float = 3.0  # S5; 0 = relief off
    background_share: float = 0.5  # S5a; above 0, at most 1
    relief_slots: int = 4  # S5
    batch_max_starvation_seconds: float = 120.0  # S5b; 0 = never
    hot_window_seconds: float = 300.0  # R1
    min_residency_seconds: float = 30.0  # R4a
    interactive_turn_seconds: float | None = None  # R4b; None = the resident model's load time, 0 = strict order
    eviction: Eviction = Eviction.COST  # R5
    hot_yield_after_seconds: float | None = None  # R1; None = a hot model never yields to low work
    abort_after_seconds: float | None = None  # S11; None = never
    background_pause: bool = False  # S10
    pause_limit_seconds: float = 3.0  # S10
    fit_wait_seconds: float = 10.0  # L7
    stop_grace_seconds: float = 10.0  # R3
    release_timeout_seconds: float = 10.0  # R3, L5
    settle_limit_seconds: float = 60.0  # S8, S9: an engine still busy this long for a client that has left hangs
    starts_per_minute: int = 60  # P6a: processes that may be started in any minute, all models together
    host_memory_limit_bytes: int | None = None  # M11: of one process, beyond it is started anew when idle; None = none
    queues: Mapping[JobClass, QueueLimits] = field(default_factory=_default_queues)
