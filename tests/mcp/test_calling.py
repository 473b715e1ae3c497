"""One call of a tool, without a client: what becomes of a bug, of a silent load, of one that was cancelled."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from gridsched.control.authority import ANYBODY
from gridsched.control.services import Services
from gridsched.control.verb import Asker, Call, Nothing, Verb
from gridsched.credentials import Scope
from gridsched.mcp.calling import MOST_SECONDS, called
from tests.support.front import serving

CALL = Call(Asker(ANYBODY))
Act = Callable[[Services, Nothing, Call], Awaitable[object]]


def verb_of(act: Act, *, long: bool = False) -> Verb:
    """A verb that does this."""
    return Verb("do_it", "Do it", "Does.", Scope.READ, Nothing, dict, act, long=long)


@asynccontextmanager
async def services_of(clock: MockClock) -> AsyncIterator[Services]:
    """The services of a simulated server, with operations of their own."""
    async with serving(clock) as house, trio.open_nursery() as nursery:
        services = Services(house.runtime, house.authority)
        await nursery.start(services.operations.run)
        yield services
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("long", [False, True])
async def test_L6_a_bug_in_a_tool_is_an_error_of_that_call(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, *, long: bool
) -> None:
    """Its details are in the log and not in the answer."""

    async def act(_: Services, __: Nothing, ___: Call) -> object:
        raise ValueError("a secret")

    async with services_of(autojump_clock) as services:
        told = await called(services, verb_of(act, long=long), {}, CALL, None)
    assert told.is_error
    assert told.structured_content["error"]["code"] == "internal"
    assert "a secret" not in str(told)
    assert "a secret" in caplog.text


async def test_a_silent_call_says_that_it_goes_on(autojump_clock: MockClock) -> None:
    """Every five seconds, with the last sentence; much that is told at once is told once."""
    seen: list[tuple[int, float, float | None, str]] = []
    began = 0.0

    async def act(_: Services, __: Nothing, call: Call) -> object:
        for done in range(1000):
            call.tell(done, 1000, "fetching")
        await trio.sleep(2 * MOST_SECONDS + 1)
        return {}

    async def progress(done: float, total: float | None, text: str) -> None:
        seen.append((int(trio.current_time() - began), done, total, text))

    async with services_of(autojump_clock) as services:
        began = trio.current_time()
        told = await called(services, verb_of(act, long=True), {}, CALL, progress)
    assert not told.is_error
    assert [each[0] for each in seen][-2:] == [5, 10]
    assert seen[-1][2:] == (1000, "fetching")
    assert len(seen) < 6
    assert [each[1] for each in seen] == sorted({each[1] for each in seen})


async def test_a_call_whose_operation_was_cancelled_says_so(autojump_clock: MockClock) -> None:
    """Somebody else may have cancelled it."""

    async def act(_: Services, __: Nothing, ___: Call) -> object:
        await trio.sleep_forever()
        return None

    async with services_of(autojump_clock) as services, trio.open_nursery() as nursery:

        async def cancel() -> None:
            await trio.sleep(1)
            (operation,) = services.operations.all()
            services.operations.cancel(operation)

        nursery.start_soon(cancel)
        told = await called(services, verb_of(act, long=True), {}, CALL, None)
    assert told.is_error
    assert told.structured_content["error"]["code"] == "cancelled"
    assert told.structured_content["error"]["message"] == "do_it (op-1) was cancelled before its end"


async def test_an_answer_that_is_no_object_is_in_one(autojump_clock: MockClock) -> None:
    """The protocol takes objects only."""

    async def act(_: Services, __: Nothing, ___: Call) -> object:
        return [1, 2]

    async with services_of(autojump_clock) as services:
        told = await called(services, verb_of(act), {}, CALL, None)
    assert told.structured_content == {"result": [1, 2]}
