from collections.abc import Mapping

import pytest

from loadtest.casting import cast
from loadtest.result import Server
from loadtest.roles import MIXES
from loadtest.server import Model, Told

GIB = 1 << 30
CHAT, EYES, EMBED = frozenset(("chat",)), frozenset(("chat", "vision")), frozenset(("embedding",))
MODELS = (
    Model("huge", CHAT, 40 * GIB),
    Model("big", CHAT, 8 * GIB),
    Model("seeing", EYES, 4 * GIB),
    Model("small", CHAT, 2 * GIB),
    Model("family", EYES, 8 * GIB, is_own=False),
    Model("embedder", EMBED, GIB // 2),
)


def chosen(
    mix: str, free: Mapping[str, int], models: tuple[Model, ...] = MODELS, named: Mapping[str, str] | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """The model of each role, and who is left out."""
    found = cast(Told(Server(), models, free), MIXES[mix], named or {})
    return {part.role.name: part.model for part in found.parts}, dict(found.left_out)


@pytest.mark.parametrize(
    ("free", "models"),
    [
        ({"a": 16 * GIB}, ["big", "seeing", "small"]),
        ({"a": 9 * GIB}, ["big", "big", "big"]),
        ({"a": 5 * GIB}, ["seeing", "seeing", "seeing"]),
        ({"a": 9 * GIB, "b": 9 * GIB}, ["big", "seeing", "small"]),
        ({"a": 100 * GIB}, ["huge", "big", "seeing"]),
        ({"a": GIB}, ["small", "small", "small"]),
        ({}, ["huge", "big", "seeing"]),
    ],
)
def test_the_largest_models_that_fit_beside_each_other_are_taken(free: Mapping[str, int], models: list[str]) -> None:
    """The chat's first; a card that has room for one has everybody work with it. A test makes nobody go for variety."""
    found, left_out = chosen("published", free)
    assert [found[name] for name in ("chat", "background", "batch")] == models
    assert found["embed"] == "embedder"
    assert left_out == {}


def test_whoever_must_see_gets_a_model_with_eyes() -> None:
    """Before the others have taken its room; never a family, which may send the image elsewhere."""
    found, left_out = chosen("ambient", {"a": 13 * GIB})
    assert (found["screenshot"], found["ocr"], found["chat"]) == ("seeing", "seeing", "big")
    assert left_out == {}


def test_a_role_that_no_model_can_do_is_left_out_and_says_what_is_missing() -> None:
    """What the others do does not change."""
    found, left_out = chosen("ambient", {"a": 16 * GIB}, (MODELS[1],))
    assert set(found) == {"chat", "agent"}
    assert set(left_out) == {"screenshot", "ocr", "index"}
    assert "embedding" in left_out["index"]


def test_models_that_are_named_are_taken_as_they_are() -> None:
    """An alias that is in no list too; they take their room."""
    found, _ = chosen("published", {"a": 9 * GIB}, named={"chat": "small", "batch": "gpt-4o"})
    assert (found["chat"], found["batch"]) == ("small", "gpt-4o")
    assert found["background"] == "seeing"


def test_where_nothing_is_told_of_models_they_chat_and_no_more() -> None:
    """The others are for the user to name."""
    found, left_out = chosen("published", {}, (Model("m"), Model("n")))
    assert (found["chat"], found["background"], found["batch"]) == ("m", "n", "n")
    assert "--embed-model" in left_out["embed"]
