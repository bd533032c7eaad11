"""Routes: an address, who may use it, and a function whose annotations say what goes in and comes out."""

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
    """One operation."""

    method: str
    path: str
    """Below the API's prefix, such as `/notifications/{id}`; absolute where `open`."""
    handler: Handler
    summary: str
    tag: str
    scopes: tuple[Scope, ...]
    """Any of these will do; none: everybody may, and the route looks for itself."""
    status: int
    answer: Any
    """The type of the value; None: no body."""
    answer_type: str = ""
    """The media type of an answer that is bytes."""
    hidden: bool = False
    """For people: no part of the description."""
    answers: Mapping[int, Any]
    """Other successes, by status."""
    errors: tuple[str, ...]
    """Codes beyond those that every route may answer with."""
    body: Any = None
    body_type: str = "application/json"
    body_optional: bool = False
    large: bool = False
    """Takes as much as a batch may have."""
    most_bytes: int | None = None
    """Takes so much, whatever the settings say."""
    query: type[Struct] | None = None
    params: Mapping[str, Any]
    headers: Mapping[str, Any]
    """Request headers that it reads, each with its meaning, or with an annotated type that has it."""
    raw: bool = False
    """The handler reads the body by itself, whatever its Content-Type (or one of `bodies`)."""
    bodies: Mapping[str, Any] = {}
    """Of a raw one: the media types that it takes, and what is in each."""
    examples: tuple[Any, ...] = ()
    """Bodies that are acceptable."""

    @property
    def reads(self) -> bool:
        """Whether it looks at the body at all."""
        return self.raw or self.body is not None


class Routes:
    """The routes of one subject. Use it as a decorator: `@routes.post("/notifications/send", …)`."""

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
    assert named == set(kinds), f"{method} {path}: the path and {handler.__name__} name other parameters"
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
    """Finds the route of a request: exact addresses by a look-up, the others segment by segment.

    Paths are as they were sent: `%2F` is a slash inside a segment, not between two.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._shaped: dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]] = {}
        for route in routes:
            self._place(route)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and the path's parameters; raises what there is to be told where there is none."""
        params: dict[str, str] = {}
        methods = self._exact.get(path)
        if methods is None:
            methods, params = self._match(path)
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted(methods))
            raise ApiError(
                "METHOD_NOT_ALLOWED", f"{path} has no {method}; it has {allowed}", headers={"Allow": allowed}
            )
        return route, params

    def _match(self, path: str) -> tuple[dict[str, Route], dict[str, str]]:
        parts = tuple(map(unquote, path.split("/")) if "%" in path else path.split("/"))
        for shape, methods in self._shaped.get(len(parts), ()):
            if all(own[:1] == "{" or own == given for own, given in zip(shape, parts, strict=True)):
                pairs = zip(shape, parts, strict=True)
                params = {own[1:-1]: given for own, given in pairs if own[:1] == "{"}
                if all(params.values()):
                    return methods, params
        raise ApiError(
            "NOT_FOUND", "there is nothing at this address; /api/v1/openapi.json lists what there is"
        )

    def _place(self, route: Route) -> None:
        if "{" not in route.path:
            self._exact.setdefault(route.path, {})[route.method] = route
            return
        shape = tuple(route.path.split("/"))
        known = self._shaped.setdefault(len(shape), [])
        for other, methods in known:
            if other == shape:
                methods[route.method] = route
                return
        known.append((shape, {route.method: route}))
        known.sort(key=lambda one: sum(part[:1] == "{" for part in one[0]))  # the most exact first
