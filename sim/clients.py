"""Clients and their seats at the desk: who asks, leaves, takes a grant, is answered, cut off or sent away.

Owns the jobs of a run. A seat posts exactly one closing event, whatever crosses it. It knows processes as places where
a piece of work takes its time.
"""

from dataclasses import dataclass
from functools import partial

from gridsched.core.commands import Grant
from gridsched.core.events import (
    AnswerBegan,
    GrantReturned,
    JobAbandoned,
    JobEnded,
    JobSubmitted,
    SlotSettled,
    StepEnded,
)
from gridsched.core.ids import GrantId, JobId
from gridsched.core.job import Job, JobKind, Outcome, OutcomeKind
from sim.faults import STALL_LIMIT_SECONDS, FaultPlan
from sim.moments import Moments
from sim.processes import Process, Processes
from sim.workload import Client, Scenario, chance, generator

OK = 200
DONE = Outcome(OutcomeKind.DONE, status=OK)
GONE = Outcome(OutcomeKind.CLIENT_GONE, status=499, answered=False)
ABORTED = Outcome(OutcomeKind.ABORTED, answered=False)
CROWDING = 0.2  # each step beside another takes so much longer
CONNECTIONS = 5  # requests after which an engine that cuts closes the next connection
TAKE_SECONDS = 0.001  # at most, until a handler takes its grant
SETTLE_SECONDS = 1.0  # at most, until an engine notices a closed connection
HEAD_SHARE = 0.5  # at most, of a step, until the first byte of its answer


@dataclass(slots=True, eq=False)
class Seat:
    """One job at the desk. `left` is final; `grant` is the one that was delivered and not yet finished."""

    job: Job
    client: Client
    left: bool = False
    grant: Grant | None = None
    taken: bool = False
    answered: bool = False


