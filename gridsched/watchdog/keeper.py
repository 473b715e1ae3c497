"""The main thread's loop: looks at the gateway, learns which configuration is good, and with `--run` is its parent.

Owns every start of a gateway and every end of one; tools ask, and wait for what came of it. Must never start one beside
another that owns the data directory, and never end a process that it cannot prove to be the gateway.

    exit 0     it was told to end: so do we           2          the last good configuration, or wait for another one
    exit 75    again, at once                         3          wait until somebody changes something, or asks
    a crash    again, after 1 s, 2 s … 60 s           4          the same, when nobody owns the data directory
                                                      wedged     ended and started again, three times in ten minutes
"""

import os
import select
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gridsched.watchdog.configuration import CONFIGURATION, Configuration, Refused
from gridsched.watchdog.learner import Learner
from gridsched.watchdog.places import Places
from gridsched.watchdog.processes import (
    REAP_SECONDS,
    ProcessId,
    end,
    environment_of,
    folder_of,
    send,
    wait_gone,
    words_of,
)
from gridsched.watchdog.starting import CannotStart, Launch, Started, Starter
from gridsched.watchdog.tally import Tally
from gridsched.watchdog.units import Units
from gridsched.watchdog.watch import START_SECONDS, State, Verdict, Watch, moment

RESTART = 75
STAYS_DOWN = frozenset((CONFIGURATION, 3))
IN_USE = 4
ENOUGH_SIGNALS = 2
"""The first drains, the second is the gateway's to heed; whoever sends a third has a gateway that heeds none."""

STORY_LINES = 50
FAILED = "the restart itself has failed; what the watchdog printed has the details"


@dataclass(frozen=True, slots=True)
class Limits:
    """How patient the keeper is. Seconds."""

    wedged_seconds: float = 30.0
    turn_seconds: float = 1.0
    healthy_seconds: float = 60.0
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 60.0
    kill_seconds: float = 10.0
    drain_seconds: float = 75.0
    settle_seconds: float = 30.0
    start_seconds: float = START_SECONDS
    wedged_looks: int = 5
    front_patience: float = 4.0
    restarts: int = 3
    restarts_within_seconds: float = 600.0


@dataclass(slots=True)
class Request:
    """Somebody wants the gateway restarted; all who ask meanwhile wait for the same."""

    why: str
    drain_seconds: float
    done: threading.Event = field(default_factory=threading.Event)
    outcome: dict[str, Any] = field(default_factory=lambda: {"restarted": False, "why": FAILED})


