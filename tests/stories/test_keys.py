"""S2 and S5 with API keys: first in, first out for each key, and the keys in turn."""

import pytest

from gridsched.core.commands import RejectionCode
from gridsched.core.ids import JobId
from gridsched.core.job import JobClass
from gridsched.core.policy import Policy, QueueLimits
from tests.stories.world import BACKGROUND, BATCH, CHAT, DIED, World, model, option


def one_slot(**figures: object) -> World:
    """One model with one slot, warm and cool."""
    world = World((model("m", option(6, 1)),), policy=Policy(**figures))  # type: ignore[arg-type]  # figures by name
    world.warm("m", job_class=BACKGROUND)
    return world


def serve(world: World, jobs: dict[JobId, str], first: JobId) -> str:
    """End step after step on the one slot, from `first` on: who was served, a letter each, in order."""
    served, running = "", first
    while True:
        world.finish(running)
        granted = [job for job in jobs if world.granted_at(job) is not None and jobs[job] not in served]
        if not granted:
            return served
        (running,) = granted
        served += jobs[running]


def queued(world: World, keys: str, job_class: JobClass = BACKGROUND) -> tuple[dict[JobId, str], JobId]:
    """Behind a job that runs, one of each of these keys, in this order; each is named by a letter."""
    first = world.submit("m", job_class, key="before")
    jobs = {world.submit("m", job_class, key=key): chr(ord("a") + at) for at, key in enumerate(keys)}
    return jobs, first


@pytest.mark.parametrize("job_class", list(JobClass))
def test_S2_keys_take_turns_and_each_key_is_first_in_first_out(job_class: JobClass) -> None:
    """A asks four times, then B twice, then C: A B C A B A A."""
    world = one_slot(interactive_cooldown_seconds=0.0)
    jobs, first = queued(world, "AAAABBC", job_class)
    assert serve(world, jobs, first) == "aegbfcd"


def test_S2_one_key_is_as_none() -> None:
    """Only arrival counts, and no lines are kept."""
    world = one_slot()
    jobs, first = queued(world, "AAAA")
    assert world.scheduler.state.models[world.grant(first).model].queue.lines is None
    assert serve(world, jobs, first) == "abcd"


def test_S2_a_key_that_comes_later_is_not_behind_the_whole_of_anothers_backlog_nor_before_its_own_past() -> None:
    """Of A's six three are served when B comes with three: they alternate from there, B has saved up nothing."""
    world = one_slot()
    jobs, running = queued(world, "AAAAAA")
    served = ""
    for _ in range(3):
        world.finish(running)
        (running,) = [job for job in jobs if world.granted_at(job) is not None and jobs[job] not in served]
        served += jobs[running]
    for letter in "xyz":
        jobs[world.submit("m", BACKGROUND, key="B")] = letter
    rest = serve(world, {job: name for job, name in jobs.items() if name not in served}, running)
    assert rest == "dxeyfz"


def test_S2_two_keys_that_ask_again_and_again_do_not_keep_a_thirds_second_job_waiting() -> None:
    """C asks twice, then A and B, who ask again as soon as they are served. There is always a job of one of them when
    the other's comes, but each has had its turn before C's second."""
    world = one_slot()
    running = world.submit("m", BACKGROUND, key="before")
    waiting = [world.submit("m", BACKGROUND, key=key) for key in "CCAB"]
    served = ""
    for _ in range(5):
        world.finish(running)
        (running,) = [job for job in waiting if world.granted_at(job) is not None]
        key = world.scheduler.state.grants[world.grant(running).id].record.job.key
        served += key
        waiting.remove(running)
        if key != "C":
            waiting.append(world.submit("m", BACKGROUND, key=key))
    assert served == "CABCA"


