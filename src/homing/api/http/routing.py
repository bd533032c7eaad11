"""Routes: a path, the required scopes, and a handler whose annotations define request and response.

`RouteTable` finds the route of a request, and `read_arguments` decodes the arguments of its handler.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Literal, get_args, get_origin
from urllib.parse import parse_qsl, unquote, unquote_plus

import msgspec
from msgspec import Struct

from homing.api.http.bodies import ApiError, ApiResponse
from homing.api.service import ApiCall, Handler
from homing.core.access.scopes import Scope
from homing.core.request_decoding import explain_error
from homing.core.strict_decoding import StrictDecoder, explain_unknown_field

_PARAM = re.compile(r"\{(\w+)\}")

_INDEX = re.compile(r"\[[^]]*\]")


class Route(Struct, frozen=True, kw_only=True):
    """One operation of the API."""

    method: str
    path: str
    """Full path, with parameters in braces, such as `/api/v1/notifications/{id}`."""
    handler: Handler
    summary: str
    """Docstring of the handler. Its first paragraph is the summary in the OpenAPI document."""
    tag: str
    """Subject under which the OpenAPI document lists the route."""
    scopes: tuple[Scope, ...]
    """Scopes of which the caller needs one. If empty, the route needs no key and does its own checks."""
    status: int
    answer: Any
    """Type of the response body. None if there is no body."""
    answer_type: str = ""
    """Media type of a response body of type bytes."""
    hidden: bool = False
    """True if the route is omitted from the OpenAPI document."""
    answers: Mapping[int, Any]
    """Types of the bodies of further responses, by status."""
    errors: tuple[str, ...]
    """Error codes of this route, in addition to those that every route can return."""
    body: Any = None
    body_type: str = "application/json"
    body_optional: bool = False
    large: bool = False
    """True if the size limit for batches applies instead of the one for ordinary bodies."""
    max_bytes: int | None = None
    """Size limit of the body that overrides the settings. None if the settings apply."""
    query: type[Struct] | None = None
    params: Mapping[str, Any]
    headers: Mapping[str, Any]
    """Request headers that the route reads, each with its description or an annotated type."""
    raw: bool = False
    """True if the handler parses the body itself. `bodies` lists the accepted media types."""
    bodies: Mapping[str, Any] = {}
    """Types of a raw route's body by accepted media type. If empty, every media type is accepted."""
    examples: tuple[Any, ...] = ()
    """Examples of valid bodies for the OpenAPI document."""

    @property
    def reads(self) -> bool:
        """True if the route reads the body."""
        return self.raw or self.body is not None


