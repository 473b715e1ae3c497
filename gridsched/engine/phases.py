"""What a process may go through from its spawn to its end, as data. Owns the table; `core.transitions` reads it.

The engine's side of the scheduler's instance: here a process is told to stop or ends, there it drains and is released.
Must never hold a rule about *when* a move is made: that is `life`'s.
"""

from collections.abc import Mapping
from enum import Enum


class Phase(Enum):
    """Where a process is."""

    STARTING = "starting"  # spawned, or about to be; asked whether it is ready
    READY = "ready"
    STOPPING = "stopping"  # told to end
    FAILING = "failing"  # not as planned, or not ready in time: ended by us, and a failure
    STOPPED = "stopped"  # gone, as it was told
    FAILED = "failed"  # gone, or never there, for a cause


class PhaseMove(Enum):
    """What can happen to a process."""

    ANSWER = "answer"  # everything that it was asked, as planned
    TELL = "tell"  # to stop: the scheduler's word, or cancellation
    GIVE_UP = "give up"  # on it, because it is not as planned
    TRY_AGAIN = "try again"  # at another port: the one that was chosen is somebody else's
    OBEY = "obey"  # it has ended as it was told
    FAIL = "fail"  # it has ended otherwise, or was never there


PHASE_MOVES: Mapping[Phase, Mapping[PhaseMove, Phase]] = {
    Phase.STARTING: {
        PhaseMove.ANSWER: Phase.READY,
        PhaseMove.TELL: Phase.STOPPING,
        PhaseMove.GIVE_UP: Phase.FAILING,
        PhaseMove.TRY_AGAIN: Phase.STARTING,
        PhaseMove.FAIL: Phase.FAILED,
    },
    Phase.READY: {PhaseMove.TELL: Phase.STOPPING, PhaseMove.FAIL: Phase.FAILED},
    Phase.STOPPING: {
        PhaseMove.TELL: Phase.STOPPING,  # a second time
        PhaseMove.OBEY: Phase.STOPPED,
        PhaseMove.FAIL: Phase.FAILED,  # of something else, before it heard
    },
    Phase.FAILING: {
        PhaseMove.TELL: Phase.STOPPING,  # it is being ended already, stays a failure, and is not tried again
        PhaseMove.TRY_AGAIN: Phase.STARTING,
        PhaseMove.FAIL: Phase.FAILED,
    },
    Phase.STOPPED: {},
    Phase.FAILED: {},
}
