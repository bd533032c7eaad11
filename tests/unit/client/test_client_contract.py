"""The client matches the OpenAPI document: every operation has a method that makes the described request."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import pytest
from msgspec import Struct

from homing import SendRequest
from homing.api.all_routes import all_routes
from homing.api.description.openapi import build_openapi
from homing.client import AsyncClient, Client
from homing.client.requests import PreparedRequest, decode_response
from homing.client.transport import Response, ServiceConnections
from support import json_samples

ROOT = Path(__file__).parents[3]
DOCUMENT = msgspec.json.decode(msgspec.json.encode(build_openapi(all_routes(), version="0")))
BY_HAND = {"send_batch"}
_SAMPLES: dict[Any, list[Any]] = {
    str: ["x", "y"], int: [7, 8], float: [7.5], bool: [True, False], Any: ["x"]
}  # fmt: skip


def operations() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """operationId → verb, path and operation, for operations that need a key."""
    return {
        operation["operationId"]: (verb.upper(), path, operation)
        for path, verbs in DOCUMENT["paths"].items()
        for verb, operation in verbs.items()
        if operation.get("security")
    }


OPERATIONS = operations()


def test_the_generated_code_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "tools/make_client.py", "--check"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrun tools/make_client.py"


def test_both_clients_have_exactly_one_method_per_operation() -> None:
    for client in (Client, AsyncClient):
        methods = {name for name in dir(client) if not name.startswith("_")}
        assert methods == {*OPERATIONS, "send_many", "close"}


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    for name in OPERATIONS:
        one, other = (inspect.signature(getattr(client, name)) for client in (Client, AsyncClient))
        assert one.parameters == other.parameters, name


@pytest.mark.parametrize("name", sorted({*OPERATIONS} - BY_HAND))
def test_a_method_makes_the_request_that_the_service_describes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb, path, operation = OPERATIONS[name]
    asked = asked_by(name, monkeypatch)
    target = urlsplit(asked.target)
    assert asked.method == verb
    assert re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), unquote(target.path)), asked.target
    parameters = {one["name"]: one for one in operation["parameters"]}
    queried = {key for key, _ in parse_qsl(target.query)}
    declared = {key for key, one in parameters.items() if one["in"] == "query"}
    assert queried == declared - {"cursor"}
    for header in set(asked.headers) - {"Accept", "Content-Type"}:
        assert parameters[header]["in"] == "header"
    content = operation.get("requestBody", {}).get("content", {})
    assert (asked.body is not None) == bool(content)
    if asked.body is not None:
        schema = resolved(content["application/json"]["schema"])
        assert set(msgspec.json.decode(asked.body)) == set(schema["properties"])


@pytest.mark.parametrize("name", sorted({*OPERATIONS} - BY_HAND))
def test_a_method_sends_only_what_it_is_given_and_at_most_the_service_s_defaults(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, operation = OPERATIONS[name]
    asked = asked_by(name, monkeypatch, required_only=True)
    parameters = {one["name"]: one for one in operation["parameters"] if one["in"] == "query"}
    for key, value in parse_qsl(urlsplit(asked.target).query):
        assert parameters[key]["required"] or value == str(parameters[key]["schema"]["default"])
    if asked.body is not None:
        schema = resolved(operation["requestBody"]["content"]["application/json"]["schema"])
        for key, value in msgspec.json.decode(asked.body).items():
            assert key in schema["required"] or value == schema["properties"][key]["default"]


def asked_by(name: str, monkeypatch: pytest.MonkeyPatch, *, required_only: bool = False) -> PreparedRequest:
    """What a method sends when each of its parameters is given, or only those without a default."""
    seen: list[PreparedRequest] = []

    def exchange(
        transport: ServiceConnections,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> Response:
        seen.append(
            PreparedRequest(method=method, target=target, headers=headers, body=body, repeatable=False)
        )
        raise RequestCaptured

    monkeypatch.setattr(ServiceConnections, "exchange", exchange)
    method = getattr(Client("http://127.0.0.1:1", "key"), name)
    parameters = inspect.signature(method, eval_str=True).parameters.values()
    given = {
        one.name: sample(one.annotation, one.default)
        for one in parameters
        if not required_only or one.default is inspect.Parameter.empty
    }
    with pytest.raises(RequestCaptured):
        next(method(**given))  # a list method makes its request when it is iterated, the others at once
    return seen[0]


class RequestCaptured(Exception):
    """Raised after the request was captured; no response is needed."""


def sample(kind: Any, default: Any = None) -> Any:
    """Returns a value of this type other than the default."""
    return next(value for value in samples(kind) if value != default)


def samples(kind: Any) -> Iterator[Any]:
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        yield from samples(next(one for one in inside if one is not type(None)))
    elif origin is Literal:
        yield from inside
    elif origin is tuple:
        yield tuple(samples(inside[0]))[:1]
    elif origin in (dict, Mapping):
        yield {"a": 1}
    elif kind is datetime:
        yield datetime(2026, 1, 31, tzinfo=UTC)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield from kind
    elif isinstance(kind, type) and issubclass(kind, Struct):
        hints = get_type_hints(kind)
        yield kind(**{name: sample(hints[name]) for name in kind.__struct_fields__})
    else:
        yield from _SAMPLES[kind]


def resolved(schema: dict[str, Any]) -> Any:
    ref = schema.get("$ref", "")
    return DOCUMENT["components"]["schemas"][ref.rpartition("/")[2]] if ref else schema


def test_the_batch_method_calls_the_batch_route(monkeypatch: pytest.MonkeyPatch) -> None:
    verb, path, operation = OPERATIONS["send_batch"]
    seen: list[tuple[str, str, str]] = []

    def exchange(
        transport: ServiceConnections,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> Response:
        seen.append((method, target, headers["Content-Type"]))
        return Response(200, {}, b'{"accepted":0,"rejected":0,"results":[]}')

    monkeypatch.setattr(ServiceConnections, "exchange", exchange)
    Client("http://127.0.0.1:1", "key").send_batch([SendRequest()])
    (asked,) = seen
    assert asked[:2] == (verb, path)
    assert asked[2] in operation["requestBody"]["content"]


ANSWERS = {
    route.handler.__name__: route.answer
    for route in all_routes()
    if route.scopes and route.answer not in (None, bytes)
}


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_an_answer_may_have_fields_that_an_older_client_does_not_know(name: str) -> None:
    info = msgspec.inspect.type_info(ANSWERS[name])
    full = json_samples.sample(info)
    known = decode_response(Response(200, {}, msgspec.json.encode(full)), ANSWERS[name])
    for path in json_samples.objects(info, full):
        newer = json_samples.with_member(full, path, "xyzzy")
        assert decode_response(Response(200, {}, msgspec.json.encode(newer)), ANSWERS[name]) == known
