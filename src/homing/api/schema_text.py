"""What a JSON schema says, in few words, and a value that fits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_DEEPEST = 6
_FORMATS = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "uuid": "0190d1b2-7c3e-7b6a-9c1d-2f4e6a8b0c1d",
}
_BOUNDS = (
    ("minimum", "at least {}"),
    ("maximum", "at most {}"),
    ("exclusiveMinimum", "more than {}"),
    ("exclusiveMaximum", "less than {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
    ("pattern", "like {}"),
    ("default", "default {}"),
)


def kind(schema: Schema) -> str:
    """Its type; another schema that it names stands in braces."""
    if "$ref" in schema:
        return "{" + _named(schema) + "}"
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(kind(one) for one in schema[word]))
    if "enum" in schema:
        return " | ".join(str(one) for one in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    found = schema.get("type", "any JSON")
    if isinstance(found, list):
        return " or ".join(found)
    if found == "array":
        return f"list of {kind(schema['items'])}" if isinstance(schema.get("items"), Mapping) else "list"
    if found == "object" and isinstance(inner := schema.get("additionalProperties"), Mapping):
        return f"object of {kind(inner)}"
    return f"{found} ({schema['format']})" if "format" in schema else str(found)


def bounds(schema: Schema) -> Iterator[str]:
    """What a value must keep to."""
    for key, words in _BOUNDS:
        if key in schema and schema[key] not in (None, [], {}):
            yield words.format(schema[key])


def example(schema: Schema, components: Schema, depth: int = 0) -> Any:
    """A value that fits; examples that the schema gives are taken first."""
    if depth > _DEEPEST:
        return None
    if "$ref" in schema:
        return example(components[_named(schema)], components, depth)
    if found := schema.get("examples"):
        return found[0]
    for word in ("anyOf", "oneOf"):
        if word in schema:
            some = [one for one in schema[word] if one.get("type") != "null"]
            return example(some[0], components, depth) if some else None
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    if schema.get("type") == "object":
        return _object(schema, components, depth)
    if schema.get("type") == "array":
        return _array(schema, components, depth)
    return _plain(schema)


def _object(schema: Schema, components: Schema, depth: int) -> dict[str, Any]:
    fields = schema.get("properties", {})
    return {
        name: example(own, components, depth + 1)
        for name, own in fields.items()
        if _telling(own, name, schema)
    }


def _telling(own: Schema, name: str, schema: Schema) -> bool:
    """What may be left out is, unless an example says something."""
    return name in schema.get("required", ()) or "examples" in own


def _array(schema: Schema, components: Schema, depth: int) -> list[Any]:
    items = schema.get("items")
    if not isinstance(items, Mapping):
        return []
    return [example(items, components, depth + 1)]


def _plain(schema: Schema) -> Any:
    match schema.get("type"):
        case "string":
            return _FORMATS.get(schema.get("format", ""), "text"[: schema.get("maxLength", 4)])
        case "integer":
            return int(schema.get("minimum", 1)) or 1
        case "number":
            return float(schema.get("minimum", 1.0)) or 1.0
        case "boolean":
            return False
        case "null":
            return None
    return {}


def _named(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]
