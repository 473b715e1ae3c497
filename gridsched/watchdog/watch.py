"""What the gateway is doing: not running, starting, serving, or wedged, and which half of it stands, since when.

Owns the reading of the lock, the heartbeat and the answers of the gateway. It decides nothing about them. Tolerant of
everything that a file can hold; what cannot be read is said to be unknown.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Any

from gridsched.watchdog import files
from gridsched.watchdog.front import Answer, NoAnswer, ask, host_of
from gridsched.watchdog.places import Places
from gridsched.watchdog.processes import ProcessId, identify, is_ours, lock_held_by, pids, state_of

ANSWER_SECONDS = 3.0
"""How long an answer to /health may take before it counts as none; it is made without waiting for anything."""

START_SECONDS = 300.0
"""How long a start may take before the first beat: a cold disk, a driver that wakes up, the engine's trial."""


class State(Enum):
    """How the gateway is."""

    NOT_RUNNING = "not_running"
    STARTING = "starting"
    SERVING = "serving"
    WEDGED = "wedged"


@dataclass(frozen=True, slots=True)
class Beat:
    """The gateway's last heartbeat. `age_seconds` is None where the file does not say when it was."""

    process: ProcessId
    seq: int
    phase: str
    port: int
    in_flight: int
    age_seconds: float | None


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns the data directory: the process where it can be proven, and its port, 0 before it listens."""

    process: ProcessId | None
    port: int

    def __str__(self) -> str:
        return f"process {self.process.pid}" if self.process else "a process that cannot be named"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, and a sentence that says it. `half` is which half of a wedged one stands, scheduler or front, and
    `standing_seconds` for how long."""

    state: State
    sentence: str
    owner: Owner | None = None
    beat: Beat | None = None
    half: str = ""
    answer: Answer | None = None
    standing_seconds: float = 0.0
    since: float = field(default_factory=time.time)

    @property
    def process(self) -> ProcessId | None:
        """The gateway, where there is one and it can be proven."""
        return self.owner.process if self.owner else None

    @property
    def healthy(self) -> bool:
        """It beats, where it can, and answers."""
        return self.state is State.SERVING and self.answer is not None

    def told(self) -> dict[str, Any]:
        """The same as JSON."""
        said: dict[str, Any] = {"state": self.state.value, "since": moment(self.since), "why": self.sentence}
        said["answering"] = self.answer is not None
        if self.half:
            said["stands"] = self.half
        if self.owner is not None:
            said["pid"] = self.process.pid if self.process else None
            said["port"] = self.owner.port or None
        if self.beat is not None:
            said["heartbeat"] = {
                "seq": self.beat.seq,
                "age_seconds": self.beat.age_seconds,
                "phase": self.beat.phase,
                "in_flight": self.beat.in_flight,
            }
        if self.answer is not None:
            said["health"] = self.answer.told
        return said


