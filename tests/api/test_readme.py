"""The README names every route there is."""

import re
from pathlib import Path

from trio.testing import MockClock

import gridsched.api
from gridsched.api.batches import in_batches
from gridsched.api.decode import Wishes
from gridsched.api.routes import MIRROR, MODELS, ROUTES
from tests.support.front import serving

README = Path(gridsched.api.__file__).with_name("README.md").read_text(encoding="utf-8")


async def test_every_documented_route_is_there(autojump_clock: MockClock) -> None:
    """Asked with a method it does not take, each says that it exists."""
    rows = [line.split("|")[1] for line in README.splitlines() if line.startswith(("| `GET", "| `POST", "| `PATCH"))]
    routes = {path for row in rows for path in re.findall(r"(/[\w./{}-]+)", row)}
    assert set(ROUTES) | {MODELS, MIRROR, "/health", "/metrics", "/api/status", "/api/events"} <= routes
    async with serving(autojump_clock) as house:
        for route in sorted(routes):
            some_id = "a" if in_batches(route) else "a/b"
            assert (await house.ask("PUT", route.replace("{id}", some_id))).status == 405, route


def test_every_wish_is_documented() -> None:
    """The members of `gridsched` that a request may have."""
    assert [name for name in Wishes.__struct_encode_fields__ if f"`gridsched.{name}`" not in README] == []
