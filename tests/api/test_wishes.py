"""What a request may wish for its model and its wait, over HTTP: it is heard, held to, and kept from the engine."""

import json
from collections.abc import Mapping

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.keep import MAX_TTL_SECONDS, ttl
from gridsched.api.routes import ROUTES
from gridsched.control.problems import RequestError
from gridsched.core.policy import Policy
from sim import build
from sim.gpu import GIB
from tests.support.front import Answer, House, serving

CHAT = "/v1/chat/completions"
LARGE, SMALL, TINY = "sim-chat-12b", "sim-chat-4b", "sim-chat-2b"
HELLO: dict[str, object] = {"model": SMALL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
ONE_FITS = (10 * GIB,)  # the large one, or any of the others
STRICT = Policy(interactive_turn_seconds=0.0)


class Asked:
    """Requests that go on beside a test, and their answers by name."""

    def __init__(self, house: House, nursery: trio.Nursery) -> None:
        self._house = house
        self._nursery = nursery
        self.answers: dict[str, Answer] = {}
        self.times: dict[str, float] = {}

    async def begin(self, name: str, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> None:
        """Ask, and go on when the job is known."""

        async def ask() -> None:
            self.answers[name] = await self._house.ask("POST", CHAT, body, headers)
            self.times[name] = trio.current_time()

        known = len(self._house.logged("enqueue"))
        self._nursery.start_soon(ask)
        await self._house.until_logged("enqueue", known + 1)


def queue_ms(answer: Answer) -> int:
    """How long it queued."""
    return int(answer.headers["x-gridsched-queue-ms"])


# --- warm and cold ----------------------------------------------------------------------------------------------------


async def test_S6b_who_asks_for_a_warm_model_never_waits_for_a_load(autojump_clock: MockClock) -> None:
    """While another loads, the ready one answers at once, however many wait."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        await house.ask("POST", CHAT, HELLO)
        asked = Asked(house, nursery)
        for name in ("first", "second"):
            await asked.begin(name, HELLO | {"model": LARGE})
        warm = await house.ask("POST", CHAT, HELLO)
        assert (warm.status, queue_ms(warm)) == (200, 0)
        assert not asked.answers
    assert [asked.answers[name].status for name in ("first", "second")] == [200, 200]
    assert min(queue_ms(each) for each in asked.answers.values()) > 1000


async def test_S6b_until_its_model_drains_for_an_older_chat(autojump_clock: MockClock) -> None:
    """Where one has to go for the other: who came later waits for the swap, and is served after it."""
    async with serving(autojump_clock, policy=STRICT, world=build(cards=ONE_FITS)) as house:
        async with trio.open_nursery() as nursery:
            await house.ask("POST", CHAT, HELLO)
            asked = Asked(house, nursery)
            await asked.begin("runs", HELLO | {"max_tokens": 200, "stream": True})
            await asked.begin("older", HELLO | {"model": LARGE})
            await asked.begin("younger", HELLO)
        assert {name: answer.status for name, answer in asked.answers.items()} == dict.fromkeys(asked.answers, 200)
        assert asked.answers["runs"].body.endswith(b"data: [DONE]\n\n")
        assert asked.times["runs"] < asked.times["older"] < asked.times["younger"]
        (first, second, third) = house.logged("load")
        assert [each["model"] for each in (first, second, third)] == [SMALL, LARGE, SMALL]


# --- warm_only and no_evict -------------------------------------------------------------------------------------------


async def test_S9_warm_only_is_refused_at_once_where_nothing_is_loaded(autojump_clock: MockClock) -> None:
    """And loads nothing, streamed or not."""
    async with serving(autojump_clock) as house:
        for stream in (False, True):
            answer = await house.ask("POST", CHAT, HELLO | {"stream": stream, "gridsched": {"warm_only": True}})
            assert (answer.status, answer.error["code"], queue_ms(answer)) == (503, "not_resident", 0)
        assert not house.logged("load")
        await house.ask("POST", CHAT, HELLO)
        assert (await house.ask("POST", CHAT, HELLO | {"gridsched": {"warm_only": True}})).status == 200


async def test_S9_warm_only_joins_a_load_that_others_began(autojump_clock: MockClock) -> None:
    """One load for both."""
    async with serving(autojump_clock) as house:
        async with trio.open_nursery() as nursery:
            asked = Asked(house, nursery)
            await asked.begin("loads", HELLO)
            await asked.begin("joins", HELLO | {"gridsched": {"warm_only": True}})
        assert [asked.answers[name].status for name in ("loads", "joins")] == [200, 200]
        assert queue_ms(asked.answers["joins"]) > 1000
        assert len(house.logged("load")) == 1


async def test_S9_no_evict_loads_where_there_is_room_and_else_is_refused(autojump_clock: MockClock) -> None:
    """Nothing goes for it; whoever does not say so gets his model."""
    wish = {"gridsched": {"no_evict": True}}
    async with serving(autojump_clock, world=build(cards=ONE_FITS)) as house:
        assert (await house.ask("POST", CHAT, HELLO | wish)).status == 200
        refused = await house.ask("POST", CHAT, HELLO | {"model": LARGE} | wish)
        assert (refused.status, refused.error["code"], queue_ms(refused)) == (503, "not_resident", 0)
        assert not house.logged("evict")
        assert (await house.ask("POST", CHAT, HELLO | {"model": LARGE})).status == 200
        assert len(house.logged("evict")) == 1


# --- the longest wait -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "headers", "waited_ms"),
    [
        ({"max_wait_ms": 0}, {}, 0),
        ({}, {"X-Max-Wait-Ms": "0"}, 0),
        ({"max_wait_ms": 300}, {}, 300),
        ({"max_wait_ms": 0.5}, {}, 0),
        ({"max_wait_ms": 9000}, {"X-Max-Wait-Ms": "250"}, 250),
    ],
)
async def test_S9_a_request_that_has_waited_as_long_as_it_would_is_refused(
    autojump_clock: MockClock, wish: Mapping[str, object], headers: Mapping[str, str], waited_ms: int
) -> None:
    """503 at its very moment, by the header before the body; one whose model is ready has no wait."""
    async with serving(autojump_clock) as house:
        began = trio.current_time()
        refused = await house.ask("POST", CHAT, HELLO | {"gridsched": wish}, headers)
        assert (refused.status, refused.error["code"]) == (503, "queue_timeout")
        assert abs((trio.current_time() - began) * 1000 - waited_ms) < 2
        await house.ask("POST", CHAT, HELLO)
        served = await house.ask("POST", CHAT, HELLO | {"gridsched": wish}, headers)
        assert (served.status, queue_ms(served)) == (200, 0)


# --- how long its model stays -----------------------------------------------------------------------------------------

KEPT = [
    ({"gridsched": {"ttl": 60}}, 60.0),
    ({"ttl": 60}, 60.0),
    ({"keep_alive": "1m"}, 60.0),
    ({"keep_alive": 60}, 60.0),
    ({"gridsched": {"ttl": 60}, "ttl": 5, "keep_alive": "1s"}, 60.0),
    ({"ttl": None, "keep_alive": "1m0s"}, 60.0),
    ({"keep_alive": -1}, None),
    ({"keep_alive": 0}, None),
    ({"keep_alive": None, "ttl": None}, None),
    ({"gridsched": {"ttl": 0}}, None),
]


@pytest.mark.parametrize(("wish", "seconds"), KEPT)
async def test_R6_a_request_says_how_long_its_model_stays(
    autojump_clock: MockClock, wish: Mapping[str, object], seconds: float | None
) -> None:
    """In our words, LM Studio's or Ollama's; 0 unloads nothing. The timer begins with the answer's end."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", CHAT, HELLO | wish)
        ended = trio.current_time()
        with trio.move_on_after(100):
            await house.until_logged("stop")
        assert [line["rule"] for line in house.logged("stop")] == (["R6"] if seconds else [])
        if seconds:
            assert abs(trio.current_time() - ended - seconds) < 1


async def test_R6_the_last_request_says_it(autojump_clock: MockClock) -> None:
    """One that says nothing puts it back to what is configured."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", CHAT, HELLO | {"ttl": 10})
        await house.ask("POST", CHAT, HELLO)
        with trio.move_on_after(100):
            await house.until_logged("stop")
        assert not house.logged("stop")


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        (b'"5m"', 300.0),
        (b'"1h30m"', 5400.0),
        (b'"1.5h"', 5400.0),
        (b'".5s"', 0.5),
        (b'"250ms"', 0.25),
        (b'"300"', 300.0),
        (b'" 24h "', 86400.0),
        (b"3600", 3600.0),
        (b"0.5", 0.5),
        (b"0", 0.0),
        (b'"0"', 0.0),
        (b"-1", MAX_TTL_SECONDS),
        (b'"-1"', MAX_TTL_SECONDS),
        (b'"-1m"', MAX_TTL_SECONDS),
        (b"null", None),
    ],
)
def test_R6_ollamas_words_for_how_long(raw: bytes, seconds: float | None) -> None:
    """Durations as Go writes them, or seconds; below 0 is for ever."""
    assert ttl(None, b"null", raw) == seconds


@pytest.mark.parametrize(
    "raw",
    [
        *(b'"soon"', b'""', b'"5 m"', b'"5m5"', b'"m"', b'"1e3"', b'"9999h"', b"1e12", b"[]", b"true"),
        pytest.param(b'"' + b"1" * 100_000 + b'x"', id="digits"),
    ],
)
def test_H1_what_is_no_duration_is_a_400(raw: bytes) -> None:
    """It is not taken for one that is near, and many digits take no longer to read than others."""
    with pytest.raises(RequestError) as caught:
        ttl(None, b"null", raw)
    assert (caught.value.problem.status, caught.value.problem.param) == (400, "keep_alive")


# --- on the way to the engine -----------------------------------------------------------------------------------------

BODIES: Mapping[str, Mapping[str, object]] = {
    "/v1/chat/completions": {"messages": []},
    "/v1/completions": {"prompt": "a"},
    "/v1/embeddings": {"model": "sim-embed", "input": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": []},
    "/v1/messages/count_tokens": {"messages": []},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": []},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
}
WISHES: Mapping[str, object] = {
    "x_class": "batch",
    "gridsched": {"max_wait_ms": 60000, "warm_only": False, "no_evict": False, "ttl": 7, "quality": "compact"},
    "ttl": 9,
    "keep_alive": "5m",
}


@pytest.mark.parametrize("path", sorted(BODIES))
async def test_H2_no_wish_reaches_the_engine_in_any_protocol(autojump_clock: MockClock, path: str) -> None:
    """All of them are heard, and taken out; what is not ours goes up."""
    async with serving(autojump_clock) as house:
        body = {"user": "u", **BODIES[path]}
        answer = await house.ask("POST", path, WISHES | body)
        assert answer.headers["x-gridsched-class"] == "batch"
        (asked,) = house.upstream.asked
        told = json.loads(asked.body)
        assert {key: told[key] for key in body if key != "model"} == {key: body[key] for key in body if key != "model"}
        assert not WISHES.keys() & told.keys()


def test_every_route_has_a_body_here() -> None:
    """But for the one whose body is a form."""
    assert ROUTES.keys() - BODIES.keys() <= {"/v1/audio/transcriptions"}


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"ttl": -1}, "ttl"),
        ({"ttl": "5m"}, "ttl"),
        ({"ttl": True}, "ttl"),
        ({"ttl": 1e12}, "ttl"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"gridsched": {"ttl": -1}}, "gridsched.ttl"),
        ({"gridsched": {"ttl": "60"}}, "gridsched"),
        ({"gridsched": {"max_wait_ms": -1}}, "gridsched.max_wait_ms"),
        ({"gridsched": {"max_wait_ms": 1e15}}, "gridsched.max_wait_ms"),
        ({"gridsched": {"warm_only": "yes"}}, "gridsched"),
        ({"gridsched": {"no_evict": 1}}, "gridsched"),
        ({"gridsched": {"quality": "best"}}, "gridsched.quality"),
        ({"gridsched": {"quality": "b" * 100_000}}, "gridsched.quality"),
        ({"gridsched": {"warm": True}}, "gridsched"),
        ({"gridsched": []}, "gridsched"),
        ({"gridsched": "warm_only"}, "gridsched"),
    ],
)
async def test_H1_a_wish_that_cannot_be_is_a_400(
    autojump_clock: MockClock, wish: Mapping[str, object], param: str
) -> None:
    """By name, and nothing is queued for it."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", CHAT, HELLO | wish)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_request", param)
        assert len(answer.body) < 2000  # whatever it quotes
        assert not house.logged("enqueue")


# --- names ------------------------------------------------------------------------------------------------------------


async def test_R10_wishes_about_loads_and_the_variant_that_answers(autojump_clock: MockClock) -> None:
    """A family with `warm_only` is answered by what is loaded, if that is good enough; with `no_evict` by what fits."""
    async with serving(autojump_clock, world=build(cards=ONE_FITS)) as house:

        async def ask(**wishes: object) -> Answer:
            return await house.ask("POST", CHAT, HELLO | {"model": "sim-chat", "gridsched": wishes})

        cold = await ask(warm_only=True)
        assert (cold.status, cold.error["code"]) == (503, "not_resident")
        await house.ask("POST", CHAT, HELLO | {"model": TINY, "x_class": "batch"})
        warm = await ask(warm_only=True)
        assert (warm.status, warm.headers["x-gridsched-model"]) == (200, TINY)
        better = await ask(warm_only=True, quality="balanced")
        assert (better.status, better.error["code"]) == (503, "not_resident")
        beside = await ask(no_evict=True, quality="balanced")
        assert (beside.status, beside.headers["x-gridsched-model"]) == (200, SMALL)
        assert not house.logged("evict")
        best = await ask(quality="preferred")
        assert (best.status, best.headers["x-gridsched-model"]) == (200, LARGE)


async def test_an_alias_is_its_model(autojump_clock: MockClock) -> None:
    """In any case, with a class behind it; the header and the answer say which model that is."""
    async with serving(autojump_clock) as house:
        for name, job_class in (("gpt-4o-mini", "interactive"), (" GPT-4o-Mini@Batch ", "batch")):
            answer = await house.ask("POST", CHAT, HELLO | {"model": name})
            assert (answer.status, answer.headers["x-gridsched-class"]) == (200, job_class)
            assert answer.headers["x-gridsched-model"] == answer.json["model"] == SMALL
