"""The same with the real llama-server, where there is one that runs here, and models that load in a moment."""

import json
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import trio

from gridsched.core.events import FailureCause, InstanceReady
from gridsched.core.job import OutcomeKind
from gridsched.engine.address import Port
from gridsched.engine.find import find_engine
from gridsched.engine.locate import FoundEngine
from gridsched.engine.relay import relay
from gridsched.engine.stall import StallClocks
from gridsched.engine.trial_model import trial_model
from gridsched.engine.upstream import open_answer
from tests.engine.conftest import ONE, PATIENCE_SECONDS, Bench, make_bench
from tests.support.tiny_model import make_tiny_chat

pytestmark = pytest.mark.slow

JSON = ((b"Content-Type", b"application/json"),)
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def real_engine() -> FoundEngine:
    """The engine that a server would take here."""
    found = find_engine()
    if not found.info.ok:
        pytest.skip(reason=f"no real engine: {found.info.problem}")
    return found


@pytest.fixture
def real(real_engine: FoundEngine, leak_free: None, tmp_path: Path) -> Bench:  # noqa: ARG001 - it checks at the end
    """A bench with the real engine and a tiny chat model."""
    bench = make_bench(real_engine, tmp_path)
    make_tiny_chat(bench.model)
    return bench


@pytest.mark.usefixtures("leak_free")
async def test_P1_a_real_engine_serves_at_a_port_and_only_who_knows_its_key(
    real_engine: FoundEngine, tmp_path: Path
) -> None:
    """It reads the key from its environment, and health alone is for everybody."""
    bench = make_bench(replace(real_engine, unix_socket=False), tmp_path)
    make_tiny_chat(bench.model)
    async with bench.running(bench.launch()):
        status, _ = await ask(bench, chat(3, stream=False))
        assert status == 200
        port = bench.engine.endpoint(ONE)
        assert isinstance(port, Port)
        async with open_answer(Port(port.number), "POST", CHAT, JSON, chat(3, stream=False)) as answer:
            assert answer.status == 401


def chat(max_tokens: int, *, stream: bool) -> bytes:
    """A chat request."""
    request = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens, "stream": stream}
    return json.dumps(request).encode()


async def ask(bench: Bench, body: bytes) -> tuple[int, bytes]:
    """A whole answer."""
    parts: list[bytes] = []

    async def take(data: bytes) -> None:
        parts.append(data)

    async with bench.upstream.request(ONE, "POST", CHAT, JSON, body) as answer:
        outcome = await relay(answer, take, StallClocks().limit(ONE, PATIENCE_SECONDS))
        assert outcome.kind is OutcomeKind.DONE
        assert not any(name.startswith(b"access-control") for name, _ in answer.headers)
        return answer.status, b"".join(parts)


async def test_a_real_engine_serves_a_chat_and_a_stream_and_ends(real: Bench) -> None:
    """An answer as long as was asked for, under the model's own name; the engine's own refusals pass through."""
    async with real.running(real.launch()):
        status, body = await ask(real, chat(5, stream=False))
        answer = json.loads(body)
        assert status == 200
        assert answer["usage"]["completion_tokens"] == 5
        assert answer["model"] == "org/tiny"
        assert answer["choices"][0]["message"]["content"].isprintable()
        status, body = await ask(real, chat(5, stream=True))
        assert status == 200
        assert body.endswith(b"data: [DONE]\n\n")
        status, body = await ask(real, b"{")
        assert 400 <= status < 600
        assert "error" in json.loads(body)
    assert real.exit().failure is None


async def test_L2_a_real_engine_tells_its_buffers(real: Bench) -> None:
    """Of an engine whose log has a level for it: weights as large as the file but for its header, a cache of two slots
    over 1,024 tokens, something to compute in."""
    async with real.running(real.launch()):
        (event,) = real.events
    assert isinstance(event, InstanceReady)
    (told,) = event.allocated
    assert told.device == "host"
    assert 0.9 < told.weights_bytes / real.model.stat().st_size <= 1.05
    assert told.kv_bytes > 0
    assert told.compute_bytes > 0


