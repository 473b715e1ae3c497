"""What one setting may be, and the sentence when it is something else."""

import math
from pathlib import Path

import pytest

from tests.settings.reading import FOLDER, fault, faults, read, read_model


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("300ms", 0.3), ("2s", 2.0), ("5m", 300.0), ("1h", 3600.0), ("1.5h", 5400.0), ('"2s"', 2.0)],
)
def test_a_duration_is_a_number_with_a_unit(written: str, seconds: float) -> None:
    """Quotes around text change nothing."""
    assert read(f"scheduler: {{fit_wait: {written}}}").scheduler.fit_wait_seconds == seconds


@pytest.mark.parametrize("written", ["5", "0", "-1s", "2 s", "1e3s", "soon", "1h30m", "[2s]", "{a: 2s}", "null", '""'])
def test_anything_else_is_no_duration(written: str) -> None:
    """A number alone could be seconds or milliseconds: it is refused."""
    found = fault(f"scheduler: {{fit_wait: {written}}}")
    assert "scheduler.fit_wait: expected a duration such as 300ms, 2s, 5m or 1h, got " in found


@pytest.mark.parametrize(("key", "written"), [("fit_wait", "9999999h"), ("stall_limit", "500ms")])
def test_a_duration_has_its_bounds(key: str, written: str) -> None:
    """A slip of the keyboard is said, with the bounds."""
    assert f"must be from {'1' if key == 'stall_limit' else '0'}s to 8784h, got {written}" in fault(
        f"scheduler: {{{key}: {written}}}"
    )


def test_never_is_not_the_same_as_not_said() -> None:
    """A model that must stay says `never`; one that says nothing has the default's time."""
    assert read_model("idle_ttl: never").idle_ttl_seconds == math.inf
    assert read_model("idle_ttl: null").idle_ttl_seconds is None


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [("1B", 1), ("2KiB", 2048), ("512MiB", 2**29), ("8GB", 8 * 10**9), ("1.5 GiB", 3 * 2**29), ("1TB", 10**12)],
)
def test_a_size_is_a_number_with_a_unit(written: str, size_bytes: int) -> None:
    """Powers of 1024 with an i, of 1000 without."""
    assert read(f"devices: {{host_budget: {written}}}").devices.host_budget_bytes == size_bytes


@pytest.mark.parametrize("written", ["512", "8G", "8gb", "5%", "-1GiB", "big", "[1GiB]"])
def test_anything_else_is_no_size(written: str) -> None:
    """Where no percentage makes sense none is taken."""
    assert "expected a size such as 512MiB or 8GB, got " in fault(f"devices: {{host_budget: {written}}}")


@pytest.mark.parametrize("written", ["0B", "2000000TiB"])
def test_a_size_has_its_bounds(written: str) -> None:
    """Nothing is no size, and no machine has an exbibyte."""
    assert "must be from 1B to less than an exbibyte" in fault(f"server: {{max_body: {written}}}")


def test_headroom_is_a_share_or_a_size() -> None:
    """A percentage of each device, or the same size on each."""
    amount = read("devices: {headroom: 12.5%}").devices.headroom
    assert (amount.share, amount.size_bytes) == (0.125, 0)
    assert read("devices: {headroom: 0%}").devices.headroom.share == 0
    assert "must be below 100%, got 100%" in fault("devices: {headroom: 100%}")
    assert "expected a size such as 5%, 512MiB or 8GB, got much" in fault("devices: {headroom: much}")


@pytest.mark.parametrize(
    "written", ['"8080"', "'8080'", "80.5", "1_000", "0x50", "true", "eighty", "[80]", "null", "1e3"]
)
def test_J4_a_whole_number_is_written_as_one(written: str) -> None:
    """No quoted number, no truth value, no hexadecimal: one way to write it."""
    assert "server.port: expected a whole number from 0 to 65535, got " in fault(f"server: {{port: {written}}}")


