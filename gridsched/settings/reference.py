"""What settings there are, read off the schema: for the README's table, for editors, and for "did you mean".

Must never know a setting by name. `python -m gridsched.settings.reference` writes both files anew; a test compares.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from gridsched.settings.models import FamilySettings, ModelSettings
from gridsched.settings.schema import Settings
from gridsched.settings.section import Section
from gridsched.settings.values import Reads

NAME_PART = "NAME"
"""Stands for a model's id, or a family's, in the key of a setting."""

TABLE_BEGIN = "<!-- settings: begin (written by `python -m gridsched.settings.reference`) -->"
TABLE_END = "<!-- settings: end -->"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `key` as in `models.NAME.path`, what may be written, the default as it would be written."""

    key: tuple[str, ...]
    word: str
    default: str
    meaning: str


@cache
def settings_there_are() -> tuple[Setting, ...]:
    """Every setting, in the schema's order."""
    return tuple(_walk(Settings, ()))


def _walk(section: type[Section], prefix: tuple[str, ...]) -> Iterator[Setting]:
    for field in section.model_fields.values():
        key = (*prefix, str(field.alias))
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _walk(field.annotation, key)
        elif named := [each for each in (ModelSettings, FamilySettings) if each in get_args(field.annotation)]:
            yield from _walk(named[0], (*key, NAME_PART))
        else:
            yield Setting(key, _word(field), _default(field), str(field.description))


def _word(field: FieldInfo) -> str:
    own = [each.word for each in field.metadata if isinstance(each, Reads)]
    return own[0] if own else f"list: {next(_readers(field.annotation)).word}"


def _readers(annotation: object) -> Iterator[Reads]:
    for part in get_args(annotation):
        if isinstance(part, Reads):
            yield part
        yield from _readers(part)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "(must be given)"
    if field.default is None:
        return "`null`"
    if isinstance(field.default, tuple):
        return f"`[{', '.join(field.default)}]`"
    return f"`{field.default}`"


def json_schema() -> dict[str, Any]:  # Any: pydantic's own type for JSON Schema
    """The JSON Schema of a configuration file, for editors."""
    schema = Settings.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_for_editors(schema), "title": "gridsched"}


def _for_editors(schema: dict[str, Any]) -> dict[str, Any]:
    """Without the titles that pydantic makes up from the names of fields and classes, and with what may be left empty:
    sections, lists, and mappings. A section's defaults are those of its settings, as they are written."""
    told = {
        key: _for_editors(value) if isinstance(value, dict) else value
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
    if "default" not in told:
        return told
    if "$ref" in told:
        said = {key: value for key, value in told.items() if key not in {"$ref", "default"}}
        return {"anyOf": [{"$ref": told["$ref"]}, {"type": "null"}], **said}
    return told | {"type": [told["type"], "null"]} if told.get("type") in ("array", "object") else told


def json_schema_text() -> str:
    """The JSON Schema as the shipped file has it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def table() -> str:
    """The README's table of every setting."""
    rows = ["| setting | what to write | default | meaning |", "|---|---|---|---|"]
    rows += [f"| `{'.'.join(s.key)}` | {s.word} | {s.default} | {s.meaning} |" for s in settings_there_are()]
    return "\n".join(rows)


def with_table(readme: str) -> str:
    """A README's text with the table between its two marks. Raises ValueError where a mark is missing."""
    before, _, rest = readme.partition(TABLE_BEGIN)
    _, end, after = rest.partition(TABLE_END)
    if not end:
        raise ValueError("the README has lost the marks of its table")
    return f"{before}{TABLE_BEGIN}\n\n{table()}\n\n{TABLE_END}{after}"


def _write() -> None:
    readme = Path(__file__).with_name("README.md")
    readme.write_text(with_table(readme.read_text("utf-8")), "utf-8")
    schema = Path(__file__).parents[2] / "config" / "gridsched.schema.json"
    schema.write_text(json_schema_text(), "utf-8")


if __name__ == "__main__":
    _write()