class Keeper:
    """Keeps one gateway. Everything but `ask_restart`, `told`, `is_held` and `stop` is for the main thread."""

    def __init__(
        self,
        places: Places,
        configuration: Configuration,
        watch: Watch,
        *,
        launch: Launch,
        runs: bool,
        say: Callable[[str], None],
        units: Units,
        limits: Limits = Limits(),
    ) -> None:
        self._places = places
        self._configuration = configuration
        self._watch = watch
        self._launch = launch
        self._runs = runs
        self._say_aloud = say
        self._limits = limits
        self._units = units
        self._starter = Starter(places.gateway_log, say if runs else lambda text: None)  # noqa: ARG005 - not ours
        self._child: Started | None = None
        self._story: deque[tuple[float, str]] = deque(maxlen=STORY_LINES)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._request: Request | None = None
        self._signals = 0
        self._next_start = 0.0
        self._pause = limits.first_pause_seconds
        self._held: tuple[int, str] | None = None
        self._tried = ""  # the configuration that the last start was to read
        self._rolled_back: dict[str, Any] | None = None
        self._learner = Learner(configuration, limits.healthy_seconds)
        self._wedged_looks = 0
        self._unwedged: deque[float] = deque(maxlen=limits.restarts)
        self._last_exit: dict[str, Any] | None = None
        self._standing_by = False
        self._last_failure = ""
        self.tally = Tally()

    # --- for every thread ---------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End, and with `--run` the gateway too: it drains. A second time: it is told to end at once; a third: it is
        killed. Safe in a signal handler."""
        self._signals += 1
        os.eventfd_write(self._wake, 1)

    def ask_restart(self, why: str, drain_seconds: float) -> dict[str, Any]:
        """Have the gateway ended and started again; waits for the outcome. Who asks meanwhile gets the same one."""
        with self._lock:
            joined = self._request is not None
            request = self._request = self._request or Request(why, drain_seconds)
        os.eventfd_write(self._wake, 1)
        longest = request.drain_seconds + self._limits.kill_seconds + self._limits.settle_seconds + 120.0
        if not request.done.wait(longest):
            return {"restarted": False, "why": f"the restart is still under way after {longest:.0f} s"}
        return request.outcome | {"joined_another_request": joined}

    def told(self) -> dict[str, Any]:
        """What the keeper does and has done, as JSON."""
        held, child = self._held, self._child
        return {
            "runs_the_gateway": self._runs,
            "waits": f"the gateway ended with {held[0]}: waiting until its configuration changes, or for restart_server"
            if held
            else None,
            "child": child.id.pid if child is not None else None,
            "last_exit": self._last_exit,
            "story": [f"{moment(when)} {what}" for when, what in self._story.copy()],
        }

    @property
    def is_held(self) -> bool:
        """Whether the gateway is down, and stays so until its configuration changes or somebody asks."""
        return self._held is not None

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Until it is told to stop, or the gateway ends of its own will. The exit code."""
        while True:
            code = self._safe_turn()
            if self._signals:
                self._shut_down()
                return 0
            if code is not None:
                return code
            self._sleep(self._limits.turn_seconds)

    def _safe_turn(self) -> int | None:
        """Whatever a turn meets that nobody has thought of: it is said, and the next one is tried."""
        try:
            return self.turn()
        except Exception as error:  # noqa: BLE001 - who repairs must not be what breaks: our end would be the gateway's
            if repr(error) != self._last_failure:  # the same one is said once, not once a second for a night
                self._last_failure = repr(error)
                traceback.print_exc()
                self._say(f"a turn has failed: {error!r}")
            return None

    def turn(self) -> int | None:
        """Look once, and do what is due. An exit code where the gateway has ended of its own will."""
        self._starter.keep_up()
        if self._child is not None and (code := self._child.exit_code()) is not None and self._ended(code):
            return code
        verdict = self._watch.look()
        self._learn(verdict)
        if (request := self._request) is not None:
            self._serve(request, verdict)
        elif self._runs:
            self._unhang(verdict)
            self._unwedge(verdict)
            self._start_if_due(verdict)
        return None

    def _sleep(self, seconds: float) -> None:
        """Until somebody asks, the gateway ends, or the time is over."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._child is not None:
            poll.register(self._child.handle, select.POLLIN)
        poll.poll(self._pause_before_next(seconds) * 1000)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _pause_before_next(self, seconds: float) -> float:
        """So long, or less where a start is due before. One that is overdue waits for something else: a gateway that is
        not ours to end, which must not be asked how it is without a pause."""
        due = self._next_start - time.monotonic()
        return min(seconds, due) if self._runs and self._child is None and self._held is None and due > 0 else seconds

    def _say(self, sentence: str) -> None:
        self._story.append((time.time(), sentence))
        self._say_aloud(f"watchdog: {sentence}")

    # --- starting -----------------------------------------------------------------------------------------------------

    def _start_if_due(self, verdict: Verdict) -> None:
        if self._child is not None:
            return
        if verdict.owner is not None:
            if not self._standing_by:
                self._say(
                    f"{verdict.owner} owns the data directory already: watching it, a start of ours waits for its end"
                )
            self._standing_by = True
            return
        self._standing_by = False
        if self._held is not None and self._configuration.fingerprint() != self._held[1]:
            self._say("the configuration has changed: trying again")
            self._held, self._rolled_back = None, None
        if self._held is None and time.monotonic() >= self._next_start:
            self._start(self._launch)

    def _start(self, launch: Launch) -> str:
        """As our child with `--run`, else on its own; why that has failed, empty when it has not."""
        self._held, self._tried = None, self._configuration.fingerprint()
        self._learner.starts(self._tried)
        try:
            self._child = self._starter.start(launch, bound=self._runs)
        except CannotStart as error:
            self._say(str(error))
            self._later()
            return str(error)
        self._say(f"started the gateway, process {self._child.id.pid}")
        self.tally.started()
        return ""

    def _later(self) -> None:
        self._next_start = time.monotonic() + self._pause
        self._pause = min(self._limits.longest_pause_seconds, 2 * self._pause)

    # --- what came of it ----------------------------------------------------------------------------------------------

    def _ended(self, code: int) -> bool:
        """The child has ended, and nobody here has asked it to. Whether we are to end too."""
        hung = self._child is not None and self._child.was_killed
        process = self._forget()
        words = self._starter.last_words()
        self._last_exit = {"pid": process.pid, "code": code, "time": moment(time.time()), "last_words": words}
        if not self._runs:
            self._say(f"the gateway (process {process.pid}) has ended: {_how(code)}")
            return False
        if code == 0:
            self._say("the gateway has ended as it was told to: so does its watchdog")
            return True
        if code == RESTART:
            self._say("the gateway asks to be started again")
            self._next_start, self.tally.reason = 0.0, "asked"
        elif code in STAYS_DOWN:
            self._stay_down(code)
        elif code == IN_USE:
            self._say("the data directory was in use: started again when it is free")
            self.tally.reason = "in_use"
            self._later()
        else:
            self._say(f"the gateway has ended: {_how(code)}; started again in {self._pause:g} s")
            self.tally.reason = "hung" if hung else "crashed"
            self._later()
        return False

    def _stay_down(self, code: int) -> None:
        self.tally.reason = "configuration"
        if self._configuration.fingerprint() != self._tried:
            self._say(f"the gateway has ended: {_how(code)}; its configuration has changed meanwhile: trying again")
            self._next_start, self._rolled_back = 0.0, None
            return
        if code == CONFIGURATION and self._roll_back():
            self._next_start = 0.0
            return
        self._held = (code, self._configuration.fingerprint())
        self._say(f"the gateway has ended: {_how(code)}; started again when its configuration changes, or on request")

    def _roll_back(self) -> bool:
        """The configuration was changed since it last ran well, and it does not start: put the last good one back. If
        that does not start either, it was not the configuration: the person's file is put back, and stays."""
        if (before := self._rolled_back) is not None:
            self._rolled_back = None
            try:
                undone = self._configuration.put_back(before)
            except OSError as error:
                self._say(f"the last good configuration does not start either, and stays: {error.strerror}")
                return False
            if undone:
                self._say(f"the last good configuration does not start either: {before['path']} is as before again")
                return False
        if self._configuration.is_good(self._configuration.fingerprint()):
            return False
        try:
            self._rolled_back = told = self._configuration.roll_back(".broken")
        except Refused:
            return False
        self.tally.rollbacks += 1
        self._say(
            f"THE CONFIGURATION {told['path']} DOES NOT START AND WAS ROLLED BACK to the one of {told['good_since']}; "
            f"the broken one is kept as {told['kept']}. What is wrong with it:\n{self._starter.last_words()}"
        )
        return True

    def _forget(self) -> ProcessId:
        """The child is over."""
        if self._child is None:
            raise AssertionError("no child")
        process = self._child.id
        self._child.close()
        self._child = None
        self._starter.keep_up()
        return process

    def _learn(self, verdict: Verdict) -> None:
        """What has run well for a while is good, and whatever was wrong before is over."""
        settled, sentence = self._learner.saw(verdict)
        if settled:
            self._pause, self._rolled_back = self._limits.first_pause_seconds, None
        if sentence:
            self._say(sentence)

    # --- ending and restarting ----------------------------------------------------------------------------------------

    def _unwedge(self, verdict: Verdict) -> None:
        """Restart what stands: seen several times in a row, so that it is no machine that has just woken up."""
        patience = self._limits.wedged_seconds * self._limits.front_patience if verdict.half == "front" else 0.0
        is_enough = verdict.state is State.WEDGED and verdict.standing_seconds >= patience
        self._wedged_looks = self._wedged_looks + 1 if is_enough else 0
        if self._wedged_looks < self._limits.wedged_looks:
            return
        now = time.monotonic()
        if (
            len(self._unwedged) == self._limits.restarts
            and now - self._unwedged[0] < self._limits.restarts_within_seconds
        ):
            if self._wedged_looks == self._limits.wedged_looks:
                self._say(f"{verdict.sentence}; not restarted again: it was {self._limits.restarts} times just now")
            return
        self._unwedged.append(now)
        self._wedged_looks = 0
        self._say(f"THE GATEWAY IS WEDGED and is restarted: {verdict.sentence}")
        outcome = self._restart(verdict, 0.0, "wedged")
        if not outcome["restarted"]:
            self._say(f"it is not restarted: {outcome['why']}")

    def _unhang(self, verdict: Verdict) -> None:
        """A child that does not even come to take the data directory hangs at its imports: killed, and tried again."""
        if self._child is None:
            return
        if verdict.owner is not None:
            self._child.has_owned = (
                True  # from then on it is the heartbeat that tells; at its end it owns nothing again
            )
        seconds = time.monotonic() - self._child.began
        if not self._child.has_owned and seconds >= self._limits.start_seconds:
            self._say(f"the gateway has not taken its data directory within {seconds:.0f} s of its start: killed")
            send(self._child.id, signal.SIGKILL)
            self._child.was_killed = True
            self._child.began = time.monotonic()  # one that the kernel holds is told of again as late, not every second

    def _serve(self, request: Request, verdict: Verdict) -> None:
        try:
            self._say(f"restart: {request.why}")
            request.outcome = self._restart(verdict, request.drain_seconds, "asked")
        finally:
            with self._lock:
                self._request = None
            request.done.set()

    def _restart(self, verdict: Verdict, drain_seconds: float, reason: str) -> dict[str, Any]:
        """End whoever owns the data directory, and start the gateway the way it was started."""
        owner = verdict.process
        if verdict.owner is not None and owner is None:
            return {"restarted": False, "why": f"{verdict.sentence}: nobody is signalled who cannot be proven"}
        child = self._child.id if self._child is not None else None
        unit = "" if child is not None and owner in (None, child) else self._units.unit_of(owner.pid if owner else 0)
        launch = self._launch if self._runs or owner is None else _as_it_was(owner) or self._launch
        victims = [process for process in {owner, child} if process is not None]
        ended = self._end(victims, drain_seconds if verdict.state is not State.WEDGED else 0.0)
        if any(each["still_alive"] for each in ended):
            return {
                "restarted": False,
                "ended": ended,
                "why": "it could not be ended: the kernel holds it, or forbids it",
            }
        self._next_start, self._pause, self._rolled_back = 0.0, self._limits.first_pause_seconds, None
        if self._signals and self._runs:  # else it was only borrowed, and is given back
            return {"restarted": False, "ended": ended, "why": "the watchdog was told to stop"}
        self.tally.reason = reason if victims or unit or self.tally.reason else ""
        problem = self._units.restart(unit) if unit else self._start(launch)
        if problem:
            return {"restarted": False, "ended": ended, "why": problem}
        self.tally.started()
        return self._settle() | {"ended": ended, "by": f"systemd unit {unit}" if unit else "the watchdog"}

    def _end(self, processes: Sequence[ProcessId], drain_seconds: float) -> list[dict[str, Any]]:
        """SIGTERM, which drains; SIGKILL after the time for that and the grace. Who they were, and how they ended."""
        left = end(processes, drain_seconds + self._limits.kill_seconds, lambda: self._signals > 1)
        told: dict[ProcessId, dict[str, Any]] = {
            process: {"pid": process.pid, "still_alive": process in left} for process in processes
        }
        if self._child is not None and self._child.id in told and (code := self._child.exit_code()) is not None:
            told[self._child.id]["how"] = _how(code)
            self._forget()
        return [*told.values()]

    def _settle(self) -> dict[str, Any]:
        """Wait until it serves, or has ended, or for long enough."""
        deadline = time.monotonic() + self._limits.settle_seconds
        while True:
            verdict = self._watch.look()
            self._learn(verdict)
            code = self._child.exit_code() if self._child is not None else None
            if code is not None:
                return {
                    "restarted": False,
                    "why": f"it has ended: {_how(code)}",
                    "last_words": self._starter.last_words(),
                }
            if verdict.healthy:
                return {"restarted": True, "gateway": verdict.told()}
            if time.monotonic() >= deadline or self._signals:
                return {"restarted": True, "note": "it is not serving yet", "gateway": verdict.told()}
            self._sleep(min(0.1, self._limits.turn_seconds))

    def _shut_down(self) -> None:
        """With `--run` the gateway drains, and ends at once when we are told a second time."""
        if not self._runs or self._child is None:
            return
        self._say("told to stop: the gateway drains")
        process = self._child.id
        sent, deadline = 0, time.monotonic() + self._limits.drain_seconds
        while self._child.exit_code() is None and time.monotonic() < deadline and self._signals <= ENOUGH_SIGNALS:
            while sent < self._signals:
                sent += 1
                send(process, signal.SIGTERM)
                send(process, signal.SIGCONT)
            self._sleep(1.0)
            self._starter.keep_up()
        if self._child.exit_code() is None:
            self._say("the gateway does not end: killed")
            send(process, signal.SIGKILL)
            wait_gone([process], REAP_SECONDS)
        has_ended = self._child.exit_code() is not None
        self._forget()
        self._say(
            "the gateway has ended" if has_ended else f"the gateway (process {process.pid}) is left: it cannot be ended"
        )


def _how(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def _as_it_was(process: ProcessId) -> Launch | None:
    """How a gateway that somebody else has started was started; None where that cannot be read."""
    argv: Sequence[str] = words_of(process.pid, "cmdline")
    folder = folder_of(process.pid)
    return Launch(argv, environment_of(process.pid), folder) if argv and folder else None
