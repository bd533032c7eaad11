"""Checks a body against a Google API discovery document: types, enums, references, and no unknown fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}
_DURATION = re.compile(r"\d+(\.\d{1,9})?s")


def complaints(
    value: Any, schema: Mapping[str, Any], schemas: Mapping[str, Any], where: str = "body"
) -> Iterator[str]:
    """Yields what is wrong with a value. Names may be camelCase or snake_case, as in Google's JSON."""
    schema = schemas[schema["$ref"]] if "$ref" in schema else schema
    if schema["type"] == "any":
        return
    if not isinstance(value, _KINDS[schema["type"]]):
        yield f"{where} is {type(value).__name__}, not {schema['type']}"
    elif isinstance(value, dict):
        yield from _in_object(value, schema, schemas, where)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from complaints(item, schema["items"], schemas, f"{where}[{index}]")
    elif "enum" in schema and str(value).upper() not in schema["enum"]:
        yield f"{where} is {value!r}, not one of {schema['enum']}"
    elif schema.get("format") == "google-duration" and not _DURATION.fullmatch(str(value)):
        yield f"{where} is {value!r}, not a duration"


def _in_object(
    value: Mapping[str, Any], schema: Mapping[str, Any], schemas: Mapping[str, Any], where: str
) -> Iterator[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, item in value.items():
        below = known.get(_camel(name)) or others
        if below is None:
            yield f"{where}.{name} is unknown"
        else:
            yield from complaints(item, below, schemas, f"{where}.{name}")


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)