def test_S2_who_comes_back_after_another_was_served_goes_before_that_ones_next() -> None:
    """A has many waiting and B one at a time. B comes when A has just been given the slot: the next one is B's."""
    world = one_slot()
    running = world.submit("m", BACKGROUND, key="A")
    jobs = {world.submit("m", BACKGROUND, key="A"): "A" for _ in range(8)}
    jobs[world.submit("m", BACKGROUND, key="B")] = "B"
    served = ""
    for _ in range(8):
        world.finish(running)
        ((_, entry),) = world.scheduler.state.grants.items()
        running = entry.record.job.id
        served += jobs[running]
        if served.endswith("BA"):
            jobs[world.submit("m", BACKGROUND, key="B")] = "B"
    assert served == "ABABABAB"


def test_B13_fifty_jobs_of_one_key_hold_up_another_by_one() -> None:
    """And a client that asks again as soon as it is answered has every second step, not every fiftieth."""
    world = one_slot()
    running = world.submit("m", BACKGROUND, key="A")
    for _ in range(50):
        world.submit("m", BACKGROUND, key="A")
    turns = ""
    mine = world.submit("m", BACKGROUND, key="B")
    for _ in range(12):
        world.finish(running)
        state = world.scheduler.state
        (entry,) = state.grants.values()
        running = entry.record.job.id
        turns += entry.record.job.key
        if running == mine:
            mine = world.submit("m", BACKGROUND, key="B")
    assert turns in ("AB" * 6, "BA" * 6)


def test_S3_a_step_of_a_job_that_has_more_takes_its_keys_next_turn() -> None:
    """A's job of many chunks, A's other job, B's: after each chunk the job stands behind its own key's other job."""
    world = one_slot()
    long = world.submit("m", BACKGROUND, steps=3, key="A")
    other = world.submit("m", BACKGROUND, key="A")
    foreign = world.submit("m", BACKGROUND, key="B")
    order = []
    for _ in range(4):
        ((grant_id, entry),) = world.scheduler.state.grants.items()
        order.append(entry.record.job.id)
        assert grant_id == entry.id
        if entry.record.job.steps > entry.record.step:
            world.step_ends(entry.record.job.id)
        else:
            world.finish(entry.record.job.id)
    assert order == [long, other, foreign, long]


def test_P5_a_job_that_is_run_again_has_its_old_place_within_its_key() -> None:
    """Its process died: when the next one is ready it goes before its key's others, and takes no turn of B's."""
    world = one_slot()
    job = world.submit("m", BACKGROUND, key="A")
    later = [world.submit("m", BACKGROUND, key=key) for key in "AB"]
    instance = world.instance("m")
    world.step_ends(job, DIED)
    world.dies(instance)
    world.advance(11.0)
    assert len(world.grants(job)) == 2
    world.finish(job)
    assert [world.waits(other) for other in later] == [False, True]


def test_S8_a_job_that_leaves_changes_nobodys_turn() -> None:
    """B's first leaves; its second keeps the turn that it had, beside A's second."""
    world = one_slot()
    jobs, first = queued(world, "AABBA")
    world.leave(next(job for job, name in jobs.items() if name == "c"))
    assert serve(world, jobs, first) == "abde"


def test_S1_classes_come_before_keys() -> None:
    """A key's background goes before another key's batch, whoever's turn it is."""
    world = one_slot()
    running = world.submit("m", BACKGROUND, key="A")
    batch = world.submit("m", BATCH, key="B")
    low = [world.submit("m", BACKGROUND, key="A") for _ in range(3)]
    for job in low:
        world.finish(running)
        assert world.granted_at(job) == world.now
        running = job
    world.finish(running)
    assert world.granted_at(batch) == world.now


def test_S2_keys_take_turns_at_loads() -> None:
    """A wants three cold models, then B one: A's first, B's, and then A's others. None fits beside another."""
    names = ("x1", "x2", "x3", "y")
    world = World(
        tuple(model(name, option(12, 1)) for name in names),
        step_seconds=dict.fromkeys(names, 1.0),
        policy=Policy(min_residency_seconds=0.0),
    )
    for name in names[:3]:
        world.submit(name, BACKGROUND, key="A")
    world.submit("y", BACKGROUND, key="B")
    world.advance(60.0)
    assert sorted(names, key=world.loads) == ["x1", "y", "x2", "x3"]


