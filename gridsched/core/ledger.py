"""Whose memory is whose: reservations, what others hold, what is being freed, what is lost (L1 to L5).

Owns every byte the scheduler plans with, device by device. It answers whether something fits and never picks who must
go. Must never know jobs, models or steps: it is told of instances by their ids.

A *decision to reserve* that exceeds what is usable raises InvariantViolation (INV-3). Growth that is found later by
measuring never does: it only makes less than nothing free, and then nothing new fits.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from gridsched.core.errors import InvariantViolation
from gridsched.core.events import DeviceRead, Foreign
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.core.model import DeviceSpec, LaunchOption
from gridsched.core.reservation import Reservation

Needs = tuple[tuple[DeviceName, int], ...]
"""Bytes by device."""

FREEZE_SECONDS = 10.0
"""L3: used bytes and our own come from two calls, so what others hold is not believed while one of ours goes away;
a stop that takes longer than this is waited for no more."""

FREEZE_READINGS = 2
"""L3: and not for two readings after that, because the driver reports late."""

FREE_AGAIN_PART = 10
"""L6a: a launch that ran out of memory is tried again when a tenth more is free than was then."""

SHORT_TIMES = 2
"""L6a: with this many times its need free it was not what was planned that was lacking: a moment's allocation, another
program's burst, a card that lies. A guess, far beyond what any estimate is wrong by."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """L6a: where a launch ran out of memory, and what it could have had there."""

    device: DeviceName
    free_bytes: int


@dataclass(slots=True)
class DeviceBook:
    """One device's page. `used_bytes` and `external_bytes` are 0 until it was read; `believed`: what others hold was
    read since the last of ours went (L3); `guessed`: it rests on a reading that may be older than the last release.
    `foreign` are the programs outside that the last reading named.

    The sums are kept, because every planning asks for them many times over: `usable_bytes` is what may be planned at
    all (L4), `free_bytes` what a decision may reserve now, below 0 under pressure (R6a), `going_bytes` what stopping
    instances are giving back (R3), `lost_bytes` what processes that should be gone never gave back (L5). `add_up` alone
    writes them, and counts them by `revision`; the ledger calls it wherever it has changed what they are made of.
    """

    spec: DeviceSpec
    used_bytes: int = 0
    external_bytes: int = 0
    read_at: float = -inf
    last_stop_at: float = -inf
    frozen_readings: int = 0
    believed: bool = True
    guessed: bool = False
    reservations: dict[InstanceId, Reservation] = field(default_factory=dict)
    foreign: tuple[Foreign, ...] = ()
    usable_bytes: int = field(init=False)
    free_bytes: int = field(init=False)
    going_bytes: int = field(init=False)
    lost_bytes: int = field(init=False)
    revision: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.add_up()

    def add_up(self) -> None:
        """Make the sums anew."""
        reserved = going = lost = 0
        for item in self.reservations.values():
            reserved += item.bytes
            if item.lost:
                lost += item.bytes
            elif item.going:
                going += item.bytes
        self.usable_bytes = self.spec.total_bytes - self.spec.headroom_bytes
        self.free_bytes = self.usable_bytes - self.external_bytes - reserved
        self.going_bytes, self.lost_bytes = going, lost
        self.revision += 1

    @property
    def pressure(self) -> bool:
        """R6a: more is held than may be planned."""
        return self.free_bytes < 0

    def frozen(self, now: float) -> bool:
        """L3: whether its readings are not believed yet, because one of ours has just gone."""
        return not self.believed and now < self.last_stop_at + FREEZE_SECONDS

    @property
    def outdated(self) -> bool:
        """L3: whether what is believed of others is older than the last reading, which was frozen."""
        return not self.believed and self.read_at > self.last_stop_at

    def untouched_bytes(self) -> int:
        """What instances have reserved and, as far as was read, not yet taken up (L3). Of one that goes this is what it
        may have taken since the last reading: all of a load that is aborted before it was seen."""
        total = 0
        for item in self.reservations.values():
            if item.lost:
                continue
            if item.held_bytes is not None:
                total += 0 if item.going else max(0, item.bytes - item.held_bytes)
            elif item.settled_at > self.read_at:
                total += item.bytes
        return total


