"""A large body with its data cut short: told apart from the whole body by nothing but its length."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridsched.api import outline as outlines
from gridsched.api.members import BadBody, members
from gridsched.api.outline import LEAST_CUT_BYTES, read

LONG = "QUJD" * LEAST_CUT_BYTES
URL = f"data:image/png;base64,{LONG}"
CUT = {
    "a picture": {"model": "m", "messages": [{"content": [{"image_url": {"url": URL}}]}], "stream": True},
    "two pictures": {"a": [URL, {"b": URL}], "model": "m", "c": URL},
    "a recording": {"messages": [{"input_audio": {"data": LONG}}], "model": "m"},
    "first and last": {"a": URL},
}
WHOLE = {
    "a key": b'{"%b":1,"b":2}' % URL.encode(),
    "a key within": b'{"a":{"%b" : 1}}' % URL.encode(),
    "an escape": b'{"a":"%b\\u0041"}' % URL.encode(),
    "a quote that is hidden": b'{"a":"\\"%b"}' % URL.encode(),
    "a colon": b'{"data":"%b:"}' % LONG.encode(),
    "brackets": b'{"data":"%b["}' % LONG.encode(),
    "not ASCII": '{"data":"é'.encode() + LONG.encode() + 'é"}'.encode(),
}
BAD = {
    "a control character": b'{"a":"%b\n"}' % URL.encode(),
    "not UTF-8": b'{"a":"%b\xff"}' % URL.encode(),
    "no end": b'{"a":"%b' % URL.encode(),
    "text behind a text": b'{"a":"x"data:%b"}' % LONG.encode(),
    "behind the data": b'{"a":"%b",}' % URL.encode(),
    "a key twice": b'{"a":"%b","a":1}' % URL.encode(),
    "a number in front": b'{"b":1e999,"a":"%b"}' % URL.encode(),
}


@pytest.mark.parametrize("what", CUT)
@pytest.mark.parametrize("indent", [None, 2])
def test_the_members_of_a_cut_body_are_those_of_the_whole(what: str, indent: int | None) -> None:
    """The spans are in the whole body, and the outline is short."""
    body = json.dumps(CUT[what], indent=indent).encode()
    found, outline = read(body)
    assert found == members(body)
    assert len(outline.text) < len(body) - LEAST_CUT_BYTES
    assert outline.members == members(outline.text)
    assert [member.key for member in outline.members] == [member.key for member in found]


@pytest.mark.parametrize("what", WHOLE)
def test_what_may_mean_something_is_not_cut(what: str) -> None:
    """A key, an escape, what a reader of URLs or of lists would look for, and what no cut may go through."""
    found, outline = read(WHOLE[what])
    assert outline.text == WHOLE[what]
    assert found == outline.members == members(WHOLE[what])


@pytest.mark.parametrize("what", BAD)
def test_a_bad_body_is_refused_in_the_words_for_the_whole(what: str) -> None:
    """The place that is told is the body's, not the outline's."""
    with pytest.raises(BadBody) as whole:
        members(BAD[what])
    with pytest.raises(BadBody) as cut:
        read(BAD[what])
    assert str(cut.value) == str(whole.value)


def test_what_is_missing_is_null() -> None:
    """As for a reader of JSON who asks for a member with null in mind."""
    assert read(b'{"a":1}')[1].value("b") == b"null"


TEXTS = st.one_of(
    st.text(max_size=12),
    st.builds("data:{}{}".format, st.text(max_size=3), st.integers(0, 40).map("A".__mul__)),
)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "url", "a"]) | TEXTS, inner),
    max_leaves=8,
)


@pytest.mark.slow
@given(
    st.dictionaries(TEXTS, VALUES, max_size=4), st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=3)), max_size=2)
)
def test_with_or_without_its_data_a_body_has_the_same_members_or_the_same_fault(
    said: dict[str, object], spoilt: list[tuple[float, bytes]]
) -> None:
    """Also where bytes of it are replaced, wherever they are."""
    body = json.dumps(said).encode()
    for where, put in spoilt:
        at = round(where * len(body))
        body = body[:at] + put + body[at + len(put) :]
    with pytest.MonkeyPatch.context() as patch:
        for name, least in {"LEAST_BODY_BYTES": 0, "LEAST_CUT_BYTES": 2, "KEPT_BYTES": 6, "WINDOW_BYTES": 3}.items():
            patch.setattr(outlines, name, least)
        try:
            expected = members(body)
        except BadBody as fault:
            with pytest.raises(BadBody, match=f"^{re.escape(str(fault))}$"):
                read(body)
        else:
            assert read(body)[0] == expected