class Clients:
    """All clients of a run. `seats` are those whose job is not over; `open` ends with the run's last arrival."""

    def __init__(self, scenario: Scenario, moments: Moments, processes: Processes, faults: FaultPlan) -> None:
        self.scenario = scenario
        self.moments = moments
        self.processes = processes
        self.faults = faults
        self.seats: dict[JobId, Seat] = {}
        self.open = True
        self._jobs = 0
        self._granted: dict[GrantId, Seat] = {}
        self._lag = generator(scenario.seed, "desk")
        self._rngs = {client.name: generator(scenario.seed, "client", client.name) for client in scenario.clients}
        self._tells_answers = scenario.policy.abort_after_seconds is not None

    def arrive(self) -> None:
        """They come within five seconds."""
        for client in self.scenario.clients:
            self.moments.later(self._rngs[client.name].uniform(0, 5), partial(self._ask, client))

    # --- asking and leaving -------------------------------------------------------------------------------------------

    def _ask(self, client: Client) -> None:
        """A client asks; what becomes of the job decides when it asks again."""
        if not self.open:
            return
        self._jobs += 1
        low, high = client.steps
        job = Job(
            JobId(self._jobs),
            client.model,
            client.job_class,
            client.kind,
            low if low == high else self._rngs[client.name].randint(low, high),
            client.max_wait_seconds,
            client.warm_only,
            client.no_evict,
            client.key,
            client.ttl_seconds,
            client.quality,
            client.media,
            client.queue_share,
        )
        seat = self.seats[job.id] = Seat(job, client)
        self.moments.post(JobSubmitted(job))
        patience = self.faults.leaves_after()
        if patience is not None:
            self.moments.later(patience, partial(self._leave, seat))

    def close(self, job_id: JobId) -> None:
        """The job is over for the desk; its client thinks and asks again."""
        seat = self.seats.pop(job_id, None)
        if seat is None:
            return
        seat.left = True
        if seat.grant is not None:
            self._granted.pop(seat.grant.id, None)
        think = self._rngs[seat.client.name].uniform(*seat.client.think_seconds)
        self.moments.later(max(think, 0.001), partial(self._ask, seat.client))

    def _leave(self, seat: Seat) -> None:
        """The client goes away, in whatever state its ticket is."""
        if seat.left:
            return
        grant, taken = seat.grant, seat.taken
        self.close(seat.job.id)
        if grant is None:
            self.moments.post(JobAbandoned(seat.job.id))
        elif not taken:
            self.moments.post(GrantReturned(grant.id))
        else:
            self.moments.post(JobEnded(grant.id, GONE, settled=False))
            self._settle_later(grant)

    def _settle_later(self, grant: Grant) -> None:
        """The engine notices the closed connection after a while, unless it hangs or ends first."""
        process = self.processes.alive.get(grant.instance_id)
        if process is None:
            return

        def settle() -> None:
            if process.state == "ready" and not process.hangs and process.running.pop(grant.id, None) is not None:
                self.moments.post(SlotSettled(grant.id))

        self.processes.work(process, self._lag.uniform(0.01, SETTLE_SECONDS), settle)

    # --- grants -------------------------------------------------------------------------------------------------------

    def deliver(self, grant: Grant) -> None:
        """A ticket is answered; the handler takes its grant a moment later."""
        seat = self.seats.get(grant.job_id)
        if seat is None:
            return
        if self.faults.left_before_grant():
            self.close(seat.job.id)
            self.moments.post(JobAbandoned(seat.job.id))
            return
        seat.grant, seat.taken, seat.answered = grant, False, False
        self._granted[grant.id] = seat
        if self.faults.leaves_on_grant():
            self.moments.later(0.0, partial(self._leave, seat))
        self.moments.later(self._lag.random() * TAKE_SECONDS, partial(self._take, seat, grant))

    def _take(self, seat: Seat, grant: Grant) -> None:
        if seat.left or seat.grant is not grant:
            return
        seat.taken = True
        process = self.processes.alive.get(grant.instance_id)
        if process is None or process.state != "ready":
            self.moments.later(0.001, partial(self._fail, seat, grant, OutcomeKind.ENGINE_DIED))
            return
        process.running[grant.id] = partial(self._fail, seat, grant, OutcomeKind.ENGINE_DIED)
        process.served += 1
        if self.faults.stalls():
            process.hangs = True
        process.faulty = process.faulty or self.faults.device_fails()
        seconds = self._rngs[seat.client.name].uniform(*seat.client.step_seconds)
        seconds *= 1 + CROWDING * (len(process.running) - 1)
        if process.hangs:
            self._stall_later(process, seat, grant)
        elif process.served % CONNECTIONS == 0 and self.faults.cuts():
            self.processes.work(process, seconds / 2, partial(self._cut, process, seat, grant))
        else:
            self.processes.work(process, seconds, partial(self._finish, process, seat, grant))
            if self._tells_answers and seat.client.job_class.is_low and chance(self._lag, 0.5):
                head = seconds * self._lag.uniform(0.05, HEAD_SHARE)
                self.processes.work(process, head, partial(self._begin_to_answer, seat, grant))

    def _stall_later(self, process: Process, seat: Seat, grant: Grant) -> None:
        stalled = partial(self._fail, seat, grant, OutcomeKind.STALLED)
        self.processes.work(process, STALL_LIMIT_SECONDS, stalled)

    def _begin_to_answer(self, seat: Seat, grant: Grant) -> None:
        """A byte of an answer goes to the client: the step can no longer be taken away (S11)."""
        if not seat.left and seat.grant is grant:
            seat.answered = True
            self.moments.post(AnswerBegan(grant.id))

    def abort(self, grant_id: GrantId) -> None:
        """S11: the handler gives a step up when it notices, unless an end or an answer has crossed that."""
        seat = self._granted.get(grant_id)
        if seat is not None and seat.grant is not None:
            self.moments.later(self._lag.random() * 2 * TAKE_SECONDS, partial(self._give_up, seat, seat.grant))

    def _give_up(self, seat: Seat, grant: Grant) -> None:
        if seat.left or seat.grant is not grant or seat.answered:
            return
        if not seat.taken:  # it is taken first, to be given up then
            self.moments.later(TAKE_SECONDS, partial(self._give_up, seat, grant))
            return
        self._let_go(seat, grant)
        self.moments.post(StepEnded(grant.id, ABORTED, settled=False))
        self._settle_later(grant)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _finish(self, process: Process, seat: Seat, grant: Grant) -> None:
        """A step comes to its end, if its process still sends."""
        if seat.left or seat.grant is not grant:
            return
        if process.hangs:
            self._stall_later(process, seat, grant)
            return
        process.running.pop(grant.id, None)
        if process.faulty:
            self._fail(seat, grant, OutcomeKind.DEVICE_FAULT, answered=False)
            return
        status = self.faults.status()
        outcome = DONE if status == OK else Outcome(OutcomeKind.DONE, status=status)
        self._end(seat, grant, outcome, over=grant.step == grant.steps or status != OK)

    def _cut(self, process: Process, seat: Seat, grant: Grant) -> None:
        """The engine closes the connection without an answer, and lives on."""
        if seat.left or seat.grant is not grant:
            return
        if process.hangs:
            self._stall_later(process, seat, grant)
            return
        process.running.pop(grant.id, None)
        self._fail(seat, grant, OutcomeKind.ENGINE_DIED, answered=False)

    def _fail(self, seat: Seat, grant: Grant, kind: OutcomeKind, *, answered: bool | None = None) -> None:
        """A step breaks. The job of a process that died waits to be run again unless a byte of an answer was sent; a
        stalled one is over."""
        if seat.left or seat.grant is not grant:
            return
        if answered is None:
            told = self._tells_answers and seat.client.job_class.is_low
            answered = seat.answered if told else seat.job.kind is not JobKind.EMBEDDINGS and chance(self._lag, 0.5)
        over = answered or kind is OutcomeKind.STALLED
        self._end(seat, grant, Outcome(kind, status=502, answered=answered), over=over)

    def _end(self, seat: Seat, grant: Grant, outcome: Outcome, *, over: bool) -> None:
        """The step is over; the job too, or it waits for its next grant."""
        self._let_go(seat, grant)
        if not over:
            self.moments.post(StepEnded(grant.id, outcome))
            return
        self.close(seat.job.id)
        self.moments.post(JobEnded(grant.id, outcome))

    def _let_go(self, seat: Seat, grant: Grant) -> None:
        seat.grant = None
        self._granted.pop(grant.id, None)
