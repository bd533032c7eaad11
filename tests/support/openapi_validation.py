"""Validates requests against an OpenAPI file: path, query, form or JSON, each value by its schema.

`OpenApi(path).check("POST", url, body, content_type)` returns the operation's id, or raises AssertionError.
Everything that the file does not name is refused, even if the real server accepts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from support.vector_files import VECTORS

SPECS = VECTORS / "specs"

_DOCUMENT = "spec:document"
_FORM = "application/x-www-form-urlencoded"
_FORMATS = FormatChecker(())


def _is_phone(value: object) -> bool:
    form = r"(whatsapp:)?\+?[0-9]{3,15}|[A-Za-z0-9 ]{1,11}"
    return not isinstance(value, str) or re.fullmatch(form, value) is not None


def _is_uri(value: object) -> bool:
    return not isinstance(value, str) or bool(urlsplit(value).scheme and urlsplit(value).netloc)


_FORMATS.checks("phone-number")(_is_phone)
_FORMATS.checks("uri")(_is_uri)


class OpenApi:
    """One OpenAPI document (3.0 or 3.1)."""

    def __init__(self, name: str) -> None:
        self._document: dict[str, Any] = json.loads((SPECS / name).read_text())
        resource = DRAFT202012.create_resource(self._document)
        self._registry: Registry[Any] = Registry().with_resource(_DOCUMENT, resource)

    def check(self, method: str, url: str, body: bytes = b"", content_type: str = "") -> str:
        """Checks a request and returns the id of its operation."""
        parts = urlsplit(url)
        template, values = self._path(parts.path)
        described = self._document["paths"][template]
        operation = described[method.lower()]
        pointer = ("paths", template, method.lower())
        parameters = [
            self._named(p) for p in (*described.get("parameters", ()), *operation.get("parameters", ()))
        ]
        self._check_parameters(parameters, "path", values.items())
        self._check_parameters(parameters, "query", parse_qsl(parts.query, keep_blank_values=True))
        self._check_body(operation, pointer, body, content_type)
        return str(operation["operationId"])

    def _path(self, path: str) -> tuple[str, dict[str, str]]:
        for template in self._document["paths"]:
            form = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(template))
            found = re.fullmatch(form, path)
            if found:
                return template, {name: unquote(value) for name, value in found.groupdict().items()}
        raise AssertionError(f"there is no path {path}")

    def _named(self, parameter: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in parameter:
            return parameter
        found: Any = self._document
        for step in parameter["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        named: dict[str, Any] = found
        return named

    def _check_parameters(
        self, parameters: list[dict[str, Any]], place: str, given: Iterable[tuple[str, str]]
    ) -> None:
        known = {p["name"]: p for p in parameters if p["in"] == place}
        found = dict(given)
        assert set(found) <= set(known), f"unknown in the {place}: {set(found) - set(known)}"
        missing = {name for name, p in known.items() if p.get("required")} - set(found)
        assert not missing, f"missing in the {place}: {missing}"
        for name, text in found.items():
            self._check(known[name]["schema"], _typed(text, known[name]["schema"]), name)

    def _check_body(
        self, operation: dict[str, Any], pointer: tuple[str, ...], body: bytes, content_type: str
    ) -> None:
        kind = content_type.partition(";")[0].strip()
        named = operation.get("requestBody", {})
        at = (*pointer, "requestBody")
        if "$ref" in named:
            at = tuple(named["$ref"].removeprefix("#/").split("/"))
            named = self._named(named)
        described = named.get("content", {})
        if not described:
            assert not body, "the operation takes no body"
            return
        assert kind in described, f"the operation takes {list(described)}, not {kind!r}"
        schema = described[kind]["schema"]
        value = _form(body, schema) if kind == _FORM else json.loads(body)
        place = "/".join(_escaped(step) for step in (*at, "content", kind, "schema"))
        self._check({"$ref": f"{_DOCUMENT}#/{place}"}, value, "body")

    def _check(self, schema: Mapping[str, Any], value: Any, where: str) -> None:
        validator = Draft202012Validator(schema, registry=self._registry, format_checker=_FORMATS)
        errors = [f"{where}{error.json_path[1:]}: {error.message}" for error in validator.iter_errors(value)]
        assert not errors, errors


def _form(body: bytes, schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a form, each with the type of its schema."""
    properties = schema["properties"]
    value: dict[str, Any] = {}
    for name, text in parse_qsl(
        body.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict"
    ):
        assert name in properties, f"unknown field {name}"
        if properties[name].get("type") == "array":
            value.setdefault(name, []).append(_typed(text, properties[name]["items"]))
        else:
            assert name not in value, f"{name} is given twice"
            value[name] = _typed(text, properties[name])
    return value


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """Converts a text of a form or query to its schema's type, or returns it unchanged if that fails."""
    kind = schema.get("type")
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    if kind == "integer" and re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    if kind == "number" and re.fullmatch(r"-?[0-9.]+", text):
        return float(text)
    return text


def _escaped(step: str) -> str:
    """Escapes one step of a JSON pointer inside a URI's fragment."""
    return step.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D")
