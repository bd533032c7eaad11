"""Every request body refuses unknown fields, however deep they are, and names them with their path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from homing.api.all_routes import all_routes
from homing.api.description.openapi import build_openapi
from homing.api.http.bodies import ApiError
from homing.api.http.routing import Route, read_arguments
from homing.api.service import ANONYMOUS, ApiCall
from support.json_samples import objects, sample, with_member, written

BODIES = {route.handler.__name__: route for route in all_routes() if route.body is not None and not route.raw}
DOCUMENT = build_openapi(all_routes(), version="0")
SCHEMAS = DOCUMENT["components"]["schemas"]


def decoded(route: Route, value: Any) -> Any:
    """Decodes a body, which is given as a value or as JSON in bytes."""
    call = ApiCall(
        service=None,  # type: ignore[arg-type]
        caller=ANONYMOUS,
        method=route.method,
        scope={"query_string": b""},
        headers={},
        raw=value if isinstance(value, bytes) else msgspec.json.encode(value),
    )
    params = {name: sample(inspect.type_info(kind)) for name, kind in route.params.items()}
    return read_arguments(route, call, params)["body"]


def refused(name: str, value: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decoded(BODIES[name], value)
    assert caught.value.code == "MALFORMED_REQUEST"
    return caught.value


@pytest.mark.parametrize("name", sorted(BODIES))
def test_an_unknown_field_is_refused_at_every_depth(name: str) -> None:
    route = BODIES[name]
    info = inspect.type_info(route.body)
    full = sample(info)
    decoded(route, full)
    for path in objects(info, full):
        error = refused(name, with_member(full, path, "xyzzy"))
        assert error.field == written((*path, "xyzzy"))
        assert error.message.startswith(f"{error.field}: is not known; it must be one of ")


def test_the_depths_that_are_checked_include_those_of_a_send() -> None:
    info = inspect.type_info(BODIES["send_notification"].body)
    found = {written(path) for path in objects(info, sample(info))}
    assert found == {"", "recipient", "recipients[0]", "content", "content.attachments[0]"}


@pytest.mark.parametrize(
    ("body", "field", "meant"),
    [
        ({"recipient": {"emial": "ada@example.org"}}, "recipient.emial", "email"),
        ({"recipients": [{}, {"fone": "1"}]}, "recipients[1].fone", "phone"),
        ({"content": {"htlm": "<p>"}}, "content.htlm", "html"),
        (
            {"content": {"attachments": [{"filename": "a", "content": "", "contenttype": "b"}]}},
            "content.attachments[0].contenttype",
            "contentType",
        ),
        ({"content": {"htlm": 1.0}, "timeoutMs": 1.0}, "content.htlm", "html"),
        ({"content": {"a.b": 1}}, "content.a.b", None),
        ({"content": {"\n": 1}}, "content['\\n']", None),
    ],
)
def test_the_nearest_known_field_of_the_same_object_is_suggested(
    body: Any, field: str, meant: str | None
) -> None:
    error = refused("send_notification", body)
    assert error.field == field
    assert (f"did you mean {meant}?" in error.message) == (meant is not None)


def test_an_unknown_field_in_an_object_that_is_given_twice_is_named_with_its_path() -> None:
    raw = b'{"content": {"htlm": 1}, "content": {"body": "x"}}'
    with pytest.raises(ApiError) as caught:
        decoded(BODIES["send_notification"], raw)
    assert (caught.value.field, caught.value.message) == ("content.htlm", "content.htlm: is not known")


def test_free_json_and_headers_may_have_any_names() -> None:
    read = decoded(
        BODIES["send_notification"],
        {
            "data": {"htlm": {"emial": 1}},
            "metadata": {"anything": "x"},
            "content": {"data": {"htlm": 1}, "headers": {"X-Htlm": "1"}},
        },
    )
    assert (read.data, read.metadata) == ({"htlm": {"emial": 1}}, {"anything": "x"})
    assert (read.content.data, read.content.headers) == ({"htlm": 1}, {"X-Htlm": "1"})


def test_the_document_forbids_unknown_fields_in_every_schema_of_a_body() -> None:
    def names(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"].rpartition("/")[2]
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                yield from names(item)

    operations = [one for verbs in DOCUMENT["paths"].values() for one in verbs.values()]
    seen: set[str] = set()
    rest = [*names([one.get("requestBody", {}) for one in operations])]
    while rest:
        name = rest.pop()
        if name not in seen:
            seen.add(name)
            rest += names(SCHEMAS[name])
    structs = {name for name in seen if "properties" in SCHEMAS[name]}
    assert {"SendRequest", "Recipient", "Content", "Attachment", "OneClickForm", "RuleBody"} <= structs
    assert [name for name in sorted(structs) if SCHEMAS[name].get("additionalProperties") is not False] == []
