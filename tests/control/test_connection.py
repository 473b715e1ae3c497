"""`connection_info`: where models are asked, as whoever asks can reach it, and no secret."""

import json

import pytest
from trio.testing import MockClock

from gridsched.control.authority import ANYBODY
from gridsched.control.connection import VERBS, Connection
from gridsched.control.services import Place, Services
from gridsched.control.use import use
from gridsched.control.verb import Asker, Call, as_builtins
from tests.support.front import ADMIN_WORD, serving

(INFO,) = VERBS
TOKEN_FILE = "/data/watchdog.token"  # noqa: S105 - a path


@pytest.mark.parametrize(
    ("place", "host", "address", "base"),
    [
        (None, b"", "127.0.0.1", "http://127.0.0.1:1234"),
        (Place("0.0.0.0", 80), b"rig.lan", "192.0.2.7", "http://rig.lan"),  # noqa: S104 - nothing listens here
        (Place("::1", 4321), b"", "::1", "http://[::1]:4321"),
        (Place("::", 4321), b"[2001:db8::7]:4321", "2001:db8::9", "http://[2001:db8::7]:4321"),
        (Place("192.0.2.1", 1234, has_tls=True), b"rig:1234", "192.0.2.7", "https://rig:1234"),
        (Place("192.0.2.1", 1234, has_tls=True), b"localhost:1234", "127.0.0.1", "http://localhost:1234"),
        (Place("127.0.0.1", 1234), b"a b/@evil", "127.0.0.1", "http://127.0.0.1:1234"),
    ],
)
async def test_the_address_is_the_one_by_which_whoever_asks_has_come(
    autojump_clock: MockClock, place: Place | None, host: bytes, address: str, base: str
) -> None:
    """For OpenAI's clients with `/v1`, for Anthropic's without."""
    async with serving(autojump_clock) as house:
        services = Services(house.runtime, house.authority, place=place)
        told = await use(services, INFO, {}, Call(Asker(ANYBODY, address, headers={b"host": host})))
        assert isinstance(told, Connection)
        assert (told.anthropic_base_url, told.openai_base_url) == (base, f"{base}/v1")
        assert base in told.text
        assert told.watchdog is None
        assert set(told.scopes) == ANYBODY.scopes


async def test_the_watchdog_is_named_with_where_its_credential_is(autojump_clock: MockClock) -> None:
    """Never what that says."""
    async with serving(autojump_clock) as house:
        place = Place("127.0.0.1", 1234, watchdog_port=1235, watchdog_token=TOKEN_FILE)
        services = Services(house.runtime, house.authority, place=place)
        told = await use(services, INFO, {}, Call(Asker(ANYBODY)))
        assert isinstance(told, Connection)
        assert told.watchdog is not None
        assert told.watchdog.url == "http://127.0.0.1:1235/mcp"
        assert TOKEN_FILE in told.watchdog.credential
        assert told.default_model == "sim-chat-12b"
        assert ADMIN_WORD not in json.dumps(as_builtins(told))
