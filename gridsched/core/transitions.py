"""Which moves are allowed, as data: jobs, instances, leases, and the server's own drain.

Owns the tables, the one function that reads them, and the one that draws them. A new state or a new move starts here.
Must never hold a rule about *when* a move is made: that is the business of the modules that ask for it.

The tables are read by the scheduler at every move and by an exhaustive test that tries every pair.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import TypeVar

from gridsched.core.errors import IllegalMove
from gridsched.core.instance import InstanceState


class JobState(IntEnum):
    """Where a job is. Integers because every event looks one up, and an IntEnum hashes at the speed of an int."""

    WAITING = 0  # in a queue, holds nothing
    RUNNING = 1  # has a grant, from the moment that it is made (S7)
    SETTLING = 2  # over for its client, the engine may still be busy with its slot (S8)
    ENDED = 3
    REJECTED = 4


class JobMove(IntEnum):
    """What can happen to a job."""

    GRANT = 0
    STEP_END = 1  # waits on: for its next step, or to be run again (P5, S11), its slot settled or not
    REJECT = 2
    ABANDON = 3  # the client left while it waited
    RETURN = 4  # the client left between the grant and its taking
    END = 5
    END_UNSETTLED = 6
    SETTLE = 7


JOB_MOVES: Mapping[JobState, Mapping[JobMove, JobState]] = {
    JobState.WAITING: {
        JobMove.GRANT: JobState.RUNNING,
        JobMove.REJECT: JobState.REJECTED,
        JobMove.ABANDON: JobState.ENDED,
    },
    JobState.RUNNING: {
        JobMove.STEP_END: JobState.WAITING,
        JobMove.RETURN: JobState.ENDED,
        JobMove.END: JobState.ENDED,
        JobMove.END_UNSETTLED: JobState.SETTLING,
    },
    JobState.SETTLING: {JobMove.SETTLE: JobState.ENDED},
    JobState.ENDED: {},
    JobState.REJECTED: {},
}


class InstanceMove(Enum):
    """What can happen to an instance."""

    BECOME_READY = "become ready"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    STOP = "stop"
    EXIT = "exit"
    RELEASE = "release"
    RELEASE_FAILED = "release failed"


# Saved conversations (R11) would add two states here: SAVING between READY or DRAINING and STOPPING, in which an idle
# process writes its slots' caches, and RESTORING between STARTING and READY, in which it reads them back. Both would
# hold their memory, take no step, and go straight to STOPPING when a chat cannot wait. Neither is here before
# something reaches it.
INSTANCE_MOVES: Mapping[InstanceState, Mapping[InstanceMove, InstanceState]] = {
    InstanceState.STARTING: {
        InstanceMove.BECOME_READY: InstanceState.READY,
        InstanceMove.STOP: InstanceState.STOPPING,
        InstanceMove.EXIT: InstanceState.STOPPING,
    },
    InstanceState.READY: {
        InstanceMove.DRAIN: InstanceState.DRAINING,
        InstanceMove.STOP: InstanceState.STOPPING,
        InstanceMove.EXIT: InstanceState.STOPPING,
    },
    InstanceState.DRAINING: {
        InstanceMove.UNDRAIN: InstanceState.READY,
        InstanceMove.STOP: InstanceState.STOPPING,
        InstanceMove.EXIT: InstanceState.STOPPING,
    },
    InstanceState.STOPPING: {
        # The stop of a starting instance crosses its becoming ready on the way: the stop holds.
        InstanceMove.BECOME_READY: InstanceState.STOPPING,
        InstanceMove.EXIT: InstanceState.STOPPING,
        InstanceMove.RELEASE: InstanceState.STOPPED,
        InstanceMove.RELEASE_FAILED: InstanceState.FAILED,
    },
    InstanceState.STOPPED: {},
    InstanceState.FAILED: {},
}


class ServerState(Enum):
    """P8: whether the server takes work at all. There is no way back."""

    SERVING = "serving"
    DRAINING = "draining"


class ServerMove(Enum):
    """What can happen to the server as a whole."""

    DRAIN = "drain"


SERVER_MOVES: Mapping[ServerState, Mapping[ServerMove, ServerState]] = {
    ServerState.SERVING: {ServerMove.DRAIN: ServerState.DRAINING},
    # A second signal asks for what is under way already.
    ServerState.DRAINING: {ServerMove.DRAIN: ServerState.DRAINING},
}


class LeaseState(Enum):
    """R8: how far a lease of a device is."""

    REQUESTED = "requested"  # nothing new comes there; a chat's load that is under way finishes first
    DRAINING = "draining"  # running steps end, then the instances go
    HELD = "held"
    ENDED = "ended"


class LeaseMove(Enum):
    """What can happen to a lease."""

    DRAIN = "drain"
    HOLD = "hold"
    END = "end"


LEASE_MOVES: Mapping[LeaseState, Mapping[LeaseMove, LeaseState]] = {
    LeaseState.REQUESTED: {LeaseMove.DRAIN: LeaseState.DRAINING, LeaseMove.END: LeaseState.ENDED},
    LeaseState.DRAINING: {LeaseMove.HOLD: LeaseState.HELD, LeaseMove.END: LeaseState.ENDED},
    LeaseState.HELD: {LeaseMove.END: LeaseState.ENDED},
    LeaseState.ENDED: {},
}

S = TypeVar("S", bound=Enum)
M = TypeVar("M", bound=Enum)


def moved(table: Mapping[S, Mapping[M, S]], state: S, move: M) -> S:
    """The state after a move. Raises IllegalMove for one that the table lacks; the door adds the story."""
    try:
        return table[state][move]
    except KeyError:
        raise IllegalMove(f"{type(state).__name__} {state.name} does not allow {move.name}") from None


def diagram(table: Mapping[S, Mapping[M, S]]) -> str:
    """A table as a Mermaid state diagram: the first state is where everything begins, one without moves is an end."""
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(table)).name}"]
    for state, moves in table.items():
        lines += (
            f"    {state.name} --> {after.name}: {move.name.lower().replace('_', ' ')}" for move, after in moves.items()
        )
        if not moves:
            lines.append(f"    {state.name} --> [*]")
    return "\n".join(lines)
