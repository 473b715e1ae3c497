"""A configuration's text, changed key by key: what was asked for is touched, and the rest stays byte for byte."""

import difflib
from pathlib import Path

import pytest

from gridsched.settings.document import read_document
from gridsched.settings.edit import edited, meant, with_masks
from gridsched.settings.refusals import EditError

CONFIGS = sorted((Path(__file__).parents[2] / "config").glob("*.yaml"))

NASTY = """\
# mine, with a tab\tin a comment
server: {host: 127.0.0.1,   port: 1234 , max_body: '64MiB'}   # flow, in a person's own way

models:
    "two words": &two
        path:   /m/a.gguf      # columns
        flags:   # a list of lines
        - -fa
        -   'on'

        sampling:
    other:
        <<: *two
        parallel: 2
    text:
        path: "/m/b \\u00e9.gguf"
        flags: |
            # as in a shell
            --threads 4

        env: {A: "1", 'B': two}
    last:
        path: /m/c.gguf"""


def changed_lines(before: str, after: str) -> list[str]:
    """The lines that are others, with their signs."""
    diff = difflib.unified_diff(before.split("\n"), after.split("\n"), n=0, lineterm="")
    return [line for line in diff if not line.startswith(("---", "+++", "@@"))]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_shipped_configuration_keeps_all_but_the_line_that_is_changed(path: Path) -> None:
    """A value, a new key in a section that is there, a new section."""
    text = path.read_text("utf-8")
    lines = changed_lines(text, edited(text, {"devices": {"headroom": "7%"}}))
    assert [line[:13] for line in lines] == ["-  headroom: ", "+  headroom: "]
    assert changed_lines(text, edited(text, {"defaults": {"ctx_target": 4096}}))[-1].startswith("+  ctx_target: 4096")
    assert changed_lines(text, edited(text, {"families": {"f": {"compact": "x"}}}))[-2:] == ["+  f:", "+    compact: x"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_taking_a_key_out_undoes_putting_it_in(path: Path) -> None:
    """Byte for byte."""
    text = path.read_text("utf-8")
    put = edited(text, {"models": {"a.b/c": {"path": "/m/x.gguf", "flags": ["-fa", "on"]}}})
    assert edited(put, {}, [("models", "a.b/c")]) == text


@pytest.mark.parametrize(
    ("put", "lines"),
    [
        ({"server": {"port": 8080}}, ["+server: {host: 127.0.0.1,   port: 8080 , max_body: '64MiB'}"]),
        ({"server": {"tls": None}}, ["+server: {host: 127.0.0.1,   port: 1234 , max_body: '64MiB', tls: null}"]),
        ({"models": {"other": {"parallel": 3}}}, ["+        parallel: 3"]),
        ({"models": {"text": {"env": {"B": "three"}}}}, ["+        env: {A: \"1\", 'B': three}"]),
        ({"models": {"text": {"env": {"C": "4"}}}}, ['+        env: {A: "1", \'B\': two, C: "4"}']),
        ({"models": {"last": {"parallel": 1}}}, ["+        parallel: 1"]),
        ({"models": {"last": {"path": "/m/d e.gguf"}}}, ["+        path: /m/d e.gguf"]),
        ({"models": {"text": {"flags": ["-t", "4"]}}}, ['+        flags: [-t, "4"]']),
        ({"scheduler": {"queues": {"batch": {"max_wait": None}}}}, ["+      max_wait: null"]),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_only_what_is_asked_for_is_touched(put: dict[str, object], lines: list[str], newline: str) -> None:
    """In a file with odd columns, both kinds of line ends, and no end of its last line."""
    before = NASTY.replace("\n", newline)
    after = edited(before, put)
    added = [line.rstrip("\r") for line in changed_lines(before, after) if line.startswith("+")]
    assert any(line.startswith(lines[0]) for line in added)
    taken = [line for line in changed_lines(before, after) if line.startswith("-")]
    assert len(taken) <= 4
    assert after.count(newline) == after.count("\n")
    assert not after.endswith("\n")
    assert edited(after, put) == after


def test_a_list_of_lines_stays_one() -> None:
    """Beside comments that stay; an empty one is written beside its key."""
    text = "models:\n  a:\n    path: x   # y\n    flags:   # why\n      - -fa\n      - on   # on\n    parallel: 1\n"
    changed = edited(text, {"models": {"a": {"flags": ["-fa", "off", "-t"]}}})
    assert changed_lines(text, changed) == ["-      - on   # on", "+      - off", "+      - -t   # on"]
    assert "    flags: []   # why\n    parallel: 1\n" in edited(text, {"models": {"a": {"flags": []}}})


@pytest.mark.parametrize(
    ("text", "put", "after"),
    [
        ("", {"server": {"port": 1}}, "server:\n  port: 1\n"),
        ("# mine\n", {"server": {"port": 1}}, "# mine\nserver:\n  port: 1\n"),
        ("null\n", {"server": {"port": 1}}, "server:\n  port: 1\n"),
        ("{}\n", {"server": {"port": 1}}, "{server: {port: 1}}\n"),
        ("server:   # later\n# end\n", {"server": {"port": 1}}, "server:   # later\n  port: 1\n# end\n"),
        ("server: {}", {"server": {"port": 1}}, "server: {port: 1}"),
        ("server: ~\n", {"server": {"port": 1}}, "server: {port: 1}\n"),
        (
            "---\nserver:\n  port: 2\n...\n",
            {"server": {"host": "::1"}},
            '---\nserver:\n  port: 2\n  host: "::1"\n...\n',
        ),
        (
            "{models: {a: {path: x}, }}\n",
            {"models": {"b": {"path": "y"}}},
            "{models: {a: {path: x}, b: {path: y}, }}\n",
        ),
        (
            "models:\n  ? a\n  : path: x\n",
            {"models": {"a": {"parallel": 1}}},
            "models:\n  ? a\n  : path: x\n    parallel: 1\n",
        ),
    ],
)
def test_a_file_may_say_little(text: str, put: dict[str, object], after: str) -> None:
    """Nothing, comments only, an empty section, everything on one line."""
    assert edited(text, put) == after


def test_what_is_no_text_of_its_own_is_quoted() -> None:
    """What YAML could take for something else, here or in another program."""
    words = [
        "1.10",
        "0123",
        "12:30",
        "null",
        "~",
        "true",
        "x: y",
        "# no",
        "a, b",
        "",
        " a",
        "é",
        "\x7f",
        "😀",
        "- a",
        "on",
        "5s",
    ]
    text = edited("", {"models": {"m": {"aliases": words}}})
    assert meant(read_document(text).value) == {"models": {"m": {"aliases": words}}}
    assert text.endswith('"- a", on, 5s]\n')


@pytest.mark.parametrize(
    ("put", "taken", "words"),
    [
        ({"models": {"two words": {"parallel": 3}}}, [], "others take over what stands on line 5 (&two)"),
        ({}, [("models", "two words")], "others take over"),
        ({}, [("models",)], "others take over"),
        ({}, [("models", "other", "path")], "comes in by `<<` from elsewhere"),
        ({"models": {"last": {"path": {"a": 1}}}}, [], "path is no mapping, so it has no key a"),
        ({"models": {"text": "x"}}, [], "a mapping stands there; take it out first"),
    ],
)
def test_what_others_share_is_not_changed(put: dict[str, object], taken: list[tuple[str, ...]], words: str) -> None:
    """An anchor whose mapping others merge from, what came by `<<`, and a value that would swallow a mapping."""
    with pytest.raises(EditError) as refused:
        edited(NASTY, put, taken)
    assert words in str(refused.value)


def test_a_key_that_came_by_a_merge_is_overridden_where_it_is_asked_for() -> None:
    """The mapping gets a key of its own; where it was merged from nothing changes."""
    after = edited(NASTY, {"models": {"other": {"path": "/m/z.gguf"}}})
    assert changed_lines(NASTY, after) == ["+        path: /m/z.gguf"]


def test_what_is_no_yaml_is_not_changed_key_by_key() -> None:
    """There is no telling what is where."""
    with pytest.raises(EditError, match="line 2: a tab cannot indent YAML"):
        edited("server:\n\tport: 1\n", {"server": {"port": 2}})


def test_taking_out_what_is_not_there_changes_nothing() -> None:
    """Nor does putting in what is there."""
    assert (
        edited(NASTY, {"server": {"port": 1234}, "models": {"text": {}}}, [("models", "none", "path"), ("watchdog",)])
        == NASTY
    )


def test_masks_are_put_where_a_secret_stands() -> None:
    """And nowhere else: columns and comments stay."""

    def mask(value: object, name: str) -> object:
        return dict.fromkeys(value, "*") if name == "env" and isinstance(value, dict) else value

    assert changed_lines(NASTY, with_masks(NASTY, mask)) == [
        "-        env: {A: \"1\", 'B': two}",
        '+        env: {A: "*", \'B\': "*"}',
    ]
