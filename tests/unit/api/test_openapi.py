"""The OpenAPI document: complete, consistent with the routes, and readable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from homing.api.all_routes import all_routes
from homing.api.description.docs_page import build_docs_page
from homing.api.description.openapi import build_openapi
from homing.api.http.errors import ERROR_CODES

DOCUMENT = json.loads(
    json.dumps(build_openapi(all_routes(), version="1.2.3", server="https://notify.example.org"))
)
SCHEMAS = DOCUMENT["components"]["schemas"]


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from walk(one)
    elif isinstance(value, list):
        for one in value:
            yield from walk(one)


@cache
def validator(schema: str) -> Draft202012Validator:
    whole = {**json.loads(schema), "components": {"schemas": SCHEMAS}}
    return Draft202012Validator(whole)


def test_every_route_is_an_operation_with_its_own_name() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    assert sorted(names) == sorted(route.handler.__name__ for route in all_routes() if not route.hidden)


def test_every_operation_has_a_summary_and_names_its_scope() -> None:
    for method, path, operation in operations():
        assert operation["summary"], (method, path)
        if "security" in operation:
            assert "Requires the scope" in operation["description"]
            assert {"401", "403", "429"} <= set(operation["responses"])


def test_every_reference_has_a_target() -> None:
    refs = {one["$ref"] for one in walk(DOCUMENT) if "$ref" in one}
    assert refs == {f"#/components/schemas/{name}" for name in SCHEMAS}


def test_every_schema_is_valid() -> None:
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)


def test_every_example_of_a_body_fits_its_schema() -> None:
    seen = 0
    for _, path, operation in operations():
        for content in operation.get("requestBody", {}).get("content", {}).values():
            for example in content.get("examples", {}).values():
                seen += 1
                errors = list(validator(json.dumps(content["schema"])).iter_errors(example["value"]))
                assert not errors, (path, errors)
    assert seen


def test_every_example_of_a_field_fits_its_schema() -> None:
    for schema in walk(SCHEMAS):
        if isinstance(schema.get("examples"), list):
            for example in schema["examples"]:
                own = {key: value for key, value in schema.items() if key != "examples"}
                assert validator(json.dumps(own)).is_valid(example), schema


def test_bounds_are_written_as_they_are_in_the_code() -> None:
    """`typing` treats `Meta(ge=0)` and `Meta(ge=0.0)` as equal and keeps the one that is imported first."""
    ratio = DOCUMENT["components"]["schemas"]["PolicyFields"]["properties"]["jitterRatio"]
    assert (str(ratio["minimum"]), str(ratio["maximum"])) == ("0", "1")


def test_every_error_code_has_the_status_of_the_table() -> None:
    for _, path, operation in operations():
        for status, answer in operation["responses"].items():
            for code in re.findall(r"`([A-Z]{3,}[A-Z_]*)`:", answer["description"]):
                assert ERROR_CODES[code].status == int(status), path


# The page -------------------------------------------------------------------------------------------


def test_the_page_shows_every_operation_schema_and_error_and_loads_nothing_from_elsewhere() -> None:
    text = build_docs_page(DOCUMENT, ERROR_CODES).decode()
    for _, _, operation in operations():
        assert f'id="{operation["operationId"]}"' in text
    for name in SCHEMAS:
        assert f'id="schema-{name}"' in text
    for code in ERROR_CODES:
        assert f"<code>{code}</code>" in text
    loaded = re.findall(r"(?:src|href)=[\"']?([^\"'> ]+)", text)
    assert {one for one in loaded if not one.startswith("#")} == {
        *("data:,", "docs/docs.css", "docs/docs.js", "api/v1/openapi.json")
    }, "relative to the page, so that they work behind a proxy that adds a prefix"
    assert "style=" not in text, "the policy allows none"
    assert not re.search(r"\son[a-z]+=", text), "nor these"


def test_text_of_a_description_cannot_become_markup_of_the_page() -> None:
    evil = json.loads(json.dumps(DOCUMENT).replace("Accept a notification.", "<script>alert(1)</script>"))
    assert b"<script>alert" not in build_docs_page(evil, ERROR_CODES)
