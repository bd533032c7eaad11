"""Generates the OpenAPI 3.1 document from the routes and the types in their annotations.

Also describes schemas in words and builds examples of them, for the docs page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import inspect

from homing.api.http.errors import ERROR_CODES
from homing.api.http.routing import Route
from homing.wire.common import ErrorBody

_REF = "#/components/schemas/{name}"

_EVERY_ROUTE = ("INTERNAL_ERROR", "OVERLOADED", "TIMEOUT", "STORE_UNAVAILABLE")

_WITH_KEY = ("UNAUTHORIZED", "FORBIDDEN", "RATE_LIMITED")

_WITH_BODY = (
    "MALFORMED_REQUEST",
    "REQUEST_TIMEOUT",
    "PAYLOAD_TOO_LARGE",
    "UNSUPPORTED_MEDIA_TYPE",
    "INVALID_REQUEST",
)


def build_openapi(routes: Sequence[Route], *, version: str, server: str = "") -> dict[str, Any]:
    """Returns the OpenAPI document, without hidden routes. `server` is the public URL of the service."""
    routes = [route for route in routes if not route.hidden]
    kinds = _kinds(routes)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    mark_time_fields(kinds, components)
    _forbid_unknown_fields(routes, components)
    by_kind = dict(zip(map(repr, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Homing",
            "version": version,
            "summary": "Durable notification delivery",
            "description": "Homing accepts notifications from applications and keeps trying until they are "
            "delivered, or reports exactly why they were not.",
        },
        **({"servers": [{"url": server}]} if server else {}),
        "tags": [{"name": name} for name in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {
            "schemas": _referenced(paths, components),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, or a JWT of an issuer in the settings.",
                }
            },
        },
    }


def _referenced(paths: Mapping[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schemas that the paths reference, directly or through other schemas.

    Schemas of queries are not among them, because each of their fields is listed as a parameter.
    """
    used: set[str] = set()
    rest = [*_refs(paths)]
    while rest:
        name = rest.pop()
        if name not in used:
            used.add(name)
            rest += _refs(components[name])
    return {name: schema for name, schema in components.items() if name in used}


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(ref := value.get("$ref"), str):
            yield ref.rpartition("/")[2]
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _refs(item)


def _kinds(routes: Iterable[Route]) -> list[Any]:
    found: dict[str, Any] = {repr(ErrorBody): ErrorBody}
    for route in routes:
        named = (*route.answers.values(), *route.params.values(), *route.bodies.values())
        headers = (kind for kind in route.headers.values() if not isinstance(kind, str))
        for kind in (route.body, route.query, route.answer, *named, *headers):
            if kind is not None and kind is not bytes:
                found.setdefault(repr(kind), kind)
    return list(found.values())


def _operation(route: Route, by_kind: Mapping[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    head, _, rest = route.summary.partition("\n\n")
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": " ".join(head.split()),
        "tags": [route.tag],
        "parameters": _parameters(route, by_kind, components),
        "responses": _responses(route, by_kind),
    }
    if rest:
        operation["description"] = " ".join(rest.split())
    if route.scopes:
        operation["security"] = [{"key": []}]
        needs = " or ".join(f"`{scope.value}`" for scope in route.scopes)
        operation["description"] = f"{operation.get('description', '')} Requires the scope {needs}.".strip()
    if bodies := route.bodies or ({route.body_type: route.body} if route.body is not None else {}):
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": {name: {"schema": by_kind[repr(kind)]} for name, kind in bodies.items()},
        }
        if route.examples:
            examples = {str(number): {"value": body} for number, body in enumerate(route.examples, 1)}
            operation["requestBody"]["content"][next(iter(bodies))]["examples"] = examples
    return operation


