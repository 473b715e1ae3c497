"""The desk: where a handler leaves a job and waits for its answer (doors 3, 5 and 8).

Owns the tickets. A ticket goes OPEN → ANSWERED → TAKEN, back to OPEN for a further step, and is closed exactly once:
by a rejection, or by the one closing event that leaving the `with` block posts. The middle state is real: waiting on
an event that is already set is still a checkpoint in trio, so a handler whose client has left can be cancelled after
its grant was made. Posts are synchronous, so they work inside a cancelled scope.

Must never decide anything, and never hold a live instance: a grant names one.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from types import TracebackType
from typing import Self

import trio

from gridsched.core.commands import Grant, Rejection, RejectionCode
from gridsched.core.events import AnswerBegan, GrantReturned, JobAbandoned, JobEnded, JobSubmitted, StepEnded
from gridsched.core.ids import GrantId, InstanceId, JobId
from gridsched.core.job import Job, Outcome, OutcomeKind
from gridsched.ports import Post
from gridsched.runtime.advice import Adviser

CLIENT_LEFT = Outcome(OutcomeKind.CLIENT_GONE, status=499, answered=False)


class TicketState(Enum):
    """Where a ticket is. CLOSED is final."""

    OPEN = "open"
    ANSWERED = "answered"
    TAKEN = "taken"
    CLOSED = "closed"


class Ticket:
    """One job's seat at the desk. Used by one handler only."""

    __slots__ = ("_aborted", "_answer", "_called", "_desk", "_step", "job", "seat", "state")

    def __init__(self, job: Job, desk: "Desk") -> None:
        self.job = job
        self.state = TicketState.OPEN
        self._desk = desk
        self._aborted = False  # S11: the grant is to be given up
        self._step: trio.CancelScope | None = None  # what that ends
        self.seat = trio.CancelScope()  # left when a person cancels the job
        self._answer: Grant | Rejection | None = None
        self._called = trio.Event()

    def __enter__(self) -> Self:
        """The job is submitted."""
        self._desk.seated(self)
        self.seat.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """However the block was left, the job is closed; in silence where a person has cancelled it."""
        silent = False
        try:
            silent = self.seat.__exit__(kind, error, traceback)
        finally:
            self.close()
            self._desk.left(self)
        return silent

    async def answer(self) -> Grant | Rejection:
        """Wait for the job's next grant, which is taken by returning it, or for its rejection, which closes the job and
        is then completed, in the waiting handler's time."""
        await self._called.wait()
        answer = self._answer
        assert answer is not None  # noqa: S101 - set before the event is; for the type checker
        if isinstance(answer, Rejection):
            return await self._desk.adviser.complete(self.job.model, answer)
        self.state = TicketState.TAKEN
        self._desk.active[answer.instance_id] += 1
        return answer

    @contextmanager
    def until_aborted(self) -> Iterator[None]:
        """Run the taken grant's step: the block is left in silence when it is to be given up (S11)."""
        with trio.CancelScope() as self._step:
            if self._aborted:
                self._step.cancel()
            yield
        self._step = None

    def answer_begins(self) -> None:
        """A byte of the taken grant's answer is about to be sent: it is not given up any more (S11).

        Said of every step that could be, whether any may or not: the policy may change while it runs, and is not known
        here.
        """
        assert isinstance(self._answer, Grant)  # noqa: S101 - a step runs under a grant; for the type checker
        self._step = None
        self._desk.post(AnswerBegan(self._answer.id))

    def step_ended(self, outcome: Outcome, *, settled: bool = True) -> None:
        """The granted step is over and the job waits for another answer. Not `settled`: the engine may still be busy
        with it."""
        grant = self._leave()
        self.state, self._answer, self._called = TicketState.OPEN, None, trio.Event()
        self._aborted = False
        self._desk.post(StepEnded(grant.id, outcome, settled))
        if not settled:
            self._desk.unsettled(grant)

    def end(self, outcome: Outcome, *, settled: bool = True) -> None:
        """The granted step is over and so is the job. Not `settled`: the engine may still be busy with it."""
        grant = self._leave()
        self.state = TicketState.CLOSED
        self._desk.post(JobEnded(grant.id, outcome, settled))
        if not settled:
            self._desk.unsettled(grant)

    def close(self) -> None:
        """Close the ticket however the handler left it; posts nothing if it is closed already."""
        match self.state:
            case TicketState.OPEN:
                self._desk.post(JobAbandoned(self.job.id))
            case TicketState.ANSWERED:
                assert isinstance(self._answer, Grant)  # noqa: S101 - a rejection closes the ticket at once
                self._desk.granted.pop(self._answer.id, None)
                self._desk.post(GrantReturned(self._answer.id))
            case TicketState.TAKEN:
                self.end(CLIENT_LEFT, settled=False)
            case TicketState.CLOSED:
                pass
        self.state = TicketState.CLOSED

    def abort(self, grant_id: GrantId) -> None:
        """Have the handler give the step up (S11). A grant on its way to it is given up when it is taken."""
        if self.state is not TicketState.CLOSED and isinstance(self._answer, Grant) and self._answer.id == grant_id:
            self._aborted = True
            if self._step is not None:
                self._step.cancel()

    def deliver(self, answer: Grant | Rejection) -> None:
        """Answer the ticket. One that was closed meanwhile has posted its closing event already."""
        if self.state is TicketState.CLOSED:
            return
        self._answer = answer
        if isinstance(answer, Grant):
            self.state = TicketState.ANSWERED
            self._desk.granted[answer.id] = self
        else:
            self.state = TicketState.CLOSED
        self._called.set()

    def _leave(self) -> Grant:
        if self.state is not TicketState.TAKEN or not isinstance(self._answer, Grant):
            raise RuntimeError(f"job {self.job.id}: a step ended that was not granted ({self.state.value})")
        self._desk.active[self._answer.instance_id] -= 1
        self._desk.granted.pop(self._answer.id, None)
        return self._answer


