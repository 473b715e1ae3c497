"""The files that ship: each loads, and what was written from the schema is up to date."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

from gridsched.settings.document import read_document
from gridsched.settings.edit import meant
from gridsched.settings.faults import SettingsError
from gridsched.settings.load import defaults, load, parse
from gridsched.settings.reference import (
    json_schema,
    json_schema_text,
    settings_there_are,
    with_table,
)
from gridsched.settings.values import Surroundings
from tests.settings.reading import fault, read

ROOT = Path(__file__).parents[2]

WRITTEN_OUT = """
    server:    {host: 127.0.0.1, port: 1234, cors_origins: [], max_body: 64MiB, tls: null, trusted_proxies: []}
    scheduler: {interactive_cooldown: 2s, background_max_starvation: 3s, background_share: 0.5,
                batch_max_starvation: 2m, embedding_chunk: 32, hot_window: 5m, eviction: cost, min_residency: 30s,
                interactive_turn: auto, relief_slots: 4, fit_wait: 10s, abort_after: null, hot_yield_after: null,
                interactive_reserved_slots: auto, background_pause: off, pause_limit: 3s,
                queues: {interactive: {max_length: 256, max_wait: null}, background: {}, batch: {}}}
    devices:   {headroom: 5%, host_budget: null, ignore: []}
    engine:    {path: auto, startup_timeout: 300s}
    library:   {dirs: [auto], default_model: null}
    defaults:  {ctx_target: 32768, ctx_floor: 8192, parallel: auto, cache_type: auto, reasoning_format: auto,
                idle_ttl: 30m}
    watchdog:  {port: 1235}
    models: {}
    families: {}
"""
MODEL = """
    models:
      big: {path: /m, ctx_size: 16384, parallel: 2, tier: auto, class: null, idle_ttl: 30m, aliases: [gpt-4o],
            flags: ["-fa", "on"], device: auto, mmproj: null, capabilities: auto, env: {}}
    families: {all: {preferred: big}}
"""
CONFIGS = sorted((ROOT / "config").glob("*.yaml"))
README = ROOT / "gridsched" / "settings" / "README.md"


def test_there_is_a_file_for_each_kind_of_machine() -> None:
    """A one-card rig, a four-card rig, and a machine without a GPU."""
    names = [path.name for path in CONFIGS]
    assert names == ["four-cards.yaml", "gridsched.example.yaml", "no-gpu.yaml"]
    readme = (ROOT / "config" / "README.md").read_text("utf-8")
    assert [name for name in names if name not in readme] == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_shipped_configuration_loads(path: Path) -> None:
    """No fault in it, its models are there, and its default model is one of them."""
    settings = load(path, {"GRIDSCHED_MODELS": "/models", "HOME": "/h"})
    assert settings.entries()
    assert settings.library.default_model in {None, *settings.models}
    assert settings.policy().relief_slots > 0


def test_every_default_can_be_written_out() -> None:
    """`null` and `auto` among them; it is the same configuration then."""
    assert read(WRITTEN_OUT) == defaults()
    (entry,) = read(MODEL).entries()
    assert (entry.aliases, entry.flags, entry.default_class) == (("gpt-4o",), ("-fa", "on"), None)


def test_a_key_without_its_certificate_is_a_fault() -> None:
    """It says which of the two is missing."""
    assert "`certificate` is missing" in fault("server: {tls: {key: b.pem}}")


def test_the_readmes_table_is_up_to_date() -> None:
    """A setting that is missing from the README, or that has changed since, fails here."""
    text = README.read_text("utf-8")
    assert text == with_table(text), "run python -m gridsched.settings.reference"


def test_a_readme_without_the_tables_marks_is_refused() -> None:
    """The table has a place, and is not lost in silence."""
    with pytest.raises(ValueError, match="lost the marks"):
        with_table("no marks")


def test_the_editors_schema_is_up_to_date() -> None:
    """The shipped file is what the code says."""
    shipped = (ROOT / "config" / "gridsched.schema.json").read_text("utf-8")
    assert shipped == json_schema_text(), "run python -m gridsched.settings.reference"
    assert json.loads(shipped) == json_schema()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_shipped_configuration_is_valid_by_the_editors_schema(path: Path) -> None:
    """It names the schema in its first line, so that an editor completes from it; a misspelt key is not valid."""
    text = path.read_text("utf-8")
    assert text.startswith("# yaml-language-server: $schema=gridsched.schema.json\n")
    value = meant(read_document(text).value)
    assert isinstance(value, dict)
    validator = Draft202012Validator(json_schema())
    assert [error.message for error in validator.iter_errors(value)] == []
    assert not validator.is_valid(value | {"severs": {}})
    assert not validator.is_valid(value | {"server": {"prt": 1}})


def test_every_setting_is_in_the_editors_schema() -> None:
    """An editor knows each key at its place, with its meaning."""
    schema = json_schema()
    for setting in settings_there_are():
        node = schema
        for part in setting.key:
            node = node["additionalProperties"] if part == "NAME" else node["properties"][part]
            if found := node.get("$ref", node.get("anyOf", [{}])[0].get("$ref")):
                node = {**schema["$defs"][found.rpartition("/")[2]], **node}
        assert node["description"] == setting.meaning
        assert node.keys() & {"type", "enum", "anyOf"}
        if node.get("default", 0) in ("auto", None):  # which a person may write
            assert _takes(node, node["default"]), setting.key


def test_what_may_be_left_empty_may_be_so_for_an_editor_too() -> None:
    """Sections, lists and mappings whose last line was taken out: they have their defaults, and no red line.
    Not of what must be said, of an address, and of members, of which the schema says what may not be there."""
    validator = Draft202012Validator(json_schema())
    ways = {setting.key[:depth] for setting in settings_there_are() for depth in range(1, len(setting.key) + 1)}
    own = {("models", "NAME"), ("models", "NAME", "path"), ("models", "NAME", "base"), ("models", "NAME", "sampling")}
    for way in ways - own - {("server", "host")}:
        if way[0] == "families" and len(way) > 1:
            continue  # a family names somebody
        value: object = None
        for key in reversed(way):
            value = {"m" if key == "NAME" else key: value}
        document = cast("dict[str, Any]", value)
        if way[:1] == ("models",) and len(way) > 1:
            document["models"]["m"]["path"] = "m.gguf"
        try:
            parse(json.dumps(document), "f.yaml", Surroundings(ROOT, {}))
        except SettingsError:
            assert not validator.is_valid(document), way
        else:
            assert validator.is_valid(document), way


def _takes(node: Mapping[str, Any], word: str | None) -> bool:
    """Whether a word is valid by a schema's node."""
    either = any(_takes(one, word) for one in node.get("anyOf", ()))
    said = word in node.get("enum", ()) or (word is not None and word == node.get("const"))
    return either or said or (word is None and node.get("type") == "null")


def test_every_setting_says_what_it_means() -> None:
    """The reference has a sentence, a default, and what to write."""
    for setting in settings_there_are():
        assert setting.meaning.endswith("."), setting.key
        assert setting.word
        assert setting.default
