"""What a refusal for memory says beside the scheduler's words: worked out in its own time, never in anybody else's."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.commands import Rejection, RejectionCode
from gridsched.core.events import LoadAsked
from gridsched.core.ids import DeviceName, ModelName
from gridsched.ports import LargestFit
from gridsched.runtime.advice import LONGEST_ADVICE_SECONDS, Adviser
from gridsched.runtime.desk import Ticket
from sim import SimulatedCatalog, build
from tests.runtime.inside import BIG, GIB, SMALL, Inside, inside

CARD = (6 * GIB,)
"""Room for the small model and never for the big one."""


class Pondering(SimulatedCatalog):
    """A catalog whose search for what would fit takes some time, as that of a large mixture of experts does."""

    def __init__(self, seconds: float) -> None:
        super().__init__([info.spec for info in build(0, CARD).monitor.devices()])
        self.seconds = seconds

    async def largest_fit(
        self, model: ModelName, usable_bytes: Mapping[DeviceName, int], ctx_size: int | None = None
    ) -> LargestFit:
        """As it is, after a while."""
        await trio.sleep(self.seconds)
        return await super().largest_fit(model, usable_bytes, ctx_size)


async def refused(server: Inside, answers: list[tuple[float, Rejection]]) -> None:
    """A client that asks for what never fits: when it hears so, and what."""
    with server.runtime.desk.submit(server.job(BIG)) as ticket:
        answers.append(await heard(ticket))


async def heard(ticket: Ticket) -> tuple[float, Rejection]:
    answer = await ticket.answer()
    assert isinstance(answer, Rejection)
    return trio.current_time(), answer


@pytest.mark.parametrize(("available", "fits"), [(9 * GIB, True), (0, False)])
async def test_L7_a_refusal_says_what_would_fit(available: int, fits: bool) -> None:
    """The core's arithmetic, and the planner's word on it. No other refusal is touched."""
    catalog = build().catalog
    detail = {
        "per_device": [{"device": DeviceName("sim0"), "available_bytes": available}],
        "suggestions": ["Close programs outside"],
    }
    refusal = Rejection(RejectionCode.INSUFFICIENT_VRAM, "too big", detail=detail)
    adviser = Adviser(catalog)
    told = (await adviser.complete(ModelName(BIG), refusal)).detail
    fit = await catalog.largest_fit(ModelName(BIG), {DeviceName("sim0"): available})
    assert (told["max_ctx_that_fits"], told["max_parallel_that_fits"]) == (fit.ctx_size, fit.parallel)
    assert told["suggestions"] == ["Close programs outside", *fit.suggestions]
    assert (fit.ctx_size > 0) is bool(fit.suggestions) is fits
    other = replace(refusal, code=RejectionCode.QUEUE_FULL)
    assert await adviser.complete(ModelName(BIG), other) is other


async def test_S7_advice_for_a_refusal_delays_no_chat(autojump_clock: MockClock) -> None:
    """The load is refused, and what would fit is still being looked for: a chat is granted in the same moment."""
    async with inside(autojump_clock, cards=CARD, catalog=lambda _: Pondering(1.5)) as server:
        await server.ask(server.job(SMALL))
        answers: list[tuple[float, Rejection]] = []
        began = trio.current_time()
        server.clients.start_soon(refused, server, answers)
        await server.until("reject")
        with server.runtime.desk.submit(server.job(SMALL)) as ticket:
            await ticket.answer()
            assert trio.current_time() == began
        assert not answers
        await trio.sleep(2.0)
        ((at, rejection),) = answers
        assert at == pytest.approx(began + 1.5)
        assert rejection.detail["max_ctx_that_fits"] == 0


async def test_L7_a_refusal_goes_out_without_advice_that_takes_too_long(autojump_clock: MockClock) -> None:
    """To a client and to a person alike; the scheduler's own figures are there."""
    async with inside(autojump_clock, cards=CARD, catalog=lambda _: Pondering(math.inf)) as server:
        began = trio.current_time()
        answers: list[tuple[float, Rejection]] = []
        await refused(server, answers)
        wished = await server.runtime.wishes.ask(lambda number: LoadAsked(number, ModelName(BIG)))
        assert wished.rejection is not None
        assert trio.current_time() == pytest.approx(began + 2 * LONGEST_ADVICE_SECONDS)
        for rejection in (answers[0][1], wished.rejection):
            assert rejection.detail["max_ctx_that_fits"] is None
            assert rejection.detail["per_device"]


async def test_S8_who_leaves_before_the_advice_has_been_refused_all_the_same(autojump_clock: MockClock) -> None:
    """Its job has ended in one way, and the log has said so at the time of the decision."""
    async with inside(autojump_clock, cards=CARD, catalog=lambda _: Pondering(1.5)) as server:
        job = server.job(BIG)
        client = server.come(job)
        await server.until("reject")
        client.cancel()
        await trio.sleep(0.1)
        assert server.closed[job.id] == ["rejected"]
        assert server.ends[job.id] == "left"


async def test_P8_shutdown_waits_for_advice_no_longer_than_it_may_take(autojump_clock: MockClock) -> None:
    """Whoever was refused before the server is told to stop hears it."""
    async with inside(autojump_clock, cards=CARD, catalog=lambda _: Pondering(math.inf)) as server:
        began = trio.current_time()
        job = server.job(BIG)
        server.come(job)
        await server.until("reject")
        server.runtime.end()
        await server.ended.wait()
        assert trio.current_time() <= began + LONGEST_ADVICE_SECONDS + 0.1
        assert server.ends[job.id] == "insufficient_vram"
