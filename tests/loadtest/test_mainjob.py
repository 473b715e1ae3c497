from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from loadtest import clients, mainjob, texts
from loadtest.mainjob import ALONE_ROW, BATCH_ROW, CHAT_ROW, MainJob, Plan
from loadtest.report import EMBEDDINGS_ROW, rows_of
from tests.loadtest.lines import good_log
from tests.loadtest.stub import Asked, Reply, as_json, delta, frames, serving

QUEUE = {"X-Gridsched-Queue-Ms": "0"}
PLAN = Plan("chat", "batch", "embed", chat_seconds=3.0, people=2, chats_alone=3, documents=100, generations=3)


@pytest.fixture
def fast_clock() -> trio.testing.MockClock:
    """A clock that runs forty times as fast: sockets and threads take real time, so it may not jump."""
    return trio.testing.MockClock(rate=40.0)


def vector(text: str) -> list[float]:
    """A vector that depends on the text alone."""
    return [float(len(text)), float(sum(text.encode()))]


def answer(asked: Asked) -> Reply:
    """A server that serves everything at once."""
    fields = asked.fields
    match asked.path:
        case "/v1/chat/completions":
            return Reply(200, QUEUE, frames(delta("well"), delta(" then")))
        case "/v1/completions":
            return as_json({"choices": [{"text": "a text"}]}, **QUEUE)
        case "/v1/embeddings":
            inputs = fields["input"]
            assert isinstance(inputs, list)
            data = [{"index": index, "embedding": vector(text)} for index, text in enumerate(inputs)]
            return as_json({"data": data}, **QUEUE)
    return as_json({"error": {"message": asked.path}}, status=404)


async def test_the_whole_run_measures_every_kind(fast_clock: trio.testing.MockClock) -> None:
    """Chat alone, then the job, the batch and the people, each asked for in its own class."""
    began = fast_clock.current_time()
    async with serving(answer) as stub, clients.connect(stub.url) as client:
        job = MainJob(client, PLAN)
        await job.run()
    rows = rows_of(mainjob.reported(job.result))
    assert list(rows) == [ALONE_ROW, CHAT_ROW, EMBEDDINGS_ROW, BATCH_ROW]
    assert [row.errors for row in rows.values()] == [0, 0, 0, 0]
    assert (rows[ALONE_ROW].requests, rows[BATCH_ROW].requests, rows[EMBEDDINGS_ROW].requests) == (4, 3, 1)
    assert rows[CHAT_ROW].requests >= 2
    assert job.result.job.vectors == [vector(text) for text in texts.documents(100)]
    assert job.result.alone == {place: vector(texts.document(place)) for place in PLAN.compared}
    classes = {asked.headers.get("x-class") for asked in stub.asked if asked.fields["model"] != "chat"}
    assert classes == {None, "background", "batch"}
    assert job.progress.phase == "done"
    assert fast_clock.current_time() - began >= mainjob.QUIET_SECONDS + PLAN.chat_seconds


async def test_the_embedding_job_is_asked_for_before_the_first_chat(fast_clock: trio.testing.MockClock) -> None:
    """People come while it is under way."""
    began = fast_clock.current_time()
    async with serving(answer) as stub, clients.connect(stub.url) as client:
        await MainJob(client, PLAN).run()
    order = [asked.headers.get("x-class", "") for asked in stub.asked]
    assert "" in order[order.index("background") :]
    assert fast_clock.current_time() - began >= mainjob.QUIET_SECONDS + mainjob.FIRST_CHAT_SECONDS


async def test_a_server_that_cannot_load_a_model_ends_the_run() -> None:
    """There is nothing to measure, and the server's sentence says why."""
    refused = as_json({"error": {"message": "chat failed to load"}}, status=503)
    async with serving(lambda _: refused) as stub, clients.connect(stub.url) as client:
        with pytest.raises(mainjob.SetupFailure, match="503: chat failed to load"):
            await MainJob(client, PLAN).run()
    assert len(stub.asked) == 1


async def test_low_work_that_never_ends_is_given_up(fast_clock: trio.testing.MockClock) -> None:
    """The run has an end, and the job counts as failed."""
    began = fast_clock.current_time()

    def slow(asked: Asked) -> Reply:
        return Reply(200, QUEUE, hold=True) if "x-class" in asked.headers else answer(asked)

    async with serving(slow) as stub, clients.connect(stub.url) as client:
        job = MainJob(client, replace(PLAN, patience_seconds=0.5))
        await job.run()
    assert rows_of(job.result.measured)[EMBEDDINGS_ROW].errors == 1
    assert job.result.job.measured.error == "not finished in time"
    assert fast_clock.current_time() - began >= PLAN.chat_seconds + 0.5


def test_compared_documents_lie_in_different_steps() -> None:
    """Documents of one step could be in order while the steps are not."""
    places = replace(PLAN, documents=1000).compared
    assert len({place // 32 for place in places}) == 4
    assert max(places) == 999


def test_the_end_of_the_job_is_known_in_the_log() -> None:
    """The marks wait for this line."""
    found: Callable[..., bool] = mainjob.is_end_of_job
    assert [line.event for line in good_log().lines if found(line)] == ["complete"]
