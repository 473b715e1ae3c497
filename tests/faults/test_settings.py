"""Faults of configurations that others have met, each through the file that a person would write (J).

What the readers themselves say to each kind of text is in `settings`; here a whole file is loaded, or checked.
"""

from pathlib import Path

import pytest

from gridsched.cli.main import main
from gridsched.settings.faults import SettingsError
from gridsched.settings.load import load

TRAPS = ("no", "on", "off", "1.10", "12:30:00", "0123", "1_000", "null", "2026-01-01", ".inf", "5e3", "~", "True")
"""What a reader of YAML 1.1 takes for something else than text."""


def written(folder: Path, text: str) -> Path:
    """A configuration in a folder."""
    path = folder / "gridsched.yaml"
    path.write_bytes(text.encode())
    return path


def faults(folder: Path, text: str) -> list[str]:
    """What is wrong with a file, without its path."""
    path = written(folder, text)
    with pytest.raises(SettingsError) as refused:
        load(path, {})
    return [line.removeprefix(f"{path}:") for line in str(refused.value).splitlines()]


def test_J1_a_name_is_the_text_that_was_written(tmp_path: Path) -> None:
    """As a model's id, as an alias, and as a value that is text."""
    models = "".join(f"  {word}: {{path: /m/a, aliases: [a-{word}]}}\n" for word in TRAPS)
    settings = load(written(tmp_path, f"models:\n{models}library: {{default_model: 1.10}}\n"), {})
    assert tuple(settings.models) == TRAPS
    assert [model.aliases for model in settings.models.values()] == [(f"a-{word}",) for word in TRAPS]
    assert settings.library.default_model == "1.10"


def test_J1_a_flag_s_word_is_the_text_that_was_written(tmp_path: Path) -> None:
    """`on` is what the engine is told, and no truth."""
    text = "models: {m: {path: m.gguf, flags: [-fa, on, --seed, 0123, -ts, 1.10, --reasoning, off]}}"
    assert load(written(tmp_path, text), {}).models["m"].flags == (
        *("-fa", "on", "--seed", "0123", "-ts", "1.10", "--reasoning", "off"),
    )


def test_J1_a_number_in_quotes_is_no_number(tmp_path: Path) -> None:
    """It is said where it stands."""
    text = 'server:\n  port: "8080"\n'
    assert faults(tmp_path, text) == ['2:9: server.port: expected a whole number from 0 to 65535, got "8080" in quotes']


def test_J2_nothing_is_said_twice_in_silence(tmp_path: Path) -> None:
    """A model, an option, an id in another case, an alias that is an id: each with both lines."""
    text = """\
models:
  m: {path: a, parallel: 1, parallel: 2}
  m: {path: b}
  n: {path: c, aliases: [M]}
  N: {path: d}
"""
    told = faults(tmp_path, text)
    assert [line.split(":")[0] for line in told] == ["2", "3", "4", "5"]
    assert [word in line for word, line in zip(("line 2", "line 2", "on line 2", "on line 4"), told, strict=True)] == [
        True
    ] * 4


def test_J2_what_a_merge_brings_in_may_be_overridden(tmp_path: Path) -> None:
    """That is what `<<` is for."""
    text = "models:\n  a: &a {path: a, parallel: 2}\n  b: {<<: *a, parallel: 3}\n"
    assert load(written(tmp_path, text), {}).models["b"].parallel == 3


@pytest.mark.parametrize("value", ['"false"', "false", '"yes"', "1", "pinned: true"])
def test_J4_no_word_is_taken_for_a_truth(tmp_path: Path, value: str) -> None:
    """A switch takes the words it names and no other; the key that others have for pins is no key here."""
    switch = faults(tmp_path, f"scheduler: {{background_pause: {value.removeprefix('pinned: ')}}}")
    assert "scheduler.background_pause: expected on or off, got" in switch[0]
    pinned = faults(tmp_path, f"models: {{m: {{path: a, pinned: {value.removeprefix('pinned: ')}}}}}")
    assert "models.m.pinned: unknown key" in pinned[0]
    tier = faults(tmp_path, f"models: {{m: {{path: a, tier: {value.removeprefix('pinned: ')}}}}}")
    assert "models.m.tier: expected auto or pinned, got" in tier[0]


