"""The management routes are walked by Schemathesis: no request of any shape makes a 5xx or an undocumented answer."""

from collections.abc import Iterator
from threading import Event, Thread
from typing import Any, cast

import pytest
import schemathesis
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from trio.testing import MockClock

from gridsched.control.openapi import document
from gridsched.control.verbs import VERBS
from tests.support.front import ADMIN_WORD, House, serving

EXAMPLES = 8
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
NOT_WALKED = {"restart", "drain", "get_events"}
"""Those that end the server, and the one whose answer has no end; they have tests of their own."""

REFUSED = {502, 503, 507}
"""What is no bug: this server has no hub and no disk, and a card that is too small for what chance asks for."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A simulated server in a thread of its own, on the machine's clock."""
    ready, end = Event(), trio.Event()
    found: list[House | trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        async with serving(cast("MockClock", trio.lowlevel.current_clock())) as house:
            found.extend((house, trio.lowlevel.current_trio_token()))
            ready.set()
            await end.wait()

    thread = Thread(target=trio.run, args=(serve,))
    thread.start()
    assert ready.wait(20)
    house, token = found
    yield f"http://127.0.0.1:{cast('House', house).port}"
    cast("trio.lowlevel.TrioToken", token).run_sync_soon(end.set)
    thread.join(30)
    assert not thread.is_alive()


OPERATIONS = [
    found.ok()
    for found in schemathesis.openapi.from_dict(document(VERBS)).get_all_operations()
    if found.ok().definition.raw["operationId"] not in NOT_WALKED
]


WALKS = [
    (mode, operation)
    for mode in GenerationMode
    for operation in OPERATIONS
    if mode is GenerationMode.POSITIVE or len(operation.query) or len(operation.body)  # any text is a name
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "operation"), WALKS, ids=lambda each: getattr(each, "value", "") or each.definition.raw["operationId"]
)
def test_H1_no_request_makes_a_5xx_or_an_undocumented_answer(server: str, operation: Any, mode: GenerationMode) -> None:
    """What is right by the document and what is wrong, by chance, but the same at each run."""

    @given(case=operation.as_strategy(generation_mode=mode), named=st.booleans())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def walk(case: Any, *, named: bool) -> None:
        case.query.pop("wait", None)
        if named and "model" in (case.path_parameters or {}):
            case.path_parameters["model"] = "sim-chat-4b"
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {ADMIN_WORD}"}
        case.headers.pop("Prefer", None)
        answer = case.call(base_url=server, timeout=20)
        case.validate_response(
            answer, checks=CHECKS if answer.status_code in REFUSED else [*CHECKS, not_a_server_error]
        )
        assert answer.status_code < 600

    walk()
