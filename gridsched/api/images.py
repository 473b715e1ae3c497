"""The images that a request names by URL: found in its body, fetched, and put in as data before the job is queued.

Owns where a body may name something that an engine would fetch or read by itself (chat's `image_url`, the Responses
API's `input_image`, the Messages API's `source`, recordings, files), and what becomes of each: `data:` passes, http(s)
is fetched by us, all else is a 400. What no other part would find is refused here, so that no engine ever goes out, or
opens a file, for a client. Must never change a byte beside the values that it replaces.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from gridsched.api.body import beside
from gridsched.api.decode import InferenceRequest
from gridsched.api.members import BadBody, elements, inner_members, items
from gridsched.api.resolve import Resolver, look_up
from gridsched.api.settings import FrontSettings
from gridsched.control.problems import invalid
from gridsched.core.job import JobKind
from gridsched.hosts import PORTS, Refused
from gridsched.threads import imported

if TYPE_CHECKING:
    from gridsched.api.fetch import Image

FETCH = "gridsched.api.fetch"
"""Imported when the first image is to be fetched: it brings an HTTP library."""

MOST_IMAGES = 16
"""Different images that one request may name by URL."""

AT_ONCE, REQUESTS_AT_ONCE = 4, 8
"""Of one request's images, and of all requests with images, so many are fetched at once: each takes a descriptor, and
may take what a body may have of memory. A request's time begins with its turn."""

CODE = "invalid_image_url"
DATA = "data:"
_LONGEST_SCHEME = 8  # of `https://`
_HOLDERS = ("messages", "input")
"""The members with parts in them: chat's and the Messages API's, the Responses API's."""

_SUSPECT = re.compile(rb'"(?:image|input_|audio_url|video|file|document)|\\u')
"""No part is of interest without one of these words. An escape may hide any of them."""

_RECORDINGS: Final = frozenset({"input_audio", "input_video", "audio_url", "video_url"})
_NOTHING = msgspec.Raw(b"null")

Step = int | str
Path = tuple[Step, ...]


class _Holder(msgspec.Struct):
    content: msgspec.Raw = _NOTHING
    output: msgspec.Raw = _NOTHING


class _Part(msgspec.Struct):
    type: object = None
    content: msgspec.Raw = _NOTHING
    image_url: msgspec.Raw = _NOTHING
    source: msgspec.Raw = _NOTHING
    input_audio: msgspec.Raw = _NOTHING
    input_video: msgspec.Raw = _NOTHING
    audio_url: msgspec.Raw = _NOTHING
    video_url: msgspec.Raw = _NOTHING
    file_url: msgspec.Raw = _NOTHING


class _Inner(msgspec.Struct):
    type: object = None
    url: msgspec.Raw = _NOTHING
    data: msgspec.Raw = _NOTHING


_holder = msgspec.json.Decoder(_Holder)
_part = msgspec.json.Decoder(_Part)
_inner = msgspec.json.Decoder(_Inner)
_string = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True)
class Link:
    """One image by URL: where the value that it replaces stands, and the words for where the URL does."""

    url: str
    place: Path
    param: str
    as_source: bool  # in the Messages API's own form

    def value(self, image: "Image") -> bytes:
        """What stands there instead."""
        data = base64.b64encode(image.data)
        kind = image.media_type.encode()
        if self.as_source:
            return b'{"type":"base64","media_type":"%b","data":"%b"}' % (kind, data)
        return b'"data:%b;base64,%b"' % (kind, data)


# --- finding ----------------------------------------------------------------------------------------------------------


def links_of(request: InferenceRequest) -> tuple[Link, ...]:
    """The images that a body names by URL. Raises RequestError for all else that would have an engine fetch or read.

    Whatever has another form than an engine understands is passed over: the engine refuses it before it looks at it.
    """
    if request.route.kind is JobKind.EMBEDDINGS or _SUSPECT.search(request.outline.text) is None:
        return ()
    links = tuple(link for key in _HOLDERS for link in _in_holders(request.outline.value(key), (key,)))
    if len({link.url for link in links}) > MOST_IMAGES:
        raise invalid(f"the request names more than {MOST_IMAGES} images by URL", links[MOST_IMAGES].param, CODE)
    return links


