"""What API keys allow, through the whole server (H6, S2, S9)."""

import hmac
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from hmac import compare_digest

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.settings import FrontSettings
from gridsched.control.authority import Authority, Caller
from gridsched.core.job import JobClass
from gridsched.credentials import ApiKey, Scope
from gridsched.ports import VirtualEntry
from sim import build
from tests.support.front import ADMIN_WORD, Answer, House, serving

MODEL, EMBEDDER = "sim-chat-4b", "sim-embed"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
ADMIN = {"Authorization": f"Bearer {ADMIN_WORD}"}
ALL = tuple(Scope)


def key(name: str = "tom", *scopes: Scope, **more: object) -> ApiKey:
    """A key whose secret is `secret_of` its name."""
    digest = sha256(secret_of(name).encode()).hexdigest()
    return ApiKey(name, digest, scopes or (Scope.INFERENCE, Scope.READ), **more)  # type: ignore[arg-type]  # by name


def secret_of(name: str) -> str:
    """What a client shows."""
    return f"gs-{name}"


def shown(name: str = "tom") -> dict[str, str]:
    """The header of somebody with a key."""
    return {"Authorization": f"Bearer {secret_of(name)}"}


@asynccontextmanager
async def served(clock: MockClock, *keys: ApiKey) -> AsyncIterator[House]:
    """A server with these keys."""
    async with serving(clock) as house:
        house.authority.keep(keys)
        yield house


def with_keys(*keys: ApiKey) -> Authority:
    """An authority of the tests' admin token and these."""
    return Authority(ADMIN_WORD, keys)


async def chat(house: House, who: dict[str, str], **more: object) -> Answer:
    """One short chat."""
    return await house.ask("POST", "/v1/chat/completions", CHAT | more, who)


@pytest.mark.parametrize(
    "route", ["/v1/models", "/v1/chat/completions", "/metrics", "/api/status", "/nowhere", "/panel"]
)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer gs-who"},
        {"Authorization": "Bearer"},
        {"Authorization": "gs-tom"},
        {"Authorization": "Basic gs-tom"},
        {"Authorization": "Bearer gs-tom, Bearer gs-tom"},
        {"x-api-key": "gs-tom2"},
        {"x-api-key": ""},
    ],
)
async def test_H6_with_keys_no_route_answers_without_one(
    autojump_clock: MockClock, route: str, headers: dict[str, str]
) -> None:
    """401 in OpenAI's shape, here too, and nothing has begun; only /health and the panel's files are everybody's."""
    async with served(autojump_clock, key()) as house:
        answer = await house.ask("POST" if route.endswith("completions") else "GET", route, CHAT, headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.error["type"] == "invalid_request_error"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert (await house.ask("GET", "/health", headers=headers)).status == 200
        for query in ("deep=1", "deep=true", "d%65ep=1", "a=b&%64%65%65%70=1", "deep=1&deep=0"):
            refused = await house.ask("GET", f"/health?{query}", headers=headers)
            assert (refused.status, refused.error["code"]) == (401, "invalid_api_key"), query
        assert house.logged("enqueue") == []


async def test_H6_a_large_upload_without_a_key_is_read_to_its_end(autojump_clock: MockClock) -> None:
    """The 401 arrives whole, and the connection serves on."""
    async with served(autojump_clock, key()) as house, await house.connect() as client:
        for path in ("/v1/chat/completions", "/api/drain"):
            refused = await client.ask("POST", path, b"x" * 3_000_000)
            assert (refused.status, refused.complete) == (401, True)
        assert (await client.ask("POST", "/v1/chat/completions", CHAT, shown())).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer gs-tom"},
        {"Authorization": "bearer   gs-tom"},
        {"x-api-key": "gs-tom"},
        {"api-key": "gs-tom"},
        {"Authorization": "Bearer unused", "x-api-key": "gs-tom"},
        {"Authorization": "Basic dTpw", "api-key": "gs-tom"},
        ADMIN,
    ],
)
async def test_H6_a_key_is_shown_as_clients_show_it(autojump_clock: MockClock, headers: dict[str, str]) -> None:
    """OpenAI's way, Anthropic's, Azure's; one that is made up beside it does no harm. The admin token is a key, too."""
    async with served(autojump_clock, key("ann"), key()) as house:
        assert (await chat(house, headers)).status == 200
        assert (await house.ask("GET", "/api/jobs", headers=headers)).status == 200


