"""Times in the OpenAPI document: every time field is described as one, with the format that is accepted."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from msgspec import Struct

from homing.api.all_routes import all_routes
from homing.api.description.openapi import build_openapi, mark_time_fields
from homing.wire.common import ItemList

DOCUMENT = build_openapi(all_routes(), version="0")


def texts(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in schema.get("anyOf", [schema]) if one.get("type") == "string"]


def test_every_field_named_like_a_time_is_described_as_one() -> None:
    found = [
        (name, field, text)
        for name, schema in DOCUMENT["components"]["schemas"].items()
        for field, own in schema.get("properties", {}).items()
        if re.search(r"(At|From|Until)$", field)
        for text in texts(own)
    ]
    assert len(found) > 30
    assert [(name, field) for name, field, text in found if text.get("format") != "date-time"] == []


def test_a_time_in_a_query_is_described_too() -> None:
    parameters = DOCUMENT["paths"]["/api/v1/notifications"]["get"]["parameters"]
    (since,) = [one["schema"] for one in parameters if one["name"] == "createdFrom"]
    (text,) = texts(since)
    assert re.search(text["pattern"], "2026-01-31T09:00:00Z")
    assert re.search(text["pattern"], "2026-01-31T09:00:00.123+01:00")
    assert not re.search(text["pattern"], "2026-01-31T09:00:00")
    assert not re.search(text["pattern"], "")


class Leaf(Struct):
    at: datetime
    parent: Tree | None = None


class Tree(Struct):
    """Contains itself, through other structs."""

    leaves: dict[str, list[Leaf]]
    until: datetime | None = None


def test_nested_structs_are_searched_even_if_they_contain_themselves() -> None:
    components: dict[str, Any] = {
        "Leaf": {"properties": {"at": {"type": "string"}, "parent": {}}},
        "Tree": {"properties": {"leaves": {}, "until": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
    }
    mark_time_fields([ItemList[Tree]], components)
    assert components["Leaf"]["properties"]["at"]["format"] == "date-time"
    assert components["Tree"]["properties"]["until"]["anyOf"][0]["format"] == "date-time"
    assert components["Tree"]["properties"]["until"]["anyOf"][1] == {"type": "null"}