def test_S2_one_keys_loads_go_by_arrival() -> None:
    """The same from one key: in the order in which they were asked for."""
    names = ("x1", "x2", "x3", "y")
    world = World(
        tuple(model(name, option(12, 1)) for name in names),
        step_seconds=dict.fromkeys(names, 1.0),
        policy=Policy(min_residency_seconds=0.0),
    )
    for name in names:
        world.submit(name, BACKGROUND, key="A")
    world.advance(60.0)
    assert sorted(names, key=world.loads) == list(names)


def test_B13_in_relief_each_keys_longest_starved_competes_keys_in_turn() -> None:
    """Under constant chat 50 jobs of A wait on one model and B's on another; turns of one step: every second is B's."""
    world = World(
        (model("chat", option(5, 1)), model("a", option(4, 1)), model("b", option(4, 1))),
        step_seconds={"a": 1.0, "b": 1.0},
        policy=Policy(background_share=1.0),
    )
    world.warm("chat", "a", "b", job_class=BACKGROUND)
    world.submit("chat")
    of_a = [world.submit("a", BACKGROUND, key="A") for _ in range(50)]
    world.advance(0.5)
    of_b = [world.submit("b", BACKGROUND, key="B") for _ in range(5)]
    world.advance(13.0)
    assert sum(world.granted_at(job) is not None for job in of_b) == 5
    assert 5 <= sum(world.granted_at(job) is not None for job in of_a) <= 6


def test_B13_a_turn_of_several_slots_is_filled_key_by_key() -> None:
    """Four slots, ten jobs of A and two of B: two of each in the first turn."""
    world = World((model("chat", option(5, 1)), model("low", option(4, 4))))
    world.warm("chat", "low", job_class=BACKGROUND)
    world.submit("chat")
    of_a = [world.submit("low", BACKGROUND, key="A") for _ in range(10)]
    of_b = [world.submit("low", BATCH, key="B") for _ in range(2)]
    world.advance(3.0)
    assert [sum(world.granted_at(job) == world.now for job in jobs) for jobs in (of_a, of_b)] == [2, 2]


def test_S5_without_keys_the_longest_starved_goes_as_before() -> None:
    """One key: the oldest model first, turn after turn."""
    world = World(
        (model("chat", option(5, 1)), model("a", option(4, 1)), model("b", option(4, 1))),
        step_seconds={"a": 1.0, "b": 1.0},
        policy=Policy(background_share=1.0),
    )
    world.warm("chat", "a", "b", job_class=BACKGROUND)
    world.submit("chat")
    of_a = [world.submit("a", BACKGROUND) for _ in range(5)]
    world.advance(0.5)
    of_b = [world.submit("b", BACKGROUND) for _ in range(5)]
    world.advance(7.6)
    assert [world.granted_at(job) is not None for job in of_a + of_b] == [True] * 6 + [False] * 4


def test_S6_a_key_cannot_slip_a_chat_past_another_keys_older_ones_on_a_free_slot() -> None:
    """Slots come free one by one; nobody of any key is passed twice in a row while it waits."""
    world = World((model("m", option(6, 2)),))
    world.warm("m")
    running = [world.submit("m", CHAT, key="A"), world.submit("m", CHAT, key="A")]
    waiting = [world.submit("m", CHAT, key=key) for key in "AAABBC"]
    for _ in range(3):
        world.finish(running.pop(0))
        running.append(next(job for job in waiting if world.granted_at(job) is not None and job not in running))
        waiting.remove(running[-1])
    keys = [world.scheduler.state.jobs[job].job.key for job in waiting]
    assert sorted(keys) == ["A", "A", "B"]


def test_P5_S2_a_job_that_is_run_again_is_its_keys_first_and_takes_nobodys_turn() -> None:
    """A's second of three is cut off, when B's second is next: that goes before it, and then it before A's third."""
    world = one_slot(interactive_cooldown_seconds=0.0)
    jobs, first = queued(world, "AAABBB", CHAT)
    names = {letter: job for job, letter in jobs.items()}
    world.finish(first)
    world.finish(names["a"])
    world.finish(names["d"])
    world.step_ends(names["b"], DIED)
    world.advance(12.0)
    assert len(world.grants(names["e"])) == 1
    world.finish(names["e"])
    assert len(world.grants(names["b"])) == 2
    world.finish(names["b"])
    assert len(world.grants(names["c"])) == 1


