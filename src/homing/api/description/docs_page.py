"""Renders the OpenAPI document as the HTML page at `/docs`, without external resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

import msgspec

from homing.api.description.openapi import build_example, describe_limits, describe_type

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of the page: only the page's own style sheet and script may be loaded."""


_CODE = re.compile(r"`([^`]*)`")


Doc = Mapping[str, Any]


def build_docs_page(document: Doc, codes: Mapping[str, Any]) -> bytes:
    """Returns the HTML page with all operations and schemas of the document, and all error codes."""
    info = document["info"]
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>{escape(info['title'])} API</title><link rel=icon href=data:,>",
        "<link rel=stylesheet href=docs/docs.css><script defer src=docs/docs.js></script></head><body>",
        "<div class=page>",
        *_navigation(document),
        f"<main><h1>{escape(info['title'])} API <span class=soft>{escape(info['version'])}</span></h1>",
        f"<p>{_prose(info['description'])}</p>",
        "<p>Send your API key with each request: <code>Authorization: Bearer KEY</code>.",
        " The machine-readable version is <a href=api/v1/openapi.json>openapi.json</a>.</p>",
        *(part for tag in document["tags"] for part in _subject(tag["name"], document)),
        *_errors(codes),
        *_schemas(document["components"]["schemas"]),
        "</main></div></body></html>",
    ]
    return "".join(parts).encode()


def _operations(document: Doc, tag: str) -> Iterator[tuple[str, str, Doc]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation["tags"]:
                yield method, path, operation


def _navigation(document: Doc) -> Iterator[str]:
    yield "<nav><input id=find type=search placeholder='Find …' aria-label='Find operations'>"
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2><ul>"
        for method, path, operation in _operations(document, tag["name"]):
            found = escape(f"{method} {path} {operation['summary']} {operation['operationId']}".lower())
            yield (
                f'<li data-find="{found}"><a href="#{escape(operation["operationId"])}">'
                f"{_prose(operation['summary'].rstrip('.'))}</a></li>"
            )
        yield "</ul>"
    yield "<h2>Reference</h2><ul><li><a href=#errors>Errors</a></li>"
    yield "<li><a href=#schemas>Schemas</a></li></ul></nav>"


def _subject(tag: str, document: Doc) -> Iterator[str]:
    yield f"<h2>{escape(tag)}</h2>"
    for method, path, operation in _operations(document, tag):
        yield from _operation(method, path, operation, document)


def _operation(method: str, path: str, operation: Doc, document: Doc) -> Iterator[str]:
    name = escape(operation["operationId"])
    found = escape(f"{method} {path} {operation['summary']} {operation['operationId']}".lower())
    scopes = re.findall(r"Requires the scope (.*)\.$", operation.get("description", ""))
    scope = f"<span class=scope>{escape(scopes[0].replace('`', ''))}</span>" if scopes else ""
    yield f'<section class=operation id="{name}" data-find="{found}"><details><summary>'
    yield f"{scope}<span class='method {method}'>{method.upper()}</span>"
    yield f"<span class=path>{escape(path)}</span>"
    yield f"<span class=about>{_prose(operation['summary'])}</span></summary><div class=inside>"
    if description := operation.get("description"):
        yield f"<p>{_prose(description)}</p>"
    yield from _parameters(operation["parameters"])
    components = document["components"]["schemas"]
    if body := operation.get("requestBody"):
        for media, content in body["content"].items():
            yield f"<h3>Body <span class=soft>{escape(media)}</span></h3>"
            yield f"<p>{_kind(content['schema'])}</p>"
            given = [given["value"] for given in content.get("examples", {}).values()]
            for value in given or [build_example(content["schema"], components)]:
                yield _json(value)
    yield from _responses(operation["responses"], components)
    yield "</div></details></section>"


def _parameters(parameters: Iterable[Doc]) -> Iterator[str]:
    rows = [
        (
            f"<code>{escape(parameter['name'])}</code>{_needed(parameter['required'])}",
            escape(parameter["in"]),
            _kind(parameter["schema"]),
            _meaning(parameter["schema"], parameter.get("description", "")),
        )
        for parameter in parameters
    ]
    if rows:
        yield "<h3>Parameters</h3>"
        yield _table(("name", "in", "type", "meaning"), rows)


def _responses(responses: Doc, components: Doc) -> Iterator[str]:
    yield "<h3>Responses</h3>"
    rows = []
    shown: list[str] = []
    for status, answer in responses.items():
        content = next(iter(answer.get("content", {}).values()), None)
        rows.append((status, _kind(content["schema"]) if content else "–", _prose(answer["description"])))
        if content and status < "300":
            shown.append(
                f"<h3>Example response, {status}</h3>{_json(build_example(content['schema'], components))}"
            )
    yield _table(("status", "body", "meaning"), rows)
    yield from shown


def _errors(codes: Mapping[str, Any]) -> Iterator[str]:
    yield '<h2 id=errors>Errors</h2><p>The body of every error response is <code>{"error": {"code", '
    yield '"message", "field"?, "notificationId"?}}</code>. The code '
    yield "is for programs, the message for people.</p>"
    rows = [
        (f"<code>{escape(code)}</code>", str(known.status), _prose(known.meaning))
        for code, known in codes.items()
    ]
    yield _table(("code", "status", "meaning"), rows)


def _schemas(schemas: Doc) -> Iterator[str]:
    yield "<h2 id=schemas>Schemas</h2>"
    for name, schema in schemas.items():
        yield f'<div class=schema id="schema-{escape(name)}"><h3>{escape(name)}</h3>'
        if description := schema.get("description"):
            yield f"<p class=soft>{_prose(description)}</p>"
        needed = schema.get("required", ())
        rows = [
            (f"<code>{escape(field)}</code>{_needed(field in needed)}", _kind(own), _meaning(own))
            for field, own in schema.get("properties", {}).items()
        ]
        yield _table(("field", "type", "meaning"), rows) if rows else f"<p>{_kind(schema)}</p>"
        yield "</div>"


def _meaning(schema: Doc, description: str = "") -> str:
    parts = [_prose(description or schema.get("description", "")), escape(", ".join(describe_limits(schema)))]
    return "<br>".join(part for part in parts if part)


def _kind(schema: Doc) -> str:
    """Returns a schema's type as HTML, with links to the schemas that it references."""
    return re.sub(
        r"\{(\w+)\}",
        lambda found: f'<a href="#schema-{found[1]}">{found[1]}</a>',
        escape(describe_type(schema)),
    )


def _prose(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _needed(needed: bool) -> str:
    return " <span class=needed>required</span>" if needed else ""


def _json(value: Any) -> str:
    return f"<pre>{escape(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())}</pre>"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
