# ruff: noqa: ARG001 - a jumping clock works by being asked for
"""The simulated engine behind the real ports, under a clock that jumps."""

import base64
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
import trio.testing

from gridsched.core.events import Event, FailureCause, InstanceExited, InstanceReady
from gridsched.core.ids import InstanceId
from gridsched.ports import UpstreamFailure, UpstreamFailureKind
from sim import SimWorld, build
from sim.engine import SETTLE_SECONDS, STOP_SECONDS, Faults
from sim.gpu import GIB
from sim.models import load_seconds_of

ONE = InstanceId(1)
CHAT = {"messages": [{"role": "user", "content": "how are you"}], "max_tokens": 5}


class Running:
    """One process and what it posted, with the moment of each event."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.posted: list[tuple[float, Event]] = []
        self._ready = trio.Event()

    def post(self, event: Event) -> None:
        """Keep an event and its moment."""
        self.posted.append((trio.current_time(), event))
        if isinstance(event, InstanceReady):
            self._ready.set()

    async def ready(self) -> None:
        """Wait until the process is ready."""
        await self._ready.wait()

    @property
    def exit(self) -> InstanceExited:
        """How the process ended; fails unless it ended exactly once."""
        (event,) = [event for _, event in self.posted if isinstance(event, InstanceExited)]
        return event

    async def ask(self, target: str, body: object, instance: InstanceId = ONE) -> tuple[int, bytes]:
        """One POST and its whole answer."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.world.upstream.request(instance, "POST", target, (), raw) as answer:
            parts = []
            while part := await answer.receive():
                parts.append(part)
            return answer.status, b"".join(parts)


@asynccontextmanager
async def process(
    model: str = "sim-chat-4b", world: SimWorld | None = None, faults: Faults | None = None
) -> AsyncIterator[Running]:
    """A process that is being started; ended with the block."""
    world = world or build()
    if faults:
        world.engine.plan_faults(model, faults)
    running = Running(world)
    found = world.catalog.resolve(model)
    assert found is not None
    assert found.spec is not None
    launch = world.catalog.launch(found.name, found.spec.options[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.engine.run, ONE, launch, running.post)
        await trio.testing.wait_all_tasks_blocked()
        yield running
        nursery.cancel_scope.cancel()


async def test_a_load_takes_as_long_as_the_drive_needs(autojump_clock: trio.abc.Clock) -> None:
    """Ready comes after size over speed, and the card then holds the whole estimate."""
    async with process() as running:
        await running.ready()
        moment, event = running.posted[0]
        assert event == InstanceReady(ONE)
        assert moment == pytest.approx(load_seconds_of(4 * GIB), abs=0.001)
        (read,) = await running.world.monitor.read(running.world.engine.processes())
        assert dict(read.held)[ONE] == read.used_bytes == pytest.approx(4 * GIB, abs=16)


async def test_a_stop_ends_the_process_and_its_memory_comes_back_later(autojump_clock: trio.abc.Clock) -> None:
    """The exit has no failure; for a moment after it the card still counts memory that is nobody's."""
    async with process() as running:
        await running.ready()
        asked = trio.current_time()
        running.world.engine.stop(ONE)
        await trio.sleep(STOP_SECONDS + 0.01)
        assert running.exit.failure is None
        assert running.posted[-1][0] == pytest.approx(asked + STOP_SECONDS)
        (read,) = await running.world.monitor.read(running.world.engine.processes())
        assert read.held == ()
        assert read.used_bytes > 3 * GIB
        await trio.sleep(0.5)
        (read,) = await running.world.monitor.read(running.world.engine.processes())
        assert read.used_bytes == 0


async def test_cancelling_a_process_ends_it_first(autojump_clock: trio.abc.Clock) -> None:
    """A cancelled life posts its exit once and leaves no process behind."""
    async with process() as running:
        await running.ready()
    assert running.exit.failure is None
    assert running.world.engine.processes() == {}


async def test_a_chat_is_answered_in_openai_shape(autojump_clock: trio.abc.Clock) -> None:
    """One JSON answer with text and usage, the same for the same prompt."""
    async with process() as running:
        await running.ready()
        status, first = await running.ask("/v1/chat/completions", CHAT)
        _, second = await running.ask("/v1/chat/completions", CHAT)
        answer = json.loads(first)
        assert status == 200
        assert answer["object"] == "chat.completion"
        assert len(answer["choices"][0]["message"]["content"].split()) == 5
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
        assert json.loads(second)["choices"] == answer["choices"]


async def test_a_stream_comes_frame_by_frame(autojump_clock: trio.abc.Clock) -> None:
    """Role, words, finish, usage, [DONE]; each word takes its own time."""
    async with process() as running:
        await running.ready()
        body = json.dumps(CHAT | {"stream": True, "stream_options": {"include_usage": True}}).encode()
        frames, moments = [], []
        async with running.world.upstream.request(ONE, "POST", "/v1/chat/completions", (), body) as answer:
            assert (b"content-type", b"text/event-stream") in answer.headers
            while frame := await answer.receive():
                frames.append(frame)
                moments.append(trio.current_time())
        assert frames[-1] == b"data: [DONE]\n\n"
        chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-1]]
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert all(chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:6])
        assert chunks[6]["choices"][0]["finish_reason"] == "length"
        assert chunks[7]["usage"]["completion_tokens"] == 5
        assert all(later > earlier for earlier, later in pairwise(moments[:6]))


