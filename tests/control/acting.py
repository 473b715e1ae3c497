"""Verbs used from inside a server's process, without a protocol: what each does, tells and plans."""

from collections.abc import Mapping
from typing import Any

import msgspec
from trio.testing import wait_all_tasks_blocked

from gridsched.control.authority import ANYBODY
from gridsched.control.services import Services
from gridsched.control.verb import Answer, Asker, Call, Consequences
from gridsched.control.verbs import BY_NAME
from tests.support.front import House

Steps = list[tuple[float, float | None, str]]


def _parts(house: House, name: str, given: Mapping[str, object], steps: Steps | None = None) -> Any:
    verb = BY_NAME[name]

    def tell(done: float, total: float | None, text: str) -> None:
        if steps is not None:
            steps.append((done, total, text))

    arguments = msgspec.convert(dict(given), verb.takes)
    return verb, Services(house.runtime, house.authority), arguments, Call(Asker(ANYBODY), tell)


async def act(house: House, name: str, steps: Steps | None = None, **given: object) -> dict[str, Any]:
    """Have it done: the answer, as JSON has it. Raises RequestError."""
    await wait_all_tasks_blocked()  # the scheduler knows its models
    verb, services, arguments, call = _parts(house, name, given, steps)
    answer = await verb.act(services, arguments, call)
    assert isinstance(answer, Answer)
    told: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(answer))
    return told


async def plan(house: House, name: str, **given: object) -> Consequences:
    """What would come of it. Raises RequestError."""
    await wait_all_tasks_blocked()
    verb, services, arguments, call = _parts(house, name, given)
    told = await verb.plan(services, arguments, call)
    assert isinstance(told, Consequences)
    return told