@pytest.mark.parametrize("written", ["65536", "-1", "99999999999999999"])
def test_a_whole_number_has_its_bounds(written: str) -> None:
    """The bounds are in the sentence."""
    assert f"must be from 0 to 65535, got {written}" in fault(f"server: {{port: {written}}}")


@pytest.mark.parametrize("written", ["0", "1.01", "-0.5", '"0.5"', "half", "5e-1"])
def test_S5a_a_share_is_above_nothing_and_at_most_all(written: str) -> None:
    """A share of 0 would be a wait without end."""
    assert "above 0 and at most 1, got " in fault(f"scheduler: {{background_share: {written}}}")


@pytest.mark.parametrize(("written", "share"), [("1", 1.0), (".5", 0.5), ("0.125", 0.125)])
def test_a_share_is_a_plain_number(written: str, share: float) -> None:
    """With or without a figure before the point."""
    assert read(f"scheduler: {{background_share: {written}}}").scheduler.background_share == share


@pytest.mark.parametrize(
    "written", ["nas", "nas:", ":80", "nas:0", "nas:65536", "nas:x", "http://nas:80", "::1:80", "a@b:1"]
)
def test_a_host_is_named_with_its_port(written: str) -> None:
    """Exactly; IPv6 in brackets."""
    assert "expected a host and a port, as in nas.local:8080, got " in fault(f"server: {{image_hosts: ['{written}']}}")


@pytest.mark.parametrize("written", ['"true"', "yes", "1", "true"])
def test_J4_a_word_is_one_of_those_there_are(written: str) -> None:
    """Nothing is taken for true."""
    assert "models.m.tier: expected auto or pinned, got " in fault(f"models: {{m: {{path: a, tier: {written}}}}}")


def test_a_nearly_right_word_is_told_the_right_one() -> None:
    """A slip gets the nearest word."""
    assert fault("models: {m: {path: a, class: Backgroud}}").endswith("got Backgroud; did you mean background?")


def test_a_long_value_is_shown_in_short() -> None:
    """A sentence stays one line, whatever the file has."""
    assert fault(f"server:\n  port: |\n    {'x ' * 50}\n    y\n").endswith('…" in quotes')


# --- paths ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("sub/m.gguf", FOLDER / "sub/m.gguf"),
        ("/abs/m.gguf", Path("/abs/m.gguf")),
        ("~/m.gguf", Path.home() / "m.gguf"),
        ("'${MODELS}/m.gguf'", Path("/models of mine/m.gguf")),
        ("a b#c.gguf", FOLDER / "a b#c.gguf"),
        ("a$$b.gguf", FOLDER / "a$b.gguf"),
        ("'${DOLLAR}.gguf'", FOLDER / "a$b.gguf"),
        ("1.10", FOLDER / "1.10"),
    ],
)
def test_J13_a_path_is_expanded_by_one_rule(written: str, path: Path) -> None:
    """Relative to the file; `~`, `${NAME}` and `$$`; a value's spaces and dollar signs stay what they are."""
    assert read(f"models: {{m: {{path: {written}}}}}").models["m"].path == path


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("${NOPE}/m.gguf", "the environment variable NOPE is not set, or is empty"),
        ("${EMPTY}/m.gguf", "the environment variable EMPTY is not set, or is empty"),
        ("$HOME/m.gguf", "write ${NAME} for an environment variable, or $$ for a dollar sign"),
        ("${}/m", "write ${NAME} for an environment variable, or $$ for a dollar sign"),
        ("~nobody-of-that-name/m.gguf", "there is no home folder for ~nobody-of-that-name"),
    ],
)
def test_J13_an_unset_variable_is_a_fault_with_its_line(written: str, sentence: str) -> None:
    """A path is never made of nothing."""
    assert fault(f"models:\n  m:\n    path: {written}\n") == f"f.yaml:3:11: models.m.path: {sentence}"


# --- flags ------------------------------------------------------------------------------------------------------


def flags_of(text: str) -> tuple[str, ...]:
    """The flags of a model, of which this is the text after the key."""
    return read(f"models:\n  m:\n    path: a\n    flags: {text}").models["m"].flags


