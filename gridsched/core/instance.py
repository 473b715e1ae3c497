"""The states of one llama-server process, seen from the scheduler. The table of moves is in `transitions`."""

from enum import Enum


class InstanceState(Enum):
    """design: starting, ready, draining, stopping, stopped, failed."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # takes no new step; will be stopped when its last one ends, or goes back to ready (R2)
    STOPPING = "stopping"  # told to stop, or exited with memory not yet verified back (L5)
    STOPPED = "stopped"
    FAILED = "failed"
