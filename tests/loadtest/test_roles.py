import base64
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest

from loadtest import pictures, roles, texts
from loadtest.roles import MIXES, ROLES, Ask


def asked(role: str, seed: int, count: int, answer: str = "well") -> list[Ask]:
    """What a client of a role asks, each answered."""
    script = ROLES[role].script(Random(seed))  # noqa: S311 - a seed is the point
    found = []
    for _ in range(count):
        found.append(script.ask())
        script.heard(answer)
    return found


@pytest.mark.parametrize("role", ROLES)
def test_the_same_seed_asks_the_same_and_another_one_something_else(role: str) -> None:
    """Whoever runs it, on whatever machine."""
    assert asked(role, 1, 6) == asked(role, 1, 6)
    assert asked(role, 1, 6) != asked(role, 2, 6)


def test_a_conversation_grows_by_answers_and_begins_anew() -> None:
    """A question more each turn, what was answered before it; up to four, then another one."""
    sizes = [len(ask.messages) for ask in asked("chat", 3, 40)]
    assert set(sizes) == {1, 3, 5, 7}
    assert all(after in (1, before + 2) for before, after in pairwise(sizes))


def test_a_conversation_whose_answer_failed_is_not_gone_on_with() -> None:
    """No model gets two questions in a row to see."""
    assert {len(ask.messages) for ask in asked("chat", 3, 20, answer="")} == {1}
    assert {len(ask.messages) for ask in asked("agent", 3, 20, answer="")} == {2}


def test_an_agents_long_prompt_is_the_same_before_every_task() -> None:
    """That an engine keeps what it has read is part of how agents work."""
    messages = [ask.messages for ask in asked("agent", 3, 12)]
    assert len({str(each[0]) for each in messages}) == 1
    assert len(str(messages[0][0]["content"]).split()) > 400
    assert [len(each) for each in messages] == [2, 4, 6, 8] * 3
    assert len({str(each[1]) for each in messages}) == 3


def test_answers_and_pauses_are_as_long_as_in_the_published_load() -> None:
    """Within their spread, on both sides of the middle."""
    lengths = [ask.tokens for ask in asked("chat", 1, 400)]
    assert (min(lengths), max(lengths)) == (36, 48)
    rng = Random(1)  # noqa: S311 - the same
    pauses = [ROLES["chat"].pause_s(rng) for _ in range(400)]
    assert 1.2 <= min(pauses) < 1.25
    assert 1.75 < max(pauses) <= 1.8
    assert MIXES["published"] == {"chat": 6, "background": 8, "batch": 4, "embed": 2}


def test_documents_come_in_whole_steps() -> None:
    """Two steps of 32 are more usual than three, and no two documents are the same."""
    requests = asked("embed", 1, 60)
    counts = [len(ask.documents) for ask in requests]
    assert set(counts) == {64, 96}
    assert counts.count(64) > counts.count(96)
    assert len(set(requests[0].documents)) == counts[0]
    assert {len(text.split()) for ask in requests for text in ask.documents} <= set(range(60, 110))


def test_who_looks_at_pictures_sends_one_as_data() -> None:
    """As the API has it, and another one each time."""
    urls = []
    for ask in asked("ocr", 1, 3):
        (message,) = ask.messages
        content = message["content"]
        assert isinstance(content, list)
        text, image = content
        assert text["type"] == "text"
        urls.append(image["image_url"]["url"])
    assert len(set(urls)) == 3
    assert all(url.startswith("data:image/png;base64,") for url in urls)


def test_a_picture_is_a_whole_png() -> None:
    """Every chunk with its check sum, and as many bytes as the head promises."""
    raw = base64.b64decode(pictures.as_url(7).partition(",")[2])
    assert raw == pictures.picture(7)
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    chunks = dict(chunks_of(raw))
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">II", chunks[b"IHDR"][:8]) == (pictures.WIDTH, pictures.HEIGHT)
    pixels = zlib.decompress(chunks[b"IDAT"])
    assert len(pixels) == pictures.HEIGHT * (1 + 3 * pictures.WIDTH)
    assert len(set(pixels)) > 5
    assert pictures.picture(7) != pictures.picture(8)


def chunks_of(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The parts of a PNG, each checked."""
    at = 8
    while at < len(raw):
        (size,) = struct.unpack(">I", raw[at : at + 4])
        body = raw[at + 4 : at + 8 + size]
        assert struct.unpack(">I", raw[at + 8 + size : at + 12 + size]) == (zlib.crc32(body),)
        yield body[:4], body[4:]
        at += 12 + size


def test_a_passage_is_longer_and_its_neighbour_differs() -> None:
    """Sentences are not repeated within it."""
    one, other = texts.passage(3, 10), texts.passage(4, 10)
    assert one.count(".") == 10
    assert set(one.split(". ")).isdisjoint(other.split(". "))
    assert roles.CHUNK == 32