ROUTES = {
    ("POST", "/v1/chat/completions"): {Scope.INFERENCE},
    ("GET", "/v1/models"): {Scope.INFERENCE, Scope.READ},
    ("GET", f"/v1/models/{MODEL}"): {Scope.INFERENCE, Scope.READ},
    ("GET", "/api/v0/models"): {Scope.INFERENCE, Scope.READ},
    ("GET", "/health"): set(Scope),
    ("GET", "/health?deep=1"): {Scope.INFERENCE, Scope.READ},
    ("GET", "/metrics"): {Scope.READ},
    ("GET", "/api/status"): {Scope.READ},
    ("GET", "/api/models"): {Scope.READ},
    ("GET", "/api/jobs"): {Scope.READ},
    ("GET", "/api/events?follow=0"): {Scope.READ},
    ("POST", "/api/drain"): {Scope.ADMIN},
}


@pytest.mark.parametrize("scope", ALL)
async def test_H6_a_key_may_what_its_scope_says(autojump_clock: MockClock, scope: Scope) -> None:
    """And nothing else: 403 that says what it lacks. What is not there is not there for anybody."""
    async with served(autojump_clock, key("tom", scope)) as house:
        for (method, path), needed in ROUTES.items():
            answer = await house.ask(method, path, CHAT if "chat" in path else None, shown())
            if scope in needed:
                assert answer.status in (200, 202), path
            else:
                assert (answer.status, answer.error["code"]) == (403, "insufficient_scope"), path
                assert answer.error["type"] == "permission_error"
                assert "tom" in str(answer.error["message"])
        assert (await house.ask("PATCH", "/api/status", headers=shown())).status == 405
        assert (await house.ask("GET", "/api/nowhere", headers=shown())).status == 404


async def test_H6_without_keys_this_machine_needs_none_whatever_it_shows(autojump_clock: MockClock) -> None:
    """Clients must send something, and send anything."""
    async with serving(autojump_clock) as house:
        for headers in (
            {},
            {"Authorization": "Bearer unused"},
            {"x-api-key": "sk-1"},
            {"api-key": "x"},
        ):
            assert (await chat(house, headers)).status == 200
            assert (await house.ask("GET", "/api/status", headers=headers)).status == 200


