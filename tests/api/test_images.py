"""Images by URL: where a body may name one, what goes up in its place, and requests whose image is not to be had."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from trio.testing import MockClock

from gridsched.api.decode import InferenceRequest, decode
from gridsched.api.fetch import Image
from gridsched.api.images import MOST_IMAGES, Images, changed, links_of, rebuilt
from gridsched.api.members import BadBody
from gridsched.api.routes import ROUTES
from gridsched.api.settings import FrontSettings
from gridsched.api.splice import splice
from gridsched.control.problems import RequestError
from gridsched.ports import VirtualEntry
from sim import build
from tests.support.front import House, serving
from tests.support.image_host import JPEG, PNG, ImageHost, Part, answer, image_host

CHAT = "/v1/chat/completions"
SEES = "sim-chat-4b"
URL = "https://pics.example/cat.png"


def uri(data: bytes, kind: str = "image/png") -> str:
    """What an image becomes."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def read(body: object) -> InferenceRequest:
    """A decoded request; text is a body as it stands."""
    return decode(ROUTES[CHAT], {}, body.encode() if isinstance(body, str) else json.dumps(body).encode())


def part(url: object, **more: object) -> dict[str, object]:
    """A part of a chat."""
    return {"type": "image_url", "image_url": {"url": url}, **more}


def chat(*parts: object) -> dict[str, object]:
    """A chat with these parts in its second message."""
    system = {"role": "system", "content": "see"}
    return {"model": SEES, "messages": [system, {"role": "user", "content": list(parts)}], "max_tokens": 2}


def responses(*parts: object) -> dict[str, object]:
    """The same for the Responses API; `messages` is only there for the route that is used here."""
    return {"messages": [], "input": [{"role": "user", "content": list(parts)}]}


# --- what a body names ------------------------------------------------------------------------------------------------

SOURCE = {"type": "url", "url": URL}
NAMED = {
    "chat": (chat({"type": "text", "text": "what?"}, part(URL)), "messages[1].content[1].image_url.url"),
    "chat, a bare URL": (chat({"type": "image_url", "image_url": URL}), "messages[1].content[0].image_url"),
    "responses": (responses({"type": "input_image", "image_url": URL}), "input[0].content[0].image_url"),
    "a tool's output": (
        {"messages": [], "input": [{"type": "x", "output": [{"type": "input_image", "image_url": URL}]}]},
        "input[0].output[0].image_url",
    ),
    "messages": (chat({"type": "image", "source": SOURCE}), "messages[1].content[0].source.url"),
    "messages, a tool's result": (
        chat({"type": "tool_result", "content": [{"type": "image", "source": SOURCE}]}),
        "messages[1].content[0].content[0].source.url",
    ),
}


@pytest.mark.parametrize(("body", "param"), NAMED.values(), ids=NAMED.keys())
def test_an_image_by_url_is_found_wherever_a_protocol_has_it(body: object, param: str) -> None:
    """And told by the words that a client would write, however its letters are escaped."""
    (link,) = links_of(read(body))
    assert (link.url, link.param) == (URL, param)
    hidden = json.dumps(body).replace("image", "im\\u0061ge").replace("https:", "\\u0068ttps:").replace("/", "\\/")
    assert links_of(read(hidden)) == (link,)


PASSED = {
    "data": chat(part(uri(PNG)), part("data:nonsense")),
    "data, in the messages' own form": chat({"type": "image", "source": {"type": "base64", "data": "AA=="}}),
    "a search result's source": chat({"type": "search_result", "source": URL}),
    "sound": chat({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}),
    "sound as data": chat({"type": "input_audio", "input_audio": {"url": "data:audio/wav;base64,UklGRg=="}}),
    "text about an image": chat({"type": "text", "text": f'"image_url": {URL} \u00e9'}),
    "what no engine reads": {"messages": [None, 1, {"content": {"type": "image_url"}}, {"content": ["image", 7]}]},
    "no address": chat({"type": "image_url"}, part(None), part(7)),
}


@pytest.mark.parametrize("body", PASSED.values(), ids=PASSED.keys())
def test_what_names_no_image_by_url_is_left_to_the_engine(body: object) -> None:
    """Byte for byte."""
    assert links_of(read(body)) == ()