def _parameters(
    route: Route, by_kind: Mapping[str, Any], components: Mapping[str, Any]
) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": {"minLength": 1, **by_kind[repr(kind)]}}
        for name, kind in route.params.items()
    ]
    if route.query is not None:
        schema = by_kind[repr(route.query)]
        known = components[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        required = set(known.get("required", ()))
        for name, own in known["properties"].items():
            parameter: dict[str, Any] = {
                "name": name,
                "in": "query",
                "required": name in required,
                "schema": own,
            }
            if own.get("type") == "array":
                parameter |= {"style": "form", "explode": False}
            found.append(parameter)
    for name, kind in route.headers.items():
        schema = {"type": "string", "description": kind} if isinstance(kind, str) else by_kind[repr(kind)]
        found.append({"name": name, "in": "header", "required": False, "schema": schema})
    return found


def _responses(route: Route, by_kind: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, kind in {route.status: route.answer, **route.answers}.items():
        found[str(status)] = {"description": HTTPStatus(status).phrase}
        if kind is not None and kind is not bytes:
            found[str(status)]["content"] = {"application/json": {"schema": by_kind[repr(kind)]}}
        elif kind is bytes and route.answer_type:
            found[str(status)]["content"] = {route.answer_type: {"schema": {"type": "string"}}}
    reads = route.body is not None or route.raw
    codes = dict.fromkeys((*route.errors, *_EVERY_ROUTE, *(_WITH_KEY if route.scopes else ())))
    codes |= dict.fromkeys(_WITH_BODY if reads else ())
    codes |= dict.fromkeys(("MALFORMED_REQUEST", "INVALID_REQUEST") if route.query or route.params else ())
    for code in codes:
        known = ERROR_CODES[code]
        response = found.setdefault(str(known.status), {"description": "", **_error_content(by_kind)})
        response["content"] = _with_error(response["content"], by_kind)
        response["description"] = f"{response['description']} `{code}`: {known.meaning}".strip()
    return dict(sorted(found.items()))


def _error_content(by_kind: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": by_kind[repr(ErrorBody)]}}}


def _with_error(content: dict[str, Any], by_kind: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the error body to a response whose status also has a body of its own."""
    own, error = content["application/json"]["schema"], by_kind[repr(ErrorBody)]
    known = own.get("anyOf", [own])
    return content if error in known else {"application/json": {"schema": {"anyOf": [*known, error]}}}


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


def describe_type(schema: Schema) -> str:
    """Returns the type of a schema in words. References to other schemas are in braces."""
    if "$ref" in schema:
        return "{" + _named(schema) + "}"
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(describe_type(choice) for choice in schema[word]))
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    found = schema.get("type", "any JSON")
    if isinstance(found, list):
        return " or ".join(found)
    if found == "array":
        return (
            f"list of {describe_type(schema['items'])}"
            if isinstance(schema.get("items"), Mapping)
            else "list"
        )
    if found == "object" and isinstance(inner := schema.get("additionalProperties"), Mapping):
        return f"object of {describe_type(inner)}"
    return f"{found} ({schema['format']})" if "format" in schema else str(found)


def describe_limits(schema: Schema) -> Iterator[str]:
    """Yields the limits of a schema in words."""
    for key, words in _BOUNDS:
        if key in schema and schema[key] not in (None, [], {}):
            yield words.format(schema[key])


def build_example(schema: Schema, components: Schema, depth: int = 0) -> Any:
    """Returns a value that matches the schema, preferably one of the schema's own examples."""
    if depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return build_example(components[_named(schema)], components, depth)
    if found := schema.get("examples"):
        return found[0]
    for word in ("anyOf", "oneOf"):
        if word in schema:
            choices = [choice for choice in schema[word] if choice.get("type") != "null"]
            return build_example(choices[0], components, depth) if choices else None
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
        name: build_example(own, components, depth + 1)
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
    return [build_example(items, components, depth + 1)]


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


_TIME_PATTERN = r"^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})$"


def mark_time_fields(kinds: Iterable[Any], components: Mapping[str, Any]) -> None:
    """Adds the date-time format and a pattern to every time field in the component schemas.

    The pattern states exactly what the service accepts, because many tools treat the format as a hint only.
    msgspec itself marks only fields that require a time zone, but every time of the service has a time zone.
    """
    seen: set[Any] = set()
    for info in inspect.multi_type_info(kinds):
        for struct in _structs(info, seen):
            for field in struct.fields:
                if any(isinstance(choice, inspect.DateTimeType) for choice in _choices(field.type)):
                    _mark(components[struct.cls.__name__]["properties"][field.encode_name])


def _forbid_unknown_fields(routes: Iterable[Route], components: Mapping[str, Any]) -> None:
    """States in the schema of every struct of a request body that it has no other fields.

    msgspec states it only for structs that refuse unknown fields wherever they are decoded.
    """
    bodies = [kind for route in routes for kind in (route.body, *route.bodies.values()) if kind is not None]
    seen: set[Any] = set()
    for info in inspect.multi_type_info(bodies):
        for struct in _structs(info, seen):
            components[struct.cls.__name__]["additionalProperties"] = False


def _structs(info: inspect.Type, seen: set[Any]) -> Iterator[inspect.StructType]:
    """Yields the structs in a type that are not in `seen` yet, and adds them to `seen`."""
    match info:
        case inspect.StructType(cls=kind, fields=fields) if kind not in seen:
            seen.add(kind)
            yield info
            for field in fields:
                yield from _structs(field.type, seen)
        case inspect.UnionType(types=types):
            for choice in types:
                yield from _structs(choice, seen)
        case inspect.CollectionType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from _structs(item, seen)
        case inspect.DictType(value_type=value):
            yield from _structs(value, seen)
        case inspect.Metadata(type=inner):
            yield from _structs(inner, seen)


def _choices(info: inspect.Type) -> Iterator[inspect.Type]:
    match info:
        case inspect.Metadata(type=inner):
            yield from _choices(inner)
        case inspect.UnionType(types=types):
            for choice in types:
                yield from _choices(choice)
        case _:
            yield info


def _mark(schema: dict[str, Any]) -> None:
    for choice in schema.get("anyOf", [schema]):
        if choice.get("type") == "string":
            choice |= {"format": "date-time", "pattern": _TIME_PATTERN}
