from collections.abc import Mapping
from dataclasses import replace

import pytest
import trio

from loadtest import clients
from loadtest.harness import Harness
from loadtest.result import Result
from loadtest.roles import MIXES
from loadtest.server import ServerFault
from loadtest.summary import Options
from tests.loadtest.stand_in import StandIn, a_log
from tests.loadtest.stub import Asked, Reply, as_json, delta, frames, serving

OPTIONS = Options(counts={"chat": 1, "background": 1, "batch": 1, "embed": 1}, models={}, seconds=8.0, seed=1)
RATE, SOME = 20.0, 8


@pytest.fixture
def fast_clock() -> trio.testing.MockClock:
    """A clock that runs faster: sockets take real time, so it may not jump."""
    return trio.testing.MockClock(rate=RATE)


def untold(done: float, total: float | None, text: str) -> None:
    """Nobody looks on."""


async def result_of(stand_in: StandIn, options: Options = OPTIONS) -> Result:
    """A whole run against it."""
    async with (
        serving(stand_in) as stub,
        clients.connect(stub.url, longest_seconds=options.longest_seconds) as client,
    ):
        return await Harness(client, options, untold).run()


@pytest.mark.slow
async def test_a_run_measures_every_class_and_what_the_server_did(fast_clock: trio.testing.MockClock) -> None:
    """Requests by class and role, counters as differences, grants and memory over time; the warm-up loads and is no
    request."""
    del fast_clock
    stand_in = StandIn(per_request={"evictions": 0})
    result = await result_of(stand_in)
    assert result.problems == ()
    assert list(result.classes) == ["interactive", "background", "batch", "embeddings"]
    assert list(result.roles) == ["chat", "background", "batch", "embed"]
    warm = [one for one in result.requests if one.warm_up]
    assert [one.model for one in warm] == ["big", "seeing", "small", "embedder"]
    assert sum(row.requests for row in result.classes.values()) == len(result.requests) - len(warm)
    assert all(row.requests and row.p50_s and row.queue_p50_s == 0.002 for row in result.classes.values())
    assert result.classes["interactive"].ttft_p50_s is not None
    assert result.classes["background"].tokens_per_s
    assert (result.loads, result.needless_loads, result.evictions, result.relief_steps, result.thrash) == (0,) * 5
    assert result.samples[0].models == {"big": 8 << 30}
    assert result.samples[0].waiting == {"interactive": 0, "background": 2}
    assert (result.server.version, result.server.devices) == ("9.9", {"gpu0": 16 << 30})
    assert result.settings["models"] == {"chat": "big", "background": "seeing", "batch": "small", "embed": "embedder"}
    assert Result.from_json(result.as_json()) == result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counted", "problem"),
    [({"needless_loads": 1}, "needless load"), ({"loads": 1}, ""), ({"evictions": 1}, "")],
)
async def test_only_a_needless_load_is_a_problem_among_the_counters(
    counted: Mapping[str, int], problem: str, fast_clock: trio.testing.MockClock
) -> None:
    """It is counted by the server, and made by nobody's mistake here."""
    del fast_clock
    result = await result_of(StandIn(per_request=counted), replace(OPTIONS, seconds=2.0))
    assert len(result.requests) > 0
    assert all(getattr(result, what) == len(result.requests) for what in counted)
    assert problem in " ".join(result.problems)
    assert bool(problem) == bool(result.problems)


@pytest.mark.slow
async def test_the_live_line_tells_errors_and_each_class(fast_clock: trio.testing.MockClock) -> None:
    """A phase before the colon, by which lines are told apart where there is no bar; what matters most comes first."""
    del fast_clock
    told: list[tuple[float, float | None, str]] = []
    refusal = as_json({"error": {"message": "busy"}}, status=503)
    stand_in = StandIn(on_request=lambda asked: refusal if asked.fields["model"] == "small" else None)
    async with serving(stand_in) as stub, clients.connect(stub.url) as client:
        options = replace(OPTIONS, cold=True, seconds=6.0)
        await Harness(client, options, lambda *so_far: told.append(so_far)).run()
    done, total, last = told[-1]
    assert 0 < done <= total == 6.0
    assert last.partition(":")[0] in ("traffic", "the last answers")
    assert " errors, " in last
    assert "interactive " in last
    assert "batch 0," in last