def moment(wall_seconds: float) -> str:
    """A time of day as RFC 3339."""
    return datetime.fromtimestamp(wall_seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


class Watch:
    """Looks at the gateway of one data directory, from any thread."""

    def __init__(self, places: Places, wedged_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._places = places
        self._wedged_seconds = wedged_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._owner: ProcessId | None = None
        self._owned_since = 0.0
        self._unanswered_since: float | None = None
        self._host = ""
        self._last = Verdict(State.NOT_RUNNING, "no gateway has been looked for yet")
        self._begun = self._judged = 0
        self.looked_at = 0.0
        """When the last look ended, by the wall; 0 before the first."""

    def last(self) -> Verdict:
        """What was found last."""
        return self._last

    def look(self) -> Verdict:
        """Find out how the gateway is, now. Takes twice as long as an answer may take, at most: many who ask at once
        share one look, so that those who ask of a front that is deaf do not keep the main thread waiting."""
        begun = self._begun
        with self._lock:
            if self._judged > begun:
                return self._last  # of a look that began after this question
            self._begun += 1
            verdict = self._judge(owner_of(self._places))
            before = self._last
            if (verdict.state, verdict.half, verdict.process) == (before.state, before.half, before.process):
                verdict = replace(verdict, since=before.since)
            self._last, self._judged, self.looked_at = verdict, self._begun, time.time()
        return verdict

    def _judge(self, owner: Owner | None) -> Verdict:
        if owner is None:
            return Verdict(State.NOT_RUNNING, f"nobody owns the data directory {self._places.data}")
        self._note(owner)
        beat = read_beat(self._places.heartbeat, self._clock)
        beat = beat if beat is not None and beat.process == owner.process else None
        standing = owner.process is not None and state_of(owner.process) == "T"
        stopped = "; it was stopped by a signal (state T)" if standing else ""
        if beat is None or (beat.seq == 0 and beat.phase == "starting"):
            return self._starting(owner, beat, stopped)
        if beat.age_seconds is not None and beat.age_seconds >= self._wedged_seconds:
            why = f"{owner} lives, but its scheduler has not beaten for {beat.age_seconds:.0f} s{stopped}"
            return Verdict(State.WEDGED, why, owner, beat, "scheduler", None, beat.age_seconds, _ago(beat.age_seconds))
        if standing:
            return Verdict(State.SERVING, f"{owner} does not answer just now{stopped}", owner, beat)
        return self._front(owner, beat)

    def _starting(self, owner: Owner, beat: Beat | None, stopped: str) -> Verdict:
        """It has not beaten yet. One that answers all the same is of a version that does not, and is judged by that."""
        age = self._clock() - self._owned_since
        if owner.port and beat is None and not stopped:
            return self._front(owner, None)
        if stopped or age >= START_SECONDS:
            why = f"{owner} has been starting for {age:.0f} s without a first beat of its scheduler{stopped}"
            return Verdict(State.WEDGED, why, owner, beat, "scheduler", None, age, _ago(age))
        return Verdict(State.STARTING, f"{owner} is starting", owner, beat)

    def _front(self, owner: Owner, beat: Beat | None) -> Verdict:
        port = owner.port or (beat.port if beat else 0)
        if not port:
            return Verdict(State.STARTING, f"{owner} does not listen yet", owner, beat)
        try:
            self._host = self._host or host_of(port)
            answer = _health(self._host, port, min(ANSWER_SECONDS, self._wedged_seconds))
        except NoAnswer as error:
            now, self._host = self._clock(), ""
            self._unanswered_since = now if self._unanswered_since is None else self._unanswered_since
            silent = now - self._unanswered_since
            if beat is not None and beat.phase == "draining":
                return Verdict(State.SERVING, f"{owner} is draining and takes nobody new", owner, beat)
            if silent < self._wedged_seconds:
                return Verdict(State.SERVING, f"{owner} does not answer just now on port {port}: {error}", owner, beat)
            why = f"{owner} has not answered on port {port} for {silent:.0f} s ({error}), though its scheduler beats"
            return Verdict(State.WEDGED, why, owner, beat, "front", None, silent, _ago(silent))
        self._unanswered_since = None
        return Verdict(State.SERVING, f"{owner} answers on port {port}", owner, beat, "", answer)

    def _note(self, owner: Owner) -> None:
        """A new owner begins anew."""
        if self._owner is None or owner.process != self._owner:
            self._owner, self._owned_since, self._unanswered_since = owner.process, self._clock(), None
            self._host = ""


def _health(host: str, port: int, seconds: float) -> Answer:
    """Raises NoAnswer, also for one that says that nothing works there."""
    answer = ask(host, port, "GET", "/health", seconds)
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise NoAnswer(f"its answer is an error, {answer.status}")
    return answer


def owner_of(places: Places) -> Owner | None:
    """Who owns the data directory, None for nobody. The lock says whether, its file and /proc say who. A command that
    only looks around there, as `check`, is no gateway: a start waits for it by itself."""
    if not _is_locked(places.lock):
        return None if os.path.lexists(places.lock) else _owner_of_removed(places.lock)
    said = files.read_object(places.lock)
    pid, port = _number(said.get("pid")), _number(said.get("port"))
    for candidate in chain((pid,), pids()):
        if candidate > 1 and is_ours(candidate) and lock_held_by(candidate, places.lock):
            if candidate == pid and said.get("briefly") is True:
                return None
            process = identify(candidate)
            return Owner(process, port if candidate == pid else 0)
    return Owner(None, port)


def _owner_of_removed(path: Path) -> Owner | None:
    """Who holds the lock of a file that somebody has removed, maybe with the whole data directory: it serves on."""
    for pid in pids():
        if is_ours(pid) and (held := lock_held_by(pid, path)) and (process := identify(pid)):
            return Owner(process, _number(files.read_object(held, follow=True).get("port")))
    return None


def read_beat(path: Path, clock: Callable[[], float]) -> Beat | None:
    """The last heartbeat, None for a file that is missing, damaged or no heartbeat."""
    said = files.read_object(path)
    process = ProcessId.read(said)
    if process is None:
        return None
    return Beat(
        process,
        _number(said.get("seq")),
        str(said.get("phase", ""))[:20],
        _number(said.get("port")),
        _number(said.get("in_flight")),
        _age(said, clock),
    )


def _age(said: dict[str, Any], clock: Callable[[], float]) -> float | None:
    """By the clock that nobody sets and that stands while the machine sleeps; by the wall where that is not given."""
    for key, now in (("monotonic", clock()), ("wall", time.time())):
        value = said.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**40:
            return round(max(0.0, now - value), 1)
    return None


def _is_locked(path: Path) -> bool:
    """Whether somebody owns the lock: we try to share it for a moment, and give it back."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _number(value: object) -> int:
    """A whole number that is none of the strange ones; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53 else 0


def _ago(seconds: float) -> float:
    return time.time() - seconds
