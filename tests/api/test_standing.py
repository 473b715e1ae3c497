"""Low work that stands still while people chat (S10) and is taken away for them (S11), from client to engine."""

from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.settings import FrontSettings
from gridsched.core.policy import Policy
from tests.support.front import Answer, House, serving

COMPLETIONS = "/v1/completions"
LOW = {"X-Class": "background"}


def asks(model: str, tokens: int, **more: object) -> dict[str, object]:
    """A generation of so many tokens."""
    return {"model": model, "prompt": "go", "max_tokens": tokens} | more


async def warm(house: House, *models: str) -> None:
    """Have models loaded for low work, and no chat about."""
    for model in models:
        assert (await house.ask("POST", COMPLETIONS, asks(model, 1), LOW)).status == 200


def words(answer: Answer) -> int:
    """How many tokens a plain answer has."""
    usage = answer.json["usage"]
    assert isinstance(usage, dict)
    return int(usage["completion_tokens"])


class Crowd:
    """Clients that ask at once; their answers and when each was whole."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.answers: dict[str, Answer] = {}
        self.ended: dict[str, float] = {}

    async def ask(self, name: str, body: object, headers: dict[str, str] | None = None) -> None:
        """One exchange."""
        self.answers[name] = await self.house.ask("POST", COMPLETIONS, body, headers)
        self.ended[name] = trio.current_time()


@pytest.mark.slow
async def test_S11_a_completion_is_taken_away_for_a_chat_and_its_client_gets_one_whole_answer(
    autojump_clock: MockClock,
) -> None:
    """All slots are low work's; a chat waits a second, then one of them goes; in the end all have a whole answer."""
    async with serving(autojump_clock, policy=Policy(abort_after_seconds=1.0)) as house:
        await warm(house, "sim-chat-12b")
        crowd = Crowd(house)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                nursery.start_soon(crowd.ask, name, asks("sim-chat-12b", 1000), LOW)
            await trio.sleep(5.0)
            nursery.start_soon(crowd.ask, "chat", asks("sim-chat-12b", 10))
        assert {name: words(answer) for name, answer in crowd.answers.items()} == {"one": 1000, "two": 1000, "chat": 10}
        assert all(answer.complete for answer in crowd.answers.values())
        assert 6.0 < crowd.ended["chat"] - began < 8.0
        (line,) = house.logged("abort")
        assert (line["rule"], line["class"]) == ("S11", "background")
        assert len([one for one in house.lines if one.get("outcome") == "aborted"]) == 1
        assert house.world.engine.overfilled == 0


@pytest.mark.slow
async def test_S11_a_stream_that_has_begun_stays_and_a_held_head_starts_anew(autojump_clock: MockClock) -> None:
    """One slot is left for low work that streams: its first token is out, so the plain, older one goes."""
    async with serving(autojump_clock, policy=Policy(abort_after_seconds=1.0)) as house:
        await warm(house, "sim-chat-12b")
        crowd = Crowd(house)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.ask, "plain", asks("sim-chat-12b", 1000), LOW)
            await trio.sleep(0.5)
            nursery.start_soon(crowd.ask, "stream", asks("sim-chat-12b", 1000, stream=True), LOW)
            await trio.sleep(5.0)
            nursery.start_soon(crowd.ask, "chat", asks("sim-chat-12b", 10))
        assert words(crowd.answers["plain"]) == 1000
        assert crowd.answers["stream"].body.endswith(b"data: [DONE]\n\n")
        assert len([one for one in house.lines if one.get("outcome") == "aborted"]) == 1


async def test_S11_a_client_of_a_step_that_was_taken_away_may_leave(autojump_clock: MockClock) -> None:
    """It leaves while its job waits again: nothing of it is left, and the chat is served."""
    async with serving(autojump_clock, policy=Policy(abort_after_seconds=1.0)) as house:
        await warm(house, "sim-chat-12b")
        crowd = Crowd(house)
        async with trio.open_nursery() as nursery:
            leavers = trio.CancelScope()

            async def leave() -> None:
                with leavers:
                    async with trio.open_nursery() as low:
                        for name in ("one", "two"):
                            low.start_soon(crowd.ask, name, asks("sim-chat-12b", 1000), LOW)

            nursery.start_soon(leave)
            await trio.sleep(5.0)
            nursery.start_soon(crowd.ask, "chat", asks("sim-chat-12b", 100))
            await trio.sleep(1.5)
            leavers.cancel()
        assert words(crowd.answers["chat"]) == 100
        assert list(crowd.answers) == ["chat"]


@pytest.mark.slow
async def test_S10_a_stream_stands_while_somebody_chats_and_loses_nothing(autojump_clock: MockClock) -> None:
    """The low stream is silent for as long as the chat generates, three seconds at most; its stall limit of two seconds
    does not count them, comment lines show that the server lives, and every token comes."""
    figures = FrontSettings(stall_seconds=2.0, hold_seconds=0.5, comment_seconds=1.0)
    policy = Policy(background_pause=True)
    async with serving(autojump_clock, figures, policy) as house:
        await warm(house, "sim-chat-4b", "sim-chat-2b")
        crowd = Crowd(house)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.ask, "low", asks("sim-chat-2b", 500, stream=True), LOW)
            await trio.sleep(1.0)
            nursery.start_soon(crowd.ask, "chat", asks("sim-chat-4b", 800, stream=True))
        low = crowd.answers["low"]
        assert low.complete
        assert low.body.endswith(b"data: [DONE]\n\n")
        assert low.body.count(b'"text"') >= 500
        times = [at for at, data in low.arrived if not data.startswith(b":")]
        longest = max(after - before for before, after in pairwise(times))
        assert 3.0 <= longest < 3.1
        assert len([data for _, data in low.arrived if data.startswith(b": generating")]) >= 2
        assert [line["rule"] for line in house.logged("pause") + house.logged("resume")] == ["S10", "S10"]


async def test_S10_an_exit_of_the_server_leaves_nobody_standing(autojump_clock: MockClock) -> None:
    """The server is told to stop while low work stands: it goes on, and its client gets the whole answer."""
    policy = Policy(background_pause=True, pause_limit_seconds=3600.0)
    async with serving(autojump_clock, policy=policy) as house:
        await warm(house, "sim-chat-4b", "sim-chat-2b")
        crowd = Crowd(house)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.ask, "low", asks("sim-chat-2b", 200), LOW)
            await trio.sleep(0.5)
            nursery.start_soon(crowd.ask, "chat", asks("sim-chat-4b", 1000))
            await house.until_logged("pause")
            house.runtime.end()
        assert {name: words(answer) for name, answer in crowd.answers.items()} == {"low": 200, "chat": 1000}