REFUSED = {
    "a file": chat(part("file:///etc/passwd")),
    "a file, shouted": chat(part("FILE:///etc/passwd")),
    "ftp": chat(part("ftp://example.com/a.png")),
    "a relative path": chat(part("../secret.png")),
    "an absolute path": chat(part("/etc/passwd")),
    "a path of Windows": chat(part("\\\\server\\share\\a.png")),
    "no scheme": chat(part("//example.com/a.png")),
    "http without a host's slashes": chat(part("http:example.com")),
    "a space before it": chat(part(" http://example.com/a.png")),
    "another word for data": chat(part("DATA:image/png;base64,AA==")),
    "nothing": chat(part("")),
    "an object in Responses": responses({"type": "input_image", "image_url": {"url": "file://a"}}),
    "a file by URL": responses({"type": "input_file", "file_url": URL}),
    "sound by URL": chat({"type": "input_audio", "input_audio": {"url": URL}}),
    "sound by URL, as data": chat({"type": "input_audio", "input_audio": {"data": "file://a.wav"}}),
    "what an engine takes for a URL": chat({"type": "input_audio", "input_audio": {"data": "httpAAAA"}}),
    "film by URL": chat({"type": "input_video", "input_video": {"url": URL}}),
    "film by URL, otherwise": chat({"type": "video_url", "video_url": URL}),
    "sound by URL, otherwise": chat({"type": "audio_url", "audio_url": {"url": URL}}),
    "a document by URL": chat({"type": "document", "source": SOURCE}),
    "an image that is elsewhere": chat({"type": "image", "source": {"type": "file", "file_id": "f"}}),
    "an image without a source": chat({"type": "image"}),
    "a source without a URL": chat({"type": "image", "source": {"type": "url"}}),
    "a source with data for a URL": chat({"type": "image", "source": {"type": "url", "url": uri(PNG)}}),
    "behind what is none of an engine's": {"messages": [None, {"content": ["x", part("file://a")]}]},
    "the last of two keys": '{"messages": [{"content": [{"type":"text","type":"image_url","image_url":{"url":"a"}}]}]}',
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_H1_what_an_engine_would_fetch_or_read_by_itself_is_refused(body: object) -> None:
    """With the place of it, and never with what is there."""
    with pytest.raises(RequestError) as caught:
        links_of(read(body))
    problem = caught.value.problem
    assert problem.status == 400
    assert problem.param is not None
    assert problem.param.startswith(("messages[", "input["))


def test_H1_more_different_images_than_a_request_may_name_are_refused() -> None:
    """The same one again costs nothing."""
    parts = [part(f"{URL}?{number}") for number in range(MOST_IMAGES)]
    assert len(links_of(read(chat(*parts, *parts)))) == 2 * MOST_IMAGES
    with pytest.raises(RequestError, match="more than 16 images"):
        links_of(read(chat(*parts, part(URL))))


URLS = [
    "http://a/x",
    "https://b/y",
    "HTTP://c/",
    "httpAAAA",
    "file:///etc/passwd",
    "file://a",
    "/p",
    "data:image/png,AA",
    "AA==",
]
MEMBERS = {
    "text": "text",
    "image_url": "image_url",
    "input_image": "image_url",
    "input_audio": "input_audio",
    "input_video": "input_video",
    "image": "source",
    "tool_result": "content",
}
"""Kinds of parts, and the member of each in which it says what it is about."""


@dataclass(frozen=True)
class Pairs:
    """An object as it stands in a body: its keys may come twice."""

    pairs: tuple[tuple[str, object], ...]


def written(value: object, *, escaped: bool) -> str:
    """As JSON; with letters escaped no word is found by its looks."""
    if isinstance(value, Pairs):
        inner = (f"{written(key, escaped=escaped)}:{written(one, escaped=escaped)}" for key, one in value.pairs)
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(one, escaped=escaped) for one in value) + "]"
    text = json.dumps(value)
    return text.replace("i", "\\u0069").replace("h", "\\u0068") if escaped else text