async def test_S8_a_slot_is_free_again_after_its_client_has_left(real: Bench) -> None:
    """Closing the connection stops the generation; the engine itself says so."""
    async with real.running(real.launch()):
        async with real.upstream.request(ONE, "POST", CHAT, JSON, chat(100_000, stream=True)) as answer:
            await answer.receive()
            assert await real.upstream.busy_slots(ONE) == 1
        while await real.upstream.busy_slots(ONE):  # noqa: ASYNC110 - only the engine knows
            await trio.sleep(0.01)


async def test_P5_kill_9_in_mid_answer_is_a_broken_answer_and_an_exit(real: Bench) -> None:
    """The relay says that the engine died, and the supervisor of what."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(real.engine.run, ONE, real.launch(), real.post)
            await real.wait_for(InstanceReady)
            seen: Counter[str] = Counter()

            async def kill_it(_: bytes) -> None:
                if not seen["kills"]:
                    os.kill(real.engine.processes()[ONE], signal.SIGKILL)
                seen["kills"] += 1

            async with real.upstream.request(ONE, "POST", CHAT, JSON, chat(100_000, stream=True)) as answer:
                outcome = await relay(answer, kill_it, StallClocks().limit(ONE, PATIENCE_SECONDS))
    assert outcome.kind is OutcomeKind.ENGINE_DIED
    assert outcome.answered
    failure = real.exit().failure
    assert failure is not None
    assert failure.cause is FailureCause.KILLED


async def test_P6a_a_real_engine_names_what_is_wrong_with_a_file(real: Bench) -> None:
    """A file that is not there, one that is cut off, and one that is something else."""
    whole = real.model.read_bytes()
    for content, cause in (
        (None, FailureCause.MISSING_FILE),
        (whole[: len(whole) // 2], FailureCause.DAMAGED_FILE),
        (whole[:200], FailureCause.DAMAGED_FILE),
        (b"not a model at all" * 10, FailureCause.DAMAGED_FILE),
        (whole.replace(b"llama", b"lumma"), FailureCause.UNKNOWN_ARCHITECTURE),
    ):
        real.model.unlink(missing_ok=True)
        if content is not None:
            real.model.write_bytes(content)
        for _ in range(5):  # on a busy machine the engine at times ends before its logging thread has printed why
            real.events.clear()
            failure = (await real.run_to_the_end(real.launch())).failure
            assert failure is not None
            if failure.cause is not FailureCause.CRASHED:
                break
        assert failure.cause is cause, failure


async def test_P6a_a_real_engine_names_flags_that_it_does_not_know(real: Bench) -> None:
    """With the flag in the sentence."""
    failure = (await real.run_to_the_end(real.launch(flags=("--frobnicate", "7")))).failure
    assert failure is not None
    assert failure.cause is FailureCause.BAD_FLAGS
    assert "--frobnicate" in failure.message


async def test_P6_a_flag_that_breaks_the_plan_is_found_before_ready(real: Bench) -> None:
    """More slots than were planned for would take memory that nobody reserved."""
    failure = (await real.run_to_the_end(real.launch(flags=("--parallel", "4")))).failure
    assert failure is not None
    assert failure.cause is FailureCause.BAD_FLAGS
    assert "4 slots where 2 were planned" in failure.message


def test_the_trial_model_is_a_model_to_another_reader(tmp_path: Path) -> None:
    """Its few bytes are read by gguf as what they are meant to be."""
    path = tmp_path / "trial.gguf"
    path.write_bytes(trial_model())
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.architecture"].contents() == "llama"
    shapes = {tensor.name: [int(size) for size in tensor.shape] for tensor in reader.tensors}
    assert shapes["token_embd.weight"] == [32, 259]
    assert shapes["blk.0.attn_q.weight"] == [32, 32]
    assert len(shapes) == 12
