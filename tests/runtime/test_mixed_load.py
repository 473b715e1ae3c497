"""Five minutes of everybody at once, in virtual time: what each rule promises, read off the decision log.

Six people chat, and all take a break of 20 s in the middle; eight background, four batch and two embedding clients
ask again as soon as they are answered. The four models live side by side on one card.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import inf

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.job import JobClass
from gridsched.core.policy import Policy
from gridsched.runtime.decisions import Line
from tests.runtime.inside import BACKGROUND, BATCH, BIG, CHAT, EMBED, MIDDLE, SMALL, Inside, inside

SECONDS = 300.0
BREAK = (140.0, 160.0)
"""From when to when nobody chats."""

CLIENTS: tuple[tuple[str, JobClass, int, int, float], ...] = (
    *((BIG, CHAT, 1, 40, 1.5),) * 6,
    *((MIDDLE, BACKGROUND, 1, 30, 0.45),) * 8,
    *((SMALL, BATCH, 1, 30, 0.45),) * 4,
    *((EMBED, BACKGROUND, 4, 0, 0.45),) * 2,
)
"""Model, class, steps, tokens of an answer, seconds between an answer and the next question."""

Lines = list[tuple[float, Line]]


async def chatter(server: Inside, served: list[int], number: int) -> None:
    """One client: asks, is answered, thinks, asks again."""
    name, job_class, steps, tokens, think_seconds = CLIENTS[number]
    began_at = trio.current_time()
    while True:
        if job_class is CHAT and BREAK[0] < trio.current_time() - began_at < BREAK[1]:
            await trio.sleep_until(began_at + BREAK[1])
        end = await server.ask(server.job(name, job_class, steps), tokens=tokens)
        assert end == "done", f"client {number}: {end}"
        served[number] += 1
        await trio.sleep(think_seconds * (0.8 + 0.02 * number))


@pytest.fixture(scope="module")
def five_minutes() -> tuple[Inside, list[int]]:
    """The server after the load, and how many answers each client had; all of it checked below."""
    clock = MockClock(autojump_threshold=0)
    served = [0] * len(CLIENTS)

    async def run() -> Inside:
        async with inside(clock) as server:
            with trio.move_on_after(SECONDS):
                async with trio.open_nursery() as nursery:
                    for number in range(len(CLIENTS)):
                        nursery.start_soon(chatter, server, served, number)
        return server

    return trio.run(run, clock=clock), served


def dispatches(lines: Lines) -> Iterator[tuple[float, Line]]:
    """The starts of steps."""
    return ((at, line) for at, line in lines if line["event"] == "dispatch")


pytestmark = pytest.mark.slow


def test_every_ticket_is_closed_once_and_every_request_answered(five_minutes: tuple[Inside, list[int]]) -> None:
    """All but the last question of each client, which it took away with it."""
    server, served = five_minutes
    assert sum(served) > 400
    unanswered = [job_id for job_id, end in server.ends.items() if end != "done"]
    assert len(unanswered) <= len(CLIENTS)
    assert all(len(how) == 1 for how in server.closed.values())
    assert server.logged("reject") == []


def test_everybody_makes_progress(five_minutes: tuple[Inside, list[int]]) -> None:
    """The person who chats, and the last of the batch clients; no low job stands for longer than its round takes."""
    server, served = five_minutes
    assert min(served[:6]) >= 40
    assert min(served[6:14]) >= 8
    assert min(served[14:18]) >= 8
    assert min(served[18:]) >= 3
    waits = [float(str(line["queue_ms"])) for _, line in dispatches(server.lines) if line["class"] != "interactive"]
    assert max(waits) < 25_000


def test_L1_the_card_is_never_over_and_nothing_is_loaded_twice(five_minutes: tuple[Inside, list[int]]) -> None:
    """Four loads, no eviction, no death, and a card that had room at every look."""
    server, _ = five_minutes
    assert len(server.logged("load")) == 4
    assert server.logged("evict") + server.logged("drain") + server.logged("thrash") == []
    assert server.least_free_bytes >= 0


def test_S6_no_slot_is_given_twice(five_minutes: tuple[Inside, list[int]]) -> None:
    """The engine never met a request without a free slot, and the log never has more steps than slots."""
    server, _ = five_minutes
    assert server.world.engine.overfilled == 0
    running: dict[object, int] = defaultdict(int)
    slots = {line["instance"]: int(str(line["parallel"])) for _, line in server.logged("load")}
    for _, line in server.lines:
        if line["event"] == "dispatch":
            running[line["instance"]] += 1
            assert running[line["instance"]] <= slots[line["instance"]]
        elif line["event"] in ("step", "complete"):
            running[line["instance"]] -= 1


def test_S4_no_low_step_starts_beside_a_chat_or_in_its_two_seconds(five_minutes: tuple[Inside, list[int]]) -> None:
    """Outside the turns of relief; counted from the chats' own lines, and again by the mode that the server says."""
    server, _ = five_minutes
    chats, last_end, interactive = 0, -inf, False
    after_last_chat: list[float] = []
    for at, line in server.lines:
        chat = line.get("class") == "interactive"
        if line["event"] == "mode":
            interactive = bool(line["interactive"])
        elif line["event"] == "dispatch" and chat:
            chats += 1
        elif line["event"] in ("complete", "cancel") and chat and "step" in line and chats:
            chats, last_end = chats - 1, at
        elif line["event"] == "dispatch" and line["rule"] != "S5":
            after_last_chat.append(at - last_end)
            assert chats == 0
            assert at >= last_end + Policy().interactive_cooldown_seconds
            assert not interactive
    assert min(after_last_chat) == pytest.approx(Policy().interactive_cooldown_seconds)  # to the moment