def test_J5_a_list_of_flags_is_taken_literally() -> None:
    """No quotes, comments, variables or backslashes mean anything in it; numbers and words stay text."""
    assert flags_of(r'["-ot", "blk\\.(1|2)=CPU", "#x", -fa, on, -c, 0777, "", "${HOME}"]') == (
        "-ot",
        r"blk\.(1|2)=CPU",
        "#x",
        "-fa",
        "on",
        "-c",
        "0777",
        "",
        "${HOME}",
    )


@pytest.mark.parametrize(
    "text",
    [
        r"""-fa on -ot "blk\.(1|2)\..*=CPU" """,
        '|\n      # the first line\n      -fa on\n        # another\n      -ot "blk\\.(1|2)\\..*=CPU"\n',
        '|\r\n      -fa on \\\r\n      -ot \\\r\n      "blk\\.(1|2)\\..*=CPU"\r\n',
        '>\n      -fa on \\\n      -ot "blk\\.(1|2)\\..*=CPU" \\\n',
    ],
    ids=["plain", "comments", "continued, windows", "folded"],
)
def test_J5_a_text_of_flags_is_split_as_a_shell_does(text: str) -> None:
    """Comment lines, backslashes at a line's end, and Windows line ends are no arguments."""
    assert flags_of(text) == ("-fa", "on", "-ot", r"blk\.(1|2)\..*=CPU")


def test_J5_a_comment_in_a_folded_text_is_refused() -> None:
    """Folding has put the rest of the flags behind it: they would be gone without a word."""
    found = fault("models:\n  m:\n    path: a\n    flags: >\n      -fa on\n      # why\n      -c 5\n")
    assert "a comment needs a line of its own" in found


def test_J5_an_unbalanced_quote_is_a_fault() -> None:
    """And so is a value that is no flags at all."""
    assert "models.m.flags: cannot split these flags: no closing quotation" in fault(
        "models: {m: {path: a, flags: -a 'b}}"
    )
    assert "expected a list of flags, or one text, got a mapping" in fault("models: {m: {path: a, flags: {a: b}}}")
    assert "expected text, got a list" in fault("models: {m: {path: a, flags: [[a]]}}")


# --- names, lists, environment ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["no", "on", "1.10", "12:30:00", "0123", "1_000", "null", "2026-01-01", ".inf", "5e3", "a/b/c.gguf", "~", "=="],
)
def test_J1_a_models_name_is_the_written_text(name: str) -> None:
    """YAML's guesses about numbers, dates and truth rename nobody's model or alias."""
    settings = read(f"models:\n  {name}:\n    path: a\n    aliases: ['x-{name}']\n  other: {{path: b}}")
    assert list(settings.models) == [name, "other"]
    settings = read(f"models: {{m: {{path: a, aliases: [{name}]}}}}")
    assert settings.models["m"].aliases == (name,)


def test_F9_a_character_that_json_wrote_in_two_halves_is_whole() -> None:
    """JSON is YAML: a path with an emoji, written by a program, is the path it was."""
    settings = read(r'{"models": {"m\ud83e\udd99": {"path": "/models/\ud83e\udd99.gguf", "flags": ["\ud83e\udd99"]}}}')
    assert settings.models["m🦙"].path == Path("/models/🦙.gguf")
    assert settings.models["m🦙"].flags == ("🦙",)
    assert "1:47: models.m.flags[0]: an escape here is half" in fault(
        r'{"models": {"m": {"path": "m.gguf", "flags": ["\ud83e"]}}}'
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("m@batch", "a name cannot end in @batch: clients write that to ask for the class"),
        ("' m'", "a name is one line of at most 200 characters, with no space around it"),
        ("x" * 201, "a name is one line of at most 200 characters, with no space around it"),
        ('"a\\nb"', "a name is one line of at most 200 characters, with no space around it"),
        ('"a\\eb"', "control characters are not allowed here"),
        ('"a\\x7f"', "control characters are not allowed here"),
        ('"a\\ud800"', "an escape here is half of a character"),
        ('"a\\u2028b"', "a name is one line of at most 200 characters, with no space around it"),
        ('""', "expected text, got "),
    ],
)
def test_a_name_that_could_not_be_asked_for_is_refused(name: str, sentence: str) -> None:
    """As an id and as an alias."""
    assert sentence in fault(f"models: {{{name}: {{path: a}}}}")
    assert sentence in fault(f"models: {{m: {{path: a, aliases: [{name}]}}}}")


