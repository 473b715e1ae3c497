"""Devices that do not answer any more (D6): what runs there serves on, and nothing is loaded there.

Owns the notes of which devices are lost, since when and why, and the bar that keeps every plan off them. Must never
stop anything: a process on a lost device may be sound, and what must be placed elsewhere is for the plans that are
made anew.
"""

from dataclasses import dataclass

from gridsched.core.commands import LogEvent
from gridsched.core.events import DeviceBack, DeviceLost
from gridsched.core.ids import InstanceId
from gridsched.core.model import LaunchOption
from gridsched.core.placement import Obstacle
from gridsched.core.state import State


@dataclass(frozen=True, slots=True)
class Loss:
    """A device that does not answer, since a moment of the actor's clock. `why` is the driver's word, `last` the last
    process that was started before: none that came later is there."""

    since: float
    why: str
    last: InstanceId


def lost(state: State, event: DeviceLost) -> None:
    """It does not answer, configured or not: it may be again. Told anew it is as lost as before."""
    if event.device in state.lost:
        return
    state.lost[event.device] = Loss(state.now, event.why, InstanceId(state.last_instance))
    state.say_of_device(LogEvent.DEVICE, event.device, "D6", answers=False, why=event.why)
    state.replan_due = True


def back(state: State, event: DeviceBack) -> None:
    """It answers again: what waits for it is planned anew."""
    loss = state.lost.pop(event.device, None)
    if loss is not None:
        lost_seconds = round(state.now - loss.since, 3)
        state.say_of_device(LogEvent.DEVICE, event.device, "D6", answers=True, lost_s=lost_seconds)
        state.replan_due = True


def bar(state: State, option: LaunchOption) -> Obstacle | None:
    """Why a launch may not be planned, None where each device of it answers."""
    if not state.lost:
        return None
    names = (*option.devices, option.host.device) if option.host is not None else option.devices
    for device in names:
        loss = state.lost.get(device)
        if loss is not None:
            return Obstacle("D6", f"{device} does not answer ({loss.why})")
    return None