SHELL = r"""models:
  piped:
    path: m.gguf
    flags: |
      # all experts stay on the host
      -ot "blk\.(1|2)\..*=CPU" \
      --threads 4
  folded:
    path: m.gguf
    flags: >
      -ot "blk\.(1|2)\..*=CPU" \
      --threads 4
  listed:
    path: m.gguf
    flags: [-ot, 'blk\.(1|2)\..*=CPU', --threads, 4]
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_J5_flags_are_the_same_words_however_they_are_written(tmp_path: Path, newline: str) -> None:
    """As lines with a comment and a backslash, folded, or as a list; with either kind of line ends."""
    models = load(written(tmp_path, SHELL.replace("\n", newline)), {}).models
    wanted = ("-ot", r"blk\.(1|2)\..*=CPU", "--threads", "4")
    assert {name: model.flags for name, model in models.items()} == dict.fromkeys(models, wanted)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("'-ot \"blk'", "cannot split these flags: no closing quotation"),
        ("|\n      -fa on # why\n", "a comment needs a line of its own"),
        (">\n      # why\n      -fa on\n", "in a folded (`>`) text a comment would swallow what follows"),
    ],
)
def test_J5_what_would_lose_a_flag_is_refused(tmp_path: Path, flags: str, words: str) -> None:
    """A quote that is left open, and a comment that would swallow what follows."""
    (told,) = faults(tmp_path, f"models:\n  m:\n    path: a\n    flags: {flags}\n")
    assert words in told
    assert told.startswith("4:")


def test_J7_a_key_at_the_wrong_level_is_told_where_it_belongs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside `models`, misspelt in a model, a list for a mapping: `gridsched check` ends with 2 and says all of it."""
    monkeypatch.setenv("GRIDSCHED_DATA_DIR", str(tmp_path / "data"))
    path = written(tmp_path, "ctx_size: 4096\nmodels:\n  m: {path: a, ctxsize: 1}\nfamilies: [m]\n")
    assert main(["check", "--sim", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"{path}:1:1: ctx_size: unknown key here; `ctx_size` belongs in models.NAME" in said
    assert f"{path}:3:16: models.m.ctxsize: unknown key; did you mean ctx_size?" in said
    assert f"{path}:4:1: families: expected a mapping of names to families, got a list" in said


def test_J13_a_variable_that_is_not_set_is_told_with_its_line(tmp_path: Path) -> None:
    """Never an empty text: `/model.gguf` is another file. One that is empty is as bad."""
    text = "models:\n  m:\n    path: ${MODELS_DIR}/m.gguf\n  n: {path: $HOME/m.gguf}\n"
    assert faults(tmp_path, text) == [
        "3:11: models.m.path: the environment variable MODELS_DIR is not set, or is empty",
        "4:13: models.n.path: write ${NAME} for an environment variable, or $$ for a dollar sign",
    ]
    with pytest.raises(SettingsError, match="MODELS_DIR is not set, or is empty"):
        load(tmp_path / "gridsched.yaml", {"MODELS_DIR": ""})


def test_J13_one_path_is_one_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever spaces, quotes and dollar signs are in it, or in a variable's value; `~` is the home folder."""
    monkeypatch.setenv("HOME", "/h")
    text = "models:\n  a: {path: '${D}/m 1.gguf'}\n  b: {path: ~/m.gguf}\n  c: {path: '/m/$${D}.gguf'}\n"
    models = load(written(tmp_path, text), {"D": "/my models/it's"}).models
    assert [str(model.path) for model in models.values()] == ["/my models/it's/m 1.gguf", "/h/m.gguf", "/m/${D}.gguf"]