def opened(value: object) -> list[str]:
    """What an engine would fetch or open by itself, in any protocol, of a body that it has read: the words after which
    it looks are those of its own source."""
    if isinstance(value, list):
        return [url for one in value for url in opened(one)]
    if not isinstance(value, dict):
        return []
    named: list[object] = []
    kind, source = value.get("type"), value.get("source")
    if kind in ("image_url", "input_audio", "input_video") and isinstance(inner := value.get(str(kind)), dict):
        named += [inner.get("url"), inner.get("data") if kind != "image_url" else None]
    if kind == "input_image":
        named.append(value.get("image_url"))
    if kind == "image" and isinstance(source, dict) and source.get("type") == "url":
        named.append(source.get("url"))
    lists = ("content", "output") if kind in (None, "tool_result") else ()  # of a turn, and of a tool's result in one
    within = [url for key in lists for url in opened(value.get(key))]
    return within + [url for url in named if isinstance(url, str) and url.startswith(("http", "file://"))]


_urls = st.sampled_from(URLS) | st.sampled_from(URLS[:2])  # most of the others alone have a body refused
_kinds = st.sampled_from(list(MEMBERS))
_named = st.tuples(st.sampled_from(("url", "url", "data")), _urls)
_inner = (
    st.tuples(_named, st.tuples(st.just("type"), st.sampled_from(("url", "base64"))), st.lists(_named, max_size=1))
    .map(lambda one: (*one[:2], *one[2]))
    .flatmap(st.permutations)
    .map(lambda one: Pairs(tuple(one)))
)


def _part_of(kind: str, content: SearchStrategy[object]) -> SearchStrategy[Pairs]:
    """Parts of a kind, with what belongs in it and what does not, in any order."""
    own = st.tuples(st.just("type"), st.just(kind)), st.tuples(st.just(MEMBERS[kind]), content)
    other = st.tuples(st.just("type"), _kinds) | st.tuples(st.sampled_from(list(MEMBERS.values())), content)
    made = st.tuples(*own, st.lists(other, max_size=1)).map(lambda one: (*one[:2], *one[2]))
    return made.flatmap(st.permutations).map(lambda one: Pairs(tuple(one)))


_parts = _kinds.flatmap(lambda kind: _part_of(kind, _urls | _inner))
_results = _part_of("tool_result", st.lists(_parts, min_size=1, max_size=2))
_contents = st.lists(_parts | _results | _urls | st.none(), min_size=1, max_size=2)
_turns = st.tuples(st.sampled_from(("content", "output")), _contents).map(lambda one: Pairs((("role", "user"), one)))
_turn_lists = st.lists(_turns, max_size=2)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(messages=_turn_lists, items=_turn_lists, escaped=st.booleans())
def test_no_body_that_is_taken_leaves_an_engine_anything_to_open(
    messages: list[object], items: list[object], escaped: bool
) -> None:
    """Whatever its shape, keys that come twice included: it is refused, or nothing is left beside data."""
    body = written(Pairs((("messages", messages), ("input", items))), escaped=escaped)
    request = read(body)
    try:
        links = links_of(request)
        edits = changed(request, links, dict.fromkeys((link.url for link in links), Image("image/png", PNG)))
    except RequestError as error:
        assert error.problem.status == 400  # noqa: PT017 - either way is right
        return
    sent = json.loads(splice(request.body, request.members, replaced=edits, removed=()))
    assert opened(sent["messages"]) + opened(sent["input"]) == []


def test_H2_only_the_values_that_are_replaced_change() -> None:
    """Spaces, escapes, numbers and the order of keys stay as they were written."""
    value = b'[ {"a" : 1.50,"b":[ 1 , {"c": "\\u00e9"} ,3]}\n, {"a":null} ]'
    changed = rebuilt(value, {(1, "a"): b'"new"', (0, "b", 1, "c"): b"2", (0, "a"): b"{}"})
    assert changed == b'[ {"a" : {},"b":[ 1 , {"c": 2} ,3]}\n, {"a":"new"} ]'
    assert rebuilt(value, {(): b"0"}) == b"0"
    with pytest.raises(BadBody, match="given twice"):
        rebuilt(b'[{"a":1,"a":2}]', {(0, "a"): b"3"})


# --- the whole way ----------------------------------------------------------------------------------------------------


def figures(host: ImageHost, **more: object) -> FrontSettings:
    """A server that may ask a host of the test."""
    return replace(FrontSettings(), image_hosts=frozenset({f"127.0.0.1:{host.port}"}), **more)  # type: ignore[arg-type]  # figures