async def test_a_completion_streams_text(autojump_clock: trio.abc.Clock) -> None:
    """The older endpoint has text in place of a message, and no role frame."""
    async with process() as running:
        await running.ready()
        _, whole = await running.ask("/v1/completions", {"prompt": "once", "max_tokens": 3})
        assert len(json.loads(whole)["choices"][0]["text"].split()) == 3
        _, stream = await running.ask("/v1/completions", {"prompt": "once", "max_tokens": 3, "stream": True})
        assert stream.count(b'"text"') == 4
        assert stream.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("value", "count"), [("one text", 1), (["a", "b", "c"], 3), ([1, 2, 3], 1), ([[1, 2], [3]], 2)], ids=str
)
async def test_embeddings_take_every_form_of_input(autojump_clock: trio.abc.Clock, value: object, count: int) -> None:
    """A text, texts, token numbers or lists of them; one unit vector each, in order."""
    async with process("sim-embed") as running:
        await running.ready()
        status, raw = await running.ask("/v1/embeddings", {"input": value})
        answer = json.loads(raw)
        assert status == 200
        assert [one["index"] for one in answer["data"]] == list(range(count))
        for one in answer["data"]:
            assert sum(part * part for part in one["embedding"]) == pytest.approx(1.0)


async def test_an_embedding_depends_on_its_text_alone(autojump_clock: trio.abc.Clock) -> None:
    """The same text has the same vector wherever it stands, as numbers or as base64."""
    async with process("sim-embed") as running:
        await running.ready()
        _, raw = await running.ask("/v1/embeddings", {"input": ["x", "y"]})
        first, other = (one["embedding"] for one in json.loads(raw)["data"])
        _, raw = await running.ask("/v1/embeddings", {"input": "x", "encoding_format": "base64"})
        packed = base64.b64decode(json.loads(raw)["data"][0]["embedding"])
        assert struct.unpack(f"<{len(packed) // 4}f", packed) == pytest.approx(first, rel=1e-5)
        assert first != other


