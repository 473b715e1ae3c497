"""One process from its spawn to its end: made ready, told to stop, reaped, and what it died of.

Owns its phase, and every move between phases. What a process does is never an exception here; it is a `Failure` with a
cause. Must never choose what to start or where: it is given the process, and the questions.
"""

import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from gridsched.core.events import Failure, FailureCause
from gridsched.core.model import DeviceFootprint
from gridsched.core.transitions import moved
from gridsched.engine.address import Address, Port
from gridsched.engine.causes import cannot_listen, cause_in, failure_of, meaningful, of_the_program
from gridsched.engine.child import Child
from gridsched.engine.oomkills import OomKills
from gridsched.engine.phases import PHASE_MOVES, Phase, PhaseMove
from gridsched.engine.ready import NotReady, PortTaken

Answers = tuple[DeviceFootprint, ...]
Questions = Callable[[Child], Awaitable[Answers | Failure]]
"""All that a process is asked before it is ready: what it says of its memory, or why it is not what was planned. Raises
NotReady."""

MINUTE_SECONDS = 60.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Patience:
    """How long a process may take to be ready, and to end when it is told to. Shared by all: what it says when one
    begins to be waited for holds."""

    startup_seconds: float
    grace_seconds: float


class Life:
    """One process, and whether it was told to end. `failure` is known when it is over, None for one that obeyed."""

    def __init__(self, patience: Patience, kills: OomKills) -> None:
        self.child: Child | None = None
        self.address: Address | None = None
        self.failure: Failure | None = None
        self.tail: tuple[str, ...] = ()
        self._phase = Phase.STARTING
        self._patience = patience
        self._kills = kills
        self._end_asked = trio.Event()
        self._asking = trio.CancelScope()
        self._problem: NotReady | None = None
        self._cancelled = self._killed = False
        self._ready_at: float | None = None

    @property
    def phase(self) -> Phase:
        """Where it is."""
        return self._phase

    def tell(self, *, at_once: bool = False) -> None:
        """Have it end, `at_once` by a kill: a start that is under way is asked nothing more (B15)."""
        self._move(PhaseMove.TELL)
        if at_once and self.child is not None and not self.child.exited:
            self._killed = True
            self.child.signal(signal.SIGKILL)
        self._end_asked.set()
        self._asking.cancel()

    def refuse(self, failure: Failure) -> None:
        """It is not even started, or cannot be."""
        self.failure = failure
        self._move(PhaseMove.FAIL)

    def obey(self) -> None:
        """It was told to stop before it was there."""
        self._move(PhaseMove.TELL)
        self._move(PhaseMove.OBEY)

    async def serve(
        self, child: Child, address: Address, questions: Questions, announce: Callable[[Answers], None], *, more: bool
    ) -> None:
        """Until the process is reaped; cancelled, it is ended first. Afterwards the life is over, or back in STARTING:
        somebody else has the port, and `more` may be tried."""
        self.child, self.address = child, address
        killed_before = self._kills.count()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._make_ready, child, questions, announce)
                nursery.start_soon(self._see_to_its_end, child)
                await child.wait()
                nursery.cancel_scope.cancel()
        finally:
            if not child.exited:
                self._cancelled = True
                self._move(PhaseMove.TELL)
            moment = self._moment()
            returncode = of_the_program(await child.end(self._patience.grace_seconds))
            if not child.exited:
                _log.warning("the engine's process %d has not ended although it was killed: it is left", child.pid)
            self.tail = child.tail()
            if more and self._has_lost_its_port():
                self._begin_again()
            else:
                self._conclude(returncode, moment, killed_before)

    async def _make_ready(self, child: Child, questions: Questions, announce: Callable[[Answers], None]) -> None:
        """Announce that it is ready, or note why it is not and have it ended. One that was told to stop meanwhile has
        not failed, and is not ready."""
        with self._asking:
            answered = await self._ask(child, questions)
            if self._phase is not Phase.STARTING:
                return
            if isinstance(answered, Failure):
                self.failure = answered
                self._move(PhaseMove.GIVE_UP)
                self._end_asked.set()
            else:
                self._move(PhaseMove.ANSWER)
                self._ready_at = trio.current_time()
                announce(answered)

    async def _ask(self, child: Child, questions: Questions) -> Answers | Failure:
        seconds = self._patience.startup_seconds
        try:
            with trio.fail_after(seconds):
                return await questions(child)
        except trio.TooSlowError:
            limit = f"the engine was not ready after {seconds:g} s (engine.startup_timeout)"
            return Failure(FailureCause.START_TIMEOUT, limit)
        except NotReady as problem:
            self._problem = problem
            cause = problem.cause or cause_in(child.tail()) or FailureCause.CRASHED
            return Failure(cause, f"the engine did not become ready: {problem.message}")

    async def _see_to_its_end(self, child: Child) -> None:
        await self._end_asked.wait()
        child.terminate()
        seconds = self._patience.grace_seconds
        await trio.sleep(seconds)
        _log.warning(
            "the engine's process %d has not ended %g s after it was told to: it is killed", child.pid, seconds
        )
        self._killed = True
        child.signal(signal.SIGKILL)

    # --- its end ----------------------------------------------------------------------------------------------------

    def _has_lost_its_port(self) -> bool:
        """Whether another program has the port, and nobody has told this one to stop."""
        if not isinstance(self.address, Port):
            return False
        if self._phase is Phase.FAILING:
            return isinstance(self._problem, PortTaken)
        return self._phase is Phase.STARTING and cannot_listen(self.tail)

    def _begin_again(self) -> None:
        self.failure = self.child = self.address = self._problem = None
        self._end_asked, self._asking, self._killed = trio.Event(), trio.CancelScope(), False
        self._move(PhaseMove.TRY_AGAIN)

    def _conclude(self, returncode: int, moment: str, killed_before: int | None) -> None:
        if self.failure is not None:
            self.failure = Failure(self.failure.cause, self.failure.message, meaningful(self.tail))
        elif self._phase is Phase.STOPPING and (self._cancelled or self._obeyed(returncode)):
            self._move(PhaseMove.OBEY)
            return
        else:
            taken = self._kills.took_one(killed_before) if returncode == -signal.SIGKILL else None
            self.failure = failure_of(returncode, self.tail, moment, oom_killed=taken)
        self._move(PhaseMove.FAIL)

    def _obeyed(self, returncode: int) -> bool:
        """Whether it ended because it was told to. One that dies in mid-request is often told to stop before its end is
        seen, because its connections break first: how it ended says which came first."""
        return returncode in {0, -signal.SIGTERM} or (self._killed and returncode == -signal.SIGKILL)

    def _moment(self) -> str:
        if self._ready_at is None:
            return "while it loaded"
        seconds = trio.current_time() - self._ready_at
        served = f"{seconds:.0f} s" if seconds < 2 * MINUTE_SECONDS else f"{seconds / MINUTE_SECONDS:.0f} min"
        return f"after {served} of service"

    def _move(self, move: PhaseMove) -> None:
        self._phase = moved(PHASE_MOVES, self._phase, move)