def at(host: ImageHost, target: str) -> str:
    """A URL there."""
    return f"http://127.0.0.1:{host.port}{target}"


def sent_up(house: House) -> bytes:
    """What the engine was sent last."""
    return house.upstream.asked[-1].body


async def test_H2_an_image_goes_up_as_data_and_all_else_as_it_came(autojump_clock: MockClock) -> None:
    """Streamed or not; the same one is fetched once, others beside it."""
    async with image_host() as host, serving(autojump_clock, figures(host)) as house:
        host.answers |= {"/a": [1.0, *answer(PNG)], "/b": [1.0, *answer(JPEG, "image/jpeg")]}
        body = (
            '{ "model":"sim-chat-4b" , "max_tokens":2,"messages" :[ {"content":[{"type":"text","text":"\\u00e9"},'
            '{"type":"image_url","image_url":{"detail":"low", "url" : "@a"}},\t'
            '{"image_url":{"url":"@b"},"type":"image_url"}],'
            '"role":"user"},\n'
            '{"role":"user","content":[{"type":"image_url","image_url":{"url":"@a"}}]}],"temperature":1.50}'
        )
        expected = body.replace("@a", uri(PNG)).replace("@b", uri(JPEG, "image/jpeg"))
        body = body.replace("@a", at(host, "/a")).replace("@b", at(host, "/b"))
        for stream in ("", ', "stream":true'):
            whole = body.replace(',"temp', f'{stream},"temp').encode()
            began = trio.current_time()
            reply = await house.ask("POST", CHAT, whole)
            assert reply.status == 200
            assert sent_up(house) == expected.replace(',"temp', f'{stream},"temp').encode()
            assert trio.current_time() - began < 60
        assert sorted(target for target, _ in host.asked) == ["/a", "/a", "/b", "/b"]
        assert host.most_open == 2


async def test_images_of_many_requests_take_turns(autojump_clock: MockClock) -> None:
    """Eight requests at once; whose turn comes later has its whole time from then on."""
    async with image_host() as host, serving(autojump_clock, figures(host)) as house, trio.open_nursery() as nursery:
        replies: list[int] = []

        async def ask(number: int) -> None:
            target = at(host, f"/{number}")
            host.answers[f"/{number}"] = [8.0, *answer(PNG)]
            replies.append((await house.ask("POST", CHAT, chat(part(target)))).status)

        for number in range(20):
            nursery.start_soon(ask, number)
        await house.until_logged("complete", 20)
    assert (replies, host.most_open) == ([200] * 20, 8)


async def test_H2_an_image_beyond_a_quarter_of_a_mebibyte_is_put_in_beside_the_loop() -> None:
    """Byte for byte, too."""
    large = PNG + bytes(300_000)
    async with image_host() as host:
        host.answers["/a"] = answer(large)
        request = read(chat(part(at(host, "/a"))))
        edits = await Images(lambda: figures(host)).put_in(request, links_of(request))
    assert {key: json.loads(value) for key, value in edits.items()} == {"messages": chat(part(uri(large)))["messages"]}


async def test_H2_a_name_over_another_model_adds_its_words_beside_the_image(autojump_clock: MockClock) -> None:
    """Both change the same member."""
    virtual = VirtualEntry("reviewer", SEES, system_prompt="Look.")
    async with (
        image_host() as host,
        serving(autojump_clock, figures(host), world=build(virtuals=(virtual,))) as house,
    ):
        host.answers["/a"] = answer(PNG)
        content = [part(at(host, "/a"))]
        body = {"model": "reviewer", "messages": [{"role": "user", "content": content}], "max_tokens": 2}
        assert (await house.ask("POST", CHAT, body)).status == 200
        words, turn = json.loads(sent_up(house))["messages"]
        assert words == {"role": "system", "content": "Look."}
        assert turn == {"role": "user", "content": [part(uri(PNG))]}