class Ledger:
    """All devices' pages. `measured` holds what launches really took in this run, by option key (L2), nothing for one
    whose measurement is not believed any more; `shortages`, where launches ran out of memory (L6a). `revision` counts
    what changes the answers of `needs` and `carries`, so that they may be remembered until then. `host` is host memory
    beside the devices, of which nothing is reserved."""

    def __init__(self) -> None:
        self.books: dict[DeviceName, DeviceBook] = {}
        self.host: DeviceSpec | None = None
        self.measured: dict[str, tuple[int, ...]] = {}
        self.shortages: dict[str, Shortage] = {}
        self.revision = 0

    # --- what there is ------------------------------------------------------------------------------------------

    def set_devices(self, specs: Iterable[DeviceSpec], host: DeviceSpec | None = None) -> None:
        """Take over the devices there are. One that is gone stays, with nothing usable, while ours hold it."""
        self.revision += 1
        self.host = host
        wanted = {spec.name: spec for spec in specs}
        for name, book in list(self.books.items()):
            if name in wanted:
                continue
            if book.reservations:
                book.spec = DeviceSpec(name, 0)
                book.add_up()
            else:
                del self.books[name]
        for name, spec in wanted.items():
            if name in self.books:
                self.books[name].spec = spec
                self.books[name].add_up()
            else:
                self.books[name] = DeviceBook(spec)

    def needs(self, option: LaunchOption) -> Needs:
        """What must be free for a launch, by device: what it takes, or more where it ran out of memory before (L6a).

        A tenth more than was free then. Where that is more than the device has, all that is ours of it: no launch is
        given up for ever on what was believed once.
        """
        taken = self.taken(option)
        if not self.shortages:
            return taken
        short = self.shortages.get(option.key)
        book = self.books.get(short.device) if short is not None else None
        if short is None or book is None:
            return taken
        wanted = short.free_bytes + short.free_bytes // FREE_AGAIN_PART
        if wanted > book.usable_bytes:
            wanted = max(0, book.usable_bytes - book.external_bytes)
        return tuple((device, max(need, wanted) if device == short.device else need) for device, need in taken)

    def taken(self, option: LaunchOption) -> Needs:
        """What a launch takes on each device: this run's measurement, else the option's own (L2), and host memory
        where the host is planned."""
        measured = self.measured.get(option.key)
        needs = option.need_bytes if measured is None else option.needs_by(measured)
        host = option.host
        if host is not None and host.device in self.books and host.device not in option.devices:
            needs += ((host.device, host.total_bytes),)
        return needs

    def carries(self, option: LaunchOption, needs: Needs) -> bool:
        """Whether the devices are there and would have what a launch needs if nobody held anything (L4), and the host
        what it takes beside them."""
        if self.host_short_bytes(option) > 0:
            return False
        for device, need in needs:
            book = self.books.get(device)
            if book is None or need > book.usable_bytes:
                return False
        return True

    def host_short_bytes(self, option: LaunchOption) -> int:
        """What the machine's memory lacks for what a launch takes there beside its devices, whatever is free of it."""
        if self.host is None:
            return 0
        return max(0, option.host_need_bytes - (self.host.total_bytes - self.host.headroom_bytes))

    # --- what we hold -------------------------------------------------------------------------------------------

    def reserve(self, instance_id: InstanceId, option: LaunchOption) -> None:
        """L1: hold the memory of a launch from this decision on. Raises InvariantViolation where it does not fit."""
        needs = self.taken(option)
        if not self.fits(needs):
            raise InvariantViolation(f"INV-3: instance {instance_id} reserves {needs}, which is not free")
        estimates = {part.device: part.total_bytes for part in option.footprint}
        for device, need_bytes in needs:
            book = self.books[device]
            book.reservations[instance_id] = Reservation(estimates.get(device, need_bytes), need_bytes)
            book.add_up()

    def fits(self, needs: Needs) -> bool:
        """Whether a decision may reserve these bytes now (L1)."""
        for device, need in needs:  # noqa: SIM110 - a generator costs more than the question
            if need > 0 and need > self.books[device].free_bytes:
                return False
        return True

    def really_free(self, needs: Needs) -> bool:
        """L3: whether the devices' own totals cover these bytes too, whatever is believed of others. A device that was
        never read is believed."""
        for device, need_bytes in needs:
            book = self.books[device]
            if book.read_at > -inf and (book.spec.total_bytes - book.used_bytes - book.untouched_bytes() < need_bytes):
                return False
        return True

    def settled(self, instance_id: InstanceId, now: float) -> None:
        """The launch is over: from the next reading on the memory counts as taken up."""
        for _, item in self._of(instance_id):
            item.settled_at = now

    def going(self, instance_id: InstanceId, now: float) -> None:
        """The instance was told to stop, or has gone: its bytes are being freed (R3), and readings lie (L3)."""
        for book in self.books.values():
            item = book.reservations.get(instance_id)
            if item is not None and not item.going:
                item.going = True
                book.add_up()
                book.last_stop_at = now
                book.frozen_readings = FREEZE_READINGS
                book.believed = False

    def lose(self, instance_id: InstanceId) -> int:
        """L5: the deadline has passed and the memory is not back. Gives the bytes."""
        lost_bytes = 0
        for book, item in self._of(instance_id):
            item.lost = True
            book.add_up()
            lost_bytes += item.bytes
        return lost_bytes

    def release(self, instance_id: InstanceId, now: float) -> None:
        """The memory is verified back. Where it took so long that readings counted it as ours meanwhile, what others
        hold is read anew from the last of them (L3)."""
        for book in self.books.values():
            if book.reservations.pop(instance_id, None) is None:
                continue
            book.add_up()
            if now >= book.last_stop_at + FREEZE_SECONDS:
                self._believe(book)
                book.guessed = True

    def bytes_of(self, instance_id: InstanceId) -> Mapping[DeviceName, int]:
        """What an instance holds, by device."""
        found: dict[DeviceName, int] = {}
        for name, book in self.books.items():
            item = book.reservations.get(instance_id)
            if item is not None:
                found[name] = item.bytes
        return found

    def _of(self, instance_id: InstanceId) -> Iterable[tuple[DeviceBook, Reservation]]:
        for book in self.books.values():
            item = book.reservations.get(instance_id)
            if item is not None:
                yield book, item

    # --- what is read -------------------------------------------------------------------------------------------

    def read(self, event: DeviceRead, now: float) -> None:
        """Take over one reading (L3). A device that is not planned is ignored."""
        book = self.books.get(event.device)
        if book is None:
            return
        held = dict(event.held)
        for instance_id, item in book.reservations.items():
            item.read_bytes = held_bytes = held.get(instance_id)
            item.grown = instance_id in event.by_difference
            item.seen = True
            if held_bytes is not None and not item.may_hold(held_bytes, book.spec, now):
                held_bytes = None
            item.held_bytes = held_bytes
            if held_bytes and not item.going and item.is_charged(held_bytes):
                # Nobody else can have it, though it is no measurement yet: else a load would wait for it for ever (L3).
                item.bytes = item.charged_bytes(held_bytes)
                book.add_up()
        book.used_bytes, book.foreign = event.used_bytes, event.foreign
        book.read_at = now
        book.guessed = False
        if self._frozen(book, now):
            return
        self._believe(book)

    def _believe(self, book: DeviceBook) -> None:
        """L3: others hold what is used and not ours."""
        external_bytes = book.used_bytes
        for item in book.reservations.values():
            external_bytes -= item.ours_bytes
        external_bytes = max(0, external_bytes)
        book.believed = True
        if external_bytes != book.external_bytes:
            book.external_bytes = external_bytes
            book.add_up()
            if self.shortages:  # what those launches need may be all that is not others' (L6a)
                self.revision += 1

    def _frozen(self, book: DeviceBook, now: float) -> bool:
        if now >= book.last_stop_at + FREEZE_SECONDS:
            book.frozen_readings = 0
            return False
        if any(item.going for item in book.reservations.values()):
            book.frozen_readings = FREEZE_READINGS
            return True
        if book.frozen_readings > 0:
            book.frozen_readings -= 1
            return True
        return False

    def measure(
        self, instance_id: InstanceId, option: LaunchOption, read: DeviceName, least_bytes: int = 0
    ) -> tuple[int, ...] | None:
        """L2: let a plausible reading of a device replace the reservation there. To be called at a reading, once the
        instance has served a request: what other devices said before that is of a process that was still loading.

        `least_bytes` is what the engine has allocated there. Host memory is held only as far as it was written to: a
        compute buffer of which a short prompt has used a tenth is all taken by a long one.

        Gives what the launch takes by device, in the order of its footprint, when that is known whole and is new.
        """
        changed = False
        figures: list[int] = []
        for part in option.footprint:
            book = self.books.get(part.device)
            item = book.reservations.get(instance_id) if book is not None else None
            if book is None or item is None:
                return None
            held = item.held_bytes or 0 if part.device == read else 0
            taken = max(held, least_bytes)
            if held > 0 and item.is_news(taken) and item.is_measured_by(held, part.total_bytes, least_bytes):
                item.first_bytes = item.first_bytes or taken
                item.bytes = taken
                item.measured = True
                item.by_difference = item.grown
                if not item.grown:
                    item.planned_bytes = taken
                book.add_up()
                changed = True
            if item.measured:
                figures.append(item.bytes if not item.grown else min(item.bytes, max(item.planned_bytes, least_bytes)))
        if not changed or len(figures) < len(option.footprint):
            return None
        self.measured[option.key] = tuple(figures)
        self.forget_shortage(option)
        return self.measured[option.key]

    def refusal(self, instance_id: InstanceId, option: LaunchOption, read: DeviceName) -> str | None:
        """L2: why the last reading of a device does not measure an instance that has served, told once for each."""
        book = self.books.get(read)
        item = book.reservations.get(instance_id) if book is not None else None
        if item is None or item.measured or item.doubted or read not in option.devices:
            return None
        item.doubted = True
        if item.read_bytes is None:
            return "the device gives no figure for this process; the estimate stands"
        if item.grown:
            more = item.read_bytes > item.estimate_bytes
            why = "more than" if more else "under a quarter of"
            whose = "another program's may be among it" if more else "it cannot be all of it"
            return (
                f"the device's use grew by {item.read_bytes} bytes while it came, {why} the {item.estimate_bytes} that"
                f" were estimated: {whose}; the estimate stands"
            )
        return (
            f"{item.read_bytes} bytes are read, under a quarter of the {item.estimate_bytes} that were estimated: of"
            " something half loaded, or of the wrong process; the estimate stands"
        )

    def by_difference(self, instance_id: InstanceId) -> list[DeviceName]:
        """D2: the devices on which an instance was measured by what their use grew by."""
        return [book.spec.name for book, item in self._of(instance_id) if item.by_difference]

    # --- what failures teach ------------------------------------------------------------------------------------

    def forget_measurement(self, option: LaunchOption) -> bool:
        """L6a: do not believe what was measured of a launch. Says whether there was anything to forget."""
        known = self.measured.get(option.key, option.measured_bytes)
        self.measured[option.key] = ()
        self.revision += 1
        return bool(known)

    def note_shortage(self, instance_id: InstanceId, option: LaunchOption, *, on_host: bool) -> Shortage | None:
        """L6a: a launch ran out of memory. Where it spans devices the failure does not say which of them was short: it
        is put down to the one that had least to spare. None where host memory is not planned, or
        far more was free than it needs: that teaches nothing about the next load.

        To be called while its reservation stands. What was free is the less of what was believed and what was read,
        because the program that took the memory may have come between two readings.
        """
        host = option.host.device if option.host is not None else None
        needs = [(name, need) for name, need in self.taken(option) if name in self.books and (name == host) is on_host]
        if not needs:
            return None
        found = [(Shortage(name, self._could_have(instance_id, self.books[name])), need) for name, need in needs]
        short, need_bytes = min(found, key=lambda each: each[0].free_bytes - each[1])
        if short.free_bytes >= SHORT_TIMES * need_bytes:
            return None
        self.shortages[option.key] = short
        self.revision += 1
        return short

    def forget_shortage(self, option: LaunchOption) -> None:
        """L6a: it did not run out of memory this time, or it may be tried again as it was estimated."""
        self.shortages.pop(option.key, None)
        self.revision += 1

    @staticmethod
    def _could_have(instance_id: InstanceId, book: DeviceBook) -> int:
        """What an instance could have had of a device, its own reservation included."""
        item = book.reservations.get(instance_id)
        if item is None:
            return max(0, book.free_bytes)
        believed = book.free_bytes + item.bytes
        if book.read_at == -inf:
            return max(0, believed)
        return max(0, min(believed, book.usable_bytes - book.used_bytes + (item.held_bytes or 0)))
