"""Pages of other origins (CORS): those that the configuration names may use everything, all others nothing."""

import pytest
from trio.testing import MockClock

from gridsched.api.routes import ROUTES
from gridsched.api.settings import FrontSettings
from tests.support.front import House, serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
PAGE = "http://localhost:3000"
FIGURES = FrontSettings(
    cors_origins=frozenset({PAGE, "app://obsidian.md", "https://chat.example"}), max_body_bytes=9999
)
SENT = "authorization, content-type, x-class, x-max-wait-ms, x-request-id, x-stainless-lang, x-stainless-retry-count"
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": SENT}
ELSEWHERE = (
    "null",
    "",
    "*",
    "http://localhost",
    "http://localhost:3001",
    "http://localhost:30000",
    "http://localhost:3000.evil.example",
    "http://localhost:3000/",
    "http://localhost.:3000",
    "http://127.0.0.1:3000",
    "https://localhost:3000",
    "http://localhost:3000, http://evil.example",
    "http://evil.example",
    "app://obsidian.md.evil.example",
    "https://chat.example:443",
    "https://xchat.example",
)


async def raw(
    house: House, method: str, target: str, headers: dict[str, str], body: bytes = b""
) -> tuple[int, list[tuple[str, str]]]:
    """Status and headers, a repeated one as often as it came."""
    async with await house.connect() as client:
        lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{house.port}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}"] if body else []
        await client.stream.send_all("\r\n".join((*lines, "", "")).encode() + body)
        received = b""
        while part := await client.stream.receive_some(65536):
            received += part
    first, *rest = received.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    return int(first.split(" ")[1]), [(line.partition(":")[0].lower(), line.partition(":")[2].strip()) for line in rest]


@pytest.mark.parametrize("target", [*ROUTES, "/v1/models", "/health", "/api/status", "/v1/nope"])
async def test_a_preflight_of_a_listed_page_is_answered_everywhere(autojump_clock: MockClock, target: str) -> None:
    """With every header that SDKs send, and nothing is said twice."""
    async with serving(autojump_clock, FIGURES) as house:
        status, headers = await raw(house, "OPTIONS", target, {"Origin": PAGE, **ASKS})
        assert not house.logged("enqueue")
    said = dict(headers)
    assert status == 204
    assert len(said) == len(headers)
    assert said["access-control-allow-origin"] == PAGE
    assert {"GET", "POST", "DELETE"} <= set(said["access-control-allow-methods"].split(", "))
    assert said["access-control-allow-headers"] == SENT
    assert "origin" in said["vary"]
    assert int(said["access-control-max-age"]) > 0
    assert "access-control-allow-private-network" not in said
    assert "access-control-allow-credentials" not in said


@pytest.mark.parametrize("origin", ELSEWHERE)
async def test_H6_a_page_that_is_not_listed_gets_nothing_and_can_read_nothing(
    autojump_clock: MockClock, origin: str
) -> None:
    """Neither to its preflight nor to what it sends without one, and nothing is queued for it."""
    private = {"Access-Control-Request-Private-Network": "true"}
    async with serving(autojump_clock, FIGURES) as house:
        for method, more in (("OPTIONS", ASKS | private), ("POST", {}), ("GET", {})):
            status, headers = await raw(house, method, CHAT, {"Origin": origin, **more})
            assert status == 403
            assert not [name for name, _ in headers if name.startswith("access-control")]
            assert [value for name, value in headers if name == "vary"] == ["origin"]
        assert not house.logged("enqueue")


REQUESTS = [
    ("POST", CHAT, HELLO, 200),
    ("POST", CHAT, HELLO | {"stream": True}, 200),
    ("POST", CHAT, b"{", 400),
    ("POST", CHAT, b" " * 10_000, 413),
    ("GET", CHAT, None, 405),
    ("GET", "/v1/models", None, 200),
    ("GET", "/v1/models/nobody", None, 404),
    ("GET", "/health", None, 200),
    ("GET", "/nope", None, 404),
    ("POST", "/api/drain", b"", 403),
]


@pytest.mark.parametrize("origin", [PAGE, "app://obsidian.md", "https://chat.example", "HTTP://LocalHost:3000"])
async def test_a_listed_page_can_read_answers_and_errors(autojump_clock: MockClock, origin: str) -> None:
    """With our own headers among what it may see."""
    async with serving(autojump_clock, FIGURES) as house:
        for method, target, body, status in REQUESTS:
            answer = await house.ask(method, target, body, {"Origin": origin})
            assert answer.status == status, target
            assert answer.headers["access-control-allow-origin"] == origin
            assert answer.headers["vary"] == "origin"
            exposed = answer.headers["access-control-expose-headers"].split(", ")
            assert {"x-gridsched-job-id", "x-gridsched-queue-ms", "x-request-id", "retry-after"} <= set(exposed)


async def test_every_header_of_an_answer_to_a_page_is_sent_once(autojump_clock: MockClock) -> None:
    """Browsers refuse what allows two origins."""
    async with serving(autojump_clock, FIGURES) as house:
        status, headers = await raw(house, "GET", "/v1/models", {"Origin": PAGE})
        names = [name for name, _ in headers]
        assert status == 200
        assert len(set(names)) == len(names)


async def test_a_page_of_a_listed_origin_may_come_from_a_public_network(autojump_clock: MockClock) -> None:
    """Browsers ask once more before a page reaches into a private network."""
    private = {"Access-Control-Request-Private-Network": "true"}
    async with serving(autojump_clock, FIGURES) as house:
        _, headers = await raw(house, "OPTIONS", CHAT, {"Origin": PAGE, **ASKS, **private})
    assert ("access-control-allow-private-network", "true") in headers


async def test_what_is_no_preflight_is_an_ordinary_request(autojump_clock: MockClock) -> None:
    """`OPTIONS` by a program, or without the question: the methods that there are."""
    async with serving(autojump_clock, FIGURES) as house:
        for headers in ({}, {"Origin": PAGE}):
            answer = await house.ask("OPTIONS", CHAT, headers=headers)
            assert (answer.status, answer.headers["allow"]) == (204, "POST, OPTIONS")
        foreign = await house.ask("OPTIONS", CHAT, headers={"Origin": PAGE, "Host": "evil.example"} | ASKS)
        assert (foreign.status, foreign.error["code"]) == (403, "cross_origin")


async def test_headers_that_are_no_names_are_not_said_back(autojump_clock: MockClock) -> None:
    """Whatever else a preflight asks for."""
    async with serving(autojump_clock, FIGURES) as house:
        for wrong in ("a: b", "\xe9", '"x"', "a" * 5000):
            status, headers = await raw(
                house, "OPTIONS", CHAT, {"Origin": PAGE, **ASKS, "Access-Control-Request-Headers": wrong}
            )
            assert status == 204
            assert "access-control-allow-headers" not in dict(headers)


async def test_without_a_listed_origin_programs_see_no_word_of_it(autojump_clock: MockClock) -> None:
    """The answers of a server that no page may use vary with nothing."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("GET", "/v1/models")
    assert "vary" not in answer.headers
    assert not [name for name in answer.headers if name.startswith("access-control")]
