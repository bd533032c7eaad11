"""Routes: a path, the required scopes, and a handler whose annotations define request and response."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_origin
from urllib.parse import unquote

from msgspec import Struct

from homing.api.answers import Answer, ApiError
from homing.api.service import Handler
from homing.core.access import Scope

_PARAM = re.compile(r"\{(\w+)\}")


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
    """Types of further successful responses by status."""
    errors: tuple[str, ...]
    """Error codes of this route, in addition to those that every route can return."""
    body: Any = None
    body_type: str = "application/json"
    body_optional: bool = False
    large: bool = False
    """True if the size limit for batches applies instead of the one for ordinary bodies."""
    most_bytes: int | None = None
    """Size limit of the body that overrides the settings. None if the settings apply."""
    query: type[Struct] | None = None
    params: Mapping[str, Any]
    headers: Mapping[str, Any]
    """Request headers that the route reads, each with its description or an annotated type."""
    raw: bool = False
    """True if the handler parses the body itself. Any Content-Type is accepted, or only those in `bodies`."""
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
    if get_origin(answer) is Answer:
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


class Table:
    """Finds the route of a request: by a dict lookup if the path has no parameters, else segment by segment.

    Expects undecoded paths, in which `%2F` is a slash inside a segment and not a separator.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._without_parameters: dict[str, dict[str, Route]] = {}
        self._with_parameters: dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]] = {}
        for route in routes:
            self._place(route)

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
        parts = tuple(map(unquote, path.split("/")) if "%" in path else path.split("/"))
        for shape, methods in self._with_parameters.get(len(parts), ()):
            if all(own[:1] == "{" or own == given for own, given in zip(shape, parts, strict=True)):
                pairs = zip(shape, parts, strict=True)
                params = {own[1:-1]: given for own, given in pairs if own[:1] == "{"}
                if all(params.values()):
                    return methods, params
        raise ApiError("NOT_FOUND", "this path does not exist; /api/v1/openapi.json lists all paths")

    def _place(self, route: Route) -> None:
        if "{" not in route.path:
            self._without_parameters.setdefault(route.path, {})[route.method] = route
            return
        shape = tuple(route.path.split("/"))
        known = self._with_parameters.setdefault(len(shape), [])
        for other, methods in known:
            if other == shape:
                methods[route.method] = route
                return
        known.append((shape, {route.method: route}))
        known.sort(key=lambda entry: sum(part[:1] == "{" for part in entry[0]))  # fewest parameters first
