"""What harms is done only for the token of its plan: one use, five minutes, one verb, one caller, one harm."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gridsched.control.authority import ANYBODY, Caller
from gridsched.control.confirm import MOST_OPEN, VALID_SECONDS, Asked, Confirmations
from gridsched.control.consent import Planned, asks_first, hashed, use_with_consent
from gridsched.control.problems import RequestError
from gridsched.control.services import Services
from gridsched.control.verb import Arguments, Asker, Call, Consequences, Verb
from gridsched.control.verbs import VERBS
from gridsched.credentials import Scope
from tests.support.front import serving

UNKNOWN = "made-up"
SECRET = "sk-0123456789abcdef0123456789abcdef"  # noqa: S105 - nobody's
KEY = Caller(frozenset({Scope.RESIDENCY}), key="laptop")


class Thing(Arguments, frozen=True, kw_only=True):
    """What a verb of these tests takes."""

    name: str
    hard: bool = False
    api_key: str | None = None


@dataclass
class World:
    """What there is to be harmed: what a plan says now, and what was done."""

    essence: str = "a"
    harms: bool = True
    done: list[str] = field(default_factory=list)

    def verb(self, *, planned: bool = True) -> Verb:
        """Breaks a thing."""

        async def plan(_: Services, asked: Thing, __: Call) -> Consequences:
            return Consequences(text=f"{asked.name} would break.", harms=self.harms, essence=self.essence)

        async def act(_: Services, asked: Thing, __: Call) -> dict[str, Any]:
            self.done.append(asked.name)
            return {"broken": asked.name}

        made = Verb("break_it", "Break it", "Breaks.", Scope.RESIDENCY, Thing, dict, act, destructive=True)
        return replace(made, plan=plan) if planned else made


@asynccontextmanager
async def services_of(clock: MockClock) -> AsyncIterator[Services]:
    """The services of a simulated server."""
    async with serving(clock) as house:
        yield Services(house.runtime, house.authority)


async def ask(services: Services, verb: Verb, caller: Caller = ANYBODY, **given: object) -> Any:
    """Use a verb as an agent does."""
    return await use_with_consent(services, verb, given, Call(Asker(caller)))


async def test_the_plan_comes_first_and_its_token_carries_it_out_once(autojump_clock: MockClock) -> None:
    """Nothing is done by the first call; the second does it; a third with the same token is refused with a new one."""
    world = World()
    async with services_of(autojump_clock) as services:
        first = await ask(services, world.verb(), name="vase")
        assert isinstance(first, Planned)
        assert (first.plan.harms, first.expires_s, world.done) == (True, VALID_SECONDS, [])
        assert first.text == "Not done yet. vase would break."
        assert first.plan.essence == hashed(world.essence)  # it may be made of secrets
        assert await ask(services, world.verb(), name="vase", token=first.token) == {"broken": "vase"}
        with pytest.raises(RequestError) as refused:
            await ask(services, world.verb(), name="vase", token=first.token)
        problem = refused.value.problem
        assert (problem.code, problem.param) == ("conflict", "token")
        again = str(problem.detail["token"])
        assert again != first.token
        assert await ask(services, world.verb(), name="vase", token=again) == {"broken": "vase"}
        assert world.done == ["vase", "vase"]


@pytest.mark.parametrize("change", ["essence", "arguments", "caller", "age", "unknown"])
async def test_a_token_stands_for_one_harm_only(autojump_clock: MockClock, change: str) -> None:
    """Not for another harm, other arguments, somebody else, or later; what is refused says what would come of it."""
    world = World()
    async with services_of(autojump_clock) as services:
        token = (await ask(services, world.verb(), KEY, name="vase")).token
        caller, name = KEY, "vase"
        match change:
            case "essence":
                world.essence = "b"
            case "arguments":
                name = "cup"
            case "caller":
                caller = replace(KEY, key="other")
            case "age":
                await trio.sleep(VALID_SECONDS + 1)
            case "unknown":
                token = UNKNOWN
        with pytest.raises(RequestError) as refused:
            await ask(services, world.verb(), caller, name=name, token=token)
        assert f"{name} would break" in refused.value.problem.message
        assert isinstance(refused.value.problem.detail["plan"], Consequences)
        assert world.done == []
        if change == "caller":
            assert await ask(services, world.verb(), KEY, name="vase", token=token) == {"broken": "vase"}


async def test_what_harms_nobody_is_done_at_once_unless_only_a_plan_was_asked_for(autojump_clock: MockClock) -> None:
    """Also with a token that does not hold; a dry run does nothing even with one that does."""
    world = World(harms=False)
    async with services_of(autojump_clock) as services:
        assert await ask(services, world.verb(), name="vase") == {"broken": "vase"}
        assert await ask(services, world.verb(), name="cup", token=UNKNOWN) == {"broken": "cup"}
        told = await ask(services, world.verb(), name="jar", dry_run=True)
        assert isinstance(told, Planned)
        assert isinstance(await ask(services, world.verb(), name="jar", dry_run=True, token=told.token), Planned)
        assert world.done == ["vase", "cup"]


async def test_what_destroys_without_a_plan_of_its_own_asks_first_too(autojump_clock: MockClock) -> None:
    """Its plan is its description with the arguments."""
    world = World()
    async with services_of(autojump_clock) as services:
        told = await ask(services, world.verb(planned=False), name="vase")
        assert told.text == "Not done yet. break_it with name='vase', hard=False: Breaks."
        secret = await ask(services, world.verb(planned=False), name="vase", api_key=SECRET)
        assert SECRET not in str(secret)
        assert await ask(services, world.verb(planned=False), name="vase", token=told.token) == {"broken": "vase"}


async def test_H6_no_plan_is_made_for_whoever_may_not(autojump_clock: MockClock) -> None:
    """Nor for arguments that are none, each named."""
    world = World()
    async with services_of(autojump_clock) as services:
        with pytest.raises(RequestError) as refused:
            await ask(services, world.verb(), Caller(frozenset({Scope.READ}), "reader"), name="vase")
        assert refused.value.problem.code == "insufficient_scope"
        assert world.done == []
        for given, param in (({"dry_run": "yes"}, "dry_run"), ({"token": 3}, "token"), ({"nam": "x"}, "nam")):
            with pytest.raises(RequestError) as refused:
                await ask(services, world.verb(), **given)
            assert refused.value.problem.param == param


async def test_tokens_that_nobody_uses_are_bounded(autojump_clock: MockClock) -> None:
    """The oldest are forgotten."""
    assert trio.current_time() >= autojump_clock.current_time()
    known, asked = Confirmations(), Asked("verb", None, ANYBODY, "")
    first = known.offer(asked)
    last = [known.offer(asked) for _ in range(MOST_OPEN)][-1]
    assert not known.redeem(first, asked)
    assert known.redeem(last, asked)


def test_no_verb_has_an_argument_of_a_name_that_is_taken() -> None:
    """`dry_run` and `token` are for the plan of whatever asks first."""
    for verb in VERBS:
        if asks_first(verb):
            assert not {"dry_run", "token"} & set(verb.takes.__struct_fields__), verb.name
