"""Reads what a request carries, strictly, into what its route's annotations say."""

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

_DATED = re.compile(r"\d{4}-\d\d-\d\d")


def arguments(route: Route, call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """What the handler is called with, read strictly by its annotations."""
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
            if "got `float`" in str(error):  # 12.0 is a whole number to JSON Schema, and to some languages
                return _converted(_whole(msgspec.json.decode(call.raw)), route.body, "body")
            raise malformed(error, route.body) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError("MALFORMED_REQUEST", f"the body is not JSON: {error}") from None
    except RecursionError:
        raise ApiError("MALFORMED_REQUEST", "the body is nested too deeply") from None


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _whole(value: Any) -> Any:
    """Numbers without a fraction as whole numbers, however deep they stand."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    return value


def _query(kind: type[Struct], text: str) -> Any:
    """Names that repeat are lists where the struct has a list, else refused."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=100)
    except ValueError as error:
        raise ApiError("MALFORMED_REQUEST", f"the query cannot be read: {error}") from None
    many, moments = _shape(kind)
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in many:
            found.setdefault(name, []).extend(part for part in value.split(",") if part)
        elif name in found:
            raise ApiError("MALFORMED_REQUEST", f"{name}: is given twice", field=name)
        elif name in moments and not _DATED.match(value):  # a bare number would be read as a time too
            problem = "is not a time such as 2026-11-16T10:00:00Z"
            raise ApiError("MALFORMED_REQUEST", f"{name}: {problem}", field=name)
        else:
            found[name] = value
    return _converted(found, kind, "query", strict=False)


@cache
def _shape(kind: type[Struct]) -> tuple[frozenset[str], frozenset[str]]:
    """The names of a query that are lists, and those that are times."""
    fields = msgspec.structs.fields(kind)
    return (
        frozenset(one.encode_name for one in fields if get_origin(one.type) is tuple),
        frozenset(one.encode_name for one in fields if _is_time(one.type)),
    )


def _is_time(kind: Any) -> bool:
    """Also one that may be left out, or has limits."""
    return kind is datetime or any(_is_time(inner) for inner in get_args(kind))


def _converted(value: Any, kind: Any, where: str, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise malformed(error, kind, where) from None


def malformed(error: msgspec.ValidationError, kind: Any, where: str = "body") -> ApiError:
    known = getattr(kind, "__struct_encode_fields__", ())
    field, problem = explained(error, known)
    field = where if field == "request" else field
    return ApiError("MALFORMED_REQUEST", f"{field}: {problem}", field=field)
