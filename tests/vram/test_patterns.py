"""Tensor name patterns, as std::regex_search has them."""

import pytest

from gridsched.vram.patterns import MAX_PATTERN_BYTES, Pattern, PatternError

NAMES = ("a", "aa", "b-a", "blk.0.ffn_up_exps.weight", "blk.12.attn_q.weight", "x]", "7", " ", "Z9_", "a.b")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("exps", ("blk.0.ffn_up_exps.weight",)),
        (r"blk\.(0|1)\.ffn_.*_exps", ("blk.0.ffn_up_exps.weight",)),
        (r"blk\.(?!0\.)", ("blk.12.attn_q.weight",)),
        (r"(?=blk).*\d\d", ("blk.12.attn_q.weight",)),
        ("^a$", ("a",)),
        (r"\battn", ("blk.12.attn_q.weight",)),
        (r"\Bttn", ("blk.12.attn_q.weight",)),
        (r"^[[:digit:]]$", ("7",)),
        (r"^[[:upper:][:d:]_]+$", ("7", "Z9_")),
        (r"^[^\w.]*$", (" ",)),
        ("]", ("x]",)),
        (r"\Z", ("Z9_",)),
        (r"^\x61{1,2}$", ("a", "aa")),
        (r"^\u0061\.b$", ("a.b",)),
        ("^a++$", ("a", "aa")),
        ("^(a{2})?{1}$", ("aa",)),
        ("^a*?$", ("a", "aa")),
        ("^[a-]+$", ("a", "aa")),
        ("^[[.a.]]$", ("a",)),
        ("^[[=a=]]$", ("a",)),
        ("[]a", ()),
        ("a[]", ()),
        ("^[^]$", ("a", "7", " ")),
        ("", NAMES),
        ("|x", NAMES),
        ("()", NAMES),
        ("}", ()),
    ],
)
def test_patterns_match_as_the_engines_do(text: str, found: tuple[str, ...]) -> None:
    """Also where Python's own would match something else, or refuse."""
    assert tuple(name for name in NAMES if Pattern.of(text).search(name)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(a", "a group is not closed at position 2"),
        ("a)", r"a \) closes no group at position 1"),
        ("*a", "nothing to repeat at position 0"),
        ("a|*", "nothing to repeat at position 2"),
        ("^*", "nothing to repeat at position 1"),
        (r"\b+", "nothing to repeat at position 2"),
        ("(?!a)*", "nothing to repeat at position 5"),
        ("a{,3}", "is followed by a number"),
        ("a{x}", "is followed by a number"),
        ("a{2,1}", "the wrong way round at position 1"),
        ("a{1", "is not closed"),
        ("(?<=a)b", "a group begins with"),
        ("(?i)a", "a group begins with"),
        ("(?P<n>a)", "a group begins with"),
        ("[a", r"a \[ is not closed at position 0"),
        ("[z-a]", "a range goes from one character to a later one at position 1"),
        (r"[\w-z]", "a range goes from one character"),
        ("[[:nope:]]", "there is no class 'nope' at position 1"),
        ("[[.hyphen.]]", "is not called by its name here"),
        (r"[\B]", "is no character"),
        ("a\\", "a backslash ends the pattern"),
        (r"\x4", "2 hexadecimal digits are missing"),
        (r"(a)\1", "a back-reference cannot be planned with at position 3"),
        ("a{9999999}", "a repeat of more than"),
        ("(a{1000}){1000}", "states"),
        ("a" * (MAX_PATTERN_BYTES + 1), "a pattern has at most"),
        ("(" * 900 + ")" * 900, "at most|too deeply"),
    ],
)
def test_what_the_engine_refuses_is_refused_with_its_position(text: str, message: str) -> None:
    """Counted in bytes from 0."""
    with pytest.raises(PatternError, match=message):
        Pattern.of(text)


@pytest.mark.parametrize("text", ["(a+)+$", "(a|a)+$", "(.*)*(.*)*(.*)*x", "(a?){50}a{50}$"])
def test_no_pattern_takes_longer_than_its_names_are_long(text: str) -> None:
    """Those that keep a backtracking matcher busy for ever come through 10,000 names with a handful of states."""
    pattern = Pattern.of(text)
    assert not any(pattern.search(f"{'a' * 40}{number}b") for number in range(10_000))
    assert len(pattern._met) < 200


def test_names_are_bytes_to_the_engine() -> None:
    """A dot is one byte of a letter that has two; nothing that a file may hold ends a search."""
    assert Pattern.of("^..$").search("é")
    assert Pattern.of("é").search("café")
    assert not Pattern.of(".").search("\n")
    assert not Pattern.of("x").search("\udcff")


def test_equal_texts_are_equal_patterns() -> None:
    """Whatever they have been searched with."""
    searched = Pattern.of("a+")
    searched.search("bba")
    assert searched == Pattern.of("a+")
    assert hash(searched) == hash(Pattern.of("a+"))
