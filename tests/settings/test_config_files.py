"""The files that ship: each loads, and what was written from the schema is up to date."""

import json
from pathlib import Path

import pytest

from gridsched.settings.load import load
from gridsched.settings.reference import (
    json_schema,
    json_schema_text,
    settings_there_are,
    with_table,
)

ROOT = Path(__file__).parents[2]
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


def test_every_setting_is_in_the_editors_schema() -> None:
    """An editor knows each key at its place, with its meaning."""
    schema = json_schema()
    for setting in settings_there_are():
        node = schema
        for part in setting.key:
            node = node["additionalProperties"] if part == "NAME" else node["properties"][part]
            if "$ref" in node:
                node = {**schema["$defs"][node["$ref"].rpartition("/")[2]], **node}
        assert node["description"] == setting.meaning
        assert node.keys() & {"type", "enum", "anyOf"}


def test_every_setting_says_what_it_means() -> None:
    """The reference has a sentence, a default, and what to write."""
    for setting in settings_there_are():
        assert setting.meaning.endswith("."), setting.key
        assert setting.word
        assert setting.default