@pytest.mark.parametrize(
    ("target", "body", "status", "kind"),
    [
        ("/v1/chat/completions", b'{"messages":', 400, "invalid_request_error"),
        ("/v1/chat/completions", b"[]", 400, "invalid_request_error"),
        ("/v1/chat/completions", {}, 400, "invalid_request_error"),
        ("/v1/chat/completions", {"messages": "x"}, 400, "invalid_request_error"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, 400, "invalid_request_error"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, 400, "invalid_request_error"),
        ("/v1/chat/completions", CHAT | {"max_tokens": "many"}, 400, "invalid_request_error"),
        ("/v1/completions", {"prompt": "word " * 5000}, 400, "exceed_context_size_error"),
        ("/v1/completions", {"prompt": []}, 400, "invalid_request_error"),
        ("/v1/embeddings", {"input": "x"}, 501, "not_supported_error"),
        ("/nowhere", {}, 404, "not_found_error"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_bad_body_is_refused_as_the_engine_would(
    autojump_clock: trio.abc.Clock, target: str, body: object, status: int, kind: str
) -> None:
    """A real status, an engine-shaped error, and no slot taken."""
    async with process() as running:
        await running.ready()
        got, raw = await running.ask(target, body)
        assert (got, json.loads(raw)["error"]["type"]) == (status, kind)
        assert json.loads(raw)["error"]["code"] == status
        assert await running.world.upstream.busy_slots(ONE) == 0


@pytest.mark.parametrize("value", [None, [], "", [""], 5, [1.5], [[]]], ids=str)
async def test_a_bad_embedding_input_is_refused(autojump_clock: trio.abc.Clock, value: object) -> None:
    """Nothing to embed, or nothing that can be: 400."""
    async with process("sim-embed") as running:
        await running.ready()
        status, raw = await running.ask("/v1/embeddings", {} if value is None else {"input": value})
        assert status == 400
        assert json.loads(raw)["error"]["type"] == "invalid_request_error"


async def test_streams_slow_each_other_down(autojump_clock: trio.abc.Clock) -> None:
    """Two chats at once take longer than one, and less than one after the other."""
    async with process() as running:
        await running.ready()
        started = trio.current_time()
        await running.ask("/v1/chat/completions", CHAT)
        alone = trio.current_time() - started
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.ask, "/v1/chat/completions", CHAT)
            nursery.start_soon(running.ask, "/v1/chat/completions", CHAT)
        assert alone * 1.1 < trio.current_time() - started < alone * 2
        assert running.world.engine.overfilled == 0


async def test_more_steps_than_slots_are_counted_and_served_late(autojump_clock: trio.abc.Clock) -> None:
    """S6 is ours to keep: the engine notices, as the real one would by queueing."""
    async with process("sim-chat-12b") as running:
        await running.ready()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(running.ask, "/v1/chat/completions", CHAT)
        assert running.world.engine.overfilled == 1
        assert await running.world.upstream.busy_slots(ONE) == 0


async def test_S8_a_client_that_closes_frees_its_slot_a_moment_later(autojump_clock: trio.abc.Clock) -> None:
    """The slot is busy until the engine has noticed."""
    async with process() as running:
        await running.ready()
        body = json.dumps(CHAT | {"stream": True}).encode()
        async with running.world.upstream.request(ONE, "POST", "/v1/chat/completions", (), body) as answer:
            await answer.receive()
            assert await running.world.upstream.busy_slots(ONE) == 1
        assert await running.world.upstream.busy_slots(ONE) == 1
        await trio.sleep(SETTLE_SECONDS + 0.001)
        assert await running.world.upstream.busy_slots(ONE) == 0


async def test_a_crash_breaks_answers_and_is_a_failure(autojump_clock: trio.abc.Clock) -> None:
    """An answer under way fails as broken, a later request cannot connect, and the exit names the cause."""
    async with process(faults=Faults(crash_after_seconds=1.0)) as running:
        await running.ready()
        with pytest.raises(UpstreamFailure) as broken:
            await running.ask("/v1/chat/completions", CHAT | {"max_tokens": 500})
        assert broken.value.kind is UpstreamFailureKind.BROKEN
        await trio.sleep(0.1)
        with pytest.raises(UpstreamFailure) as refused:
            await running.ask("/v1/chat/completions", CHAT)
        assert refused.value.kind is UpstreamFailureKind.CONNECT
        failure = running.exit.failure
        assert failure is not None
        assert failure.cause is FailureCause.CRASHED
        assert failure.log_tail == running.world.engine.log_tail(ONE)


@pytest.mark.parametrize(
    ("faults", "cause"),
    [
        (Faults(out_of_memory=True), FailureCause.DEVICE_OOM),
        (Faults(crash_in_load=True), FailureCause.CRASHED),
    ],
    ids=str,
)
async def test_a_load_that_fails_says_why(autojump_clock: trio.abc.Clock, faults: Faults, cause: FailureCause) -> None:
    """Never ready; one exit with its cause; the memory comes back."""
    async with process(faults=faults) as running:
        await trio.sleep(60)
        failure = running.exit.failure
        assert failure is not None
        assert failure.cause is cause
        assert len(running.posted) == 1
        (read,) = await running.world.monitor.read({})
        assert read.used_bytes == 0


async def test_a_card_that_others_fill_runs_out_of_memory(autojump_clock: trio.abc.Clock) -> None:
    """What programs outside hold is used memory and nobody of ours; a load that does not fit ends as out of memory."""
    world = build()
    (info,) = world.monitor.devices()
    world.monitor.set_foreign(info.spec.name, 13 * GIB)
    async with process(world=world) as running:
        await trio.sleep(60)
        failure = running.exit.failure
        assert failure is not None
        assert failure.cause is FailureCause.DEVICE_OOM
        (read,) = await world.monitor.read({})
        assert read.used_bytes == 13 * GIB


async def test_a_slow_load_and_a_refused_stop_take_their_time(autojump_clock: trio.abc.Clock) -> None:
    """Faults stretch time and change nothing else."""
    async with process(faults=Faults(load_factor=3.0, ignore_stop=True)) as running:
        await running.ready()
        assert running.posted[0][0] == pytest.approx(3 * load_seconds_of(4 * GIB), abs=0.001)
        running.world.engine.stop(ONE)
        await trio.sleep(5)
        assert len(running.posted) == 1
        await trio.sleep(6)
        assert running.exit.failure is None


async def test_a_process_that_hangs_sends_nothing_until_it_is_stopped(autojump_clock: trio.abc.Clock) -> None:
    """A hang holds the answer and its slot; the stop breaks it."""
    async with process() as running:
        await running.ready()
        running.world.engine.set_faults(ONE, Faults(hang=True))
        with trio.move_on_after(100) as patience:
            await running.ask("/v1/chat/completions", CHAT)
        assert patience.cancelled_caught
        assert await running.world.upstream.busy_slots(ONE) == 1
        running.world.engine.stop(ONE)
        with pytest.raises(UpstreamFailure):
            await running.ask("/v1/chat/completions", CHAT)


async def test_S10_a_process_that_stands_still_answers_later_and_loses_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Prompt and tokens stand, and so does the question for its slots; all of it comes when the process goes on."""
    async with process() as running:
        await running.ready()
        began = trio.current_time()
        whole = await running.ask("/v1/chat/completions", CHAT)
        seconds = trio.current_time() - began
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def stand() -> None:
                for _ in range(2):
                    await trio.sleep(seconds / 3)
                    running.world.engine.pause(ONE)
                    await trio.sleep(60.0)
                    running.world.engine.resume(ONE)

            async def look() -> None:
                await trio.sleep(seconds / 2)
                assert await running.world.upstream.busy_slots(ONE) == 1
                assert trio.current_time() - began >= 60.0

            nursery.start_soon(stand)
            nursery.start_soon(look)
            again = await running.ask("/v1/chat/completions", CHAT)
            assert json.loads(again[1])["choices"] == json.loads(whole[1])["choices"]
        assert trio.current_time() - began == pytest.approx(seconds + 120.0)


async def test_S10_a_process_that_stands_still_can_die(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever waits for its answer is told."""
    async with process() as running:
        await running.ready()
        running.world.engine.pause(ONE)
        async with trio.open_nursery() as nursery:

            async def kill() -> None:
                await trio.sleep(5.0)
                running.world.engine.crash(ONE)

            nursery.start_soon(kill)
            with pytest.raises(UpstreamFailure):
                await running.ask("/v1/chat/completions", CHAT)


async def test_S10_a_process_that_is_told_to_stand_a_moment_late_has_its_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A loop that was busy past an answer's moment tells the process to stand after it: nothing is left to wait for."""
    async with process() as running:
        await running.ready()
        async with trio.open_nursery() as nursery:

            async def be_busy() -> None:
                await trio.sleep(0.01)
                autojump_clock.jump(60.0)
                running.world.engine.pause(ONE)
                await trio.sleep(1.0)
                running.world.engine.resume(ONE)

            nursery.start_soon(be_busy)
            status, _ = await running.ask("/v1/chat/completions", CHAT)
            assert status == 200
