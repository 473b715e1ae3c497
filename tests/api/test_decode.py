"""Door 1: what a request says, by which channel, and what is wrong with it."""

import json

import pytest

from gridsched.api.decode import InferenceRequest, decode
from gridsched.api.routes import ROUTES
from gridsched.control.problems import RequestError
from gridsched.core.job import JobClass, JobKind

HELLO: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def read(body: object, headers: dict[bytes, bytes] | None = None, kind: JobKind = JobKind.CHAT) -> InferenceRequest:
    """Decode a body given as fields or as bytes."""
    route = next(route for route in ROUTES.values() if route.kind is kind)
    return decode(route, headers or {}, body if isinstance(body, bytes) else json.dumps(body).encode())


def refusal(
    body: object, headers: dict[bytes, bytes] | None = None, kind: JobKind = JobKind.CHAT
) -> tuple[int, str, str | None]:
    """Status, code and param of the refusal."""
    with pytest.raises(RequestError) as caught:
        read(body, headers, kind)
    problem = caught.value.problem
    return problem.status, problem.code, problem.param


def test_a_plain_request_says_nothing_of_its_class() -> None:
    """The rest is decided where the model is known."""
    body = json.dumps(HELLO).encode()
    request = read(body)
    assert (request.model, request.job_class, request.tier_class, request.stream) == ("m", None, None, False)
    assert (request.max_wait_seconds, request.warm_only, request.no_evict) == (None, False, False)
    assert request.body is body


CHANNELS = [
    ({b"x-class": b"batch"}, {}, JobClass.BATCH),
    ({b"x-gridcore-class": b"Background "}, {}, JobClass.BACKGROUND),
    ({b"x-class": b"batch", b"x-gridcore-class": b"background"}, {}, JobClass.BATCH),
    ({b"x-class": b"interactive"}, {"x_class": "batch"}, JobClass.INTERACTIVE),
    ({b"x-class": b""}, {"x_class": "batch"}, JobClass.BATCH),
    ({}, {"x_class": "batch", "gridsched": {"class": "background"}}, JobClass.BATCH),
    ({}, {"x_class": None, "gridsched": {"class": "background"}}, JobClass.BACKGROUND),
    ({}, {"gridsched": None}, None),
    ({}, {"gridsched": {"ttl": 5, "quality": "compact"}}, None),
]


@pytest.mark.parametrize(("headers", "extra", "expected"), CHANNELS)
def test_S1_the_first_channel_that_speaks_gives_the_class(
    headers: dict[bytes, bytes], extra: dict[str, object], expected: JobClass | None
) -> None:
    """Header, other header, `x_class`, `gridsched.class`."""
    assert read(HELLO | extra, headers).job_class is expected


@pytest.mark.parametrize(
    ("tier", "expected"),
    [("priority", JobClass.INTERACTIVE), ("flex", JobClass.BACKGROUND), ("auto", None), (None, None), (7, None)],
)
def test_a_service_tier_is_heard_and_never_refused(tier: object, expected: JobClass | None) -> None:
    """Its other words are for the engine."""
    assert read(HELLO | {"service_tier": tier}).tier_class is expected


UNKNOWN_CLASSES = [
    ({b"x-class": b"urgent"}, {}),
    ({b"x-class": b"\xff"}, {}),
    ({}, {"x_class": "0"}),
    ({}, {"gridsched": {"class": "chat"}}),
]


@pytest.mark.parametrize(("headers", "extra"), UNKNOWN_CLASSES)
def test_an_unknown_class_is_never_taken_for_another(headers: dict[bytes, bytes], extra: dict[str, object]) -> None:
    """400 with its own code."""
    assert refusal(HELLO | extra, headers)[:2] == (400, "invalid_class")


BAD_FIELDS = [
    ({"model": 5}, "model"),
    ({"model": "x" * 2000}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"x_class": 2}, "x_class"),
    ({"gridsched": "batch"}, "gridsched"),
    ({"gridsched": {"max_wait": 5}}, "gridsched"),
    ({"gridsched": {"warm_only": "yes"}}, "gridsched"),
    ({"gridsched": {"max_wait_ms": "5"}}, "gridsched"),
    ({"gridsched": {"max_wait_ms": -1}}, "gridsched.max_wait_ms"),
    ({"gridsched": {"max_wait_ms": 1e15}}, "gridsched.max_wait_ms"),
    ({"messages": {}}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
]


def test_H1_an_unknown_member_of_ours_is_told_with_those_there_are() -> None:
    """Whoever misspelt one reads how it is spelt."""
    with pytest.raises(RequestError) as refused:
        read({"model": "m", "messages": [], "gridsched": {"qality": "compact"}})
    assert "qality; there are class, max_wait_ms, warm_only, no_evict, quality, ttl" in str(
        refused.value.problem.message
    )