@pytest.mark.parametrize(
    "key", ["devices: {ignore: gpu0}", "library: {dirs: auto}", "models: {m: {path: a, aliases: b}}"]
)
def test_a_list_is_a_list(key: str) -> None:
    """One value is not taken for a list of one."""
    assert "expected a list, got " in fault(key)


def test_a_fault_in_a_list_has_the_items_place() -> None:
    """Each item at its own line."""
    first, second = faults("models:\n  m:\n    path: a\n    capabilities:\n      - chat\n      - chta\n      - [x]\n")
    words = "chat or completion or embedding or rerank or vision or audio"
    assert first == f"f.yaml:6:9: models.m.capabilities[1]: expected {words}, got chta; did you mean chat?"
    assert second == f"f.yaml:7:9: models.m.capabilities[2]: expected {words}, got a list"


def test_an_environment_is_names_and_text() -> None:
    """Values stay as written, `$` too; a name that no process could have is refused."""
    assert read_model("env: {A: 1.10, B: '${X}', C: }").env == {"A": "1.10", "B": "${X}", "C": ""}
    assert read_model("env: null").env == {}
    assert "1A cannot be the name of an environment variable" in fault("models: {m: {path: a, env: {1A: x}}}")
    assert "expected text, got a mapping" in fault("models: {m: {path: a, env: {A: {}}}}")
    assert fault("models: {m: {path: a, env: s}}").endswith("expected a mapping of names to text")  # whatever is there


ORIGINS = [
    ("http://localhost:3000", "http://localhost:3000"),
    ("HTTPS://Chat.Example/", "https://chat.example"),
    ("http://chat.example:80", "http://chat.example"),
    ("https://chat.example:443", "https://chat.example"),
    ("https://chat.example:80", "https://chat.example:80"),
    ("'http://[::1]:3000'", "http://[::1]:3000"),
    ("app://obsidian.md", "app://obsidian.md"),
    ("chrome-extension://abcdef", "chrome-extension://abcdef"),
]


@pytest.mark.parametrize(("written", "origin"), ORIGINS)
def test_an_origin_is_kept_as_browsers_write_it(written: str, origin: str) -> None:
    """In lower case, and without the port that its scheme implies."""
    assert read(f"server: {{cors_origins: [{written}]}}").server.cors_origins == (origin,)


WRONG_ORIGINS = [
    "localhost:3000",
    "http://",
    "http://a b",
    "http://*.example",
    "http://a/b",
    "http://a?b",
    "http://u@a",
    "http://a:x",
    "5",
]


@pytest.mark.parametrize("written", WRONG_ORIGINS)
def test_anything_else_is_no_origin(written: str) -> None:
    """No path, no pattern, no name alone."""
    assert "expected an origin, as in http://localhost:3000" in fault(f"server: {{cors_origins: ['{written}']}}")


@pytest.mark.parametrize("written", ["'*'", "'null'"])
def test_an_origin_that_any_page_may_have_is_refused(written: str) -> None:
    """With the reason."""
    assert "would let any page use this server" in fault(f"server: {{cors_origins: [{written}]}}")


def test_J1_an_environment_variable_is_not_the_word_null() -> None:
    """J1: whoever changes the file over the network means that it is to go."""
    for nothing in ("null", "~"):
        said = fault(f"models: {{m: {{path: m.gguf, env: {{A: {nothing}}}}}}}")
        assert said.endswith("expected a mapping of names to text")
