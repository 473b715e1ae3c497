"""The desk: every way to leave posts exactly one closing event."""

import pytest
import trio
import trio.testing

from gridsched.core.commands import Grant, Rejection, RejectionCode
from gridsched.core.events import AnswerBegan, Event, GrantReturned, JobAbandoned, JobEnded, JobSubmitted, StepEnded
from gridsched.core.ids import GrantId, InstanceId, JobId, ModelName
from gridsched.core.job import Job, JobClass, JobKind, Outcome, OutcomeKind
from gridsched.runtime.advice import Adviser
from gridsched.runtime.desk import CLIENT_LEFT, Desk
from sim import build

DONE = Outcome(OutcomeKind.DONE)
ABORTED = Outcome(OutcomeKind.ABORTED, status=0, answered=False)
REFUSED = Rejection(RejectionCode.QUEUE_FULL, "full")


class Office:
    """A desk with what it posts and what it leaves unsettled."""

    def __init__(self) -> None:
        self.posted: list[Event] = []
        self.unsettled: list[Grant] = []
        self.desk = Desk(self.posted.append, self.unsettled.append, Adviser(build().catalog))

    def job(self, steps: int = 1) -> Job:
        return Job(self.desk.new_id(), ModelName("m"), JobClass.INTERACTIVE, JobKind.CHAT, steps)


def grant(job_id: int, number: int = 1, step: int = 1) -> Grant:
    return Grant(GrantId(number), JobId(job_id), InstanceId(7), ModelName("m"), step, 1, 0.0)


@pytest.fixture
def office() -> Office:
    return Office()


def test_jobs_are_numbered_in_order_of_arrival(office: Office) -> None:
    """The first job is 1."""
    assert [office.job().id, office.job().id] == [1, 2]


async def test_a_job_that_runs_to_its_end_is_submitted_and_ended(office: Office) -> None:
    """The plain course of things."""
    with office.desk.submit(office.job()) as ticket:
        office.desk.deliver(JobId(1), grant(1))
        assert await ticket.answer() == grant(1)
        assert office.desk.active[InstanceId(7)] == 1
        ticket.end(DONE)
    assert office.posted == [JobSubmitted(ticket.job), JobEnded(GrantId(1), DONE)]
    assert office.desk.active[InstanceId(7)] == 0
    assert office.unsettled == []


async def test_a_job_of_two_steps_gets_two_grants(office: Office) -> None:
    """Between steps the ticket is open again."""
    with office.desk.submit(office.job(2)) as ticket:
        office.desk.deliver(JobId(1), grant(1))
        await ticket.answer()
        ticket.step_ended(DONE)
        office.desk.deliver(JobId(1), grant(1, 2, 2))
        assert (await ticket.answer()) == grant(1, 2, 2)
        ticket.end(DONE)
    assert office.posted[1:] == [StepEnded(GrantId(1), DONE), JobEnded(GrantId(2), DONE)]


async def test_S8_a_client_that_leaves_while_waiting_abandons_its_job(office: Office) -> None:
    """Cancelled in the queue: the job leaves it at once."""
    with trio.CancelScope() as scope:
        scope.cancel()
        with office.desk.submit(office.job()) as ticket:
            await ticket.answer()
    assert office.posted[1:] == [JobAbandoned(JobId(1))]
    assert office.desk.open_tickets == 0


async def test_S7_a_grant_that_is_not_taken_is_returned(office: Office) -> None:
    """The client left after the grant was made and before the handler woke."""
    with trio.CancelScope() as scope, office.desk.submit(office.job()) as ticket:
        office.desk.deliver(JobId(1), grant(1))
        scope.cancel()
        await ticket.answer()
    assert office.posted[1:] == [GrantReturned(GrantId(1))]


async def test_S8_a_client_that_leaves_in_mid_step_leaves_the_slot_unsettled(office: Office) -> None:
    """The job is over; the slot is somebody else's to free."""
    with trio.CancelScope() as scope, office.desk.submit(office.job()) as ticket:
        office.desk.deliver(JobId(1), grant(1))
        await ticket.answer()
        scope.cancel()
        await trio.lowlevel.checkpoint()
    assert office.posted[1:] == [JobEnded(GrantId(1), CLIENT_LEFT, settled=False)]
    assert office.unsettled == [grant(1)]