async def test_images_are_fetched_four_at_a_time(autojump_clock: MockClock) -> None:
    """Sixteen of them."""
    async with image_host() as host, serving(autojump_clock, figures(host)) as house:
        targets = [f"/{number}" for number in range(MOST_IMAGES)]
        host.answers |= {target: [0.5, *answer(PNG)] for target in targets}
        reply = await house.ask("POST", CHAT, chat(*(part(at(host, target)) for target in targets)))
        assert (reply.status, host.most_open) == (200, 4)
        assert sent_up(house).count(uri(PNG).encode()) == MOST_IMAGES


BAD_ENDS: dict[str, tuple[list[Part], str]] = {
    "not there": (answer(b"", status=404), "answered 404"),
    "slow to answer": ([60.0], "within 10 s"),
    "slow in every byte": ([b"HTTP/1.1 200 X\r\nContent-Type: image/png\r\n\r\n", *[2.0, b"x"] * 50], "within 10 s"),
}


@pytest.mark.parametrize(("parts", "words"), BAD_ENDS.values(), ids=BAD_ENDS.keys())
async def test_H1_an_image_that_cannot_be_had_is_a_400_before_any_load(
    autojump_clock: MockClock, parts: list[Part], words: str
) -> None:
    """It names which; nothing is queued, loaded, or sent up, and the others are given up."""
    async with image_host() as host, serving(autojump_clock, figures(host)) as house:
        host.answers |= {"/good": answer(PNG), "/bad": parts}
        body = chat(part(at(host, "/good")), part(at(host, "/bad")))
        for stream in (False, True):
            reply = await house.ask("POST", CHAT, body | {"stream": stream})
            assert (reply.status, reply.error["code"]) == (400, "invalid_image_url")
            assert reply.error["param"] == "messages[1].content[1].image_url.url"
            assert words in str(reply.error["message"])
        assert not house.logged("enqueue")
        assert not house.upstream.asked


BAD_REQUESTS: dict[str, tuple[Callable[[str], object], str]] = {
    "a model that sees nothing": (lambda url: chat(part(url)) | {"model": "sim-chat-2b"}, "model_not_supported"),
    "the same, with letters escaped": (
        lambda url: json.dumps(chat(part(url)) | {"model": "sim-chat-2b"}).replace("image", "im\\u0061ge").encode(),
        "model_not_supported",
    ),
    "another port here": (lambda _: chat(part("http://127.0.0.1:1/a")), "invalid_image_url"),
    "this machine": (lambda _: chat(part("http://127.0.0.1/a")), "invalid_image_url"),
    "a file beside it": (lambda url: chat(part(url), part("file:///etc/passwd")), "invalid_image_url"),
}


@pytest.mark.parametrize(("body", "code"), BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
async def test_H1_a_request_that_cannot_be_served_has_nothing_fetched(
    autojump_clock: MockClock, body: Callable[[str], object], code: str
) -> None:
    """No host is asked, no model loaded."""
    async with image_host() as host, serving(autojump_clock, figures(host)) as house:
        host.answers["/a"] = answer(PNG)
        reply = await house.ask("POST", CHAT, body(at(host, "/a")))
        assert (reply.status, reply.error["code"]) == (400, code)
        assert not host.asked
        assert not house.logged("enqueue")


async def test_a_server_that_is_to_fetch_nothing_says_so(autojump_clock: MockClock) -> None:
    """Data is taken as ever."""
    async with image_host() as host, serving(autojump_clock, figures(host, fetches_images=False)) as house:
        reply = await house.ask("POST", CHAT, chat(part(at(host, "/a"))))
        assert (reply.status, reply.error["code"]) == (400, "invalid_image_url")
        assert "server.image_urls" in str(reply.error["message"])
        assert not host.asked
        assert (await house.ask("POST", CHAT, chat(part(uri(PNG))))).status == 200


async def test_S8_a_client_that_leaves_while_its_image_comes_leaves_nothing(autojump_clock: MockClock) -> None:
    """The image's host is left, too."""
    async with image_host() as host, serving(autojump_clock, figures(host)) as house:
        host.answers["/a"] = [5.0, *answer(PNG)]
        async with await house.connect() as client:
            await client.send("POST", CHAT, json.dumps(chat(part(at(host, "/a")))).encode())
            await host.was_asked.wait()
        await trio.sleep(1.0)
        assert not house.logged("enqueue")
        assert 'code="499"' in (await house.ask("GET", "/metrics")).body.decode()
