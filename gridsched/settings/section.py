"""What every section of the configuration is made of: a mapping of known keys, each with its default and its meaning.

Owns how a field's name becomes a key of the file. Must never know a setting.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gridsched.settings.values import is_null, shown


def _key(field: str) -> str:
    """What a field is called in the file."""
    return "class" if field == "job_class" else field.removesuffix("_seconds").removesuffix("_bytes")


def setting(default: object, meaning: str) -> Any:
    """A field. Any, because the default is text that a reader turns into the field's type."""
    return Field(default, description=meaning)


def a_list(value: object) -> object:
    """Nothing is an empty list; a lone value is no list. Raises ValueError."""
    if is_null(value):
        return ()
    if isinstance(value, list | tuple):
        return value
    raise ValueError(f"expected a list, {shown(value)}")


class Section(BaseModel):
    """A mapping of known keys. One that is left empty has its defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_key, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _mapping(cls, value: object) -> object:
        if is_null(value):
            return {}
        if isinstance(value, Mapping | cls):
            return value
        raise ValueError(f"expected a mapping of settings, {shown(value)}")
