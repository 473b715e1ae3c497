"""The invariants in production: what this step's commands rest on, looked at after every step.

Owns the choice of what is cheap. Most steps start a step or end one, and cost a look at that grant; the few that move
memory or a process are checked whole (INV-1, 3, 4, 11, 16, 22). What a step did not touch was right before it. All of
the invariants stay with the tests and the simulator. Must never repair.

Raises InvariantViolation with the story; the server then ends, and its processes with it: a scheduler that has lost
count would hand out what is not there.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gridsched.core.commands import ArmTimer, GrantStep, PauseInstance, RejectJob, StartInstance, StopInstance
from gridsched.core.instance import InstanceState
from gridsched.core.invariants import (
    broken,
    inv_1_no_stop_with_steps_in_flight,
    inv_3_ledger_mirrors_instances,
    inv_4_single_flight,
    inv_11_loads,
    inv_14_what_stands_is_needed_by_nobody,
    inv_16_low_work_evicts_cold_models,
    inv_18_the_armed_moment_lies_ahead,
    inv_22_nothing_starts_on_a_lost_device,
)
from gridsched.core.state import State
from gridsched.core.transitions import JobState

RUNNING = JobState.RUNNING
SERVING = (InstanceState.READY, InstanceState.DRAINING)


def check_step(state: State) -> None:
    """Look at what the step that has just been made rests on."""
    for command in state.out:
        look = LOOKS.get(type(command))
        if look is not None:
            look(state, command)


def _grant(state: State, command: GrantStep) -> None:
    """S6, S4, S7: a slot that was there, on a process that serves, for a job that has no other."""
    grant = command.grant
    entry = state.grants.get(grant.id)
    if entry is None or entry.record.grant_id != grant.id or entry.record.state is not RUNNING:
        broken(state, 5, f"grant {grant.id} of job {grant.job_id} is not the one that it runs", job=grant.job_id)
    instance = entry.instance
    if instance.state not in SERVING:
        broken(state, 1, f"grant {grant.id} is on a process that is {instance.state.value}", instance=instance.id)
    if len(instance.grants) > instance.option.parallel:
        broken(state, 2, f"instance {instance.id}: {len(instance.grants)} steps", instance=instance.id)
    if not entry.lawful and not entry.record.chat:
        broken(state, 7, f"grant {grant.id} was given in interactive mode", job=grant.job_id)


def _rejection(state: State, command: RejectJob) -> None:
    """A job ends in one way: who is refused neither waits nor runs."""
    if command.job_id in state.jobs:
        broken(state, 5, f"job {command.job_id} is refused and lives", job=command.job_id)


def _process(state: State, _: object) -> None:
    """R2, L1, S6c, L6, R1, D6: these are rare enough to be looked at whole."""
    inv_1_no_stop_with_steps_in_flight(state)
    inv_3_ledger_mirrors_instances(state)
    inv_4_single_flight(state)
    inv_11_loads(state)
    inv_16_low_work_evicts_cold_models(state)
    inv_22_nothing_starts_on_a_lost_device(state)


def _pause(state: State, _: object) -> None:
    inv_14_what_stands_is_needed_by_nobody(state)


def _timer(state: State, _: object) -> None:
    inv_18_the_armed_moment_lies_ahead(state)


LOOKS: Mapping[type, Callable[[State, Any], None]] = {
    GrantStep: _grant,
    RejectJob: _rejection,
    StartInstance: _process,
    StopInstance: _process,
    PauseInstance: _pause,
    ArmTimer: _timer,
}
