"""What goes wrong in a run, and how often: each kind is switched on or off by the scenario and counted when it happens.

Owns the chances and sizes of faults (all guesses, high on purpose: a run lives for minutes and should meet what a year
brings) and the moment of healing, after which nothing fails any more. It only answers; the world does what it says.
"""

from collections import Counter
from random import Random

from gridsched.core.events import Failure, FailureCause
from sim.workload import GIB, Scenario, generator

KINDS = (
    "leave",  # a client goes away at any moment
    "leave_on_grant",  # a client goes away between its grant and the moment it takes it
    "bad_status",  # the engine answers with an error, which ends a job of several steps early
    "crash",  # a process that serves dies
    "oom",  # a process that serves runs out of memory
    "cut",  # an engine closes connections unanswered, and lives on
    "stall",  # a process stops sending bytes
    "slow_load",
    "load_fails",  # out of memory, a crash, or never ready
    "stop_refused",  # only the kill ends the process, and not even that at once
    "memory_lag",  # memory comes back late
    "external",  # a program outside takes memory and gives it back
    "growth",  # a process takes more than its estimate
    "silence",  # the device cannot be read for a while
    "two_calls",  # the total and what each process holds are of two moments
    "lies",  # the device says what is not so, for a while
    "vanish",  # the device is gone for a while
    "ready_crosses_stop",  # a process becomes ready while it is told to stop
    "probe",  # a process is asked how it is: no fault, but a thing that crosses others
    "reload",  # the configuration changes
    "device_fault",  # a process lives, and answers with nothing but its device's errors
    "lost",  # the device does not answer for a while; what runs there lives on, or dies with it
)
STALL_LIMIT_SECONDS = 10.0
LOAD_FAILURES = (
    Failure(FailureCause.DEVICE_OOM, "out of memory"),
    Failure(FailureCause.CRASHED, "crashed while it loaded"),
    Failure(FailureCause.START_TIMEOUT, "never became ready"),
)
DEADLY = 0.3  # the share of lost devices with which all dies that runs there
MEAN_SECONDS = {
    "crash": 40.0,
    "oom": 80.0,
    "external": 30.0,
    "silence": 60.0,
    "lies": 60.0,
    "vanish": 120.0,
    "reload": 60.0,
    "probe": 5.0,
    "lost": 60.0,
}


class FaultPlan:
    """The faults of one run. `counts` is what has happened so far."""

    def __init__(self, scenario: Scenario) -> None:
        self._on = set(scenario.faults)
        self._rngs: dict[str, Random] = {kind: generator(scenario.seed, "fault", kind) for kind in KINDS}
        self.counts: Counter[str] = Counter()

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        self._on.clear()

    def next_seconds(self, kind: str) -> float | None:
        """When a fault that comes by itself comes next; None for never."""
        return self._rngs[kind].expovariate(1 / MEAN_SECONDS[kind]) if kind in self._on else None

    def happens(self, kind: str) -> bool:
        """Whether a fault that came by itself still counts, the world not being healed yet."""
        if kind in self._on:
            self.counts[kind] += 1
        return kind in self._on

    def leaves_after(self) -> float | None:
        """How long a client's patience lasts, None for as long as it takes."""
        return self._rngs["leave"].expovariate(1 / 4.0) if self._chance("leave", 0.15) else None

    def leaves_on_grant(self) -> bool:
        """Whether the client is gone when its grant arrives."""
        return self._chance("leave_on_grant", 0.05)

    def left_before_grant(self) -> bool:
        """Whether the client had left already, and the news of it and the grant have crossed."""
        return self._chance("leave_on_grant", 0.02)

    def status(self) -> int:
        """The status of a step's answer."""
        return 400 if self._chance("bad_status", 0.05) else 200

    def stalls(self) -> bool:
        """Whether the process stops sending in this step."""
        return self._chance("stall", 0.02)

    def device_fails(self) -> bool:
        """Whether the process answers with its device's errors from this step on."""
        return self._chance("device_fault", 0.015)

    def cuts(self) -> bool:
        """Whether the engine closes this connection unanswered."""
        return self._chance("cut", 0.5)

    def calls_differ(self) -> bool:
        """Whether memory moves between the two calls of a reading."""
        return self._chance("two_calls", 0.3)

    def ready_crosses_stop(self) -> bool:
        """Whether a load ends well although it was told to stop."""
        return self._chance("ready_crosses_stop", 0.8)

    def lie_seconds(self) -> float:
        """How long a device says what is not so."""
        return self._rngs["lies"].uniform(1, 12)

    def vanished_seconds(self) -> float:
        """How long a device is gone."""
        return self._rngs["vanish"].uniform(1, 20)

    def loss(self) -> tuple[float, bool]:
        """How long a device does not answer, and whether what runs there dies with it."""
        rng = self._rngs["lost"]
        return rng.uniform(1, 40), rng.random() < DEADLY

    def load_factor(self) -> float:
        """How much longer a load takes than expected."""
        return self._rngs["slow_load"].uniform(2, 8) if self._chance("slow_load", 0.25) else 1.0

    def load_failure(self) -> Failure | None:
        """How a load fails, if it does."""
        return self._rngs["load_fails"].choice(LOAD_FAILURES) if self._chance("load_fails", 0.15) else None

    def stop_seconds(self) -> float:
        """From the command to the exit."""
        rng = self._rngs["stop_refused"]
        return rng.uniform(8, 28) if self._chance("stop_refused", 0.15) else rng.uniform(0.02, 0.3)

    def release_seconds(self) -> float:
        """From the exit until the memory is back."""
        rng = self._rngs["memory_lag"]
        return rng.uniform(1, 25) if self._chance("memory_lag", 0.2) else rng.uniform(0.01, 0.3)

    def memory_factor(self) -> float:
        """What a process takes, as a multiple of its estimate."""
        rng = self._rngs["growth"]
        return rng.uniform(1.0, 1.15) if self._chance("growth", 0.3) else rng.uniform(0.9, 1.0)

    def external(self) -> tuple[int, float]:
        """Bytes that a program outside takes, and for how long."""
        rng = self._rngs["external"]
        return int(rng.uniform(0.3, 12) * GIB), rng.expovariate(1 / 20.0)

    def silence_seconds(self) -> float:
        """How long the devices cannot be read."""
        return self._rngs["silence"].uniform(1, 15)

    def pick(self, kind: str) -> Random:
        """The generator of a kind, for what the world must choose itself."""
        return self._rngs[kind]

    def _chance(self, kind: str, share: float) -> bool:
        if kind not in self._on or self._rngs[kind].random() >= share:
            return False
        self.counts[kind] += 1
        return True
