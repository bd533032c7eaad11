"""Describes JSON schemas in words and builds example values, for the docs page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_MAX_DEPTH = 6
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
    ("pattern", "matches {}"),
    ("default", "default {}"),
)


def kind(schema: Schema) -> str:
    """Returns the type of a schema in words. References to other schemas are in braces."""
    if "$ref" in schema:
        return "{" + _named(schema) + "}"
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(kind(choice) for choice in schema[word]))
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
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
    """Yields the limits of a schema in words."""
    for key, words in _BOUNDS:
        if key in schema and schema[key] not in (None, [], {}):
            yield words.format(schema[key])


def example(schema: Schema, components: Schema, depth: int = 0) -> Any:
    """Returns a value that matches the schema, preferably one of the schema's own examples."""
    if depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return example(components[_named(schema)], components, depth)
    if found := schema.get("examples"):
        return found[0]
    for word in ("anyOf", "oneOf"):
        if word in schema:
            choices = [choice for choice in schema[word] if choice.get("type") != "null"]
            return example(choices[0], components, depth) if choices else None
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
        if _is_shown(own, name, schema)
    }


def _is_shown(own: Schema, name: str, schema: Schema) -> bool:
    """Returns True if an example includes this field: it is required or has an example of its own."""
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
