"""Queues and deadlines: order, places, and a heap that does not keep what is over."""

from math import inf

import pytest

from gridsched.core.ids import GrantId, JobId, ModelName
from gridsched.core.job import Job, JobClass, JobKind
from gridsched.core.queues import ClassCounts, Deadlines, JobRecord, ModelQueue
from gridsched.core.transitions import JobState


def record(
    number: int, job_class: JobClass = JobClass.BACKGROUND, place: float | None = None, **flags: bool
) -> JobRecord:
    """A waiting job; its place is its number unless told otherwise."""
    job = Job(JobId(number), ModelName("m"), job_class, JobKind.CHAT, **flags)
    return JobRecord(
        job, float(number) if place is None else place, number, job_class is JobClass.INTERACTIVE, job.model
    )


def test_a_queue_is_walked_by_class_then_place() -> None:
    """Chats first, whatever came first."""
    queue = ModelQueue()
    for number, job_class in enumerate((JobClass.BATCH, JobClass.BACKGROUND, JobClass.INTERACTIVE, JobClass.BATCH)):
        queue.add(record(number, job_class))
    assert [item.number for item in queue] == [2, 1, 0, 3]
    assert (queue.count, queue.low) == (4, 3)


def test_a_job_can_leave_from_anywhere_and_only_once() -> None:
    """Its counts go with it."""
    queue = ModelQueue()
    records = [record(number, warm_only=number == 1, no_evict=number == 2) for number in range(4)]
    for item in records:
        queue.add(item)
    assert (queue.warm_only, queue.no_evict) == (1, 1)
    for number in (1, 0, 2):
        queue.remove(records[number])
    assert [item.number for item in queue] == [3]
    assert (queue.count, queue.low, queue.warm_only, queue.no_evict) == (1, 1, 0, 0)
    with pytest.raises(KeyError):
        queue.remove(records[0])


def test_a_job_goes_back_to_its_old_place() -> None:
    """Between an older and a younger one; the equal place is told by the number."""
    queue = ModelQueue()
    for number in (1, 5, 6):
        queue.add(record(number))
    queue.put_back(record(3))
    queue.put_back(record(7, place=5.0))
    assert [item.number for item in queue] == [1, 3, 5, 7, 6]


def test_the_longest_starved_low_job_is_found_in_either_class() -> None:
    """Chats are not starved low work."""
    queue = ModelQueue()
    assert queue.oldest_low() is None
    queue.add(record(1, JobClass.INTERACTIVE))
    queue.add(record(3, JobClass.BACKGROUND))
    queue.add(record(2, JobClass.BATCH))
    oldest = queue.oldest_low()
    assert oldest is not None
    assert oldest.number == 2


def test_the_holder_of_a_load_is_the_first_with_permission() -> None:
    """`warm_only` may never begin one, `no_evict` only where nothing goes."""
    queue = ModelQueue()
    queue.add(record(1, warm_only=True))
    assert queue.holder(may_evict=False) is None
    queue.add(record(2, no_evict=True))
    queue.add(record(3))
    holder, evictor = queue.holder(may_evict=False), queue.holder(may_evict=True)
    assert holder is not None
    assert evictor is not None
    assert (holder.number, evictor.number) == (2, 3)


def test_deadlines_come_due_in_order_and_only_for_those_who_wait() -> None:
    """A job that was granted, or whose deadline was moved, is not due."""
    deadlines = Deadlines()
    records = [record(number) for number in range(4)]
    for item, deadline in zip(records, (4.0, 2.0, 3.0, inf), strict=True):
        item.deadline = deadline
        deadlines.push(item, 4)
    records[1].state = JobState.RUNNING
    assert deadlines.next_at() == 3.0
    assert deadlines.due(2.9) == []
    assert [item.number for item in deadlines.due(4.0)] == [2, 0]
    assert deadlines.next_at() == inf


def test_a_deadline_that_was_remembered_twice_comes_due_once() -> None:
    """A step that is run again waits at its old place, with its old deadline."""
    deadlines = Deadlines()
    item = record(1)
    item.deadline = 2.0
    deadlines.push(item, 1)
    deadlines.push(item, 1)
    assert deadlines.due(3.0) == [item]


def test_deadlines_of_jobs_long_served_do_not_pile_up() -> None:
    """Ten thousand jobs that were served at once leave at most a handful behind."""
    deadlines = Deadlines()
    for number in range(10_000):
        item = record(number)
        item.deadline = 1e9
        deadlines.push(item, 1)
        item.state = JobState.RUNNING
        item.grant_id = GrantId(number)
    assert len(deadlines.heap) < 100


def test_retry_after_follows_the_pace_of_departures_and_grows_while_nothing_moves() -> None:
    """A departure each 2 s: 2 s. A standstill of a minute makes it honest."""
    counts = ClassCounts()
    assert counts.retry_after_seconds(0.0, 5.0) == 5.0
    for number in range(16):
        counts.departures.append(number * 2.0)
    assert counts.retry_after_seconds(32.0, 5.0) == pytest.approx(2.0)
    assert counts.retry_after_seconds(92.0, 5.0) > 5.0