class Routes:
    """The routes of one subject. Its methods are decorators: `@routes.post("/notifications/send", …)`."""

    def __init__(self, tag: str, *, prefix: str = "/api/v1") -> None:
        self.tag = tag
        self.prefix = prefix
        self.all: list[Route] = []

    def get(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._route("GET", path, options)

    def post(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._route("POST", path, options)

    def put(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._route("PUT", path, options)

    def delete(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._route("DELETE", path, options)

    def options(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._route("OPTIONS", path, options)

    def _route(self, method: str, path: str, options: dict[str, Any]) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self.all.append(_route(method, self.prefix + path, handler, self.tag, options))
            return handler

        return register


def _route(method: str, path: str, handler: Handler, tag: str, options: dict[str, Any]) -> Route:
    signature = inspect.signature(handler, eval_str=True)
    kinds = {name: p.annotation for name, p in signature.parameters.items() if name != "call"}
    body, query = kinds.pop("body", None), kinds.pop("query", None)
    named = set(_PARAM.findall(path))
    assert named == set(kinds), (
        f"{method} {path}: the path's parameters differ from those of {handler.__name__}"
    )
    answer = signature.return_annotation
    if get_origin(answer) is ApiResponse:
        answer = answer.__args__[0]
    scopes = options.pop("scope", ())
    return Route(
        method=method,
        path=path,
        handler=handler,
        summary=(handler.__doc__ or "").strip(),
        tag=tag,
        scopes=(scopes,) if isinstance(scopes, Scope) else tuple(scopes),
        status=options.pop("status", 200),
        answer=answer,
        answers=options.pop("answers", {}),
        errors=tuple(options.pop("errors", ())),
        body=body,
        query=query,
        params=kinds,
        headers=options.pop("headers", {}),
        **options,
    )


class RouteTable:
    """Finds the route of a request.

    A path without parameters is looked up in a dict. For the others there is one compiled pattern per number
    of segments, with one alternative for each path of that length, fewest parameters first.

    Expects undecoded paths, in which `%2F` is a slash inside a segment and not a separator.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._without_parameters: dict[str, dict[str, Route]] = {}
        shapes: dict[str, dict[str, Route]] = {}
        for route in routes:
            known = shapes if "{" in route.path else self._without_parameters
            known.setdefault(route.path, {})[route.method] = route
        by_length: dict[int, list[str]] = {}
        for path in sorted(shapes, key=lambda path: path.count("{")):
            by_length.setdefault(path.count("/"), []).append(path)
        self._with_parameters = {
            length: PathPattern((path, shapes[path]) for path in paths) for length, paths in by_length.items()
        }

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Returns the route and its path parameters. Raises `ApiError` if no route matches."""
        params: dict[str, str] = {}
        methods = self._without_parameters.get(path)
        if methods is None:
            methods, params = self._match(path)
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted(methods))
            raise ApiError(
                "METHOD_NOT_ALLOWED",
                f"{path} does not support {method}; use {allowed}",
                headers={"Allow": allowed},
            )
        return route, params

    def _match(self, path: str) -> tuple[dict[str, Route], dict[str, str]]:
        pattern = self._with_parameters.get(path.count("/"))
        found = pattern.match(path) if pattern is not None else None
        if found is None:
            raise ApiError("NOT_FOUND", "this path does not exist; /api/v1/openapi.json lists all paths")
        return found


_INNER_SLASH = "\0"
"""Stands for a decoded slash inside a segment while a path is matched. No route contains it."""


class PathPattern:
    """The paths of one length that have parameters, as one regular expression.

    Each alternative ends in an empty group, so that the number of the last group tells which one matched.
    """

    def __init__(self, paths: Iterable[tuple[str, dict[str, Route]]]) -> None:
        self._found: dict[int | None, tuple[dict[str, Route], tuple[tuple[str, int], ...]]] = {}
        alternatives = []
        for number, (path, methods) in enumerate(paths, start=1):
            parts = path.split("/")
            places = tuple((part[1:-1], place) for place, part in enumerate(parts) if part[:1] == "{")
            self._found[number] = methods, places
            alternatives.append(
                "/".join("[^/]+" if part[:1] == "{" else re.escape(part) for part in parts) + "()"
            )
        self._fullmatch = re.compile("|".join(alternatives)).fullmatch

    def match(self, path: str) -> tuple[dict[str, Route], dict[str, str]] | None:
        """Returns the routes of a path by method, and its parameters. Returns None if nothing matches."""
        parts = path.split("/")
        if "%" in path:
            parts = [unquote(part) for part in parts]
            path = "/".join(part.replace("/", _INNER_SLASH) for part in parts)
        match = self._fullmatch(path)
        if match is None:
            return None
        methods, places = self._found[match.lastindex]
        return methods, {name: parts[place] for name, place in places}


_DATE_PREFIX = re.compile(r"\d{4}-\d\d-\d\d")


def read_arguments(route: Route, call: ApiCall, params: Mapping[str, str]) -> dict[str, Any]:
    """Returns the handler's keyword arguments. Raises `ApiError` if a value does not match its type."""
    found: dict[str, Any] = {
        name: _converted(params[name], kind, name, strict=False) for name, kind in route.params.items()
    }
    if route.query is not None:
        found["query"] = _query(route.query, call.scope["query_string"].decode("latin-1"))
    elif route.scopes and call.scope["query_string"]:
        raise _no_parameters(call.scope["query_string"].decode("latin-1"))
    if route.body is not None and not route.raw:
        found["body"] = _body(route, call)
    return found


def _body(route: Route, call: ApiCall) -> Any:
    if not call.raw:
        if route.body_optional:
            return _converted({}, route.body, "body")
        raise ApiError("MALFORMED_REQUEST", "the body is empty; send JSON")
    try:
        try:
            return _decoder(route.body).decode(call.raw)
        except msgspec.ValidationError as error:
            value = msgspec.json.decode(call.raw)
            if "got `float`" in str(error):  # JSON Schema, and some languages, treat 12.0 as an integer
                return _strictly_converted(_with_integers(value), route.body)
            raise malformed_request(error, route.body, value=value) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError("MALFORMED_REQUEST", f"the body is not JSON: {error}") from None
    except RecursionError:
        raise ApiError("MALFORMED_REQUEST", "the body is nested too deeply") from None


@cache
def _decoder(kind: Any) -> StrictDecoder[Any]:
    return StrictDecoder(kind)


def _strictly_converted(value: Any, kind: Any) -> Any:
    if unknown := explain_unknown_field(value, kind):
        raise ApiError("MALFORMED_REQUEST", ": ".join(unknown), field=unknown[0])
    return _converted(value, kind, "body")


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


def _no_parameters(text: str) -> ApiError:
    """Returns the error for a query string of an operation that has none.

    The parameter may belong in the body: a purge with `?dryRun=true` would delete.
    """
    name = unquote_plus(re.split("[=&]", text, maxsplit=1)[0])
    problem = "is not known; this operation has no query parameters"
    return ApiError("MALFORMED_REQUEST", f"{name}: {problem}", field=name)


@cache
def _list_and_time_names(kind: type[Struct]) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names of a query's list fields and of its time fields."""
    fields = msgspec.structs.fields(kind)
    return (
        frozenset(field.encode_name for field in fields if get_origin(field.type) is tuple),
        frozenset(field.encode_name for field in fields if _is_time(field.type)),
    )


def _is_time(kind: Any) -> bool:
    """Returns True if the type is datetime, or contains it in `Annotated` or a union."""
    return kind is datetime or any(_is_time(inner) for inner in get_args(kind))


def _converted(value: Any, kind: Any, where: str, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise malformed_request(error, kind, where) from None


def malformed_request(
    error: msgspec.ValidationError, kind: Any, where: str = "body", *, value: Any = None
) -> ApiError:
    """Returns the API error for a failed conversion.

    `where` is the field if the error names none. `value` is the JSON in which an unknown field is looked up.
    """
    known = getattr(kind, "__struct_encode_fields__", ())
    field, problem = explain_unknown_field(value, kind) or explain_error(error, known)
    field = where if field == "request" else field
    problem = _allowed(kind, field, problem) or problem
    return ApiError("MALFORMED_REQUEST", f"{field}: {problem}", field=field)


def _allowed(kind: Any, field: str, problem: str) -> str | None:
    """Returns what is allowed in a field if the problem is its value, or None if that is not known."""
    parts = [kind]
    for name in _INDEX.sub("", field).split("."):
        fields = [one for part in parts if _is_struct(part) for one in msgspec.structs.fields(part)]
        parts = [part for one in fields if one.encode_name == name for part in _parts(one.type)]
    if problem.startswith("Invalid enum value"):
        values = [str(value) for part in parts for value in _values(part)]
        return f"is {problem.removeprefix('Invalid enum value ')}; it must be one of {', '.join(values)}"
    if "matching regex" in problem:
        forms = [part.extra["form"] for part in parts if isinstance(part, msgspec.Meta) and part.extra]
        pattern = problem.partition("matching regex ")[2].strip("'")
        return f"must be {forms[0]}" if forms else f"has a form that is not allowed; it must match {pattern}"
    return None


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _parts(kind: Any) -> Iterator[Any]:
    """Yields a type and all that it consists of, such as the items of a tuple."""
    yield kind
    if get_origin(kind) is not Literal:
        for inner in (*get_args(kind), *getattr(kind, "__metadata__", ())):
            yield from _parts(inner)


def _values(kind: Any) -> Iterable[Any]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [member.value for member in kind]
    return get_args(kind) if get_origin(kind) is Literal else ()