def test_P5_S2_a_job_that_is_run_again_finds_its_way_back_though_its_key_has_nobody_waiting() -> None:
    """Two others' jobs came while it ran, so that the queue has lines, and none of its key."""
    world = one_slot(interactive_cooldown_seconds=0.0)
    first = world.submit("m", key="A")
    others = [world.submit("m", key=key) for key in "BC"]
    world.step_ends(first, DIED)
    world.advance(12.0)
    assert len(world.grants(first)) == 2
    world.finish(first)
    assert len(world.grants(others[0])) == 1


def test_S5_a_job_of_another_key_is_not_relieved_before_it_is_starved_itself() -> None:
    """A's job has waited three seconds beside a chat, B's half a second: the turn has slots for both and takes one."""
    world = World((model("chat", option(4)), model("m", option(6, 4))))
    world.warm("m", job_class=BACKGROUND)
    world.warm("chat")
    world.submit("chat")
    first = world.submit("m", BACKGROUND, key="A")
    world.advance(2.5)
    second = world.submit("m", BACKGROUND, key="B")
    world.advance(0.5)
    assert world.granted_at(first) == world.now
    assert world.waits(second)


SHORT = {job_class: QueueLimits(max_length=7) for job_class in JobClass}


@pytest.mark.parametrize(("share", "may_wait"), [(0.01, 1), (0.25, 2), (0.5, 4), (1.0, 7), (2 / 7, 2)])
def test_S9_a_key_fills_its_share_of_a_queue_and_no_more(share: float, may_wait: int) -> None:
    """What is refused names the key; another key, and another class of the same key, still find room."""
    world = one_slot(queues=SHORT)
    world.submit("m", BACKGROUND, key="before")
    waiting = [world.submit("m", BACKGROUND, key="A", queue_share=share) for _ in range(may_wait)]
    assert [world.rejection(job) for job in waiting] == [None] * may_wait
    rejection = world.rejection(world.submit("m", BACKGROUND, key="A", queue_share=share))
    assert rejection is not None
    assert rejection.code is RejectionCode.QUEUE_FULL
    assert ("A" in rejection.message) == (share < 1)
    assert rejection.detail.get("key") == ("A" if share < 1 else None)
    assert rejection.detail["max_length"] == may_wait
    assert rejection.retry_after_seconds is not None
    assert world.rejection(world.submit("m", BATCH, key="A", queue_share=share)) is None
    if share < 1:
        assert world.rejection(world.submit("m", BACKGROUND, key="B")) is None


def test_S9_a_share_is_free_again_when_its_job_runs_or_leaves() -> None:
    """One may wait: the next may when that is granted, or its client goes."""
    world = one_slot(queues=SHORT)
    running = world.submit("m", BACKGROUND, key="A", queue_share=0.1)
    first = world.submit("m", BACKGROUND, key="A", queue_share=0.1)
    assert world.rejection(world.submit("m", BACKGROUND, key="A", queue_share=0.1)) is not None
    world.finish(running)
    second = world.submit("m", BACKGROUND, key="A", queue_share=0.1)
    world.leave(second)
    third = world.submit("m", BACKGROUND, key="A", queue_share=0.1)
    assert world.granted_at(first) is not None
    assert [world.rejection(job) for job in (first, second, third)] == [None] * 3
    assert world.scheduler.state.counts[BACKGROUND].of_key == {"A": 1}


def test_S9_no_share_is_too_small_for_a_job_that_need_not_wait() -> None:
    """Every slot of a free model can be had by one key."""
    world = World((model("m", option(6, 4)),), policy=Policy(queues=SHORT, interactive_cooldown_seconds=0.0))
    world.warm("m", job_class=BACKGROUND)
    jobs = [world.submit("m", BATCH, key="A", queue_share=0.1) for _ in range(4)]
    assert None not in [world.granted_at(job) for job in jobs]