def _in_holders(value: bytes, path: Path) -> Iterator[Link]:
    for index, raw in _items(value):
        if _is_object(raw):
            holder = _holder.decode(raw)
            yield from _in_parts(holder.content, (*path, index, "content"))
            yield from _in_parts(holder.output, (*path, index, "output"))


def _in_parts(value: msgspec.Raw | bytes, path: Path) -> Iterator[Link]:
    for index, raw in _items(value):
        if not _is_object(raw):
            continue
        part, place = _part.decode(raw), (*path, index)
        if part.type == "tool_result":  # parts within a part; deeper no engine looks
            yield from _in_parts(part.content, (*place, "content"))
        else:
            yield from _in_part(part, place)


def _in_part(part: _Part, place: Path) -> Iterator[Link]:
    """What one part names. Raises RequestError."""
    if part.type in ("image_url", "input_image"):
        yield from _in_image_url(part.image_url, (*place, "image_url"))
    elif part.type in ("image", "document"):
        yield from _in_source(part.source, (*place, "source"), str(part.type))
    elif part.type == "input_file" and _text(part.file_url) is not None:
        raise invalid("files are not fetched by URL: send the text itself", _words((*place, "file_url")))
    elif isinstance(part.type, str) and part.type in _RECORDINGS:
        _check_recording(getattr(part, part.type), (*place, part.type))


def _in_image_url(value: msgspec.Raw, place: Path) -> Iterator[Link]:
    """A URL, or an object with one in it."""
    if _is_object(value):
        value, place = _inner.decode(value).url, (*place, "url")
    if (url := _text(value)) is not None and _is_to_fetch(url, place):
        yield Link(url, place, _words(place), as_source=False)


def _in_source(value: msgspec.Raw, place: Path, what: str) -> Iterator[Link]:
    """The Messages API's. A kind of source that an engine would silently leave out is refused."""
    source = _inner.decode(value) if _is_object(value) else _Inner()
    if source.type in ("base64", "text", "content"):
        return
    if source.type != "url" or what != "image":
        word = "base64 and url are" if what == "image" else "base64 and text are"
        raise invalid(f"a source of another kind than {word} is not taken", _words((*place, "type")))
    url = _text(source.url)
    if url is None:
        raise invalid("a source of type url needs a url", _words((*place, "url")), CODE)
    if not _is_to_fetch(url, (*place, "url")):
        raise invalid("data belongs in a source of type base64", _words((*place, "url")), CODE)
    yield Link(url, place, _words((*place, "url")), as_source=True)


def _is_to_fetch(url: str, place: Path) -> bool:
    """Whether to go out for it; what is data stays. Raises RequestError for all else: it could be a file's name."""
    if url.startswith(DATA):
        return False
    if url[:_LONGEST_SCHEME].lower().startswith(tuple(f"{scheme}://" for scheme in PORTS)):
        return True
    raise invalid("an image is given as http://…, https://… or data:image/…;base64,…", _words(place), CODE)


def _check_recording(value: msgspec.Raw, place: Path) -> None:
    """Sound and film come as base64, bare or as `data:`; an engine would take a URL here. Raises RequestError."""
    inner = _inner.decode(value) if _is_object(value) else _Inner(data=value)
    for key, raw in (("data", inner.data), ("url", inner.url)):
        text = _text(raw)
        if text is None or text.startswith(DATA):
            continue
        if ":" in text or text.startswith("http"):  # an engine needs no more than these letters to go out
            raise invalid("sound and film are taken as base64 data, not by URL", _words((*place, key)))


def _items(value: msgspec.Raw | bytes) -> Iterator[tuple[int, msgspec.Raw]]:
    """The items of an array; of anything else none. Raises BadBody."""
    if bytes(memoryview(value)[:1]) == b"[":
        yield from enumerate(items(value))


def _is_object(value: msgspec.Raw) -> bool:
    return bytes(memoryview(value)[:1]) == b"{"


def _text(value: msgspec.Raw) -> str | None:
    """A string, of data no more than its beginning; None for anything else."""
    view = memoryview(value)
    if bytes(view[:1]) != b'"':
        return None
    beginning = b'"' + DATA.encode()
    return DATA if bytes(view[: len(beginning)]) == beginning else _string.decode(value)


