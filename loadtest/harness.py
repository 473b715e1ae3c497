"""A whole load test: a look at the server, its counters, the traffic, its counters again.

Owns the order, and what is watched meanwhile. Loads count from the start, those of the warm-up too; requests count from
its end on, and those that failed in it. Must never print (whoever runs it is told how far it is), and never judge:
`summary` makes the result.
"""

import time
from dataclasses import dataclass, field
from typing import Protocol

import trio

from loadtest import server
from loadtest.casting import Cast, cast
from loadtest.clients import Client
from loadtest.decisions import Followed
from loadtest.drive import Done, Drive
from loadtest.report import ROWS, percentile
from loadtest.result import Result, Sample
from loadtest.server import ServerFault
from loadtest.summary import Options, Run, result_of

SAMPLE_SECONDS = 1.0
TELL_SECONDS = 0.5


class Tell(Protocol):
    """Hears how far it is."""

    def __call__(self, done: float, total: float | None, text: str) -> None:
        """So many seconds of so many, and one sentence whose words before the colon name the phase."""


@dataclass(slots=True)
class Harness:
    """One run. `stop` ends the traffic early; what was measured until then is reported all the same."""

    client: Client
    options: Options
    tell: Tell
    _traffic: trio.CancelScope = field(default_factory=trio.CancelScope)
    _interrupted: bool = False

    def stop(self) -> None:
        """No more traffic."""
        self._interrupted = True
        self._traffic.cancel()

    async def run(self) -> Result:
        """All of it. Raises httpx.HTTPError where nobody answers, and ServerFault where there is nothing to test."""
        http, options = self.client.http, self.options
        told = await server.look(http)
        chosen = cast(told, options.counts, options.models)
        _require(chosen, options)
        status = await server.status(http)
        known, first = Followed(), 0
        if status is not None:
            await known.follow(http, since=None, once=True)
            first = known.lines[-1].seq if known.lines else 0
        run = Run(
            options=options,
            told=told,
            cast=chosen,
            is_gridsched=status is not None,
            before=await server.counters(http),
            living=server.living(status or {}),
            loading=server.loading(status or {}),
            began=trio.current_time(),
            began_wall=time.time(),
            log_fault=known.fault,
        )
        await self._drive(run, first)
        run.interrupted = self._interrupted
        return result_of(run)

    async def _drive(self, run: Run, first: int) -> None:
        """The traffic, and what is seen meanwhile. `first`: the last line of the log before it."""
        http, options = self.client.http, self.options
        drive = Drive(self.client, run.cast.parts, options.seed, options.seconds, options.rate)
        run.done = drive.done
        followed, samples = Followed(fault=run.log_fault), list[Sample]()
        async with trio.open_nursery() as nursery:
            if run.is_gridsched:
                nursery.start_soon(self._sample, samples, run.began)
                if not followed.fault:
                    nursery.start_soon(lambda: followed.follow(http, since=first))
            nursery.start_soon(self._show, drive, run)
            with self._traffic:
                await self._warm_up_and_run(drive, run)
            run.ended = trio.current_time()
            nursery.cancel_scope.cancel()
        if run.is_gridsched and not run.log_fault:
            await followed.catch_up(http, first)
        run.after = await server.counters(http)
        run.lines, run.log_fault, run.samples = followed.lines, followed.fault, samples

    async def _warm_up_and_run(self, drive: Drive, run: Run) -> None:
        if not self.options.cold:
            run.failed_models = await drive.warm_up()
            drive.parts = [part for part in drive.parts if part.model not in run.failed_models]
        run.measured_from = trio.current_time()
        await drive.run()

    async def _sample(self, samples: list[Sample], began: float) -> None:
        """How the server is, once a second."""
        while True:
            found = await server.sample(self.client.http, trio.current_time() - began)
            if found is not None:
                samples.append(found)
            await trio.sleep(SAMPLE_SECONDS)

    async def _show(self, drive: Drive, run: Run) -> None:
        while True:
            if run.measured_from is None:
                self.tell(0.0, None, "warm-up: a request to each model")
            else:
                passed = trio.current_time() - run.measured_from
                self.tell(min(passed, drive.seconds), drive.seconds, live_line(passed, drive))
            await trio.sleep(TELL_SECONDS)


def live_line(passed: float, drive: Drive) -> str:
    """How far it is, then class by class: what is cut off where there is no room matters least."""
    phase = "traffic" if passed < drive.seconds else "the last answers"
    errors = sum(bool(one.measured.error) for one in drive.done)
    told = [f"{phase}: {passed:.0f} s", f"{errors} errors", f"{sum(drive.running.values())} under way"]
    return ", ".join([*told, *(_live(row, drive.done) for row in ROWS if _of(row, drive.done))])


def _live(row: str, done: list[Done]) -> str:
    answered = [one.measured.latency_seconds for one in _of(row, done) if not one.measured.error]
    middle = percentile(answered, 0.5)
    return f"{row} {len(answered)}" + ("" if middle is None else f" ({middle:.2f} s)")


def _of(row: str, done: list[Done]) -> list[Done]:
    return [one for one in done if one.role.row == row and not one.warm_up]


def _require(chosen: Cast, options: Options) -> None:
    """Raises ServerFault where there would be no traffic, or less than was asked for and that is a fault."""
    why = "; ".join(f"{name}: {reason}" for name, reason in chosen.left_out.items())
    if chosen.left_out and options.strict:
        raise ServerFault(f"not every role can be played: {why}")
    if not chosen.parts:
        raise ServerFault(f"there is nobody to make traffic: {why or 'every count is 0'}")
