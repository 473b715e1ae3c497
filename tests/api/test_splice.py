"""The body that goes up: spliced, never re-serialised."""

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridsched.api.members import members
from gridsched.api.splice import splice, upstream_body

CASES = [
    (b'{"model":"a","messages":[]}', b'{"model":"M","messages":[]}'),
    (b'{"model" : "a" , "n":1.50}', b'{"model" : "M" , "n":1.50}'),
    (b'{"x_class":"batch","model":"a"}', b'{"model":"M"}'),
    (b'{"model":"a","x_class":"batch"}', b'{"model":"M"}'),
    (b'{"model":"a", "x_class":"batch", "n":1}', b'{"model":"M", "n":1}'),
    (b'{"model":"a","gridsched":{"class":"batch"},"x_class":null}', b'{"model":"M"}'),
    (b'{"gridsched":{}, "x_class":1,\n "model":"a"}', b'{"model":"M"}'),
    (
        b'{"messages":["model",{"model":"deep","x_class":1}]}',
        b'{"model":"M","messages":["model",{"model":"deep","x_class":1}]}',
    ),
    (b'{"x_class":"batch"}', b'{"model":"M"}'),
    (b"{}", b'{"model":"M"}'),
    (b" { } ", b' {"model":"M" } '),
    (b'\n{\n  "model": null\n}\n', b'\n{\n  "model": "M"\n}\n'),
    (b'{"\\u006dodel":"a"}', b'{"\\u006dodel":"M"}'),
    (b'{"t":"\\ud83d\\ude00","model":"a","f":1.0E+2}', b'{"t":"\\ud83d\\ude00","model":"M","f":1.0E+2}'),
]


@pytest.mark.parametrize(("body", "expected"), CASES)
def test_H2_only_model_and_our_own_members_change(body: bytes, expected: bytes) -> None:
    """Numbers keep their spelling, strings their escapes, the rest its spacing."""
    assert upstream_body(body, members(body), "M", {}) == expected


KEYS = st.sampled_from(["model", "x_class", "gridsched", "a", "b", 'q"\\', "é"])
VALUES = st.none() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])) | st.lists(st.integers())


@settings(max_examples=50)
@given(st.dictionaries(KEYS, VALUES), st.sampled_from([None, 1]), st.booleans())
def test_H2_a_parser_sees_the_same_object_but_for_ours(
    fields: dict[str, object], indent: int | None, kept: bool
) -> None:
    """Whatever stands around what is cut out, the rest is valid and unchanged, in order."""
    body = json.dumps(fields, indent=indent).encode()
    removed = frozenset() if kept else frozenset({"x_class", "gridsched", "a"})
    expected = {key: value for key, value in fields.items() if key not in removed}
    result = json.loads(splice(body, members(body), replaced={"model": b'"M"'}, removed=removed))
    assert result == expected | {"model": "M"}
    assert [key for key in result if key in expected] == list(expected)


@settings(max_examples=50)
@given(st.dictionaries(KEYS, VALUES), st.sampled_from([None, 3]))
def test_H2_a_splice_that_changes_nothing_gives_the_same_bytes(fields: dict[str, object], indent: int | None) -> None:
    """Byte for byte."""
    body = json.dumps(fields, indent=indent).encode()
    assert splice(body, members(body), replaced={}, removed=()) == body


def test_a_member_that_is_added_may_have_any_name() -> None:
    """As a person writes it into a configuration."""
    result = splice(b'{"a":1}', members(b'{"a":1}'), replaced={'q"\\': b"2"}, removed=())
    assert json.loads(result) == {'q"\\': 2, "a": 1}


def test_everything_can_be_cut_out() -> None:
    """An object of which nothing is left is an empty object."""
    body = b'{"x_class":1,"gridsched":{}}'
    assert splice(body, members(body), replaced={}, removed={"x_class", "gridsched"}) == b"{}"


def test_H2_a_large_body_is_copied_once() -> None:
    """Each further copy of a film would hold everybody up, and take its memory."""
    body = b'{"messages":"%b","model":"m"}' % (b"x" * 2_000_000)
    spans = members(body)
    tracemalloc.start()
    try:
        upstream_body(body, spans, "n", {})
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1.5 * len(body)
