"""Converts path parameters, query and body to the types in the handler's annotations, strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from homing.api.answers import ApiError
from homing.api.routing import Route
from homing.api.service import Call
from homing.core.reading import explained

_DATE_PREFIX = re.compile(r"\d{4}-\d\d-\d\d")


def arguments(route: Route, call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Returns the handler's keyword arguments. Raises `ApiError` if a value does not match its type."""
    found: dict[str, Any] = {
        name: _converted(params[name], kind, name, strict=False) for name, kind in route.params.items()
    }
    if route.query is not None:
        found["query"] = _query(route.query, call.scope["query_string"].decode("latin-1"))
    if route.body is not None and not route.raw:
        found["body"] = _body(route, call)
    return found


def _body(route: Route, call: Call) -> Any:
    if not call.raw and route.body_optional:
        return _converted({}, route.body, "body")
    try:
        try:
            return _decoder(route.body).decode(call.raw)
        except msgspec.ValidationError as error:
            if "got `float`" in str(error):  # JSON Schema, and some languages, treat 12.0 as an integer
                return _converted(_with_integers(msgspec.json.decode(call.raw)), route.body, "body")
            raise malformed(error, route.body) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError("MALFORMED_REQUEST", f"the body is not JSON: {error}") from None
    except RecursionError:
        raise ApiError("MALFORMED_REQUEST", "the body is nested too deeply") from None


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _with_integers(value: Any) -> Any:
    """Returns a JSON value with every float that has no fraction replaced by an integer."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_integers(item) for name, item in value.items()}
    return value


def _query(kind: type[Struct], text: str) -> Any:
    """Parses a query string. A repeated name is allowed only if the struct's field is a list."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=100)
    except ValueError as error:
        raise ApiError("MALFORMED_REQUEST", f"the query string cannot be parsed: {error}") from None
    lists, times = _list_and_time_names(kind)
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in lists:
            found.setdefault(name, []).extend(part for part in value.split(",") if part)
        elif name in found:
            raise ApiError("MALFORMED_REQUEST", f"{name}: is given twice; send it once", field=name)
        elif name in times and not _DATE_PREFIX.match(value):  # msgspec would also accept a bare number
            problem = "is not a time; write it like 2026-11-16T10:00:00Z"
            raise ApiError("MALFORMED_REQUEST", f"{name}: {problem}", field=name)
        else:
            found[name] = value
    return _converted(found, kind, "query", strict=False)


@cache
def _list_and_time_names(kind: type[Struct]) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names of a query's list fields and of its time fields."""
    fields = msgspec.structs.fields(kind)
    return (
        frozenset(field.encode_name for field in fields if get_origin(field.type) is tuple),
        frozenset(field.encode_name for field in fields if _is_time(field.type)),
    )


def _is_time(kind: Any) -> bool:
    """Returns True for datetime, also within `Annotated` or a union."""
    return kind is datetime or any(_is_time(inner) for inner in get_args(kind))


def _converted(value: Any, kind: Any, where: str, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise malformed(error, kind, where) from None


def malformed(error: msgspec.ValidationError, kind: Any, where: str = "body") -> ApiError:
    """Returns the API error for a failed conversion. `where` is used if the problem has no field."""
    known = getattr(kind, "__struct_encode_fields__", ())
    field, problem = explained(error, known)
    field = where if field == "request" else field
    return ApiError("MALFORMED_REQUEST", f"{field}: {problem}", field=field)
