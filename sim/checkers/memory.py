"""L1 and L3: no decision to load takes more than is usable, whatever the scheduler believes."""

from collections.abc import Callable, Mapping

from gridsched.core.commands import KeepMeasurement, StartInstance
from gridsched.core.events import DeviceRead
from gridsched.core.ids import DeviceName
from sim.checkers.checker import Checker
from sim.checkers.notes import LONG_AGO, InstanceNote

PLAUSIBLE_PART = 4
FREEZE_SECONDS = 10.0  # L3: so long after a stop, what others hold may be taken as it was before


class Memory(Checker):
    """At every start: what is reserved and what is asked for, against what the last reading leaves us."""

    def judges(self) -> Mapping[type, Callable[..., None]]:
        """Starts, and what is kept."""
        return {StartInstance: self._judge_start, KeepMeasurement: self._judge_kept}

    def _judge_kept(self, command: KeepMeasurement) -> None:
        """D2: a measurement says whether it is a driver's, where all readings of its processes were of one kind."""
        here = [one for one in self.book.instances.values() if one.start.option.key == command.option_key]
        kinds = {kind for one in here for kind in one.kinds}
        if command.measured_bytes and kinds and kinds != {command.by_difference} and len(kinds) == 1:
            self.broken("D2", f"what {command.model} takes is kept as by difference: {command.by_difference}")

    def _judge_start(self, command: StartInstance) -> None:
        spec = self.book.models.get(command.model)
        if command.instance_id in self.book.instances:
            self.broken("L1", f"instance {command.instance_id} is started twice")
        if spec is None or command.option.key not in {option.key for option in spec.options}:
            self.broken("L1", f"{command.model} is started with an option that its ladder has not")
        for device, need in self.book.need_of(command.option).items():
            self._judge(command, device, need)

    def _judge(self, command: StartInstance, device: DeviceName, need: int) -> None:
        spec = self.book.devices.get(device)
        if spec is None:
            self.broken("L1", f"{command.model} is started on {device}, of which nothing is known")
            return
        read = self.book.readings.get(device)
        if read is None:  # a device that was never read is believed
            read = DeviceRead(device, spec.total_bytes, 0)
        here = [one for one in self.book.instances.values() if device in one.devices]
        reserved = sum(self._least(one, device) for one in here)
        ours = sum(self._ours(one, device) for one in here)
        frozen = self.book.read_at.get(device, LONG_AGO) < self.book.stop_at.get(device, LONG_AGO) + FREEZE_SECONDS
        external = 0 if frozen else max(0, read.used_bytes - ours)
        usable = read.total_bytes - spec.headroom_bytes - external
        if reserved + need > usable:
            sums = f"{reserved} reserved + {need} needed > {usable} usable"
            self.broken("L1", f"{command.model} is started on {device} although {sums}")
        untaken = sum(self._untaken(one, device) for one in here)
        free = read.total_bytes - read.used_bytes - untaken
        if need > free:
            self.broken("L3", f"{command.model} needs {need} on {device}, {free} are free and not promised")

    def _held(self, one: InstanceNote, device: DeviceName) -> int | None:
        """What a process was last read to hold, None where that is nothing, or too little to be all of one that was
        ready by then (B16, D14)."""
        held = one.held.get(device)
        if held is None or not LONG_AGO < one.ready_at <= self.book.read_at.get(device, LONG_AGO):
            return held
        estimate = dict(one.start.option.estimates).get(device, 0)
        return held if held * PLAUSIBLE_PART >= estimate else None

    def _ours(self, one: InstanceNote, device: DeviceName) -> int:
        """What of a device's used bytes is believed to be a process's: all that it may take where it is gone, or was
        not read the last time."""
        held = self._held(one, device) or 0
        read = held and device not in one.unread and one.state != "exited"
        return held if read else max(held, one.needs(device))

    def _untaken(self, one: InstanceNote, device: DeviceName) -> int:
        """What a process is sure to take yet, or to have taken since the last reading: nothing where it was ready
        and could not be read, or goes and was read."""
        if one.state == "exited" or (one.state == "stopping" and device in one.held):
            return 0
        if self._held(one, device) is None and device in one.held:
            return 0
        if device in one.unread and LONG_AGO < one.ready_at <= self.book.read_at.get(device, LONG_AGO):
            return 0
        return max(0, self._least(one, device) - one.held.get(device, 0))

    def _least(self, one: InstanceNote, device: DeviceName) -> int:
        """The least that may stand for a process: its estimate, or what it holds once it has served (L2); the most that
        it held, where the last reading is not believed."""
        need, held = one.needs(device), self._held(one, device)
        if held is None:
            held = one.peak.get(device)
        return min(need, held) if one.served and held is not None else need