def turns(lines: Lines) -> list[tuple[float, float]]:
    """Begin and end of each relief turn that ended."""
    relief = [(at, line["turn"]) for at, line in lines if line["event"] == "relief"]
    return [(begun, over) for (begun, one), (over, two) in pairwise(relief) if (one, two) == ("begins", "over")]


def test_S5a_turns_take_their_share_and_no_more(five_minutes: tuple[Inside, list[int]]) -> None:
    """After a turn of d the next one waits at least d, and with low work always waiting, hardly more."""
    server, _ = five_minutes
    found = turns(server.lines)
    assert len(found) > 60
    assert all(later[0] - one[1] >= (one[1] - one[0]) - 1e-6 for one, later in pairwise(found))
    assert 0.35 <= sum(over - begun for begun, over in found) / SECONDS <= 0.5


class Low:
    """Low work as the log tells it: since when each job stands and for which model, and each model's free slots."""

    def __init__(self, server: Inside) -> None:
        self._slots = {line["model"]: int(str(line["parallel"])) for _, line in server.logged("load")}
        self.free: dict[object, int] = {}
        self.since: dict[object, tuple[float, object]] = {}

    def hear(self, at: float, line: Line) -> None:
        """One line further."""
        event, job, model = line["event"], line.get("job"), line.get("model")
        if event == "ready":
            self.free[model] = self._slots[model]
        elif event in ("enqueue", "step"):
            self.since[job] = (at, model)
        elif event in ("dispatch", "cancel"):
            self.since.pop(job, None)
        self.free[model] = self.free.get(model, 0) + {"dispatch": -1, "step": 1, "complete": 1}.get(str(event), 0)

    def longest_starved(self) -> float:
        """Since when the first stands of those who can run."""
        return min(begun for begun, model in self.since.values() if self.free.get(model, 0) > 0)


def test_S5_one_turn_at_a_time_for_the_model_of_the_longest_starved(five_minutes: tuple[Inside, list[int]]) -> None:
    """No turn begins while one is under way, none has more than four steps or steps of two models, and it goes to
    whoever is starved longest among those whose model is ready with a free slot."""
    server, _ = five_minutes
    low = Low(server)
    turn: list[Line] = []
    open_turn = False
    for at, line in server.lines:
        if line["event"] == "relief":
            assert open_turn is (line["turn"] == "over")
            open_turn = not open_turn
            assert not open_turn or (1 <= len(turn) == line["steps"] <= 4)
            assert len({one["model"] for one in turn}) == open_turn
            turn = []
        elif line.get("class") != "interactive":
            if line.get("rule") == "S5" and line["event"] == "dispatch":
                assert turn or low.since[line["job"]][0] == low.longest_starved()
                turn.append(line)
            low.hear(at, line)


def test_S2_first_in_first_out_for_each_class_and_model(five_minutes: tuple[Inside, list[int]]) -> None:
    """In the order in which they came to wait: by arrival, or by the end of their last step (S3)."""
    server, _ = five_minutes
    queues: dict[tuple[object, object], list[object]] = defaultdict(list)
    for _, line in server.lines:
        queue = queues[line.get("class"), line.get("model")]
        if line["event"] in ("enqueue", "step"):
            queue.append(line["job"])
        elif line["event"] == "dispatch":
            assert queue.pop(0) == line["job"]
        elif line["event"] == "cancel" and line["job"] in queue:
            queue.remove(line["job"])


def test_S7_a_chat_whose_model_is_free_never_waits(five_minutes: tuple[Inside, list[int]]) -> None:
    """Whenever one of the two slots is free at its arrival, it is dispatched in that very moment."""
    server, _ = five_minutes
    running = 0
    ready = False
    arrived_free: set[object] = set()
    for at, line in server.lines:
        if line["event"] == "ready" and line["model"] == BIG:
            ready = True
        if line.get("class") != "interactive":
            continue
        if line["event"] == "enqueue" and running < 2 and ready:
            arrived_free.add((line["job"], at))
        elif line["event"] == "dispatch":
            running += 1
            arrived_free.discard((line["job"], at))
        elif line["event"] == "complete":
            running -= 1
    assert arrived_free == set()
