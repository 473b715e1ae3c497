import httpx
import pytest
import trio

from loadtest import decisions
from loadtest.decisions import Counts, Followed, Line, counts_of
from tests.loadtest.lines import START, Log, raw
from tests.loadtest.stub import Reply, frames, serving
from tests.support.gateway import PLAIN

STREAM = {"Content-Type": "text/event-stream"}


def test_a_line_keeps_its_time_to_the_millisecond() -> None:
    """The marks compare milliseconds."""
    line = Line.of(raw(7, 1.234, "dispatch", job=3, step=1, steps=32, **{"class": "background"}))
    assert (line.seq, line.event, line.job, line.job_class, line.step, line.steps) == (
        7,
        "dispatch",
        3,
        "background",
        1,
        32,
    )
    assert line.time == pytest.approx(START + 1.234, abs=1e-6)


@pytest.mark.parametrize("broken", [{}, {"seq": 1}, {"seq": 1, "time": "soon", "event": "load"}])
def test_what_is_no_decision_is_refused(broken: dict[str, object]) -> None:
    """A line without number, time or event proves nothing."""
    with pytest.raises(ValueError, match=r"no decision|isoformat"):
        Line.of(broken)


def test_S5_a_relief_step_is_known_by_its_rule() -> None:
    """Only a dispatch can be one."""
    log = Log().job("dispatch", 1, rule="S5").job("dispatch", 2, rule="S3").job("step", 1, rule="S5")
    assert [line.is_relief for line in log.lines] == [True, False, False]


def test_loads_are_needless_when_a_process_is_there() -> None:
    """A load after an exit is needed, a second one beside the first is not."""
    log = Log().add("load", model="a", instance=1).add("ready", model="a", instance=1)
    log.add("load", model="b", instance=2).add("load", model="a", instance=3)
    log.add("evict", model="b", instance=2).add("load", model="b", instance=4).job("dispatch", 1, rule="S5")
    assert counts_of(log.lines) == Counts(loads=4, needless_loads=1, evictions=1, relief_steps=1)


def test_a_load_beside_a_process_from_before_is_needless() -> None:
    """The lines begin in the middle of a server's life; what lived then is told to it."""
    again = Log().add("load", model="a", instance=8)
    assert counts_of(again.lines, {7: "a"}).needless_loads == 1
    assert counts_of(again.lines, {7: "b"}).needless_loads == 0


def test_R2_a_process_that_drains_and_stays_is_one() -> None:
    """It went back to work: another beside it is one too many."""
    log = Log().add("drain", model="a", instance=7).add("drain", model="a", instance=7, rule="R2")
    assert counts_of(log.add("load", model="a", instance=8).lines, {7: "a"}).needless_loads == 1
    stopped = Log().add("drain", model="a", instance=7).add("stop", model="a", instance=7)
    assert counts_of(stopped.add("load", model="a", instance=8).lines, {7: "a"}).needless_loads == 0


def test_R9_a_successor_is_no_needless_load() -> None:
    """It starts beside the one that it follows; after the move a third one would be."""
    log = Log().add("load", model="a", instance=2, rule="R9").add("ready", model="a", instance=2)
    log.add("stop", model="a", instance=1, rule="R9").add("exit", model="a", instance=1)
    assert counts_of(log.lines, {1: "a"}).needless_loads == 0
    assert counts_of(log.add("load", model="a", instance=3).lines, {1: "a"}).needless_loads == 1


async def test_the_log_is_followed_from_its_first_line() -> None:
    """It asks for everything, and waits for what is to come."""
    pieces = frames(raw(1, 0.0, "load"), raw(2, 0.1, "ready"), end=": nothing now\n\n")
    followed = Followed()
    async with (
        serving(lambda _: Reply(200, STREAM, pieces, hold=True)) as stub,
        httpx.AsyncClient(base_url=stub.url, **PLAIN) as http,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(followed.follow, http)
        assert await followed.wait_for(lambda line: line.event == "ready", at_most_seconds=5.0)
        nursery.cancel_scope.cancel()
    assert [line.event for line in followed.lines] == ["load", "ready"]
    assert stub.asked[0].path == "/api/events?follow=1"
    assert followed.fault == ""


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (Reply(404, {}, (b"no",)), "broke off"),
        (Reply(200, STREAM, frames(raw(1, 0.0, "load"), end="")), "the decision log ended"),
        (Reply(200, STREAM, frames({"seq": "one"}, end="")), "cannot be read"),
        (Reply(200, STREAM, (b"data: {\n\n",)), "cannot be read"),
        (Reply(200, STREAM, (b"data: [1]\n\n",)), "cannot be read"),
        (Reply(200, STREAM, (b"data: " + b"[" * 100_000 + b"\n\n",)), "cannot be read"),
    ],
)
async def test_a_log_that_breaks_off_says_why(reply: Reply, fault: str) -> None:
    """Whoever waits for a line is told that none will come."""
    followed = Followed()
    async with (
        serving(lambda _: reply) as stub,
        httpx.AsyncClient(base_url=stub.url, **PLAIN) as http,
    ):
        await followed.follow(http)
        assert not await followed.wait_for(lambda line: line.event == "ready", at_most_seconds=5.0)
    assert fault in followed.fault


async def test_a_log_that_broke_off_is_caught_up_with() -> None:
    """Its numbers go on over a restart: what was missed meanwhile is there."""
    followed = Followed()
    replies = [(raw(4, 0.0, "load"),), (raw(5, 1.0, "start"), raw(6, 2.0, "load"))]
    async with (
        serving(lambda _: Reply(200, STREAM, frames(*replies.pop(0), end=""))) as stub,
        httpx.AsyncClient(base_url=stub.url, **PLAIN) as http,
    ):
        await followed.follow(http, since=3)
        assert followed.fault
        await followed.catch_up(http, since=3)
    assert ([line.seq for line in followed.lines], followed.fault) == ([4, 5, 6], "")
    assert [one.path for one in stub.asked] == ["/api/events?follow=1&since=3", "/api/events?follow=0&since=4"]


async def test_a_log_that_is_there_and_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only whoever follows it waits for more."""
    monkeypatch.setattr(decisions, "LOOK_SECONDS", 0.1)
    followed = Followed()
    pieces = frames(raw(1, 0.0, "load"), end="")
    async with (
        serving(lambda _: Reply(200, STREAM, pieces, hold=True)) as stub,
        httpx.AsyncClient(base_url=stub.url, **PLAIN) as http,
    ):
        with trio.fail_after(10.0):
            await followed.follow(http, once=True)
    assert "no end of it" in followed.fault


async def test_a_line_that_does_not_come_is_not_waited_for_longer(autojump_clock: trio.testing.MockClock) -> None:
    """The wait has an end."""
    began = autojump_clock.current_time()
    assert not await Followed().wait_for(lambda _: True, at_most_seconds=5.0)
    assert autojump_clock.current_time() - began == pytest.approx(5.0)