def _words(place: Path) -> str:
    """As a client would write it: `messages[2].content[1].image_url.url`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


# --- fetching and putting in ------------------------------------------------------------------------------------------


class Images:
    """Fetches what requests name. `resolve` looks hosts up."""

    def __init__(self, figures: Callable[[], FrontSettings], resolve: Resolver = look_up) -> None:
        self._figures = figures
        self._resolve = resolve
        self._turns = trio.CapacityLimiter(REQUESTS_AT_ONCE)

    async def put_in(self, request: InferenceRequest, links: tuple[Link, ...]) -> dict[str, bytes]:
        """The members that go up changed, with the images in them. Raises RequestError."""
        if not links:
            return {}
        figures = self._figures()
        if not figures.fetches_images:
            message = "this server fetches no images (server.image_urls): send them as data:image/…;base64,…"
            raise invalid(message, links[0].param, CODE)
        async with self._turns:
            images = await self._fetch(links, len(request.body), figures)
        work = partial(changed, request, links, images)
        size = len(request.body) + sum(len(image.data) for image in images.values())
        return await beside(size, work)

    async def _fetch(self, links: tuple[Link, ...], body_bytes: int, figures: FrontSettings) -> "Mapping[str, Image]":
        """Each image once, some at a time, all of them within their time. Raises RequestError."""
        await imported(FETCH)
        from gridsched.api.fetch import Allowance, Fetcher  # noqa: PLC0415 - there by now, see `FETCH`

        fetcher = Fetcher(figures.image_max_bytes, figures.image_hosts, self._resolve)
        allowance = Allowance((figures.max_body_bytes - body_bytes) * 3 // 4)  # of what base64 makes of it
        images: dict[str, Image] = {}
        refusals: dict[str, Refused] = {}
        places = trio.CapacityLimiter(AT_ONCE)
        with trio.move_on_after(figures.image_seconds) as limit:
            async with trio.open_nursery() as nursery:

                async def fetch(url: str) -> None:
                    async with places:
                        try:
                            images[url] = await fetcher.fetch(url, allowance)
                        except Refused as refused:
                            refusals[url] = refused
                            nursery.cancel_scope.cancel()

                for url in dict.fromkeys(link.url for link in links):
                    nursery.start_soon(partial(fetch, url))
        for link in links:
            if link.url in refusals:
                raise invalid(f"the image is not taken: {refusals[link.url]}", link.param, CODE)
        if limit.cancelled_caught:
            late = next(link for link in links if link.url not in images)
            message = f"the image is not taken: it was not there within {figures.image_seconds:g} s"
            raise invalid(message, late.param, CODE)
        return images


def changed(request: InferenceRequest, links: tuple[Link, ...], images: "Mapping[str, Image]") -> dict[str, bytes]:
    """The members with images in the place of links. Raises RequestError where a key on the way is given twice."""
    changes = {link.place: link.value(images[link.url]) for link in links}
    held = {member.key: request.body[member.value_start : member.end] for member in request.members}
    keys = dict.fromkeys(str(place[0]) for place in changes)
    try:
        return {
            key: rebuilt(held[key], {place[1:]: value for place, value in changes.items() if place[0] == key})
            for key in keys
        }
    except BadBody as error:
        raise invalid(str(error)) from None


def rebuilt(value: bytes, changes: Mapping[Path, bytes]) -> bytes:
    """JSON with some of its values replaced, each by its path, and every other byte as it was. Raises BadBody."""
    if () in changes:
        return changes[()]
    spans: Mapping[Step, tuple[int, int]]
    if value.startswith(b"["):
        spans = dict(enumerate(elements(value)))
    else:
        spans = {member.key: (member.value_start, member.end) for member in inner_members(value)}
    steps = sorted({path[0] for path in changes}, key=lambda step: spans[step])
    parts: list[bytes] = []
    position = 0
    for step in steps:
        start, end = spans[step]
        inner = {path[1:]: new for path, new in changes.items() if path[0] == step}
        parts += (value[position:start], rebuilt(value[start:end], inner))
        position = end
    return b"".join((*parts, value[position:]))
