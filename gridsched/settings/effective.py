"""What a configuration comes to, as a person would write it: every setting there is, with the default of what was not
said. Owns this form, which is what programs are shown.

Text stays as it was written (`5m`, not 300 seconds), so that whoever changes a value sees one that can be written.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic.fields import FieldInfo

from gridsched.settings.document import Loc, dotted
from gridsched.settings.edit import meant
from gridsched.settings.models import FamilySettings, ModelSettings
from gridsched.settings.schema import Settings
from gridsched.settings.section import Section
from gridsched.settings.values import DEFAULTS, Reads, is_null


def effective(settings: Settings) -> dict[str, Any]:  # Any: what JSON can hold
    """Every setting with its value. What the command line said instead of the file is shown, too."""
    told = _section(Settings, settings.written)
    told["server"] |= {"host": settings.server.host, "port": settings.server.port}
    told["library"]["dirs"] = [str(entry) for entry in settings.library.dirs]
    return told


def sources(settings: Settings) -> dict[str, str]:
    """Where each value comes from that is no default, by its key: a line of the file, or the command line."""
    lines = {dotted(loc): f"line {place.rsplit(':', 2)[-2]}" for loc, place in settings.places.items()}
    written, told = _section(Settings, settings.written), effective(settings)
    over = [f"server.{key}" for key in ("host", "port") if written["server"][key] != told["server"][key]]
    if not written["library"]["dirs"] or ("library.dirs" not in lines and written["library"] != told["library"]):
        over += ["library.dirs"]
    return lines | dict.fromkeys(over, "the command line")


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[Loc, object, object]]:
    """Where two such forms are not the same, by setting; a model that is in one of them only is one difference."""
    yield from _differences(before, after, ())


def _differences(before: object, after: object, way: Loc) -> Iterator[tuple[Loc, object, object]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            yield from _differences(before.get(key), after.get(key), (*way, key))
    elif json.dumps(before) != json.dumps(after):
        yield way, before, after


def _section(kind: type[Section], said: object) -> dict[str, Any]:
    there = said if isinstance(said, Mapping) else {}
    return {str(field.alias): _setting(field, there.get(str(field.alias))) for field in kind.model_fields.values()}


def _setting(field: FieldInfo, said: object) -> object:
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
        return _section(field.annotation, said)
    if named := [each for each in (ModelSettings, FamilySettings) if each in get_args(field.annotation)]:
        return {str(name): _section(named[0], one) for name, one in said.items()} if isinstance(said, Mapping) else {}
    nothing = said is None or (is_null(said) and isinstance(field.default, tuple | dict))
    value = field.default if nothing else said
    readers = [each for each in field.metadata if isinstance(each, Reads)]
    if readers and readers[0] is DEFAULTS:
        return meant(value)
    return _value(value, numeric=bool(readers) and _takes_numbers(readers[0].json_schema))


def _takes_numbers(schema: Mapping[str, Any]) -> bool:
    return any(each.get("type") in ("integer", "number") for each in (schema, *schema.get("anyOf", ())))


def _value(value: object, *, numeric: bool) -> object:
    match value:
        case Mapping():
            return {str(key): _value(each, numeric=False) for key, each in value.items()}
        case list() | tuple():
            return [_value(each, numeric=False) for each in value]
        case str() if is_null(value):
            return None
        case str():
            number = meant(value) if numeric else None
            return number if isinstance(number, int | float) and not isinstance(number, bool) else str(value)
    return value