@pytest.mark.slow
async def test_the_last_answers_are_told_with_the_seconds_that_go_on(fast_clock: trio.testing.MockClock) -> None:
    """The bar is full by then; a line that stood still would look like a hang."""
    del fast_clock
    told: list[tuple[float, float | None, str]] = []
    hangs = Reply(200, {}, (b": wait\n\n",), hold=True)
    async with (
        serving(StandIn(on_request=lambda _: hangs)) as stub,
        clients.connect(stub.url, longest_seconds=12.0) as client,
    ):
        options = replace(OPTIONS, cold=True, seconds=4.0, longest_seconds=12.0)
        await Harness(client, options, lambda *so_far: told.append(so_far)).run()
    last = [line for done, _, line in told if done == 4.0]
    seconds = [int(line.split()[3]) for line in last if line.startswith("the last answers: ")]
    assert len(seconds) == len(last) > 1
    assert seconds[0] < seconds[-1]


@pytest.mark.slow
async def test_the_log_is_read_from_its_last_line_on_and_held_against_the_counters(
    fast_clock: trio.testing.MockClock,
) -> None:
    """Its clock may be another one; where counters and log disagree that is said."""
    del fast_clock
    stand_in = StandIn(lines=a_log()[:1])

    def begin(_: Asked) -> None:
        stand_in.lines = a_log()

    stand_in.on_request = begin
    result = await result_of(stand_in, replace(OPTIONS, seconds=1.0))
    assert [one.event for one in result.events] == ["load", "ready"]
    first, second = result.grants
    assert (first.row, first.relief, first.rule, second.relief, second.end_s) == ("embeddings", True, "S5", False, None)
    assert first.end_s is not None
    assert first.end_s - first.at_s == pytest.approx(0.5)
    job = next(one for one in result.requests if one.job == 1)
    assert first.at_s - 1.0 == pytest.approx(job.at_s, abs=1e-3)
    assert "The server's counters say 0 relief steps, its decision log 1." in result.notes
    assert "The server's counters say 0 loads, its decision log 1." in result.notes


@pytest.mark.slow
async def test_a_failed_request_is_counted_with_its_sentence_and_its_client_waits(
    fast_clock: trio.testing.MockClock,
) -> None:
    """A server that refuses at once gets no storm."""
    del fast_clock
    refusal = as_json({"error": {"message": "busy"}}, status=503)
    stand_in = StandIn(on_request=lambda asked: refusal if asked.fields["model"] == "small" else None)
    result = await result_of(stand_in, replace(OPTIONS, cold=True, seconds=5.0))
    assert result.roles["batch"].errors == result.roles["batch"].requests
    assert 1 <= result.roles["batch"].errors <= 5
    assert [(one.role, one.error) for one in result.failures] == [("batch", "503: busy")]
    assert result.failures[0].count == result.errors
    assert "failed request" in result.problems[0]


@pytest.mark.slow
async def test_a_model_that_fails_in_the_warm_up_makes_no_traffic_and_is_an_error(
    fast_clock: trio.testing.MockClock,
) -> None:
    """One failure is told, not one after the other; the others go on."""
    del fast_clock
    refusal = as_json({"error": {"message": "does not fit"}}, status=507)
    stand_in = StandIn(on_request=lambda asked: refusal if asked.fields["model"] == "small" else None)
    result = await result_of(stand_in, replace(OPTIONS, seconds=3.0))
    assert result.roles["batch"].requests == result.errors == 1
    assert result.left_out == {"batch": "its model small did not answer in the warm-up: 507: does not fit"}
    assert result.roles["chat"].requests > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (Reply(200, {}, frames(delta("a"), end="")), "the stream ended before [DONE]"),
        (Reply(200, {"Content-Length": "500"}, frames(delta("a"), end="")), "peer closed connection"),
        (Reply(200, {}, frames(delta("a"), {"error": {"message": "died"}})), "in the stream: died"),
        (Reply(200, {}, (b"data: {}\n\n",), hold=True), "no answer within 3 s"),
        (Reply(200, {}, (b"<html>",)), "the stream ended before [DONE]"),
    ],
)
async def test_a_stream_that_breaks_in_the_middle_or_hangs_is_an_error(
    reply: Reply, sentence: str, fast_clock: trio.testing.MockClock
) -> None:
    """And no request is waited for without end."""
    options = Options(counts={"chat": 1}, models={}, seconds=4.0, seed=1, cold=True, longest_seconds=3.0)
    began = fast_clock.current_time()
    result = await result_of(StandIn(on_request=lambda _: reply), options)
    assert result.errors == len(result.requests) > 0
    assert sentence in result.failures[0].error
    assert fast_clock.current_time() - began < 60.0


@pytest.mark.slow
async def test_a_server_that_goes_away_is_errors_and_no_hang(fast_clock: trio.testing.MockClock) -> None:
    """The run comes to its end; what the server did is told as far as its log went."""
    del fast_clock
    results: list[Result] = []
    busy = trio.Event()
    stand_in = StandIn()
    stand_in.on_request = lambda _: busy.set() if len(stand_in.requests) >= SOME else None
    async with trio.open_nursery() as outer, serving(stand_in) as stub:
        outer.start_soon(_run_against, stub.url, results)
        await busy.wait()
    (result,) = results
    assert 0 < result.errors < len(result.requests)
    assert result.loads == 0 or result.loads is None
    assert any("decision log" in note for note in result.notes)
    assert result.measured_s < 30.0


