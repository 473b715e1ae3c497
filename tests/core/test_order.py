"""Places are told and turns are found by a few comparisons, however many wait, and are those that counting tells."""

from collections.abc import Iterator
from operator import attrgetter
from random import Random

import pytest

from gridsched.core.ids import JobId, ModelName
from gridsched.core.job import Job, JobClass, JobKind
from gridsched.core.order import Order
from gridsched.core.queues import JobRecord, ModelQueue
from gridsched.core.transitions import JobState

CROWD = 10_000


class Watched(JobRecord):
    """A job that counts how often anybody looks where it stands."""

    looks = 0

    @property
    def standing(self) -> tuple[float, int]:
        """Where it stands."""
        Watched.looks += 1
        return (self.place, self.number)


def record(number: int, job_class: JobClass = JobClass.BACKGROUND, key: str = "", place: float = 0.0) -> Watched:
    """A waiting job."""
    job = Job(JobId(number), ModelName("m"), job_class, JobKind.CHAT, key=key)
    return Watched(job, place or float(number), number, job_class is JobClass.INTERACTIVE, job.model)


def test_a_place_among_ten_thousand_takes_a_few_looks() -> None:
    """Asking, coming and going look at as few as it takes to halve a crowd until one is left."""
    records = [record(number) for number in range(CROWD)]
    order = Order(records, attrgetter("standing"))
    Watched.looks = 0
    assert order.before(records[7_000]) == 7_000
    order.remove(records[0])
    order.remove(records[5_000])
    order.add(record(CROWD))
    order.add(records[5_000])
    assert order.before(records[7_000]) == 6_999
    assert order.first() is records[1]
    assert Watched.looks < 100


def test_those_who_go_from_the_front_leave_nothing_behind() -> None:
    """The last one is as findable as the first was, and an empty order has nobody."""
    records = [record(number) for number in range(300)]
    order = Order(records, attrgetter("standing"))
    for number, each in enumerate(records):
        assert order.first() is each
        assert order.before(records[-1]) == 299 - number
        assert order.at(299 - number) is records[-1]
        order.remove(each)
    assert order.first() is None
    order.add(records[0])
    assert order.first() is records[0]


def crowds() -> Iterator[tuple[ModelQueue, list[JobRecord]]]:
    """A queue of jobs of no key, or of some, after each of many comings and goings; who waits, in the order of S1."""
    draw = Random(7)  # noqa: S311 - repeatable numbers, not secrets
    for keys in (("",), ("a", "b", "c")):
        queue, served = ModelQueue(), list[JobRecord]()
        for number in range(1, 600):
            waiting = list(queue)
            if waiting and draw.random() < 0.45:
                gone = draw.choice(waiting)
                gone.state = draw.choice((JobState.RUNNING, JobState.ENDED))
                queue.remove(gone)
                served.append(gone)
            elif served and draw.random() < 0.3:
                again = served.pop(draw.randrange(len(served)))
                again.state = JobState.WAITING
                queue.put_back(again)
            else:
                queue.add(record(number, draw.choice(list(JobClass)), draw.choice(keys)))
            yield queue, list(queue)


def test_places_are_those_that_counting_tells() -> None:
    """Whoever comes, leaves from anywhere or is put back; with turns, the next to be served stands where the oldest
    would."""
    for queue, waiting in crowds():
        assert [each.rank for each in waiting] == sorted(each.rank for each in waiting)
        for job_class in JobClass:
            there = [each for each in waiting if each.job.job_class is job_class]
            assert [queue.before(job_class, each) for each in there] == list(range(len(there)))
            in_turn = queue.in_turn(job_class)
            assert [queue.stands_at(each) for each in in_turn] == there
            assert queue.due(job_class) is (in_turn[0] if in_turn else None)


@pytest.mark.parametrize("keys", ["a", "abc", "ab"])
def test_many_are_put_back_at_once_as_one_by_one(keys: str) -> None:
    """Between others, behind them and out of order; places and turns are the same, and so are the counts."""
    queues = ModelQueue(), ModelQueue()
    for queue, at_once in zip(queues, (True, False), strict=True):
        there = [record(number, key=keys[0]) for number in range(0, 40, 4)]
        back = [record(number, key=keys[number % len(keys)]) for number in (3, 5, 1, 21, 22, 23, 50, 49, 51)]
        for each in there:
            queue.add(each)
        if at_once:
            queue.put_back(*back)
        for each in () if at_once else back:
            queue.put_back(each)
    told = [[(each.number, each.turn) for each in queue] for queue in queues]
    assert told[0] == told[1]
    assert queues[0].count == queues[1].count == 19
    assert [queue.due(JobClass.BACKGROUND) for queue in queues] == [next(iter(queue)) for queue in queues]
