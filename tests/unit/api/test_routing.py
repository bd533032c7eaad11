"""Routing: which route a path finds, and how strictly a request is parsed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from homing.api.http.bodies import ApiError, ApiResponse
from homing.api.http.routing import Route, Routes, RouteTable, read_arguments
from homing.api.service import ANONYMOUS, ApiCall
from homing.core.access.scopes import Scope

routes = Routes("Things")


class Body(Struct, rename="camel", forbid_unknown_fields=True):
    count: int
    display_name: str = ""


class Query(Struct, rename="camel", forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=10)] = 5
    tags: tuple[str, ...] = ()
    since: datetime | None = None


@routes.get("/things")
async def list_things(call: ApiCall, query: Query) -> ApiResponse[Body]:
    """Things.

    All of them.
    """
    raise NotImplementedError


@routes.get("/things/{id}", scope=Scope.READ)
async def get_thing(call: ApiCall, id: int) -> Body:
    """One."""
    raise NotImplementedError


@routes.get("/things/best", scope=(Scope.READ, Scope.SEND))
async def best_thing(call: ApiCall) -> Body:
    """The best."""
    raise NotImplementedError


@routes.post("/things/{id}", status=201)
async def make_thing(call: ApiCall, id: str, body: Body) -> None:
    """Make one."""


TABLE = RouteTable(routes.all)


def given(
    route: Route, params: dict[str, str] | None = None, query: str = "", raw: bytes = b""
) -> dict[str, Any]:
    scope = {"query_string": query.encode()}
    call = ApiCall(service=None, caller=ANONYMOUS, method="GET", scope=scope, headers={}, raw=raw)  # type: ignore[arg-type]
    return read_arguments(route, call, params or {})


def test_a_route_is_derived_from_its_function() -> None:
    route = routes.all[0]
    assert (route.method, route.path, route.query, route.answer) == ("GET", "/api/v1/things", Query, Body)
    assert routes.all[1].params == {"id": int}
    assert routes.all[1].scopes == (Scope.READ,)
    assert routes.all[3].status == 201
    assert not route.reads
    assert routes.all[3].reads


def test_a_function_whose_parameters_differ_from_its_path_is_an_error() -> None:
    async def handler(call: ApiCall, name: str) -> None: ...

    with pytest.raises(AssertionError, match="parameters differ"):
        Routes("Wrong").get("/things/{id}")(handler)


def test_the_most_specific_path_wins() -> None:
    assert TABLE.find("GET", "/api/v1/things/best")[0].handler is best_thing
    route, params = TABLE.find("GET", "/api/v1/things/7")
    assert (route.handler, params) == (get_thing, {"id": "7"})


def test_an_encoded_slash_does_not_separate_segments() -> None:
    assert TABLE.find("POST", "/api/v1/things/a%2Fb%20c")[1] == {"id": "a/b c"}
    with pytest.raises(ApiError) as nothing:
        TABLE.find("GET", "/api/v1/things/")
    assert nothing.value.code == "NOT_FOUND"


async def handle_pair(call: ApiCall, first: str, second: str) -> None: ...


async def handle_first(call: ApiCall, first: str) -> None: ...


async def handle_second(call: ApiCall, second: str) -> None: ...


several = Routes("Several", prefix="/s")
several.get("/{first}/{second}")(handle_pair)
several.get("/{first}/end")(handle_first)
several.get("/start/{second}")(handle_second)
several.get("/a.c/{second}/x")(handle_second)
SEVERAL = RouteTable(several.all)


@pytest.mark.parametrize(
    ("path", "handler", "params"),
    [
        ("/s/a/b", handle_pair, {"first": "a", "second": "b"}),
        ("/s/a/end", handle_first, {"first": "a"}),
        ("/s/start/b", handle_second, {"second": "b"}),
        ("/s/start/end", handle_first, {"first": "start"}),  # as many parameters: the first route wins
        ("/s/st%61rt/b", handle_second, {"second": "b"}),
        ("/s/a/e%6Ed", handle_first, {"first": "a"}),
        ("/s/a%2Fend/b", handle_pair, {"first": "a/end", "second": "b"}),
        ("/s/%00%0A/%2F", handle_pair, {"first": "\0\n", "second": "/"}),
        ("/s/%25/ü\n", handle_pair, {"first": "%", "second": "ü\n"}),
        ("/s/a.c/b/x", handle_second, {"second": "b"}),
    ],
)
def test_a_path_with_parameters_finds_the_route_with_the_fewest(
    path: str, handler: object, params: dict[str, str]
) -> None:
    route, found = SEVERAL.find("GET", path)
    assert (route.handler, found) == (handler, params)


@pytest.mark.parametrize(
    "path",
    ["/s//b", "/s/a/", "/s//", "/s//end", "/s/start/", "/s/a", "/s/a/b/", "//s/a/b", "/s/a/b/c", "s/a/b", "",
     "/s/abc/b/x", "/s/a%2Fb", "/s/a/b\n/", "/s%2Fa/b"],
)  # fmt: skip
def test_an_empty_segment_or_another_length_matches_nothing(path: str) -> None:
    with pytest.raises(ApiError) as nothing:
        SEVERAL.find("GET", path)
    assert nothing.value.code == "NOT_FOUND"


def test_head_uses_the_route_of_get_and_other_methods_get_the_allowed_ones() -> None:
    assert TABLE.find("HEAD", "/api/v1/things")[0].handler is list_things
    with pytest.raises(ApiError) as refused:
        TABLE.find("PUT", "/api/v1/things/7")
    assert refused.value.code == "METHOD_NOT_ALLOWED"
    assert refused.value.headers == {"Allow": "GET, POST"}


def test_a_body_is_parsed_strictly_by_its_wire_names() -> None:
    assert given(routes.all[3], {"id": "x"}, raw=b'{"count": 1, "displayName": "n"}')["body"] == Body(1, "n")


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b'{"count": "1"}', "count"),
        (b'{"count": true}', "count"),
        (b'{"count": 1.5}', "count"),
        (b'{"displayName": "x"}', "count"),
        (b'{"count": 1, "display_name": "x"}', "display_name"),
        (b"[]", "body"),
        (b"", None),
        (b"{", None),
        (b'{"count": 1} x', None),
        (b'{"count": 1, "displayName": "\xff"}', None),
    ],
)
def test_an_invalid_body_is_refused_with_the_field(raw: bytes, field: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        given(routes.all[3], {"id": "x"}, raw=raw)
    assert (refused.value.code, refused.value.field) == ("MALFORMED_REQUEST", field)


def test_a_query_is_parsed_by_its_types() -> None:
    assert given(routes.all[0])["query"] == Query()
    assert given(routes.all[0], query="limit=7&tags=a,b&tags=c")["query"] == Query(7, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=11", "limit"),
        ("limit=x", "limit"),
        ("limit=1&limit=2", "limit"),
        ("limt=1", "limt"),
        ("&".join(f"tags={n}" for n in range(200)), None),
    ],
)
def test_an_invalid_query_is_refused_with_the_field(query: str, field: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        given(routes.all[0], query=query)
    assert (refused.value.code, refused.value.field) == ("MALFORMED_REQUEST", field)


@pytest.mark.parametrize(("query", "name"), [("dryRun=true", "dryRun"), ("%61&b=c", "a"), ("=", "")])
def test_a_parameter_of_an_operation_without_parameters_is_refused(query: str, name: str) -> None:
    route, _ = TABLE.find("GET", "/api/v1/things/best")
    with pytest.raises(ApiError) as refused:
        given(route, query=query)
    assert (refused.value.code, refused.value.field) == ("MALFORMED_REQUEST", name)
    assert refused.value.message == f"{name}: is not known; this operation has no query parameters"


def test_a_public_route_ignores_parameters_that_others_add_to_its_address() -> None:
    route, _ = TABLE.find("POST", "/api/v1/things/7")
    assert given(route, {"id": "7"}, query="utm_source=x", raw=b'{"count": 1}')["body"].count == 1


def test_a_path_parameter_is_parsed_by_its_type() -> None:
    assert given(routes.all[1], {"id": "7"}) == {"id": 7}
    with pytest.raises(ApiError) as refused:
        given(routes.all[1], {"id": "seven"})
    assert refused.value.field == "id"


def test_an_integer_may_be_written_with_a_decimal_point_but_a_fraction_is_refused() -> None:
    route, _ = TABLE.find("POST", "/api/v1/things/7")
    read = given(route, {"id": "7"}, raw=b'{"count": 12.0}')["body"].count
    assert (read, type(read)) == (12, int)
    with pytest.raises(ApiError, match="count"):
        given(route, {"id": "7"}, raw=b'{"count": 12.5}')


def test_a_time_in_a_query_must_not_be_a_bare_number() -> None:
    route, _ = TABLE.find("GET", "/api/v1/things")
    assert given(route, query="since=2026-11-16T10:00:00Z")["query"].since is not None
    with pytest.raises(ApiError, match="since"):
        given(route, query="since=0.5")