async def _run_against(url: str, results: list[Result]) -> None:
    async with clients.connect(url) as client:
        results.append(await Harness(client, replace(OPTIONS, seconds=10.0), untold).run())


@pytest.mark.slow
async def test_a_run_that_is_stopped_tells_what_it_has_measured(fast_clock: trio.testing.MockClock) -> None:
    """Requests under way are no errors."""
    del fast_clock
    stand_in = StandIn()
    async with serving(stand_in) as stub, clients.connect(stub.url) as client:
        harness = Harness(client, replace(OPTIONS, seconds=10_000.0), untold)
        stand_in.on_request = lambda _: harness.stop() if len(stand_in.requests) >= 2 * SOME else None
        result = await harness.run()
    assert result.interrupted
    assert result.problems == ()
    assert result.requests
    assert result.measured_s < 1000.0
    assert "ended early" in result.notes[0]


@pytest.mark.slow
async def test_roles_that_nobody_can_do_are_left_out_and_said_or_a_fault(fast_clock: trio.testing.MockClock) -> None:
    """A picture needs eyes; `strict` ends the run before it begins."""
    del fast_clock
    blind = {name: told for name, told in StandIn().models.items() if name != "seeing"}
    options = replace(OPTIONS, counts=MIXES["ambient"], seconds=1.0)
    result = await result_of(StandIn(models=blind), options)
    assert set(result.left_out) == {"screenshot", "ocr"}
    assert "vision" in result.left_out["ocr"]
    assert set(result.roles) == {"chat", "agent", "index"}
    async with serving(StandIn(models=blind)) as stub, clients.connect(stub.url) as client:
        with pytest.raises(ServerFault, match="screenshot: no model of the server can do it"):
            await Harness(client, replace(options, strict=True), untold).run()
        with pytest.raises(ServerFault, match="nobody to make traffic"):
            await Harness(client, replace(options, counts={"ocr": 1}), untold).run()


@pytest.mark.slow
async def test_a_name_with_half_a_letter_is_tested_and_told(fast_clock: trio.testing.MockClock) -> None:
    """JSON can name what no text can hold, and count further than anybody: in models, answers, errors and the log."""
    del fast_clock
    odd = "m\ud800"
    told = [{**line, "model": odd, "device": odd, "job": 10**40} for line in a_log()]
    stand_in = StandIn(models={odd: (1.0, ("chat",))}, lines=told[:1])

    def answer(_: Asked) -> Reply | None:
        stand_in.lines = told
        if len(stand_in.requests) == SOME:
            return as_json({"error": {"message": odd}}, status=503)
        return Reply(200, {}, frames(delta(odd), {"choices": [], "usage": {"completion_tokens": 10**40}}))

    stand_in.on_request = answer
    result = await result_of(stand_in, Options(counts={"chat": 2}, models={}, seconds=20.0, seed=1))
    assert [one.error for one in result.failures] == ["503: m?"]
    assert {one.model for one in result.requests} == {one.model for one in result.events} == {"m?"}
    assert Result.from_json(result.as_json()) == result


@pytest.mark.slow
async def test_any_other_server_is_tested_and_what_it_does_not_tell_is_unknown(
    fast_clock: trio.testing.MockClock,
) -> None:
    """Models alone: whoever embeds must be named; no counter is taken for 0."""
    del fast_clock
    stand_in = StandIn(is_gridsched=False)
    result = await result_of(stand_in, replace(OPTIONS, seconds=2.0))
    assert (result.loads, result.needless_loads, result.evictions, result.relief_steps, result.thrash) == (None,) * 5
    assert "--embed-model" in result.left_out["embed"]
    assert any("tells neither" in note for note in result.notes)
    assert result.problems == ()
    named = await result_of(stand_in, replace(OPTIONS, seconds=2.0, models={"embed": "embedder"}))
    assert named.left_out == {}


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (as_json({"hello": "world"}), "lists no models"),
        (Reply(200, {}, (b"<html>",)), "lists no models"),
        (as_json({"error": {"message": "starting"}}, status=503), "503: starting"),
    ],
)
async def test_what_cannot_be_tested_is_a_sentence(reply: Reply, sentence: str) -> None:
    """Before any traffic."""
    async with serving(lambda _: reply) as stub, clients.connect(stub.url) as client:
        with pytest.raises(ServerFault, match=sentence):
            await Harness(client, OPTIONS, untold).run()