async def test_a_rejection_closes_the_job_and_nothing_is_posted(office: Office) -> None:
    """The scheduler has ended it itself."""
    with office.desk.submit(office.job()) as ticket:
        office.desk.deliver(JobId(1), REFUSED)
        assert await ticket.answer() is REFUSED
    assert office.posted == [JobSubmitted(ticket.job)]


async def test_an_answer_for_somebody_who_has_gone_is_dropped(office: Office) -> None:
    """The leaver has posted its closing event already: a second one would be one too many."""
    with office.desk.submit(office.job()) as ticket:
        ticket.close()
        office.desk.deliver(JobId(1), grant(1))
    office.desk.deliver(JobId(1), grant(1))
    assert office.posted[1:] == [JobAbandoned(JobId(1))]


async def test_a_step_that_was_not_granted_cannot_end(office: Office) -> None:
    """A bug of the handler's is said, not hidden."""
    with office.desk.submit(office.job()) as ticket, pytest.raises(RuntimeError, match="not granted"):
        ticket.end(DONE)


async def test_P8_a_closed_desk_gives_tickets_that_are_rejected(office: Office) -> None:
    """Nothing reaches the scheduler any more."""
    office.desk.close()
    with office.desk.submit(office.job()) as ticket:
        answer = await ticket.answer()
    assert isinstance(answer, Rejection)
    assert answer.code is RejectionCode.DRAINING
    assert office.posted == []


async def test_waiting_for_an_idle_desk_ends_with_the_last_handler(office: Office, autojump_clock: object) -> None:
    """The drain's own question."""
    assert autojump_clock is not None

    async def sit(seconds: float) -> None:
        with office.desk.submit(office.job()):
            await trio.sleep(seconds)

    await office.desk.wait_idle()
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sit, 3)
        nursery.start_soon(sit, 5)
        await trio.testing.wait_all_tasks_blocked()
        await office.desk.wait_idle()
        assert trio.current_time() - start == pytest.approx(5)


async def test_S11_a_step_is_given_up_until_its_answer_begins(office: Office) -> None:
    """Asked while it runs, the block is left in silence; the ticket waits on, and its next step knows nothing of it."""
    with office.desk.submit(office.job()) as ticket:
        office.desk.deliver(JobId(1), grant(1))
        await ticket.answer()
        with ticket.until_aborted():
            office.desk.abort(GrantId(1))
            await trio.lowlevel.checkpoint()
            pytest.fail("the step went on")
        ticket.step_ended(ABORTED, settled=False)
        assert office.unsettled == [grant(1)]
        office.desk.deliver(JobId(1), grant(1, 2))
        await ticket.answer()
        with ticket.until_aborted():
            office.desk.abort(GrantId(1))
            await trio.lowlevel.checkpoint()
            ticket.answer_begins()
            office.desk.abort(GrantId(2))
            await trio.lowlevel.checkpoint()
        ticket.end(DONE)
    assert office.posted[1:] == [
        StepEnded(GrantId(1), ABORTED, settled=False),
        AnswerBegan(GrantId(2)),
        JobEnded(GrantId(2), DONE),
    ]


async def test_S11_a_grant_that_is_to_be_given_up_before_it_was_taken_is_given_up_then(office: Office) -> None:
    """The abort has crossed the grant on its way to the handler."""
    with office.desk.submit(office.job()) as ticket:
        office.desk.deliver(JobId(1), grant(1))
        office.desk.abort(GrantId(1))
        await ticket.answer()
        with ticket.until_aborted():
            await trio.lowlevel.checkpoint()
            pytest.fail("the step was begun")
        ticket.step_ended(ABORTED)
    assert office.posted[1:] == [StepEnded(GrantId(1), ABORTED), JobAbandoned(JobId(1))]