@pytest.mark.parametrize(("extra", "param"), BAD_FIELDS)
def test_H1_a_field_of_the_wrong_type_is_named(extra: dict[str, object], param: str) -> None:
    """`param` says which."""
    assert refusal(HELLO | extra) == (400, "invalid_request", param)


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b'{"model":"m","n":1e999}', b'{"model":"m","model":"n"}'])
def test_H1_a_malformed_body_is_a_400(body: bytes) -> None:
    """Whatever is wrong with it."""
    assert refusal(body, {b"content-length": b"%d" % len(body)})[:2] == (400, "invalid_request")


@pytest.mark.parametrize(
    ("kind", "missing"), [(JobKind.CHAT, "messages"), (JobKind.COMPLETION, "prompt"), (JobKind.EMBEDDINGS, "input")]
)
def test_what_a_kind_cannot_do_without_is_asked_for(kind: JobKind, missing: str) -> None:
    """Before any load."""
    assert refusal({"model": "m"}, kind=kind) == (400, "invalid_request", missing)


@pytest.mark.parametrize("body", [{"messages": []}, {"model": None, "messages": []}, {"model": " ", "messages": []}])
def test_a_request_without_a_model_asks_for_the_default(body: dict[str, object]) -> None:
    """Absent, null and blank are the same."""
    assert read(body).model == ""


@pytest.mark.parametrize(
    ("headers", "wishes", "seconds"),
    [
        ({b"x-max-wait-ms": b"1500"}, {"max_wait_ms": 9}, 1.5),
        ({}, {"max_wait_ms": 250}, 0.25),
        ({b"x-max-wait-ms": b"0"}, {}, 0.0),
    ],
)
def test_S9_the_longest_wait_is_in_milliseconds(
    headers: dict[bytes, bytes], wishes: dict[str, object], seconds: float
) -> None:
    """The header goes before the body."""
    assert read(HELLO | {"gridsched": wishes}, headers).max_wait_seconds == seconds


@pytest.mark.parametrize("value", [b"soon", b"-5", b"nan", b"inf", b"1e300"])
def test_S9_a_longest_wait_that_is_no_time_is_refused(value: bytes) -> None:
    """Never taken for no limit."""
    assert refusal(HELLO, {b"x-max-wait-ms": value}) == (400, "invalid_request", "x-max-wait-ms")


def test_S9_the_limits_on_loading_are_heard() -> None:
    """`warm_only` and `no_evict`."""
    request = read(HELLO | {"gridsched": {"warm_only": True, "no_evict": True}})
    assert (request.warm_only, request.no_evict) == (True, True)


def test_a_compressed_body_is_refused_by_its_own_status() -> None:
    """Nothing here inflates what a client sends."""
    assert refusal(HELLO, {b"content-encoding": b"gzip"})[:2] == (415, "unsupported_media_type")
    assert read(HELLO, {b"content-encoding": b"identity"}).model == "m"


def test_embeddings_never_stream() -> None:
    """There is nothing to stream in one assembled answer."""
    assert read({"input": "a", "stream": True}, kind=JobKind.EMBEDDINGS).stream is False


@pytest.mark.parametrize(("word", "quality"), [("preferred", 0), ("Balanced", 1), ("compact", 2), (None, None)])
def test_R10_the_lowest_quality_is_one_of_three_words(word: str | None, quality: int | None) -> None:
    """Any case; another word is a 400."""
    assert read(HELLO | {"gridsched": {"quality": word}}).quality == quality
    for wrong in ("best", 1, ""):
        param = "gridsched.quality" if isinstance(wrong, str) else "gridsched"
        assert refusal(HELLO | {"gridsched": {"quality": wrong}}) == (400, "invalid_request", param)


@pytest.mark.parametrize(("said", "seconds"), [(0, 0.0), (5, 5.0), (0.5, 0.5), (None, None)])
def test_R6_a_request_may_say_how_long_its_model_is_kept(said: float | None, seconds: float | None) -> None:
    """In seconds."""
    assert read(HELLO | {"gridsched": {"ttl": said}}).ttl_seconds == seconds


@pytest.mark.parametrize("said", [-1, 1e9, "5m", [5]])
def test_R6_a_ttl_that_is_no_number_of_seconds_is_a_400(said: object) -> None:
    """Nothing is guessed."""
    assert refusal(HELLO | {"gridsched": {"ttl": said}})[:2] == (400, "invalid_request")
