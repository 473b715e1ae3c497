"""Finding the members of a JSON object in its bytes, against the standard library's parser."""

import json
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridsched.api.members import MOST_BRACKETS, MOST_BUILT, MOST_ITEMS, MOST_MEMBERS, BadBody, items, members

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(SCALARS | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8)
OBJECTS = st.dictionaries(TEXTS, VALUES)
STYLES = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])
SPACE = st.text(" \t\r\n", max_size=3)


@pytest.mark.slow
@given(OBJECTS, STYLES, SPACE, SPACE)
def test_the_spans_are_what_a_parser_finds(fields: dict[str, object], style: dict[str, object], a: str, b: str) -> None:
    """Each span, read alone, is the member's key and value, in order, whatever the spacing and escaping."""
    body = (a + json.dumps(fields, **style) + b).encode()  # type: ignore[arg-type]  # a table of arguments
    found = members(body)
    assert [member.key for member in found] == list(fields)
    for member in found:
        key, _ = json.JSONDecoder().raw_decode(body[member.start :].decode())
        assert key == member.key
        assert json.loads(body[member.value_start : member.end]) == fields[member.key]
        assert body[member.value_start : member.end].strip() == body[member.value_start : member.end]


BAD = {
    "empty": b"",
    "blank": b" \n",
    "brace": b"{",
    "null": b"null",
    "array": b"[]",
    "text": b'"x"',
    "number": b"5",
    "NaN alone": b"NaN",
    "NaN": b'{"a":NaN}',
    "infinity": b'{"a":-Infinity}',
    "too large a number": b'{"a":1e999}',
    "5000 digits": b'{"a":' + b"9" * 5000 + b"}",
    "lone surrogate": b'{"a":"\\ud800"}',
    "lone low surrogate": b'{"a":"\\ude00 x"}',
    "lone surrogate in a key": b'{"\\ud800":1}',
    "not UTF-8": b'{"a":"\xff"}',
    "surrogate in UTF-8": b'{"a":"\xed\xa0\x80"}',
    "byte order mark": b'\xef\xbb\xbf{"a":1}',
    "10000 deep": b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "100000 open": b"[" * 100_000,
    "deep objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "trailing comma": b'{"a":1,}',
    "trailing text": b'{"a":1} x',
    "two objects": b"{}{}",
    "comment": b'{"a":1/**/}',
    "single quotes": b"{'a':1}",
    "leading zero": b'{"a":01}',
    "control character": b'{"a":"\x01"}',
    "bare key": b"{a:1}",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_H1_what_no_engine_should_be_given_is_refused_with_a_sentence(body: bytes) -> None:
    """Never a traceback, never a pass."""
    with pytest.raises(BadBody) as caught:
        members(body)
    assert str(caught.value).startswith("the body")


MANY = b'"many":[' + b"0," * MOST_BUILT + b"0]"


@pytest.mark.parametrize("how", [how for how, body in BAD.items() if body.startswith(b'{"a":')])
def test_H1_it_is_refused_among_very_many_values_too(how: str) -> None:
    """Where no value is built to be looked at."""
    with pytest.raises(BadBody) as caught:
        members(b"{" + MANY + b"," + BAD[how][1:])
    assert str(caught.value).startswith("the body")


PASSING = [
    b"1e308",
    b"-1e-999",
    b"9" * 308,
    b"0." + b"9" * 5000,
    b'"1e999"',
    b'",1e999,"',
    rb'"\\",1e308',
    rb'"\\\",1e999"',
    rb'"\"",1.5e+300,"\\\"[1e999]"',
    '"é🦙한"'.encode(),
    b'"Chapter 1' + b"." * 300 + b'12"',
    b'"' + b"1.2" * 100 + b'e9999"',
]


@pytest.mark.parametrize("values", PASSING)
def test_numbers_and_what_looks_like_one_in_a_text_pass(values: bytes) -> None:
    """Whether the values are few or very many."""
    few = b'{"a":[' + values + b"]}"
    assert [member.key for member in members(few)] == ["a"]
    assert [member.key for member in members(b"{" + MANY + b"," + few[1:])] == ["many", "a"]


@pytest.mark.parametrize("number", [b"1e309", b"-1E+0309", b"9" * 310, b"9" * 400 + b".5", b"1" + b"0" * 250 + b"e99"])
@pytest.mark.parametrize("before", [b"", b'"1e999",', rb'"\\",', rb'"\"",', rb'"\\\"",'])
def test_a_number_out_of_range_is_found_behind_any_text(number: bytes, before: bytes) -> None:
    """Whether the values are few or very many."""
    few = b'{"a":[' + before + number + b"]}"
    for body in (few, b"{" + MANY + b"," + few[1:]):
        with pytest.raises(BadBody, match="out of range"):
            members(body)


TWICE = [
    b'{"a":1,"a":2}',
    b'{"a":1,"a":1}',
    b'{"a":1,"a":12}',
    b'{"a":12,"a":1}',
    b'{"model":"x","b":[1],"model":"y"}',
    b'{"a":1,"\\u0061":1}',
    b'{"a":"}","a":"}"}',
    b'{"a":[1],"a":{"a":[1]}}',
]


@pytest.mark.parametrize("body", TWICE)
def test_a_key_that_is_given_twice_is_refused(body: bytes) -> None:
    """Two parsers would read two different requests."""
    with pytest.raises(BadBody, match="given twice"):
        members(body)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 120)), min_size=1, max_size=4))