async def test_H6_keys_that_cannot_be_read_open_nothing(autojump_clock: MockClock) -> None:
    """Nobody but the admin token is let in, and the message says why; once they are known all is well."""
    async with serving(autojump_clock) as house:
        house.authority.keep(None)
        for headers in ({}, shown()):
            answer = await chat(house, headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert "cannot read its API keys" in str(answer.error["message"])
        assert (await chat(house, ADMIN)).status == 200
        house.authority.keep([key()])
        assert (await chat(house, shown())).status == 200


async def test_H6_a_key_that_is_revoked_ends_no_request(autojump_clock: MockClock) -> None:
    """The one that runs is served to its end, the next is refused."""
    async with served(autojump_clock, key(), key("ann")) as house, trio.open_nursery() as nursery:
        answers: list[Answer] = []

        async def ask() -> None:
            answers.append(await chat(house, shown(), max_tokens=200, stream=True))

        nursery.start_soon(ask)
        await house.until_logged("dispatch")
        house.authority.keep([key("ann")])
        assert (await chat(house, shown())).status == 401
        await house.until_logged("complete")
        await trio.sleep(1)
        assert (answers[0].status, answers[0].complete) == (200, True)
        assert b"error" not in answers[0].body


@pytest.mark.parametrize("query", ["", "?status=1"])
async def test_H6_a_key_that_is_revoked_is_told_no_more_of_what_is_decided(
    autojump_clock: MockClock, query: str
) -> None:
    """Its event stream ends, also where the same name has another secret by now; another key's goes on."""
    async with (
        served(autojump_clock, key(), key("ann")) as house,
        await house.connect() as tom,
        await house.connect() as ann,
    ):
        await tom.send("GET", f"/api/events{query}", headers=shown())
        await ann.send("GET", f"/api/events{query}", headers=shown("ann"))
        told, answer = await tom.head(), await ann.head()
        house.authority.keep([replace(key(), sha256=sha256(b"gs-new").hexdigest()), key("ann")])
        with trio.fail_after(60):
            assert (await tom.rest(told)).complete
        with trio.move_on_after(60) as goes_on:
            await ann.rest(answer)
        assert goes_on.cancelled_caught


async def test_H6_whoever_needed_no_key_is_told_nothing_more_once_there_is_one(autojump_clock: MockClock) -> None:
    """The first key counts for streams that are open, too."""
    async with served(autojump_clock) as house, await house.connect() as client:
        await client.send("GET", "/api/events")
        answer = await client.head()
        house.authority.keep([key()])
        with trio.fail_after(60):
            assert (await client.rest(answer)).complete


# --- classes ----------------------------------------------------------------------------------------------------------

BATCH, BACKGROUND, INTERACTIVE = (each.label for each in reversed(JobClass))


@pytest.mark.parametrize(
    ("default", "highest", "body", "used", "capped"),
    [
        (JobClass.BATCH, None, {}, BATCH, None),
        (JobClass.BATCH, None, {"x_class": "interactive"}, INTERACTIVE, None),
        (JobClass.BATCH, None, {"service_tier": "flex"}, BACKGROUND, None),
        (JobClass.BATCH, None, {"model": f"{MODEL}@background"}, BACKGROUND, None),
        (None, JobClass.BACKGROUND, {}, BACKGROUND, INTERACTIVE),
        (None, JobClass.BACKGROUND, {"x_class": "interactive"}, BACKGROUND, INTERACTIVE),
        (None, JobClass.BACKGROUND, {"x_class": "batch"}, BATCH, None),
        (JobClass.BATCH, JobClass.BATCH, {"x_class": "background"}, BATCH, BACKGROUND),
        (JobClass.BATCH, JobClass.BACKGROUND, {}, BATCH, None),
        (None, JobClass.INTERACTIVE, {}, INTERACTIVE, None),
    ],
)
async def test_S1_a_keys_class_is_for_requests_that_name_none_and_its_highest_caps(
    autojump_clock: MockClock,
    default: JobClass | None,
    highest: JobClass | None,
    body: dict[str, str],
    used: str,
    capped: str | None,
) -> None:
    """The class that is used is in the answer, and the one that was lowered, on a stream too."""
    async with served(autojump_clock, key(default_class=default, highest_class=highest)) as house:
        for stream in (False, True):
            answer = await chat(house, shown(), **body, stream=stream)
            assert answer.status == 200
            assert answer.headers["x-gridsched-class"] == used
            assert answer.headers.get("x-gridsched-class-capped") == capped
        assert {line["class"] for line in house.logged("enqueue")} == {used}


# --- models -----------------------------------------------------------------------------------------------------------


async def test_H5_a_key_sees_and_asks_only_the_models_it_is_allowed(autojump_clock: MockClock) -> None:
    """By any of a model's names; others are not there for it, nor among the closest."""
    async with served(autojump_clock, key(models=(MODEL.upper(),)), key("ann")) as house:
        listed = await house.ask("GET", "/v1/models", headers=shown())
        names = [each["id"] for each in json.loads(listed.body)["data"]]
        assert names == [MODEL]
        everything = json.loads((await house.ask("GET", "/v1/models", headers=shown("ann"))).body)["data"]
        others = [each["id"] for each in everything if each["id"] != MODEL]
        assert len(others) > 3
        assert (await chat(house, shown())).status == 200
        assert (await chat(house, shown(), model=f"{MODEL}@batch")).status == 200
        for name in others:
            for answer in (
                await chat(house, shown(), model=name),
                await house.ask("GET", f"/v1/models/{name}", headers=shown()),
            ):
                assert (answer.status, answer.error["code"]) == (404, "model_not_found")
                assert answer.error["gridsched"]["closest"] in ([], [MODEL])  # type: ignore[index]  # JSON
        assert (await house.ask("POST", "/v1/chat/completions", CHAT | {"model": "default"}, shown())).status == 200
        refused = await house.ask("POST", "/v1/embeddings", {"input": "a", "model": MODEL}, shown())
        assert (refused.status, EMBEDDER in refused.body.decode()) == (400, False)
        assert {line["model"] for line in house.logged("enqueue")} == {MODEL}


@pytest.mark.parametrize(
    ("models", "serves", "job_class"),
    [
        (("sim-chat-2b", EMBEDDER), "sim-chat-2b", "interactive"),
        (("sim-chat",), "sim-chat-12b", "interactive"),
        (("tutor",), MODEL, "background"),
        (("tutor", "sim-chat-2b"), "sim-chat-2b", "interactive"),
    ],
)
async def test_H5_a_keys_default_is_the_first_of_its_own_whatever_that_is(
    autojump_clock: MockClock, models: tuple[str, ...], serves: str, job_class: str
) -> None:
    """A model, a family, or a name over another with what that adds; by a word, a suffix, or no name at all."""
    tutor = VirtualEntry("tutor", MODEL, members={"temperature": b"0.25"}, default_class=JobClass.BACKGROUND)
    async with serving(autojump_clock, world=build(virtuals=(tutor,))) as house:
        house.authority.keep([key(models=models)])
        for model in ("default", "local-model", "", "@interactive"):
            answer = await chat(house, shown(), model=model)
            assert answer.status == 200, answer.body
            assert answer.headers["x-gridsched-model"] == serves
            assert answer.headers["x-gridsched-class"] == ("interactive" if model[:1] == "@" else job_class)
        sent = b"".join(asked.body for asked in house.upstream.asked)
        assert sent.count(b'"temperature":0.25') == (4 if models == ("tutor",) else 0)
        refused = await house.ask("POST", "/v1/embeddings", {"input": "a"}, shown())
        assert refused.status == (200 if EMBEDDER in models else 404)


# --- how much at once -------------------------------------------------------------------------------------------------


async def test_S9_a_key_has_no_more_requests_open_than_it_may(autojump_clock: MockClock) -> None:
    """Waiting ones count; the next is a 429 with Retry-After, and when one has ended there is room again."""
    async with served(autojump_clock, key(concurrency=2), key("ann")) as house:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(chat, house, shown())
            await house.until_logged("enqueue", 2)
            refused = await chat(house, shown())
            assert (refused.status, refused.error["code"]) == (429, "key_concurrency")
            assert refused.error["type"] == "rate_limit_error"
            assert refused.headers["retry-after"] == "1"
            assert (await chat(house, shown("ann"))).status == 200
            assert (await house.ask("GET", "/v1/models", headers=shown())).status == 200
        assert (await chat(house, shown())).status == 200
        async with await house.connect() as leaving:  # a client that goes away is open no longer
            await leaving.send("POST", "/v1/chat/completions", json.dumps(CHAT).encode(), shown())
            await house.until_logged("enqueue", 5)
        await house.until_logged("cancel")
        async with trio.open_nursery() as nursery:
            answers: list[int] = []

            async def ask() -> None:
                answers.append((await chat(house, shown())).status)

            for _ in range(2):
                nursery.start_soon(ask)
        assert answers == [200, 200]


async def test_S9_a_request_that_still_sends_its_body_is_open(autojump_clock: MockClock) -> None:
    """The next is refused before its body is there, and counted; who has been answered may ask again at once, on the
    same connection or another, whole or refused."""
    async with served(autojump_clock, key(concurrency=1)) as house:
        async with await house.connect() as slow, await house.connect() as other:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nx-api-key: {secret_of('tom')}\r\n"
            await slow.stream.send_all(f"{head}Content-Length: 9\r\n\r\n12".encode())
            await trio.sleep(1)
            await other.stream.send_all(f"{head}Content-Length: 60000000\r\n\r\n12".encode())
            refused = b""
            while b"key_concurrency" not in refused:
                refused += (piece := bytes(await other.stream.receive_some(65536)))
                assert piece, refused
            assert refused.startswith(b"HTTP/1.1 429 ")
        page = (await house.ask("GET", "/metrics", headers=ADMIN)).body.decode()
        assert 'class="",code="429",endpoint="/v1/chat/completions",model=""' in page
        async with await house.connect() as client:
            for body, status in ((CHAT, 200), (b"{", 400), (CHAT | {"stream": True}, 200), (b" " * 10, 400)) * 3:
                assert (await client.ask("POST", "/v1/chat/completions", body, shown())).status == status
                assert (await house.ask("POST", "/v1/chat/completions", body, shown())).status == status


async def test_S9_a_key_takes_no_more_of_a_queue_than_its_share(autojump_clock: MockClock) -> None:
    """1 % of 256 are three that wait: the next is refused by the key's name, another key is served."""
    async with served(autojump_clock, key(queue_share=0.01), key("ann")) as house, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(chat, house, shown())
        await house.until_logged("enqueue", 3)
        refused = await chat(house, shown())
        assert (refused.status, refused.error["code"]) == (429, "queue_full")
        assert refused.error["gridsched"]["key"] == "tom"  # type: ignore[index]  # JSON
        assert int(refused.headers["retry-after"]) >= 1
        assert (await chat(house, shown("ann"))).status == 200


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_H6_a_secret_is_compared_with_all_and_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As digests, whichever of them it is, or none."""
    compared: list[tuple[bytes, bytes]] = []

    def noting(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare_digest(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noting)
    authority = with_keys(key("ann"), key("tom"), key("zoe"))
    for secret in ("gs-ann", "gs-zoe", ADMIN_WORD, "nobody's"):
        compared.clear()
        authority.identify({b"x-api-key": secret.encode()}, here=True)
        assert len(compared) == 4
        assert {len(one) for pair in compared for one in pair} == {32}


def test_H6_whatever_the_header_says_only_the_secret_lets_in() -> None:
    """Thousands of damaged and random headers: never an exception, never anybody."""
    authority = with_keys(replace(key(), scopes=ALL))
    draws = random.Random(1)  # noqa: S311 - repeatable, no secret
    right = b"Bearer gs-tom"
    for _ in range(5000):
        value = bytearray(right)
        for _ in range(draws.randint(1, 4)):
            at = draws.randrange(len(value) or 1)
            match draws.randrange(4):
                case 0:
                    value[at : at + 1] = bytes([draws.randrange(256)])
                case 1:
                    value[at:at] = draws.randbytes(draws.choice((1, 3, 40)))
                case 2:
                    del value[at : at + draws.randint(1, 5)]
                case _:
                    value += draws.choice((b" ", b"\t", b",", b"\0", b"gs-tom", b", Bearer gs-tom"))
        name = draws.choice((b"authorization", b"x-api-key", b"api-key"))
        told = authority.identify({name: bytes(value)}, here=draws.random() < 0.5)
        words = bytes(value).split(None, 1)
        is_right = (
            name == b"authorization"
            and len(words) == 2
            and (words[0].lower(), words[1].strip())
            == (
                b"bearer",
                b"gs-tom",
            )
        )
        assert isinstance(told, Caller) is is_right, value


async def test_H6_whatever_bytes_a_credential_has_the_answer_is_a_401(autojump_clock: MockClock) -> None:
    """Over the wire: bytes above ASCII, tabs, very long, repeated, none at all; the next request is served."""
    values = [
        b"Bearer \xff\xfe\x80",
        b"Bearer\tgs-tom2",
        b"Bearer " + b"a" * 30_000,
        b"\xe9",
        b"Bearer",
        b",",
        b"Bearer =;",
    ]
    heads = [b"authorization: " + value for value in values] + [b"x-api-key: " + value for value in values]
    heads += [b"authorization: Bearer gs-tom\r\nauthorization: Bearer gs-tom", b"authorization:", b"api-key:\t"]
    async with served(autojump_clock, key()) as house:
        for head in heads:
            async with await house.connect() as client:
                await client.stream.send_all(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n\r\n")
                answer = bytes(await client.stream.receive_some(65536))
                assert answer.startswith(b"HTTP/1.1 401 "), (head, answer)
                assert b"gs-tom" not in answer
        assert (await house.ask("GET", "/v1/models", headers=shown())).status == 200


async def test_H6_a_page_that_is_listed_asks_before_it_shows_its_key(autojump_clock: MockClock) -> None:
    """Browsers send no credential with a preflight; a 401 can be read by the page."""
    page = {"Origin": "http://page.example"}
    figures = FrontSettings(cors_origins=frozenset({"http://page.example"}))
    async with serving(autojump_clock, figures) as house:
        house.authority.keep([key(highest_class=JobClass.BATCH)])
        asks = page | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
        assert (await house.ask("OPTIONS", "/v1/chat/completions", headers=asks)).status == 204
        refused = await house.ask("POST", "/v1/chat/completions", CHAT, page)
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "http://page.example")
        served_now = await house.ask("POST", "/v1/chat/completions", CHAT, page | {"x-api-key": secret_of("tom")})
        assert served_now.status == 200
        assert served_now.headers["x-gridsched-class-capped"] == INTERACTIVE
        assert "x-gridsched-class-capped" in served_now.headers["access-control-expose-headers"]


async def test_H6_other_protocols_are_refused_in_their_own_words(autojump_clock: MockClock) -> None:
    """Anthropic's SDK looks for `type`; LM Studio's list shows what OpenAI's does."""
    async with served(autojump_clock, key(models=(MODEL,))) as house:
        refused = await house.ask("POST", "/v1/messages", CHAT)
        assert (refused.status, refused.json["type"]) == (401, "error")
        listed = await house.ask("GET", "/api/v0/models", headers=shown())
        assert [each["id"] for each in json.loads(listed.body)["data"]] == [MODEL]
        assert (await house.ask("GET", f"/api/v0/models/{EMBEDDER}", headers=shown())).status == 404
