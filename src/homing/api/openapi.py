"""Generates the OpenAPI 3.1 document from the routes and the types in their annotations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from homing.api.answers import ErrorBody
from homing.api.errors import CODES
from homing.api.routing import Route
from homing.api.times import tell_times

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


def document(routes: Sequence[Route], *, version: str, server: str = "") -> dict[str, Any]:
    """Returns the OpenAPI document. Routes that are marked as hidden are omitted."""
    routes = [route for route in routes if not route.hidden]
    kinds = _kinds(routes)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    tell_times(kinds, components)
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
                    "description": "An API key or an administrator's JWT.",
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
        known = CODES[code]
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