def test_only_a_repeated_key_is_taken_for_one(pairs: list[tuple[str, int]]) -> None:
    """However the values resemble each other."""
    body = ("{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}").encode()
    keys = [key for key, _ in pairs]
    if len(set(keys)) == len(keys):
        assert [member.key for member in members(body)] == keys
    else:
        with pytest.raises(BadBody, match="given twice"):
            members(body)


def test_a_repeated_key_deeper_down_is_the_engines_affair() -> None:
    """Only the top level is ours to read."""
    assert [member.key for member in members(b'{"a":{"b":1,"b":2}}')] == ["a"]


def test_surrogate_pairs_and_escapes_pass() -> None:
    """What json.dumps makes of an emoji is valid, and so is a backslash before a u."""
    (member,) = members(b'{"a":"\\ud83d\\ude00 \\\\ud800"}')
    assert member.key == "a"


def _object(count: int) -> bytes:
    return b"{" + b",".join(b'"%d":1' % number for number in range(count)) + b"}"


def _array(count: int) -> bytes:
    return b"[" + b",".join([b'"a"'] * count) + b"]"


def test_as_much_as_is_looked_at_is_taken() -> None:
    """And not one more."""
    assert len(members(_object(MOST_MEMBERS))) == MOST_MEMBERS
    assert len(items(_array(MOST_ITEMS))) == MOST_ITEMS
    assert [bytes(each) for each in items(b'["a,b,c", 1]')] == [b'"a,b,c"', b"1"]
    assert len(members(b'{"a":[' + b"{}," * (MOST_BRACKETS - 3) + b"0]}")) == 1
    for refused in (
        lambda: members(_object(MOST_MEMBERS + 1)),
        lambda: items(_array(MOST_ITEMS + 1)),
        lambda: members(b'{"a":[' + b"{}," * MOST_BRACKETS + b"0]}"),
    ):
        with pytest.raises(BadBody):
            refused()


@pytest.mark.slow
def test_H1_a_million_keys_are_refused_with_a_sentence() -> None:
    """However many there are."""
    with pytest.raises(BadBody) as caught:
        members(_object(1_000_000))
    assert str(caught.value).startswith("the body")


TOO_MANY: dict[str, tuple[Callable[[bytes], object], Callable[[], bytes]]] = {
    "keys": (members, lambda: _object(300_000)),
    "texts": (items, lambda: _array(500_000)),
    "escapes in a key": (members, lambda: b'{"' + b"\\n" * 1_000_000 + b'":1}'),
}
"""Made when they are used: each process that collects tests would make them."""


@pytest.mark.slow
@pytest.mark.parametrize(("read", "make"), TOO_MANY.values(), ids=TOO_MANY.keys())
def test_S7_very_many_values_are_refused_before_they_are_built(
    read: Callable[[bytes], object], make: Callable[[], bytes]
) -> None:
    """In one call into C, which nothing can interrupt: sixty megabytes took seconds and gigabytes."""
    body = make()
    tracemalloc.start()
    try:
        read(body)
    except BadBody:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 4 * len(body)