class Desk:
    """All open tickets. `active` counts the taken grants of each instance, for whoever watches its slots; `granted` has
    who holds a grant, taken or not. `last_id` is the number of the last job, of this run or one before."""

    def __init__(self, post: Post, unsettled: Callable[[Grant], None], adviser: Adviser, *, last_id: int = 0) -> None:
        self.post = post
        self.unsettled = unsettled
        self.adviser = adviser
        self.active: Counter[InstanceId] = Counter()
        self.granted: dict[GrantId, Ticket] = {}
        self._tickets: dict[JobId, Ticket] = {}
        self.last_id = last_id
        self._idle = trio.Event()
        self._idle.set()
        self._closed = False

    def new_id(self) -> JobId:
        """The next job's number: the order of arrival."""
        self.last_id += 1
        return JobId(self.last_id)

    def submit(self, job: Job) -> Ticket:
        """A seat, taken by entering its block. Leaving that, in whatever way, closes the job; it is left in silence
        when a person cancels it."""
        return Ticket(job, self)

    def seated(self, ticket: Ticket) -> None:
        """Somebody sits down."""
        if self._closed:
            ticket.deliver(Rejection(RejectionCode.DRAINING, "the server is shutting down"))
            return
        self._tickets[ticket.job.id] = ticket
        if self._idle.is_set():
            self._idle = trio.Event()
        self.post(JobSubmitted(ticket.job))

    def left(self, ticket: Ticket) -> None:
        """Somebody gets up."""
        if self._tickets.pop(ticket.job.id, None) is not None and not self._tickets:
            self._idle.set()

    def deliver(self, job_id: JobId, answer: Grant | Rejection) -> None:
        """Answer a job's ticket; a job whose handler has gone has said so itself."""
        if ticket := self._tickets.get(job_id):
            ticket.deliver(answer)

    def abort(self, grant_id: GrantId) -> None:
        """Have a step given up (S11); one whose end has crossed this is left alone."""
        if ticket := self.granted.get(grant_id):
            ticket.abort(grant_id)

    def job(self, job_id: JobId) -> Job | None:
        """A job that waits here or runs; None for one that is over."""
        ticket = self._tickets.get(job_id)
        return ticket.job if ticket is not None and ticket.state is not TicketState.CLOSED else None

    def cancel(self, job_id: JobId) -> None:
        """Have a job end, by a person's wish; its handler tells its client. One that is over is left alone."""
        if self.job(job_id) is not None:
            self._tickets[job_id].seat.cancel()

    def close(self) -> None:
        """From now on every ticket is born with a rejection (P8)."""
        self._closed = True

    @property
    def open_tickets(self) -> int:
        """How many handlers sit here."""
        return len(self._tickets)

    async def wait_idle(self) -> None:
        """Wait until no handler sits here."""
        while self._tickets:
            await self._idle.wait()
