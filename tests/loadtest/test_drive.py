import json
from collections import Counter
from itertools import pairwise

import pytest
import trio

from loadtest import clients, drive
from loadtest.casting import Part
from loadtest.drive import Drive
from loadtest.roles import ROLES
from tests.loadtest.stand_in import StandIn
from tests.loadtest.stub import Asked, Reply, serving

PARTS = [Part(ROLES["chat"], 2, "big"), Part(ROLES["batch"], 1, "small")]


@pytest.fixture
def fast_clock() -> trio.testing.MockClock:
    """A clock that runs faster: sockets take real time, so it may not jump."""
    return trio.testing.MockClock(rate=20.0)


async def driven(stand_in: StandIn, seed: int = 1, rate: float | None = None, seconds: float = 4.0) -> Drive:
    """A run."""
    async with serving(stand_in) as stub, clients.connect(stub.url, longest_seconds=5.0) as client:
        run = Drive(client, PARTS, seed, seconds, rate)
        await run.run()
    assert not any(run.running.values())
    return run


def gaps(run: Drive, role: str) -> list[float]:
    """The seconds between the times at which a role's requests were to be sent."""
    dues = sorted(one.measured.due for one in run.done if one.role.name == role)
    return [after - before for before, after in pairwise(dues)]


@pytest.mark.slow
async def test_in_an_open_loop_a_slow_server_gets_no_fewer_requests(fast_clock: trio.testing.MockClock) -> None:
    """They come when the seed says, and each is timed from then on, though the server answers none in time."""
    del fast_clock
    fast = await driven(StandIn(), rate=1.5)
    hangs = Reply(200, {}, (b": wait\n\n",), hold=True)
    slow = await driven(StandIn(on_request=lambda _: hangs), rate=1.5)
    other = await driven(StandIn(), seed=2, rate=1.5)
    for part in PARTS:
        wanted, got = gaps(fast, part.role.name), gaps(slow, part.role.name)
        both = min(len(wanted), len(got))  # the last one may be due in the very moment in which the run ends
        assert both > 1
        assert abs(len(wanted) - len(got)) <= 1
        assert got[:both] == pytest.approx(wanted[:both])
        assert gaps(other, part.role.name)[:2] != pytest.approx(wanted[:2])
    assert all(one.measured.error == "no answer within 5 s" for one in slow.done)


async def test_a_request_that_is_sent_late_is_timed_from_when_it_was_due() -> None:
    """To the caller it makes no difference where it waited."""
    async with serving(StandIn()) as stub, clients.connect(stub.url) as client:
        due = trio.current_time() - 5.0
        gave = await client.chat("chat", "big", "Hi", tokens=1, due=due)
        vectors = await client.embed("embeddings", "embedder", ["a"], due=due)
    assert gave.measured.first_token_seconds is not None
    assert 5.0 <= gave.measured.first_token_seconds <= gave.measured.latency_seconds < 60.0
    assert vectors.measured.latency_seconds >= 5.0


@pytest.mark.slow
async def test_an_open_loop_does_not_pile_up_connections_without_end(
    fast_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be one too many is a failed request that says so."""
    del fast_clock
    monkeypatch.setattr(drive, "MOST_AT_ONCE", 3)
    hangs = Reply(200, {}, (b": wait\n\n",), hold=True)
    stand_in = StandIn(on_request=lambda _: hangs)
    run = await driven(stand_in, rate=6.0, seconds=2.0)
    errors = Counter(one.measured.error for one in run.done if one.role.name == "chat")
    assert errors["no answer within 5 s"] >= 3
    assert errors["not sent: 3 requests of this role were under way"] >= 1


@pytest.mark.slow
async def test_in_a_closed_loop_each_client_has_one_request_at_a_time(fast_clock: trio.testing.MockClock) -> None:
    """As many as there are clients, at most, in the class of their role; each client asks what its seed says."""
    del fast_clock
    running, most = Counter[str](), Counter[str]()
    stand_in = StandIn()

    def note(asked: Asked) -> None:
        model = str(asked.fields["model"])
        running[model] = sum(run.running.get(part.role.name, 0) for part in PARTS if part.model == model)
        most[model] = max(most[model], running[model])

    stand_in.on_request = note
    async with serving(stand_in) as stub, clients.connect(stub.url) as client:
        run = Drive(client, PARTS, 1, 8.0)
        await run.run()
    assert most["big"] <= 2
    assert most["small"] == 1
    assert {asked.headers["x-class"] for asked in stand_in.requests} == {"interactive", "batch"}
    again = await driven(again_in := StandIn(), seconds=8.0)
    assert again.done
    assert first_questions(stand_in) == first_questions(again_in)


def first_questions(stand_in: StandIn) -> set[str]:
    """The first question of each model's clients: what comes later depends on the machine's pace."""
    asked = [one.fields for one in stand_in.requests if one.fields["model"] == "small"]
    return {json.dumps(asked[0]["messages"])}
