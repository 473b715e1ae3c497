"""The traffic: clients that wait for their answers, or requests that come at their own times whatever becomes of them.

Owns when each request is sent. A closed loop is a number of clients of each role: each asks, waits for the answer,
thinks, asks again. An open loop is a stream of arrivals of each role (Poisson), and a request's time counts from when
it was to be sent: a server that is slow does not get fewer of them. All is drawn from the seed. Must never retry.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import trio

from loadtest import texts
from loadtest.casting import Part
from loadtest.clients import Client, Measured
from loadtest.report import EMBEDDINGS_ROW
from loadtest.roles import Ask, Role, Script

AFTER_ERROR_SECONDS = 1.0
"""A client whose request failed does not come back sooner: a server that refuses at once is not run over."""

MOST_AT_ONCE = 256
"""Requests of one role under way, in an open loop. One more is a failed request, not a connection more."""

WARM_UP_TOKENS = 1


@dataclass(frozen=True, slots=True)
class Done:
    """One request that is over, and whose it was."""

    role: Role
    model: str
    measured: Measured
    warm_up: bool = False


@dataclass(slots=True)
class Drive:
    """One run's traffic. `done` and `running` are filled while it goes. `rate`: arrivals a second of each role, None
    for a closed loop."""

    client: Client
    parts: Sequence[Part]
    seed: int
    seconds: float
    rate: float | None = None
    done: list[Done] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)
    _until: float = 0.0

    async def warm_up(self) -> Mapping[str, str]:
        """One short request to each model, one after the other, so that all are loaded: those that failed, and why."""
        failed = {}
        for part in {part.model: part for part in self.parts}.values():
            ask = Ask(documents=[texts.document(0)]) if part.role.row == EMBEDDINGS_ROW else _HELLO
            gave = await self._send(part, ask, trio.current_time(), warm_up=True)
            if gave.measured.error:
                failed[part.model] = gave.measured.error
        return failed

    async def run(self) -> None:
        """All of it: no request begins after `seconds`, and each that has begun is waited for."""
        self._until = trio.current_time() + self.seconds
        async with trio.open_nursery() as nursery:
            for part in self.parts:
                if self.rate is not None:
                    nursery.start_soon(self._arrivals, nursery, part, self.rate)
                    continue
                for number in range(part.count):
                    nursery.start_soon(self._client, part, self._rng(part.role, number))

    async def _client(self, part: Part, rng: Random) -> None:
        """One client, for as long as the run lasts; they do not all begin at once."""
        script = part.role.script(rng)
        pause = rng.uniform(0.0, part.role.think_s)
        while trio.current_time() + pause < self._until:
            await trio.sleep(pause)
            error = (await self._ask(part, script, trio.current_time())).measured.error
            pause = max(part.role.pause_s(rng), AFTER_ERROR_SECONDS if error else 0.0)

    async def _arrivals(self, nursery: trio.Nursery, part: Part, rate: float) -> None:
        rng = self._rng(part.role, 0)
        for number, due in enumerate(_poisson(rng, trio.current_time(), rate), 1):
            if due >= self._until:
                return
            await trio.sleep_until(due)
            if self.running.get(part.role.name, 0) >= MOST_AT_ONCE:
                error = f"not sent: {MOST_AT_ONCE} requests of this role were under way"
                self.done.append(Done(part.role, part.model, Measured(part.role.row, error=error, due=due)))
            else:
                nursery.start_soon(self._ask, part, part.role.script(self._rng(part.role, number)), due)

    async def _ask(self, part: Part, script: Script, due: float) -> Done:
        """One request of a script, and what the script hears of it."""
        name = part.role.name
        self.running[name] = self.running.get(name, 0) + 1
        try:
            return await self._send(part, script.ask(), due, script=script)
        finally:
            self.running[name] -= 1

    async def _send(
        self, part: Part, ask: Ask, due: float, *, script: Script | None = None, warm_up: bool = False
    ) -> Done:
        role = part.role
        if ask.documents:
            measured = (
                await self.client.embed(role.row, part.model, list(ask.documents), job_class=role.job_class, due=due)
            ).measured
        else:
            gave = await self.client.chat(
                role.row,
                part.model,
                ask.messages,
                tokens=ask.tokens,
                job_class=role.job_class,
                stream=role.streams,
                due=due,
            )
            measured = gave.measured
            if script is not None:
                script.heard("" if measured.error else gave.text)
        done = Done(role, part.model, measured, warm_up)
        self.done.append(done)
        return done

    def _rng(self, role: Role, number: int) -> Random:
        return Random(f"{self.seed}/{role.name}/{number}")  # noqa: S311 - the same seed is the same traffic


_HELLO = Ask(({"role": "user", "content": texts.question(0)},), tokens=WARM_UP_TOKENS)


def _poisson(rng: Random, began: float, rate: float) -> Iterator[float]:
    """The times of arrivals, so many a second in the mean; none at a rate of 0."""
    at = began
    while rate > 0:
        at += rng.expovariate(rate)
        yield at
