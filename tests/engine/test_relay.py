"""Door 7: bytes through, and one outcome, whatever happens on either side."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.ids import InstanceId
from gridsched.core.job import Outcome, OutcomeKind
from gridsched.engine.relay import relay
from gridsched.engine.stall import StallClock, StallClocks
from gridsched.ports import UpstreamFailure, UpstreamFailureKind

ONE = InstanceId(1)
BROKEN = UpstreamFailure(UpstreamFailureKind.BROKEN, "gone")


class Script:
    """An answer that plays a script: bytes to give, seconds to be silent for, a failure to raise."""

    status = 207
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, *steps: bytes | float | UpstreamFailure) -> None:
        self.steps = list(steps)

    async def receive(self) -> bytes:
        """The next step that is not silence."""
        await trio.lowlevel.checkpoint()
        while self.steps:
            match self.steps.pop(0):
                case bytes(data):
                    return data
                case UpstreamFailure() as failure:
                    raise failure
                case seconds:
                    await trio.sleep(seconds)
        return b""


def limit(seconds: float, clocks: StallClocks | None = None) -> AbstractContextManager[StallClock]:
    """A clock for one answer."""
    return (clocks or StallClocks()).limit(ONE, seconds)


class Client:
    """Takes bytes, slowly if wanted, or leaves."""

    def __init__(self, pause_seconds: float = 0.0, leaves: Callable[[], Exception] | None = None) -> None:
        self.got: list[bytes] = []
        self.pause_seconds = pause_seconds
        self.leaves = leaves

    async def send(self, data: bytes) -> None:
        """One piece."""
        await trio.sleep(self.pause_seconds)
        if self.leaves:
            raise self.leaves()
        self.got.append(data)


async def test_bytes_pass_in_order_and_unchanged() -> None:
    """Pieces are not joined, and the status is the engine's."""
    client = Client()
    outcome = await relay(Script(b"a", b"\xff\x00", b"c"), client.send, limit(1))
    assert client.got == [b"a", b"\xff\x00", b"c"]
    assert outcome == Outcome(OutcomeKind.DONE, 207)


async def test_S9_a_silent_engine_is_a_stall(autojump_clock: MockClock) -> None:
    """After exactly the limit, with what had been sent."""
    client = Client()
    outcome = await relay(Script(b"a", 9.0, b"b", 11.0, b"c"), client.send, limit(10))
    assert outcome == Outcome(OutcomeKind.STALLED, 207, answered=True)
    assert client.got == [b"a", b"b"]
    assert autojump_clock.current_time() == 19.0


async def test_S9_a_slow_clients_time_does_not_count(autojump_clock: MockClock) -> None:
    """A client that takes a minute for each piece stalls nobody."""
    client = Client(pause_seconds=60.0)
    outcome = await relay(Script(b"a", 9.0, b"b", 9.0), client.send, limit(10))
    assert outcome.kind is OutcomeKind.DONE
    assert autojump_clock.current_time() == 138.0


@pytest.mark.parametrize(("steps", "answered"), [((BROKEN,), False), ((b"a", BROKEN), True)])
async def test_P5_a_dead_engine_is_an_outcome_that_says_whether_anything_was_sent(
    steps: tuple[bytes | UpstreamFailure, ...], answered: bool
) -> None:
    """Only a step that was not answered may be run again."""
    outcome = await relay(Script(*steps), Client().send, limit(1))
    assert outcome == Outcome(OutcomeKind.ENGINE_DIED, 207, answered)


async def test_S9_a_stall_before_the_first_byte_was_not_answered(autojump_clock: MockClock) -> None:
    """Nothing has reached the client."""
    outcome = await relay(Script(2.0, b"a"), Client().send, limit(1))
    assert outcome == Outcome(OutcomeKind.STALLED, 207, answered=False)
    assert autojump_clock.current_time() == 1.0


async def test_a_client_that_leaves_is_the_callers_affair() -> None:
    """Its exception passes through untouched."""
    client = Client(leaves=lambda: ConnectionResetError("client"))
    with pytest.raises(ConnectionResetError):
        await relay(Script(b"a"), client.send, limit(1))


async def test_cancellation_passes_through(autojump_clock: MockClock) -> None:
    """It is never taken for a stall."""
    with trio.move_on_after(5) as outer:
        await relay(Script(100.0), Client().send, limit(50))
    assert outer.cancelled_caught
    assert autojump_clock.current_time() == 5.0


async def test_S10_time_in_which_the_process_stands_still_is_no_stall(autojump_clock: MockClock) -> None:
    """Silent for 4 s, stands for a minute, silent for 5.9 more: within its 10 s; a second pause counts as little."""
    clocks = StallClocks()
    async with trio.open_nursery() as nursery:

        async def stand() -> None:
            for runs, stands in ((4.0, 60.0), (5.0, 60.0)):
                await trio.sleep(runs)
                clocks.pause(ONE)
                await trio.sleep(stands)
                clocks.resume(ONE)

        nursery.start_soon(stand)
        outcome = await relay(Script(129.9, b"a", 9.9, b"b", 11.0), Client().send, limit(10, clocks))
    assert outcome == Outcome(OutcomeKind.STALLED, 207, answered=True)
    assert autojump_clock.current_time() == 129.9 + 9.9 + 10.0


async def test_S10_a_step_that_begins_while_its_process_stands_has_its_whole_limit(autojump_clock: MockClock) -> None:
    """The clock is started by the continue."""
    clocks = StallClocks()
    clocks.pause(ONE)
    async with trio.open_nursery() as nursery:

        async def go_on() -> None:
            await trio.sleep(30.0)
            clocks.resume(ONE)
            clocks.resume(ONE)

        nursery.start_soon(go_on)
        outcome = await relay(Script(100.0), Client().send, limit(10, clocks))
    assert outcome.kind is OutcomeKind.STALLED
    assert autojump_clock.current_time() == 40.0
